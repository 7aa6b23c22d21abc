"""RNN, GRU and LSTM as graphs: one product for the inputs of all steps, then step by step.

x (time, batch, size) -> gates (time, gate, direction, batch, hidden), gate by gate a view
step: gates[t] + h @ r.T -> activations -> h          both directions are one step
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import DTypeError, ShapeError
from ...types import numpy_dtype
from ..core.tensor import Tensor, TensorLike, as_tensor, constant
from ..elementwise import add, less, maximum, minimum, mul, relu, sigmoid, sub, tanh, where
from ..elementwise.pointwise import number
from ..moves.layout import concat, expand_dims, reshape, slice_, transpose
from .matmul import matmul

Activation = str | Callable[[Tensor], Tensor]
"""A name, or a function of a tensor that works value by value."""
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": tanh,
    "sigmoid": sigmoid,
    "relu": relu,
}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""Which directions go backwards in time."""


@dataclass(frozen=True)
class _Setting:
    """What a call is made of, after its checks.

    gates: (time, gate, direction, batch, hidden), with the biases. r: (gate, direction, hidden,
    hidden). rest: what of the recurrent bias is added within a step, (direction, 1, hidden).
    alive: for each step (direction, batch, 1), or None. functions: for each activation one per
    direction.
    """

    op: str
    backwards: tuple[bool, ...]
    gates: Tensor
    r: Tensor
    rest: Tensor | None
    alive: Tensor | None
    functions: tuple[tuple[Callable[[Tensor], Tensor], ...], ...]
    clip: float | None

    @property
    def steps(self) -> int:
        return self.gates.shape[0]

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.gates.shape[2:]

    def activate(self, which: int, x: Tensor) -> Tensor:
        """Applies an activation to (..., direction, batch, hidden)."""
        if self.clip is not None:
            x = minimum(maximum(x, -self.clip), self.clip)
        functions = self.functions[which]
        if len(set(functions)) == 1:
            return functions[0](x)
        axis = x.rank - 3
        return concat([f(slice_(x, d, d + 1, axis)) for d, f in enumerate(functions)], axis)

    def start(self, what: str, given: TensorLike | None) -> Tensor:
        """Returns an initial state, (direction, batch, hidden)."""
        if given is None:
            return constant(np.zeros(self.state_shape, numpy_dtype(self.gates.dtype)))
        state = as_tensor(given, like=self.gates)
        if state.shape != self.state_shape:
            raise ShapeError(
                f"[{self.op}] expected {what} of shape {self.state_shape}, got {state.shape}"
            )
        return state

    def recur(self, h: Tensor, r: Tensor) -> Tensor:
        """h (direction, batch, hidden) times r -> (gate, direction, batch, hidden)."""
        return matmul(expand_dims(h, 0), r, transpose_b=True)

    def keep(self, step: int, new: Tensor, old: Tensor) -> Tensor:
        """The new state of the sequences that are not over, else the old one."""
        return new if self.alive is None else where(self.alive[step], new, old)

    def join(self, states: Sequence[Tensor], name: str | None) -> Tensor:
        """Returns the states of all steps as (time, direction, batch, hidden)."""
        count, _, batch, hidden = (len(states), *self.state_shape)
        if not states:
            empty = np.zeros((0, *self.state_shape), numpy_dtype(self.gates.dtype))
            return constant(empty, name)
        if self.alive is not None:
            nothing = constant(np.zeros((), numpy_dtype(self.gates.dtype)))
            states = [where(self.alive[t], h, nothing) for t, h in enumerate(states)]
        rows = [
            slice_(states[count - 1 - t if back else t], d, d + 1, 0)
            for t in range(count)
            for d, back in enumerate(self.backwards)
        ]
        return reshape(concat(rows, 0), (count, len(self.backwards), batch, hidden), name=name)


def _flip(x: Tensor) -> Tensor:
    return slice_(x, -1, None, 0, -1) if x.shape[0] > 1 else x


