"""Description of a recurrent cell as plain data: the attributes of the op `rnn_scan`.

op       gates                          activations of
rnn      state                          the state
gru      update, reset, hidden          the gates, the hidden state
lstm     input, output, forget, cell    the gates, the cell gate, the cell state
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ...ir.attr_domains import Domains, Flag, Float, TupleOf, as_many_as, one_of
from ...ir.attrs import Attrs, AttrValue

T = TypeVar("T")

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
STATES = {"rnn": 1, "gru": 1, "lstm": 2}
"""Number of states: h, and also c for an LSTM."""
DEFAULTS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
NAMED = ("sigmoid", "tanh", "relu")
"""Activations that the op supports."""

ATTRS: Domains = {
    "kind": one_of(*GATES),
    "backwards": TupleOf(Flag(), least=1, most=2),
    "activations": TupleOf(TupleOf(one_of(*NAMED), least=1, most=3), as_many_as("backwards")),
    "clip": Float(0.0),
    "input_forget": Flag(),
    "linear_before_reset": Flag(),
    "own": Flag(),
    "masked": Flag(),
}
"""The attributes of a cell, as declared by the op."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A recurrent cell.

    Attributes
    ----------
    kind : str
        A key of `GATES`.
    backwards : tuple of bool
        Whether each direction goes back in time.
    activations : tuple of tuple of str
        The activations of each direction.
    clip : float
        Maximum magnitude of the inputs of activations; 0: unlimited.
    coupled : bool
        The forget gate of an LSTM is 1 - its input gate.
    linear : bool
        The reset gate of a GRU scales the product, not h.
    own : bool
        There is an operand that is added within a time step: LSTM peepholes, or the recurrent bias
        of a GRU's last gate.
    masked : bool
        There is an operand with sequence lengths.
    """

    kind: str
    backwards: tuple[bool, ...]
    activations: tuple[tuple[str, ...], ...]
    clip: float = 0.0
    coupled: bool = False
    linear: bool = False
    own: bool = False
    masked: bool = False

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def states(self) -> int:
        return STATES[self.kind]

    @property
    def attrs(self) -> dict[str, AttrValue]:
        """Return the cell as attributes of a node."""
        return {
            "kind": self.kind,
            "backwards": self.backwards,
            "activations": self.activations,
            "clip": self.clip,
            "input_forget": self.coupled,
            "linear_before_reset": self.linear,
            "own": self.own,
            "masked": self.masked,
        }

    def only(self, direction: int) -> Cell:
        """Return the cell with a single direction."""
        back, names = self.backwards[direction], self.activations[direction]
        return replace(self, backwards=(back,), activations=(names,))


@dataclass(frozen=True, slots=True)
class Operands(Generic[T]):
    """The operands of a call.

    Attributes
    ----------
    gates : T
        (direction, time, batch, gates * hidden): the inputs times their weights, with biases.
    r : T
        (direction, hidden, gates * hidden).
    state : T
        (states, direction, batch, hidden).
    own : T or None
        (direction, gates * hidden), 0 for gates without own weights.
    lengths : T or None
        (batch,).
    """

    gates: T
    r: T
    state: T
    own: T | None
    lengths: T | None
    rest: tuple[T, ...]
    """Further inputs, e.g. the direction of a piece."""


def operands_of(cell: Cell, inputs: Sequence[T]) -> Operands[T]:
    """Return the operands by name."""
    gates, r, state, *more = inputs
    own = more.pop(0) if cell.own else None
    lengths = more.pop(0) if cell.masked else None
    return Operands(gates, r, state, own, lengths, tuple(more))


def cell_of(attrs: Attrs) -> Cell:
    """Return the cell that a node's attributes describe."""
    backwards, activations = attrs.as_tuple("backwards"), attrs.as_tuple("activations")
    return Cell(
        attrs.as_str("kind"),
        tuple(map(bool, backwards)),
        tuple(tuple(map(str, names)) for names in activations if isinstance(names, tuple)),
        attrs.as_float("clip"),
        attrs.as_bool("input_forget"),
        attrs.as_bool("linear_before_reset"),
        attrs.as_bool("own"),
        attrs.as_bool("masked"),
    )
