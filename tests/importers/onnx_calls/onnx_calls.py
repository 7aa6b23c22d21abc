"""Random calls of ONNX ops: operands and attributes as exporters write them, and at their edges.

Each op has a function that draws one call for an opset. `expected` is what onnxruntime makes of it
or, where it does not implement the call, what the onnx package's reference evaluator makes of it.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from vksched.common.dtypes import NDArray

NEWEST = 24
"""The newest opset that calls are drawn for: what onnxruntime takes."""
OLDEST = 7
ML = "ai.onnx.ml"

UNKNOWN = ("NOT_IMPLEMENTED", "Type Error", "not supported")
"""Of what onnxruntime says of calls that may be right."""
UNSUPPORTED = "not yet supported on this hardware platform"
"""The error of onnxruntime's kernels that need instructions which the processor lacks."""
Operand = NDArray | None
Drawn = tuple[list[Operand], dict[str, Any]] | tuple[list[Operand], dict[str, Any], int]
Draw = Callable[["Source"], Drawn | None]


@dataclass
class Call:
    """One node. fixed: which operands are initializers. results: how many it has.

    reference: whether the reference evaluator is the judge.
    """

    op: str
    opset: int
    inputs: list[Operand]
    attrs: dict[str, Any]
    results: int = 1
    domain: str = ""
    fixed: frozenset[int] = frozenset()
    seed: int = 0
    reference: bool = False

    def __str__(self) -> str:
        values = ", ".join(
            "-" if a is None else f"{'=' if i in self.fixed else ''}{a.dtype}{list(a.shape)}"
            + (f"{a.tolist()}" if a.size <= 6 else "")
            for i, a in enumerate(self.inputs)
        )  # fmt: skip
        return f"#{self.seed} {self.op}-{self.opset}({values}) {self.attrs}"

    @property
    def feeds(self) -> dict[str, NDArray]:
        return {
            f"x{i}": a for i, a in enumerate(self.inputs) if a is not None and i not in self.fixed
        }

    def model(self) -> onnx.ModelProto:
        inputs = [(i, f"x{i}", a) for i, a in enumerate(self.inputs) if a is not None]
        names = [f"x{i}" if a is not None else "" for i, a in enumerate(self.inputs)]
        results = [f"y{i}" for i in range(self.results)]
        node = helper.make_node(self.op, names, results, domain=self.domain, **self.attrs)
        kind = helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            [node],
            "call",
            [
                helper.make_tensor_value_info(n, kind(a.dtype), a.shape)
                for i, n, a in inputs
                if i not in self.fixed
            ],
            [helper.make_empty_tensor_value_info(name) for name in results],
            [numpy_helper.from_array(a, n) for i, n, a in inputs if i in self.fixed],
        )
        versions = {"": self.opset, "com.microsoft": 1}
        if self.domain == ML:
            versions.update({"": 20, ML: self.opset})
        opsets = [helper.make_opsetid(d, v) for d, v in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def expected(call: Call) -> tuple[str, list[NDArray]] | None:
    """Return who computed the results, and these; None where neither takes the call."""
    if call.attrs.get("layout"):
        return _batch_first(call)
    model = call.model()
    if not call.reference:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            return "onnxruntime", session.run(None, call.feeds)
        except Exception as error:
            if UNSUPPORTED in str(error):
                pytest.skip(f"onnxruntime computes no {call.op} on this processor")
            if not any(text in str(error) for text in UNKNOWN):
                return None
    if call.domain == ML:
        return None  # the evaluator is wrong in many of them
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, call.feeds)
        return "onnx.reference", [np.asarray(a) for a in found]
    except Exception:
        return None


def _batch_first(call: Call) -> tuple[str, list[NDArray]] | None:
    """As `expected`, of a recurrent layer with the batch first, which both know the other way."""
    inputs = list(call.inputs)
    for i in (0, 5, 6):
        values = inputs[i] if i < len(inputs) else None
        inputs[i : i + 1] = [] if values is None and i >= len(inputs) else [
            None if values is None else np.ascontiguousarray(values.transpose(1, 0, 2))
        ]  # fmt: skip
    found = expected(replace(call, inputs=inputs, attrs={**call.attrs, "layout": 0}))
    if found is None:
        return None
    who, (y, *last) = found
    return who, [y.transpose(2, 0, 1, 3), *(state.transpose(1, 0, 2) for state in last)]


# -- sources of what is drawn --------------------------------------------------------------------


