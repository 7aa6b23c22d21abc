"""Types of samples, which all families share.

A sample declares that an op, on these arrays, with these attributes, must equal its numpy reference
on every device. To cover a new op, add samples to its family's module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...common.dtypes import INT64, NARROW, NDArray, TensorType, canonical_dtype
from ...ir.attrs import Attrs, AttrValue
from ...ir.build_graph import build_graph
from ...ir.evaluate import compute, infer
from ...ir.graph import Graph
from ...ir.op import Call, Op, get_op
from ...ir.tensor import Tensor, input
from ...ops.lowering.lower import variants_of
from ...topology.limits import Limits


class Mismatch(AssertionError):
    """A result differs from the expected one, or other memory was overwritten."""


@dataclass(frozen=True)
class OpSample:
    """One call of an op. nmse: maximum normalized squared error of a float32 result."""

    op: str
    inputs: tuple[NDArray, ...]
    attrs: dict[str, AttrValue] = field(default_factory=dict)
    name: str = ""
    nmse: float = 1e-10
    exact: bool = False
    """Every device has to return the reference's bits."""
    of_largest: float | None = None
    """Tolerance relative to the largest result, if it differs from its op's."""
    terms: NDArray | None = None
    """Root of the summed squares of each value's terms, if these may cancel: errors are also
    relative to it.
    """
    large: bool = False
    """Run with the device's own limits only: others would run GPU kernels on a CPU driver."""

    @property
    def id(self) -> str:
        return _id(self.op, self.name, self.inputs)

    @property
    def declaration(self) -> Op:
        return get_op(self.op)

    @cached_property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(a.shape, canonical_dtype(a.dtype, NARROW)) for a in self.inputs)

    def result_type(self) -> TensorType:
        """Return the type of the result."""
        return infer(self.declaration, self.types, Attrs(self.attrs))

    def call(self, limits: Limits, variant: str = "") -> Call:
        return Call(self.types, self.result_type(), Attrs(self.attrs), limits, variant)

    def variants(self, limits: Limits) -> tuple[str, ...]:
        """Return the variants that can run it on a device with these limits; ("",) without a
        choice.
        """
        return variants_of(self.declaration, self.call(limits))

    def as_dtypes(self, change: Mapping[str, str]) -> OpSample:
        """Return the call with operands converted to other types, by type name. Index operands stay
        int32 or int64.
        """
        positions = {k: v for k, v in change.items() if v == INT64}
        by_operand = (
            positions if i in self.declaration.indices else change for i in range(len(self.inputs))
        )
        with np.errstate(all="ignore"):
            inputs = tuple(
                a.astype(to.get(a.dtype.name, a.dtype))
                for a, to in zip(self.inputs, by_operand, strict=True)
            )
        names = sorted({change[a.dtype.name] for a in self.inputs if a.dtype.name in change})
        return replace(self, inputs=inputs, name=" ".join([*names, self.name]).strip())

    def expected(self) -> NDArray:
        """Return the numpy reference's result."""
        with np.errstate(all="ignore"):
            return np.asarray(compute(self.declaration, self.inputs, Attrs(self.attrs)))


def _id(what: str, name: str, inputs: tuple[NDArray, ...]) -> str:
    shapes = "_".join("x".join(map(str, a.shape)) or "scalar" for a in inputs)
    return "-".join(filter(None, (what, name, shapes)))


Outputs = Tensor | tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True)
class FunctionSample:
    """One call of a composed function such as `ops.group_norm`.

    function: its name in `ops`. build: tensors, one per array -> result, or several. Every node of
    the graph runs on the tested device; nmse as in `OpSample`.
    """

    function: str
    build: Callable[..., Outputs]
    inputs: tuple[NDArray, ...]
    name: str = ""
    nmse: float = 1e-10

    @property
    def id(self) -> str:
        return _id(self.function, self.name, self.inputs)

    @cached_property
    def graph(self) -> Graph:
        """Return the graph of a call on inputs x0, x1, ..."""
        dtypes = [canonical_dtype(a.dtype) for a in self.inputs]
        pairs = zip(self.inputs, dtypes, strict=True)
        tensors = [input(f"x{i}", a.shape, d) for i, (a, d) in enumerate(pairs)]
        result = self.build(*tensors)
        return build_graph([result] if isinstance(result, Tensor) else list(result))[0]

    def run(self, run_node: Callable[[OpSample], NDArray]) -> tuple[NDArray, ...]:
        """Return the results, with every node computed by `run_node`."""
        values = self.graph.arrays()
        for node in self.graph.nodes:
            if node.op == "input":
                values[node.id] = self.inputs[int(node.name[1:])]
            elif not node.declaration.leaf:
                operands = tuple(values[i] for i in node.inputs)
                case = OpSample(node.op, operands, dict(node.attrs), node.name, self.nmse)
                values[node.id] = run_node(case)
        return tuple(values[i] for _, i in self.graph.outputs)

    def expected(self) -> tuple[NDArray, ...]:
        """Return the results of the numpy references."""
        return self.run(OpSample.expected)


@dataclass(frozen=True)
class ErrorSample:
    """A call that must be refused. match: a part of the message."""

    build: Callable[[], Any]
    error: type[Exception]
    match: str


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray:
    """Return normally distributed float32 values, deterministic for the arguments."""
    rng = np.random.default_rng((seed, *shape))
    return np.asarray(rng.standard_normal(shape) * scale, np.float32)


def fp16_array(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray:
    """Return normally distributed float16 values."""
    return floats(*shape, seed=seed, scale=scale).astype(np.float16)


def ints(*shape: int, seed: int = 0, low: int = -100, high: int = 100) -> NDArray:
    """Return uniform int32 values in low..high-1."""
    rng = np.random.default_rng((seed, *shape))
    return np.asarray(rng.integers(low, high, shape), np.int32)


def bools(*shape: int, seed: int = 0) -> NDArray:
    """Return random bools."""
    return ints(*shape, seed=seed, low=0, high=2).astype(bool)