def _shape(op: str, what: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tensor.shape != wanted:
        raise ShapeError(f"[{op}] expected {what} of shape {wanted}, got {tensor.shape}")


def _prepare(
    op: str,
    gates: int,
    operands: tuple[TensorLike, TensorLike, TensorLike, TensorLike | None],
    direction: str,
    activations: Sequence[Activation] | None,
    defaults: tuple[str, ...],
    sequence_lens: TensorLike | None,
    clip: float | None,
    apart: bool = False,
) -> _Setting:
    """Checks the operands and multiplies all inputs. apart: the recurrent bias of the last gate is
    added within the step.
    """
    x = as_tensor(operands[0])
    w, r = (as_tensor(t, like=x) for t in operands[1:3])
    backwards = _DIRECTIONS.get(direction) if isinstance(direction, str) else None
    if clip is not None:
        clip = number(op, "clip", clip)
        if clip <= 0:
            raise DTypeError(f"[{op}] expected a clip above 0, got {clip}")
    if backwards is None:
        raise ShapeError(f"[{op}] expected one of {', '.join(_DIRECTIONS)}, got {direction!r}")
    if x.rank != 3 or r.rank != 3:
        raise ShapeError(
            f"[{op}] expected x (time, batch, size) and r (direction, {gates} * hidden, hidden), "
            f"got {x.shape} and {r.shape}"
        )
    (time, batch, size), hidden, count = x.shape, r.shape[2], len(backwards)
    _shape(op, "w", w, (count, gates * hidden, size))
    _shape(op, "r", r, (count, gates * hidden, hidden))
    bias, rest = None, None
    if operands[3] is not None:
        b = as_tensor(operands[3], like=x)
        _shape(op, "b", b, (count, 2 * gates * hidden))
        both = reshape(b, (count, 2, gates * hidden))
        bias = add(both[:, 0], both[:, 1])
        if apart:
            split = (gates - 1) * hidden
            bias = concat([bias[:, :split], both[:, 0, split:]], 1)
            rest = reshape(both[:, 1, split:], (count, 1, hidden))
    return _Setting(
        op,
        backwards,
        _inputs(x, w, bias, backwards, gates),
        transpose(reshape(r, (count, gates, hidden, hidden)), (1, 0, 2, 3)),
        rest,
        _alive(op, sequence_lens, backwards, time, batch),
        _functions(op, activations, defaults, count),
        clip,
    )


def _inputs(
    x: Tensor, w: Tensor, bias: Tensor | None, backwards: tuple[bool, ...], gates: int
) -> Tensor:
    """x times w of all steps -> (time, gate, direction, batch, hidden), in the order of steps."""
    (time, batch, size), count = x.shape, len(backwards)
    hidden = w.shape[1] // gates
    ordered = [reshape(_flip(x) if back else x, (1, time * batch, size)) for back in backwards]
    if count == 1:
        shift = None if bias is None else reshape(bias, (gates * hidden,))
        product = matmul(ordered[0], w, shift, transpose_b=True)
    else:
        product = matmul(concat(ordered, 0), w, transpose_b=True)
        product = product if bias is None else add(product, expand_dims(bias, 1))
    return transpose(reshape(product, (count, time, batch, gates, hidden)), (1, 3, 0, 2, 4))


def _alive(
    op: str,
    sequence_lens: TensorLike | None,
    backwards: tuple[bool, ...],
    time: int,
    batch: int,
) -> Tensor | None:
    """Whether a sequence is not over, (step, direction, batch, 1)."""
    if sequence_lens is None:
        return None
    lengths = as_tensor(sequence_lens)
    _shape(op, "sequence_lens", lengths, (batch,))
    times = np.stack([np.arange(time)[:: -1 if back else 1] for back in backwards], 1)
    now = constant(times.reshape(time, -1, 1, 1).astype(numpy_dtype(lengths.dtype)))
    return less(now, reshape(lengths, (batch, 1)))


def _functions(
    op: str, activations: Sequence[Activation] | None, defaults: tuple[str, ...], directions: int
) -> tuple[tuple[Callable[[Tensor], Tensor], ...], ...]:
    """Returns for each activation its function in each direction."""
    given = tuple(activations or defaults * directions)
    if isinstance(activations, str):
        given = (activations,)
    if len(given) != len(defaults) * directions:
        raise ShapeError(
            f"[{op}] expected {len(defaults) * directions} activations, got {len(given)}"
        )
    found = []
    for activation in given:
        function = (
            _ACTIVATIONS.get(activation.lower()) if isinstance(activation, str) else activation
        )
        if not callable(function):
            raise ShapeError(
                f"[{op}] expected {', '.join(_ACTIVATIONS)} or a function, got {activation!r}"
            )
        found.append(function)
    return tuple(tuple(found[i :: len(defaults)]) for i in range(len(defaults)))


def rnn(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    *,
    initial_h: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    direction: str = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """h = tanh(x w^T + h r^T + b) for each step, as ONNX RNN: returns all h and the last.

    x: (time, batch, size), w: (d, hidden, size), r: (d, hidden, hidden), b: (d, 2 * hidden),
    initial_h: (d, batch, hidden) -> (time, d, batch, hidden), (d, batch, hidden); d is 2 for the
    direction "bidirectional", else 1. activations: one for each direction. sequence_lens: (batch,).
    """
    s = _prepare("rnn", 1, (x, w, r, b), direction, activations, ("tanh",), sequence_lens, clip)
    h, states = s.start("initial_h", initial_h), []
    for t in range(s.steps):
        new = s.activate(0, add(s.gates[t], s.recur(h, s.r))[0])
        h = s.keep(t, new, h)
        states.append(h)
    return s.join(states, name), h


def gru(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    *,
    initial_h: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    direction: str = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    linear_before_reset: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Gated recurrent unit, as ONNX GRU: returns the states of all steps and the last.

    Shapes as in `rnn`, with w, r and b three times as long: the gates update, reset, hidden.
    activations: of the gates and of the hidden state, for each direction. linear_before_reset: the
    reset gate scales h r^T + b instead of h, as in cuDNN and torch.
    """
    defaults = ("sigmoid", "tanh")
    apart = linear_before_reset
    s = _prepare(
        "gru", 3, (x, w, r, b), direction, activations, defaults, sequence_lens, clip, apart
    )
    h, states = s.start("initial_h", initial_h), []
    r_gates = s.r if linear_before_reset else s.r[:2]
    for t in range(s.steps):
        product = s.recur(h, r_gates)
        gates = s.activate(0, add(s.gates[t, :2], product[:2]))
        update, reset = gates[0], gates[1]
        if linear_before_reset:
            inner = product[2] if s.rest is None else add(product[2], s.rest)
            inner = mul(reset, inner)
        else:
            inner = s.recur(mul(reset, h), s.r[2:])[0]
        hidden = s.activate(1, add(s.gates[t, 2], inner))
        h = s.keep(t, add(hidden, mul(update, sub(h, hidden))), h)
        states.append(h)
    return s.join(states, name), h


def lstm(
    x: TensorLike,
    w: TensorLike,
    r: TensorLike,
    b: TensorLike | None = None,
    *,
    initial_h: TensorLike | None = None,
    initial_c: TensorLike | None = None,
    peepholes: TensorLike | None = None,
    sequence_lens: TensorLike | None = None,
    direction: str = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Long short-term memory, as ONNX LSTM: returns all h, the last h and the last c.

    Shapes as in `rnn`, with w, r and b four times as long: the gates input, output, forget, cell;
    peepholes: (d, 3 * hidden) for the first three. activations: of the gates, of the cell gate and
    of the cell state, for each direction. input_forget: what the input gate leaves is the forget
    gate.
    """
    defaults = ("sigmoid", "tanh", "tanh")
    s = _prepare("lstm", 4, (x, w, r, b), direction, activations, defaults, sequence_lens, clip)
    h, c, states = s.start("initial_h", initial_h), s.start("initial_c", initial_c), []
    peep = None
    if peepholes is not None:
        given, (count, _, hidden) = as_tensor(peepholes, like=s.gates), s.state_shape
        _shape("lstm", "peepholes", given, (count, 3 * hidden))
        peep = transpose(reshape(given, (count, 3, 1, hidden)), (1, 0, 2, 3))
    for t in range(s.steps):
        gates = add(s.gates[t], s.recur(h, s.r))
        cell = s.activate(1, gates[3])
        if peep is None:
            opened = s.activate(0, gates[:3])
            into, out = opened[0], opened[1]
            forget = sub(1.0, into) if input_forget else opened[2]
            new = add(mul(forget, c), mul(into, cell))
        else:
            into = s.activate(0, add(gates[0], mul(peep[0], c)))
            forget = (
                sub(1.0, into) if input_forget else s.activate(0, add(gates[2], mul(peep[2], c)))
            )
            new = add(mul(forget, c), mul(into, cell))
            out = s.activate(0, add(gates[1], mul(peep[1], new)))
        h = s.keep(t, mul(out, s.activate(2, new)), h)
        c = s.keep(t, new, c)
        states.append(h)
    return s.join(states, name), h, c
