"""Recurrent layers in numpy, and by native loops (native/cpu_kernels/rnn/).

initial h, c -> last rows of the result -> time steps: update h and c there, store h as a row
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...common.dtypes import NDArray
from ...ir.attrs import Attrs
from ...ir.cpu_kernel import CpuKernel, Piece
from ..elementwise.activation import sigmoid_reference
from ..lowering import native_kernels
from .cell import Cell, Operands, cell_of, operands_of

SEQUENCES = 4
"""Sequences of a piece: native loops process this many together."""
MIN_PIECE = 1 << 20
"""Minimum multiplications of a piece over all its time steps: about 50 us."""
MIN_SPLIT_ELEMENTS = 1 << 12
"""Minimum elements of the inputs for which a call is split."""


_FUNCTIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "sigmoid": sigmoid_reference,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


class _Direction:
    """One direction of a call: r is (hidden, gates * hidden), own is (gates * hidden,) or None."""

    def __init__(self, cell: Cell, direction: int, r: NDArray, own: NDArray | None) -> None:
        self._cell, self._r, self._own = cell, r, own
        self._functions = [_FUNCTIONS[name] for name in cell.activations[direction]]
        self._hidden = len(r)
        self._steps: dict[str, Callable[..., list[NDArray]]] = {
            "rnn": self._rnn,
            "gru": self._gru,
            "lstm": self._lstm,
        }

    def time_step(self, gates: NDArray, states: NDArray) -> list[NDArray]:
        """Return the next states.

        `gates` is (batch, gates * hidden), `states` is (states, batch, hidden).
        """
        with np.errstate(all="ignore"):
            return self._steps[self._cell.kind](gates, *states)

    def _activate(self, which: int, x: NDArray) -> NDArray:
        clip = self._cell.clip
        if clip:
            x = np.minimum(np.maximum(x, x.dtype.type(-clip)), x.dtype.type(clip))
        return self._functions[which](x)

    def _gate(self, x: NDArray, first: int, end: int | None = None) -> NDArray:
        """Return the columns of gate `first`, or of the gates `first` to `end` - 1."""
        return x[..., first * self._hidden : (end or first + 1) * self._hidden]

    def _rnn(self, gates: NDArray, h: NDArray) -> list[NDArray]:
        return [self._activate(0, gates + h @ self._r)]

    def _gru(self, gates: NDArray, h: NDArray) -> list[NDArray]:
        opened = self._activate(0, self._gate(gates, 0, 2) + h @ self._gate(self._r, 0, 2))
        update, reset, last = self._gate(opened, 0), self._gate(opened, 1), self._gate(self._r, 2)
        if self._cell.linear:
            inner = h @ last
            inner = reset * (inner if self._own is None else inner + self._gate(self._own, 2))
        else:
            inner = (reset * h) @ last
        hidden = self._activate(1, self._gate(gates, 2) + inner)
        return [hidden + update * (h - hidden)]

    def _lstm(self, gates: NDArray, h: NDArray, c: NDArray) -> list[NDArray]:
        gates = gates + h @ self._r
        cell = self._activate(1, self._gate(gates, 3))
        into = self._activate(0, self._with_peephole(gates, 0, c))
        forget = (
            1 - into if self._cell.coupled else self._activate(0, self._with_peephole(gates, 2, c))
        )
        new = forget * c + into * cell
        out = self._activate(0, self._with_peephole(gates, 1, new))
        return [out * self._activate(2, new), new]

    def _with_peephole(self, gates: NDArray, gate: int, c: NDArray) -> NDArray:
        """Return a gate with the contribution of its peephole."""
        value = self._gate(gates, gate)
        return value if self._own is None else value + self._gate(self._own, gate) * c


def _write(cell: Cell, args: Operands[NDArray], out: NDArray) -> None:
    time = args.gates.shape[1]
    out[time:] = args.state
    for d, back in enumerate(cell.backwards):
        own = None if args.own is None else args.own[d]
        direction, states = _Direction(cell, d, args.r[d], own), out[time:, d]
        for t in range(time)[:: -1 if back else 1]:
            new = direction.time_step(args.gates[d, t], states)
            if args.lengths is None:
                out[t, d], states[...] = new[0], new
            else:
                alive = (t < args.lengths)[:, None]
                out[t, d], states[...] = np.where(alive, new[0], 0), np.where(alive, new, states)


def rnn_scan_reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Return (time + states, direction, batch, hidden): all h, then the last states."""
    cell = cell_of(attrs)
    args = operands_of(cell, inputs)
    states, *rest = args.state.shape
    out: NDArray = np.empty((args.gates.shape[1] + states, *rest), args.gates.dtype)
    if out.size:  # without sequences there may be any number of time steps
        _write(cell, args, out)
    return out


def _compute(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> None:
    cell = cell_of(attrs)
    args = operands_of(cell, inputs)
    if args.rest:  # a piece of one direction
        cell = cell.only(int(args.rest[0]))
    layer = (cell.kind, cell.backwards, cell.activations, cell.clip, cell.coupled, cell.linear)
    operands = (args.gates, args.r, args.state, args.own, args.lengths)
    if out.size and not native_kernels.rnn_scan(layer, operands, out):
        _write(cell, args, out)


def _cut(inputs: tuple[NDArray, ...], attrs: Attrs, out: NDArray) -> Iterator[Piece]:
    """Split by direction and sequences; each piece has the number of its direction."""
    args = operands_of(cell_of(attrs), inputs)
    directions, time, batch, columns = args.gates.shape
    each = max(1, time * columns * args.r.shape[1])  # per sequence
    if directions * batch * each < 2 * MIN_PIECE:
        yield inputs, out
        return
    count = -(-MIN_PIECE // (each * SEQUENCES)) * SEQUENCES
    for d in range(directions):
        one, number = slice(d, d + 1), np.asarray(d)
        for start in range(0, batch, count):
            some = slice(start, start + count)
            own = () if args.own is None else (args.own[one],)
            lengths = () if args.lengths is None else (args.lengths[some],)
            first = args.gates[one, :, some], args.r[one], args.state[:, one, some]
            yield (*first, *own, *lengths, number), out[:, one, some]


CPU_KERNEL = CpuKernel(_compute, _cut, MIN_SPLIT_ELEMENTS)
