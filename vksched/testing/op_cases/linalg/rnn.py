"""Samples of recurrent layers: directions, states, peepholes, activations, lengths, empty; and of
their op alone, in parts of a long sequence and with states of several iterations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import Attrs
from ....ir.tensor import Tensor, apply, input
from ....ops.rnn.cell import DEFAULTS, GATES, STATES, Cell
from ..op_sample import ErrorSample, FunctionSample, OpSample, floats

ALL = ("b", "initial_h", "initial_c", "peepholes")
BUILDERS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "rnn": ops.rnn,
    "gru": ops.gru,
    "lstm": ops.lstm,
}


@dataclass(frozen=True)
class Setting:
    """Parameters of a sample. optional: the optional operands, in the order of its inputs."""

    op: str
    sizes: tuple[int, int, int, int] = (3, 2, 5, 4)
    """time, batch, size, hidden"""
    optional: tuple[str, ...] = ("b",)
    keywords: dict[str, Any] = field(default_factory=dict)
    lengths: bool = False
    """The last input holds the lengths of the sequences."""

    @property
    def name(self) -> str:
        keywords = [f"{k} {v}" for k, v in self.keywords.items()]
        sizes = ".".join(map(str, self.sizes))
        return " ".join([sizes, *self.optional, *keywords, *(["lengths"] * self.lengths)])

    def inputs(self) -> dict[str, NDArray]:
        """Return the operands by name."""
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
        names = ("x", "w", "r", *self.optional)
        out = {n: floats(*shapes[n], seed=i, scale=0.5) for i, n in enumerate(names)}
        if self.lengths:
            out["sequence_lens"] = np.arange(batch, dtype=np.int32) * 2 % (time + 1)
        return out

    def case(self) -> FunctionSample:
        inputs = self.inputs()

        def build(*tensors: Tensor) -> tuple[Tensor, ...]:
            named = dict(zip(inputs, tensors, strict=True))
            return BUILDERS[self.op](**named, **self.keywords)

        return FunctionSample(self.op, build, tuple(inputs.values()), self.name, nmse=1e-9)


_SETTINGS = [
    *(Setting(op, sizes) for op in GATES for sizes in ((1, 1, 1, 1), (3, 2, 5, 4), (5, 1, 3, 7))),
    *(Setting(op, optional=()) for op in GATES),
    *(
        Setting(op, optional=optional, keywords={"direction": direction}, lengths=lengths)
        for op, optional in (("rnn", ALL[:2]), ("gru", ALL[:2]), ("lstm", ALL[:3]))
        for direction in ("reverse", "bidirectional")
        for lengths in (False, True)
    ),
    Setting("lstm", optional=ALL),
    Setting("lstm", optional=ALL, keywords={"direction": "bidirectional"}),
    *(
        Setting(
            "gru", optional=optional, keywords={"linear_before_reset": True, "direction": direction}
        )
        for optional in ((), ("b", "initial_h"))
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


def layer(
    kind: str,
    sizes: tuple[int, int, int],
    directions: str = "f",
    activations: tuple[tuple[str, ...], ...] = (),
    lengths: tuple[int, ...] = (),
    large: bool = False,
    **ways: Any,
) -> OpSample:
    """Return a call of the op. sizes: time, batch, hidden. directions: b for each backward one."""
    (time, batch, hidden), count = sizes, len(directions)
    back = tuple(letter == "b" for letter in directions)
    names = activations or (DEFAULTS[kind],) * count
    cell = Cell(kind, back, names, masked=bool(lengths), **ways)
    columns = GATES[kind] * hidden
    shapes = [(count, time, batch, columns), (count, hidden, columns)]
    shapes += [(STATES[kind], count, batch, hidden), *([(count, columns)] * cell.own)]
    scales = (1.0, min(0.5, 1.5 / max(hidden, 1) ** 0.5), 1.0, 0.5)  # far from chaos
    inputs = [floats(*s, seed=i, scale=scales[i]) for i, s in enumerate(shapes)]
    if lengths:
        inputs.append(np.asarray(lengths, np.int32))
    attrs_text = [f"{k} {v}" for k, v in ways.items()]
    label = " ".join([kind, directions, *["/".join(n) for n in activations], *attrs_text])
    label += "".join(f" {n}" for n in lengths)
    return OpSample("rnn_scan", tuple(inputs), cell.attrs, label, nmse=1e-9, large=large)


_ODD = {"rnn": ("relu",), "gru": ("tanh", "relu"), "lstm": ("tanh", "relu", "sigmoid")}
CASES = [
    *(
        layer(kind, sizes)
        for kind in GATES
        for sizes in ((1, 1, 1), (4, 3, 7), (3, 5, 33), (2, 1, 130), (0, 2, 3), (2, 0, 3))
    ),
    *(layer(kind, (5, 6, 17), "fb") for kind in GATES),
    *(layer(kind, (5, 4, 9), "b", lengths=(0, 5, 2, 9)) for kind in GATES),
    *(layer(kind, (0, 2, 3), "fb", lengths=(0, 0)) for kind in GATES),  # no iterations
    *(layer(kind, (4, 3, 8), "fb", (DEFAULTS[kind], _ODD[kind]), clip=0.5) for kind in GATES),
    layer("gru", (4, 5, 11), "fb", linear=True),
    layer("gru", (4, 5, 11), "fb", linear=True, own=True, lengths=(4, 1, 0, 3, 2)),
    layer("lstm", (4, 5, 11), "fb", own=True),
    layer("lstm", (4, 3, 6), "b", own=True, lengths=(1, 4, 3), coupled=True),
    layer("lstm", (3, 2, 5), coupled=True),
    layer("lstm", (700, 1, 40)),
    layer("gru", (500, 2, 40), "fb", lengths=(500, 333)),
    layer("rnn", (1, 1, 1500)),
]


def _call(**changes: Any) -> object:
    """Return a call of the op with replaced operands or attributes."""
    case = layer("lstm", (4, 3, 6), own=True, lengths=(1, 4, 3))
    names = ("gates", "r", "state", "own", "lengths")
    optional = dict(zip(names, case.inputs, strict=True)) | {
        k: v for k, v in changes.items() if k in names
    }
    attrs = {**case.attrs, **{k: v for k, v in changes.items() if k not in names}}
    operands = [input(name, x.shape, x.dtype.name) for name, x in optional.items() if x is not None]
    return apply("rnn_scan", tuple(operands), Attrs(attrs))


def refused(match: str, op: str = "lstm", **changes: Any) -> ErrorSample:
    """Return a refused call with one invalid operand or keyword."""

    def build() -> object:
        operands: dict[str, Any] = dict(
            Setting(op, optional=ALL[: 2 if op != "lstm" else 4]).inputs()
        )
        return BUILDERS[op](**(operands | changes))

    return ErrorSample(build, ShapeError, match)


_REFUSED: list[tuple[str, type[Exception], dict[str, Any]]] = [
    (r"gates \(direction, time, batch, 4 ", ShapeError, {"gates": floats(1, 4, 3, 22)}),
    ("r of shape", ShapeError, {"r": floats(1, 24, 6)}),
    ("state of shape", ShapeError, {"state": floats(1, 1, 3, 6)}),
    ("own of shape", ShapeError, {"own": floats(1, 18)}),
    ("lengths of shape", ShapeError, {"lengths": np.zeros(4, np.int32)}),
    ("lengths of int32 or int64", DTypeError, {"lengths": floats(3)}),
    ("expected 5 operands, got 4", ShapeError, {"own": None}),
]
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
    *(ErrorSample(partial(_call, **changes), error, match) for match, error, changes in _REFUSED),
]
