"""RNN, GRU and LSTM: one product for the inputs of all time steps, then all time steps in one op.

x (time, batch, size) -> gates (direction, time, batch, gates * hidden) -> rnn_scan -> y, h, c
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...common.dtypes import numpy_dtype
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor, constant
from ..elementwise import add
from ..elementwise.pointwise import number
from ..layout.reshape import concat, expand_dims, reshape, slice_, transpose
from ..linalg.matmul import matmul
from .cell import DEFAULTS, GATES, STATES, Cell, Operands
from .rnn_scan import rnn_scan
from .rnn_unrolled import FUNCTIONS, Function, unrolled

Activation = str | Callable[[Tensor], Tensor]
"""A name, or an elementwise function of a tensor."""
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
"""For each direction, whether it goes backwards in time."""
_NAMES = {function: name for name, function in FUNCTIONS.items()}


def _shape(op: str, what: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    if tensor.shape != wanted:
        raise ShapeError(f"[{op}] expected {what} of shape {wanted}, got {tensor.shape}")


def _backwards(op: str, direction: str) -> tuple[bool, ...]:
    backwards = _DIRECTIONS.get(direction) if isinstance(direction, str) else None
    if backwards is None:
        raise ShapeError(f"[{op}] expected one of {', '.join(_DIRECTIONS)}, got {direction!r}")
    return backwards


def _clip(op: str, clip: float | None) -> float:
    if clip is None:
        return 0.0
    clip = number(op, "clip", clip)
    if clip <= 0:
        raise DTypeError(f"[{op}] expected a clip above 0, got {clip}")
    return clip


def _functions(
    op: str, activations: Sequence[Activation] | None, directions: int
) -> list[tuple[Function, ...]]:
    """Return the activations of each direction."""
    defaults = DEFAULTS[op]
    chosen = tuple(activations or defaults * directions)
    if isinstance(activations, str):
        chosen = (activations,)
    if len(chosen) != len(defaults) * directions:
        raise ShapeError(
            f"[{op}] expected {len(defaults) * directions} activations, got {len(chosen)}"
        )
    found: list[Function] = []
    for activation in chosen:
        function = FUNCTIONS.get(activation.lower()) if isinstance(activation, str) else activation
        if not callable(function):
            raise ShapeError(
                f"[{op}] expected {', '.join(FUNCTIONS)} or a function, got {activation!r}"
            )
        found.append(function)
    each = len(defaults)
    return [tuple(found[i : i + each]) for i in range(0, len(found), each)]


class _Layer:
    """A checked call: operands x, w, r and b, and the initial states by name."""

    def __init__(
        self,
        op: str,
        operands: tuple[TensorLike, TensorLike, TensorLike, TensorLike | None],
        states: dict[str, TensorLike | None],
        direction: str,
        sequence_lens: TensorLike | None,
    ) -> None:
        self._op = op
        self.backwards = _backwards(op, direction)
        self._x = as_tensor(operands[0])
        self._w, self._r = (as_tensor(t, like=self._x) for t in operands[1:3])
        gates = GATES[op]
        if self._x.rank != 3 or self._r.rank != 3:
            raise ShapeError(
                f"[{op}] expected x (time, batch, size) and r (direction, {gates} * hidden, "
                f"hidden), got {self._x.shape} and {self._r.shape}"
            )
        self._time, self._batch, size = self._x.shape
        self._hidden, self._count = self._r.shape[2], len(self.backwards)
        self._columns = gates * self._hidden
        _shape(op, "w", self._w, (self._count, self._columns, size))
        _shape(op, "r", self._r, (self._count, self._columns, self._hidden))
        self._b = None
        if operands[3] is not None:
            b = as_tensor(operands[3], like=self._x)
            _shape(op, "b", b, (self._count, 2 * self._columns))
            self._b = reshape(b, (self._count, 2, self._columns))
        self._lengths = None
        if sequence_lens is not None:
            self._lengths = as_tensor(sequence_lens)
            _shape(op, "sequence_lens", self._lengths, (self._batch,))
        self._state = self._start(states)

    def _start(self, initial: dict[str, TensorLike | None]) -> Tensor:
        """Return the initial states, (states, direction, batch, hidden)."""
        shape = (self._count, self._batch, self._hidden)
        if all(state is None for state in initial.values()):
            return constant(np.zeros((len(initial), *shape), numpy_dtype(self._x.dtype)))
        initial_states = []
        for what, state in initial.items():
            if state is None:
                state = np.zeros(shape, numpy_dtype(self._x.dtype))
            initial_states.append(as_tensor(state, like=self._x))
            _shape(self._op, what, initial_states[-1], shape)
        together = concat(initial_states, 0) if len(initial_states) > 1 else initial_states[0]
        return reshape(together, (len(initial_states), *shape))

    def own_bias(self) -> Tensor | None:
        """Remove the recurrent bias of the last gate from the input bias.

        Return it with zeros for the other gates.
        """
        if self._b is None:
            return None
        split = self._columns - self._hidden
        nothing = np.zeros((self._count, split), numpy_dtype(self._x.dtype))
        own = concat([nothing, self._b[:, 1, split:]], 1)
        both = concat([self._b[:, 1, :split], np.zeros_like(nothing[:, : self._hidden])], 1)
        self._b = concat([self._b[:, :1], expand_dims(both, 1)], 1)
        return own

    def peepholes(self, weights: TensorLike) -> Tensor:
        """Return peepholes with zeros for the cell gate."""
        tensor = as_tensor(weights, like=self._x)
        _shape(self._op, "peepholes", tensor, (self._count, self._columns - self._hidden))
        nothing = np.zeros((self._count, self._hidden), numpy_dtype(self._x.dtype))
        return concat([tensor, nothing], 1)

    def _gates(self) -> Tensor:
        """Return x @ w^T + biases of all time steps: (direction, time, batch, gates * hidden)."""
        x = reshape(self._x, (1, self._time * self._batch, self._x.shape[2]))
        bias = None if self._b is None else add(self._b[:, 0], self._b[:, 1])
        if self._count == 1:
            shift = None if bias is None else reshape(bias, (self._columns,))
            product = matmul(x, self._w, shift, transpose_b=True)
        else:
            product = matmul(x, self._w, transpose_b=True)
            product = product if bias is None else add(product, expand_dims(bias, 1))
        return reshape(product, (self._count, self._time, self._batch, self._columns))

    def run(
        self,
        activations: Sequence[Activation] | None,
        clip: float | None,
        own: Tensor | None,
        name: str | None,
        coupled: bool = False,
        linear: bool = False,
    ) -> tuple[Tensor, ...]:
        """Return the states of all time steps, (time, direction, batch, hidden), then the last."""
        functions = _functions(self._op, activations, self._count)
        names = tuple(tuple(_NAMES.get(f, "") for f in each) for each in functions)
        cell = Cell(
            self._op,
            self.backwards,
            names,
            _clip(self._op, clip),
            coupled,
            linear,
            own is not None,
            self._lengths is not None,
        )
        r = transpose(self._r, (0, 2, 1))
        args = Operands(self._gates(), r, self._state, own, self._lengths, ())
        if all(map(all, names)):
            merged = rnn_scan(cell, args)
        else:
            merged = unrolled(cell, args, functions)
        shape = merged.shape[1:]
        last = (
            reshape(slice_(merged, self._time + i, self._time + i + 1, 0), shape)
            for i in range(STATES[self._op])
        )
        return slice_(merged, 0, self._time, 0, name=name), *last


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
    """Apply an RNN: h = tanh(x w^T + h r^T + b) for each time step, as ONNX RNN.

    Parameters
    ----------
    x : Tensor
        (time, batch, size).
    w, r, b : Tensor
        (d, hidden, size), (d, hidden, hidden) and (d, 2 * hidden). d is 2 for a bidirectional RNN,
        else 1.
    initial_h : Tensor, optional
        (d, batch, hidden); default: 0.
    sequence_lens : Tensor, optional
        (batch,) lengths of the sequences.
    direction : {"forward", "reverse", "bidirectional"}
        Direction in time.
    activations : sequence, optional
        One per direction.

    Returns
    -------
    tuple of Tensor
        All h, (time, d, batch, hidden), and the last h, (d, batch, hidden).
    """
    layer = _Layer("rnn", (x, w, r, b), {"initial_h": initial_h}, direction, sequence_lens)
    y, h = layer.run(activations, clip, None, name)
    return y, h


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
    """Apply a gated recurrent unit, as ONNX GRU.

    Parameters
    ----------
    w, r, b : Tensor
        As in `rnn`, three times as long: the gates update, reset, hidden.
    activations : sequence, optional
        Activations of the gates and of the hidden state, for each direction.
    linear_before_reset : bool
        The reset gate scales h r^T + b instead of h, as in cuDNN and torch.

    Returns
    -------
    tuple of Tensor
        All h and the last h, as in `rnn`.
    """
    layer = _Layer("gru", (x, w, r, b), {"initial_h": initial_h}, direction, sequence_lens)
    own = layer.own_bias() if linear_before_reset else None
    y, h = layer.run(activations, clip, own, name, linear=bool(linear_before_reset))
    return y, h


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
    """Apply a long short-term memory, as ONNX LSTM.

    Parameters
    ----------
    w, r, b : Tensor
        As in `rnn`, four times as long: the gates input, output, forget, cell.
    initial_h, initial_c : Tensor, optional
        (d, batch, hidden); default: 0.
    peepholes : Tensor, optional
        (d, 3 * hidden), for the first three gates.
    activations : sequence, optional
        Activations of the gates, the cell gate and the cell state, for each direction.
    input_forget : bool
        The forget gate is 1 - the input gate.

    Returns
    -------
    tuple of Tensor
        All h, the last h and the last c, as in `rnn`.
    """
    states = {"initial_h": initial_h, "initial_c": initial_c}
    layer = _Layer("lstm", (x, w, r, b), states, direction, sequence_lens)
    own = None if peepholes is None else layer.peepholes(peepholes)
    y, h, c = layer.run(activations, clip, own, name, coupled=bool(input_forget))
    return y, h, c
