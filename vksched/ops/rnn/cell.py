"""What a recurrent layer does in each time step, as plain data: the attributes of the op
`rnn_scan`.

op       gates                          activations of
rnn      state                          the state
gru      update, reset, hidden          the gates, the hidden state
lstm     input, output, forget, cell    the gates, the cell gate, the cell state
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from ...ir.attr_domains import Domains, Each, Flag, Real, as_many_as, one_of
from ...ir.attrs import Attrs, AttrValue

T = TypeVar("T")

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
STATES = {"rnn": 1, "gru": 1, "lstm": 2}
"""h, and of an lstm c."""
DEFAULTS = {"rnn": ("tanh",), "gru": ("sigmoid", "tanh"), "lstm": ("sigmoid", "tanh", "tanh")}
NAMED = ("sigmoid", "tanh", "relu")
"""Activations that the op has."""

ATTRS: Domains = {
    "kind": one_of(*GATES),
    "backwards": Each(Flag(), least=1, most=2),
    "activations": Each(Each(one_of(*NAMED), least=1, most=3), as_many_as("backwards")),
    "clip": Real(0.0),
    "input_forget": Flag(),
    "linear_before_reset": Flag(),
    "own": Flag(),
    "masked": Flag(),
}
"""Those of a cell, as the op declares them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """kind: a name of `GATES`. backwards: for each direction whether it goes back in time.
    activations: for each direction the names of its functions. clip: what goes into them lies
    within it, 0 for all. coupled: the forget gate of an lstm is what its input gate leaves. linear:
    the reset gate of a gru scales the product by h and not h. own: there is an operand that is
    added within a time step, peepholes of an lstm or the recurrent bias of a gru's last gate.
    masked: there is an operand with the lengths of sequences.
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
        """Itself as attributes of a node."""
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
        """Return the same with one direction."""
        back, names = self.backwards[direction], self.activations[direction]
        return replace(self, backwards=(back,), activations=(names,))


@dataclass(frozen=True, slots=True)
class Operands(Generic[T]):
    """The operands of a call. gates: (direction, time, batch, gates * hidden), the inputs times
    their weights, with biases. r: (direction, hidden, gates * hidden). state: (states, direction,
    batch, hidden). own: (direction, gates * hidden), 0 for gates without. lengths: (batch,).
    """

    gates: T
    r: T
    state: T
    own: T | None
    lengths: T | None
    rest: tuple[T, ...]
    """What follows them."""


def operands_of(cell: Cell, inputs: Sequence[T]) -> Operands[T]:
    """Return operands by name."""
    gates, r, state, *more = inputs
    own = more.pop(0) if cell.own else None
    lengths = more.pop(0) if cell.masked else None
    return Operands(gates, r, state, own, lengths, tuple(more))


def cell_of(attrs: Attrs) -> Cell:
    """Returns what the attributes of a node say."""
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
