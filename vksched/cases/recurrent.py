"""Cases of rnn, gru and lstm: directions, states, peepholes, activations, lengths, nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import vksched as vs

from ..types import NDArray
from .case import ErrorCase, FunctionCase, floats

CASES: list[Any] = []
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
ALL = ("b", "initial_h", "initial_c", "peepholes")
BUILDERS: dict[str, Callable[..., tuple[vs.Tensor, ...]]] = {
    "rnn": vs.rnn,
    "gru": vs.gru,
    "lstm": vs.lstm,
}


@dataclass(frozen=True)
class Setting:
    """What a case asks for; given: the optional operands, in the order of its inputs."""

    op: str
    sizes: tuple[int, int, int, int] = (3, 2, 5, 4)
    """time, batch, size, hidden"""
    given: tuple[str, ...] = ("b",)
    keywords: dict[str, Any] = field(default_factory=dict)
    lengths: bool = False
    """The last input holds the lengths of the sequences."""

    @property
    def name(self) -> str:
        said = [f"{k} {v}" for k, v in self.keywords.items()]
        sizes = ".".join(map(str, self.sizes))
        return " ".join([sizes, *self.given, *said, *(["lengths"] * self.lengths)])

    def inputs(self) -> dict[str, NDArray]:
        """The operands by name."""
        (time, batch, size, hidden), gates = self.sizes, GATES[self.op]
        count = 2 if self.keywords.get("direction") == "bidirectional" else 1
        shapes: dict[str, tuple[int, ...]] = {
            "x": (time, batch, size),
            "w": (count, gates * hidden, size),
            "r": (count, gates * hidden, hidden),
            "b": (count, 2 * gates * hidden),
            "initial_h": (count, batch, hidden),
            "initial_c": (count, batch, hidden),
            "peepholes": (count, 3 * hidden),
        }
        names = ("x", "w", "r", *self.given)
        out = {n: floats(*shapes[n], seed=i, scale=0.5) for i, n in enumerate(names)}
        if self.lengths:
            out["sequence_lens"] = np.arange(batch, dtype=np.int32) * 2 % (time + 1)
        return out

    def case(self) -> FunctionCase:
        inputs = self.inputs()

        def build(*tensors: vs.Tensor) -> tuple[vs.Tensor, ...]:
            named = dict(zip(inputs, tensors, strict=True))
            return BUILDERS[self.op](**named, **self.keywords)

        return FunctionCase(self.op, build, tuple(inputs.values()), self.name, nmse=1e-9)


_SETTINGS = [
    *(Setting(op, sizes) for op in GATES for sizes in ((1, 1, 1, 1), (3, 2, 5, 4), (5, 1, 3, 7))),
    *(Setting(op, given=()) for op in GATES),
    *(
        Setting(op, given=given, keywords={"direction": direction}, lengths=lengths)
        for op, given in (("rnn", ALL[:2]), ("gru", ALL[:2]), ("lstm", ALL[:3]))
        for direction in ("reverse", "bidirectional")
        for lengths in (False, True)
    ),
    Setting("lstm", given=ALL),
    Setting("lstm", given=ALL, keywords={"direction": "bidirectional"}),
    *(
        Setting("gru", given=given, keywords={"linear_before_reset": True, "direction": direction})
        for given in ((), ("b", "initial_h"))
        for direction in ("forward", "bidirectional")
    ),
    Setting("rnn", lengths=True),
    Setting("rnn", keywords={"activations": ("relu",)}),
    Setting("rnn", keywords={"activations": ("Relu", "sigmoid"), "direction": "bidirectional"}),
    Setting("gru", keywords={"activations": ("tanh", "sigmoid")}),
    Setting("lstm", keywords={"activations": ("tanh", "relu", "sigmoid"), "clip": 0.75}),
    *(Setting(op, (0, 2, 3, 4)) for op in GATES),
    *(Setting(op, (2, 0, 3, 4)) for op in GATES),
]
SETTINGS = {(s.op, s.case().id): s for s in _SETTINGS}
FUNCTIONS = [s.case() for s in _SETTINGS]


def refused(match: str, op: str = "lstm", **changes: Any) -> ErrorCase:
    """A call with one operand or keyword that does not fit."""

    def build() -> object:
        operands: dict[str, Any] = dict(Setting(op, given=ALL[: 2 if op != "lstm" else 4]).inputs())
        return BUILDERS[op](**(operands | changes))

    return ErrorCase(build, vs.ShapeError, match)


ERRORS = [
    refused("one of forward", direction="backward"),
    refused(r"x \(time, batch, size\)", x=floats(3, 5)),
    refused("w of shape", w=floats(1, 16, 4)),
    refused("w of shape", direction="bidirectional"),
    refused("r of shape", "rnn", r=floats(1, 5, 4)),
    refused("b of shape", "gru", b=floats(1, 12)),
    refused("initial_h of shape", initial_h=floats(1, 3, 4)),
    refused("initial_c of shape", initial_c=floats(2, 2, 4)),
    refused("peepholes of shape", peepholes=floats(1, 4)),
    refused("sequence_lens of shape", "gru", sequence_lens=[1]),
    refused("3 activations, got 1", activations=("tanh",)),
    refused("or a function, got 'gelu'", "rnn", activations=("gelu",)),
]