@dataclass
class Source:
    """Draws the parts of calls. op, opset: what is called. reference: whether the reference
    evaluator is the judge. fixed: operands that must be initializers, where others must not.
    """

    op: str
    opset: int
    rng: np.random.Generator
    domain: str = ""
    reference: bool = False
    fixed: frozenset[int] | None = None

    @property
    def version(self) -> int:
        """The version of the op that its opset has."""
        return int(defs.get_schema(self.op, self.opset, self.domain).since_version)

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def int(self, low: int, high: int) -> int:
        """low <= result <= high."""
        return int(self.rng.integers(low, high + 1))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        return [self.int(low, high) for _ in range(count)]

    def size(self, empty: bool = True) -> int:
        return 0 if empty and self.chance(0.03) else self.pick(1, 1, 2, 3, 3, 4, 5, 7)

    def shape(self, low: int = 0, high: int = 4, empty: bool = True) -> tuple[int, ...]:
        return tuple(self.size(empty) for _ in range(self.int(low, high)))

    def axis(self, rank: int) -> int:
        return self.int(-rank, rank - 1)

    def axes(self, rank: int, least: int = 1) -> list[int]:
        """Some axes, in some order, each once, counted from either end."""
        chosen = self.rng.permutation(rank)[: self.int(min(least, rank), rank)]
        return [int(a) - rank * self.chance(0.4) for a in chosen]

    def broadcasts(self, count: int, high: int = 4) -> list[tuple[int, ...]]:
        """Shapes that broadcast with one another."""
        whole = self.shape(0, high)
        out = []
        for _ in range(count):
            cut = self.int(0, len(whole)) if self.chance(0.4) else 0
            out.append(tuple(1 if self.chance(0.25) else s for s in whole[cut:]))
        return out

    def dtypes(self, index: int = 0) -> list[np.dtype[Any]]:
        """The element types that an operand may have, as numpy has them."""
        schema = defs.get_schema(self.op, self.opset, self.domain)
        out = []
        for name in sorted(schema.inputs[index].types):
            kind = name[len("tensor(") : -1].upper() if name.startswith("tensor(") else ""
            dtype = KINDS.get(kind)
            if dtype is not None:
                out.append(np.dtype(dtype))
        return out

    def dtype(self, index: int = 0, *only: str) -> np.dtype[Any]:
        allowed = [d for d in self.dtypes(index) if not only or d.name in only]
        plain = [d for d in allowed if d in (np.float32, np.int64, np.int32)]
        return self.pick(*plain) if plain and self.chance(0.5) else self.pick(*allowed)

    def values(
        self,
        shape: Sequence[int],
        dtype: Any = np.float32,
        special: bool = False,
        scale: float = 2.0,
        full: bool | None = None,
    ) -> NDArray:
        """Elements. special: infinities and NaN may be among them. full: integers of the whole
        range, not only small ones.
        """
        dtype, shape = np.dtype(dtype), tuple(shape)
        if dtype.kind == "O":
            places = self.rng.integers(0, len(WORDS), shape)
            return np.array(np.array(WORDS, object)[places], object)
        if dtype == np.bool_:
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            low, high = max(info.min, -9), min(info.max, 9)
            if self.chance(0.25) if full is None else full:
                low, high = info.min, info.max
            return np.asarray(self.rng.integers(low, high, shape, dtype, endpoint=True))
        out = np.asarray(self.rng.standard_normal(shape) * scale)
        if self.chance(0.3):
            out = np.round(out * 2) / 2  # ties and halves
        if special and self.chance(0.4):
            odd = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1.0])[
                self.rng.integers(0, 6, shape)
            ]
            out = np.where(self.rng.random(shape) < 0.3, odd, out)
        with np.errstate(all="ignore"):
            return np.asarray(out.astype(dtype))

    def vector(self, values: Sequence[int], dtype: Any = np.int64) -> NDArray:
        return np.array(values, dtype)


KINDS: dict[str, Any] = {
    "FLOAT": np.float32,
    "FLOAT16": np.float16,
    "DOUBLE": np.float64,
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "UINT16": np.uint16,
    "INT32": np.int32,
    "UINT32": np.uint32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
    "STRING": object,
}
WORDS = ("cat", "dog", "", "Ein Hund", "Ä", "dog ", "1.5", "-7")
"""What texts are drawn from."""


@dataclass(frozen=True)
class Entry:
    """How calls of an op are drawn. since, until: the opsets it has."""

    op: str
    draw: Draw
    domain: str
    since: int
    until: int


ENTRIES: list[Entry] = []


def calls(
    *ops: str, domain: str = "", since: int = 0, until: int = NEWEST
) -> Callable[[Draw], Draw]:
    """Register how calls of ops are drawn, since their first opset unless one is given."""

    def register(draw: Draw) -> Draw:
        for op in ops:
            first = since
            if not domain and not first:
                versions = [s.since_version for s in defs.get_all_schemas_with_history()
                            if s.name == op and not s.domain]  # fmt: skip
                first = min(versions)
            least = first if domain == ML else max(first, OLDEST)
            ENTRIES.append(Entry(op, draw, domain, least, until))
        return draw

    return register


def draw_call(entry: Entry, seed: int) -> Call | None:
    """Return call number `seed` of an op; None where what was drawn is none."""
    rng = np.random.default_rng([zlib.crc32(entry.op.encode()), seed])
    # versions of an op differ, so each of its opsets that begins one is as likely as all others
    opset = int(rng.integers(entry.since, entry.until + 1))
    source = Source(entry.op, opset, rng, entry.domain)
    drawn = entry.draw(source)
    if drawn is None:
        return None
    inputs, attrs, results = drawn if len(drawn) == 3 else (*drawn, 1)
    inputs = [None if a is None else np.asarray(a) for a in inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    attrs = {k: v for k, v in attrs.items() if v is not None}
    operands = [i for i, a in enumerate(inputs) if a is not None]
    if source.fixed is not None:
        fixed = source.fixed
    elif source.chance(0.3):
        fixed = frozenset[int]()
    elif source.chance(0.1):
        fixed = frozenset(operands)
    elif source.chance(0.5):
        fixed = frozenset(operands[1:])
    else:
        fixed = frozenset(i for i in operands if source.chance(0.5))
    return Call(
        entry.op, opset, inputs, attrs, results, entry.domain, fixed, seed, source.reference
    )
