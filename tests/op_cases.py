"""What a row of the case table is, and the rows of all families.

A case says: this op, on these arrays, with these attributes, must equal its numpy reference on
every device. To cover a new op, add rows to its family's `cases_*.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from vksched.ops.op import Attrs, AttrValue, Call, Limits, get_op
from vksched.types import NDArray, TensorType, canonical_dtype


@dataclass(frozen=True)
class Case:
    """One call of an op. nmse: the largest normalised squared error of a float32 result."""

    op: str
    inputs: tuple[NDArray, ...]
    attrs: dict[str, AttrValue] = field(default_factory=dict)
    name: str = ""
    nmse: float = 1e-10
    large: bool = False
    """Runs with the device's own limits only: others would give a CPU driver a kernel for GPUs."""

    @property
    def id(self) -> str:
        shapes = "_".join("x".join(map(str, a.shape)) or "scalar" for a in self.inputs)
        return "-".join(filter(None, (self.op, self.name, shapes)))

    @cached_property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(a.shape, canonical_dtype(a.dtype)) for a in self.inputs)

    def call(self, limits: Limits) -> Call:
        attrs = Attrs(self.attrs)
        return Call(self.types, get_op(self.op).infer(self.types, attrs), attrs, limits)

    def expected(self) -> NDArray:
        """The numpy reference's result."""
        with np.errstate(all="ignore"):
            return np.asarray(get_op(self.op).reference(self.inputs, Attrs(self.attrs)))


@dataclass(frozen=True)
class ErrorCase:
    """A call that must be refused. match: a part of the message."""

    build: Callable[[], Any]
    error: type[Exception]
    match: str


def floats(*shape: int, seed: int = 0, scale: float = 1.0) -> NDArray:
    """Normally distributed float32 values, the same for the same arguments."""
    rng = np.random.default_rng((seed, *shape))
    return np.asarray(rng.standard_normal(shape) * scale, np.float32)


def ints(*shape: int, seed: int = 0, low: int = -100, high: int = 100) -> NDArray:
    """Uniform int32 values in low..high-1."""
    rng = np.random.default_rng((seed, *shape))
    return np.asarray(rng.integers(low, high, shape), np.int32)


def bools(*shape: int, seed: int = 0) -> NDArray:
    """Fair coins."""
    return ints(*shape, seed=seed, low=0, high=2).astype(bool)
