"""Recurrent layers unrolled into other ops.

    gates (direction, time, batch, gates * hidden) -> gate by gate (time, gate, direction, ...)
    time step: gates[t] + h @ r -> activations -> h          both directions are one time step

They serve activations that `rnn_scan` does not support, and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.dtypes import numpy_dtype
from ...ir.tensor import Tensor, constant
from ..elementwise import (
    add,
    less,
    maximum,
    minimum,
    mul,
    relu,
    sigmoid,
    sub,
    tanh,
    where,
)
from ..layout.reshape import concat, expand_dims, reshape, slice_, transpose
from ..linalg.matmul import matmul
from .cell import Cell, Operands

Function = Callable[[Tensor], Tensor]
"""An elementwise activation."""
FUNCTIONS: dict[str, Function] = {"sigmoid": sigmoid, "tanh": tanh, "relu": relu}


def unrolled(
    cell: Cell, args: Operands[Tensor], functions: Sequence[Sequence[Function]] = ()
) -> Tensor:
    """Return the result of the op `rnn_scan`.

    `functions` holds the activations of each direction and replaces the cell's activations.
    """
    used = functions or [[FUNCTIONS[name] for name in names] for names in cell.activations]
    steps = _TimeSteps(cell, _by_time_step(cell, args), used)
    step: Callable[..., tuple[Tensor, ...]] = getattr(steps, cell.kind)
    states, outputs = tuple(args.state[i] for i in range(cell.states)), []
    for t in range(args.gates.shape[1]):
        states = tuple(steps.keep(t, *both) for both in zip(step(t, *states), states, strict=True))
        outputs.append(states[0])
    return steps.join(outputs, states)


@dataclass(frozen=True)
class _Parts:
    """Operands in the order of time steps.

    Attributes
    ----------
    gates : Tensor
        (time, gate, direction, batch, hidden).
    r : Tensor
        (gate, direction, hidden, hidden).
    own : Tensor or None
        (gate, direction, 1, hidden).
    alive : Tensor or None
        (time, direction, batch, 1): true for sequences that have not ended.
    """

    gates: Tensor
    r: Tensor
    own: Tensor | None
    alive: Tensor | None


def _by_time_step(cell: Cell, args: Operands[Tensor]) -> _Parts:
    count, time, batch, columns = args.gates.shape
    hidden = columns // cell.gates
    ordered = args.gates
    if any(cell.backwards) and time > 1:
        each = (slice_(args.gates, d, d + 1, 0) for d in range(count))
        reversed_rows = (
            slice_(g, -1, None, 1, -1) if back else g
            for g, back in zip(each, cell.backwards, strict=True)
        )
        ordered = concat(list(reversed_rows), 0)
    gates = reshape(ordered, (count, time, batch, cell.gates, hidden))
    own = args.own
    if own is not None:
        own = transpose(reshape(own, (count, cell.gates, 1, hidden)), (1, 0, 2, 3))
    return _Parts(
        transpose(gates, (1, 3, 0, 2, 4)),
        transpose(reshape(args.r, (count, hidden, cell.gates, hidden)), (2, 0, 1, 3)),
        own,
        None if args.lengths is None else _alive(args.lengths, cell.backwards, time, batch),
    )


def _alive(lengths: Tensor, backwards: tuple[bool, ...], time: int, batch: int) -> Tensor:
    times = np.stack([np.arange(time)[:: -1 if back else 1] for back in backwards], 1)
    now = constant(times[:, :, None, None].astype(numpy_dtype(lengths.dtype)))
    return less(now, reshape(lengths, (batch, 1)))


class _TimeSteps:
    """The time steps of a call: each kind of cell maps gates and states to new states.

    All are (direction, batch, hidden).
    """

    def __init__(self, cell: Cell, parts: _Parts, functions: Sequence[Sequence[Function]]) -> None:
        self._cell, self._parts, self._functions = cell, parts, functions

    def rnn(self, t: int, h: Tensor) -> tuple[Tensor, ...]:
        p = self._parts
        return (self._activate(0, add(p.gates[t], self._recur(h, p.r))[0]),)

    def gru(self, t: int, h: Tensor) -> tuple[Tensor, ...]:
        p, linear = self._parts, self._cell.linear
        product = self._recur(h, p.r if linear else p.r[:2])
        opened = self._activate(0, add(p.gates[t, :2], product[:2]))
        update, reset = opened[0], opened[1]
        if linear:
            inner = product[2] if p.own is None else add(product[2], p.own[2])
            inner = mul(reset, inner)
        else:
            inner = self._recur(mul(reset, h), p.r[2:])[0]
        hidden = self._activate(1, add(p.gates[t, 2], inner))
        return (add(hidden, mul(update, sub(h, hidden))),)

    def lstm(self, t: int, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        own, coupled = self._parts.own, self._cell.coupled
        gates = add(self._parts.gates[t], self._recur(h, self._parts.r))
        cell = self._activate(1, gates[3])
        if own is None:
            opened = self._activate(0, gates[:3])
            into, out = opened[0], opened[1]
            forget = sub(1.0, into) if coupled else opened[2]
            new = add(mul(forget, c), mul(into, cell))
        else:
            into = self._activate(0, add(gates[0], mul(own[0], c)))
            forget = sub(1.0, into) if coupled else self._activate(0, add(gates[2], mul(own[2], c)))
            new = add(mul(forget, c), mul(into, cell))
            out = self._activate(0, add(gates[1], mul(own[1], new)))
        return mul(out, self._activate(2, new)), new

    def keep(self, t: int, new: Tensor, old: Tensor) -> Tensor:
        """Return the new state for sequences that have not ended, else the old state."""
        alive = self._parts.alive
        return new if alive is None else where(alive[t], new, old)

    def join(self, outputs: list[Tensor], states: tuple[Tensor, ...]) -> Tensor:
        """Return the states of all time steps, in the order of time, and the last states."""
        count = len(outputs)
        if self._parts.alive is not None:
            nothing = constant(np.zeros((), numpy_dtype(states[0].dtype)))
            outputs = [where(self._parts.alive[t], h, nothing) for t, h in enumerate(outputs)]
        rows = [
            slice_(outputs[count - 1 - t if back else t], d, d + 1, 0)
            for t in range(count)
            for d, back in enumerate(self._cell.backwards)
        ]
        return reshape(concat([*rows, *states], 0), (count + len(states), *states[0].shape))

    def _activate(self, which: int, x: Tensor) -> Tensor:
        """Apply an activation to (..., direction, batch, hidden)."""
        clip = self._cell.clip
        if clip:
            x = minimum(maximum(x, -clip), clip)
        functions = [each[which] for each in self._functions]
        if len(set(functions)) == 1:
            return functions[0](x)
        axis = x.rank - 3
        return concat([f(slice_(x, d, d + 1, axis)) for d, f in enumerate(functions)], axis)

    def _recur(self, h: Tensor, r: Tensor) -> Tensor:
        """Return h (direction, batch, hidden) times r: (gate, direction, batch, hidden)."""
        return matmul(expand_dims(h, 0), r)
