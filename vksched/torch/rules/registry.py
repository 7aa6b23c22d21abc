"""The registry of rules, by the name of the ATen op, and the call that a rule lowers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ...common.dtypes import numpy_dtype
from ...common.errors import UnsupportedOp, VkschedError
from ...ir.tensor import Tensor, constant
from ...ops import cast

Results = Tensor | Sequence[Tensor | None]
Build = Callable[..., Results]
_Build = TypeVar("_Build", bound=Build)
_RULES: dict[str, Build] = {}


@dataclass(frozen=True)
class Call:
    """A call of an ATen op.

    Attributes
    ----------
    dtypes
        The element type of each result; None if vksched has no equal one.
    promoted
        The element type that PyTorch promotes the operands to.
    random
        Returns the seed of a run, and the stream of this call.
    dense
        The first operand is all of its memory, in row-major order.
    """

    op: str
    dtypes: tuple[str | None, ...]
    promoted: str
    random: Callable[[], tuple[Tensor, int]]
    dense: bool = False

    @property
    def dtype(self) -> str:
        """The element type of the first result.

        Raises
        ------
        UnsupportedOp
            vksched has no equal element type.
        """
        if self.dtypes[0] is None:
            raise UnsupportedOp(f"{self.op} has results of another type")
        return self.dtypes[0]

    def require(self, condition: bool, text: str) -> None:
        """Raise UnsupportedOp with a text unless a condition holds."""
        if not condition:
            raise UnsupportedOp(f"{self.op} {text}")


def operand(value: Any, dtype: str) -> Tensor:
    """Return a tensor or a number as a tensor of an element type."""
    if isinstance(value, Tensor):
        return value if value.dtype == dtype else cast(value, dtype)
    with np.errstate(all="ignore"):
        return constant(np.asarray(value).astype(numpy_dtype(dtype)))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the start."""
    return axis + rank if axis < 0 else axis


def axes_of(axes: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Return axes counted from the start; None and no axes select all."""
    if axes is None or axes == [] or axes == ():
        return tuple(range(rank))
    values = (axes,) if isinstance(axes, int) else axes
    return tuple(axis_of(axis, rank) for axis in values)


def rule(*names: str) -> Callable[[_Build], _Build]:
    """Register a function as the rule of one or more ATen ops, for example "add.Tensor"."""

    def register(build: _Build) -> _Build:
        for name in names:
            whole = name if "::" in name else f"aten::{name}"
            if whole in _RULES:
                raise VkschedError(f"[rule] {whole} has two rules")
            _RULES[whole] = build
        return build

    return register


def find_rule(name: str) -> Build | None:
    """Return the rule of an op, for example "aten::add.Tensor", or None."""
    return _RULES.get(name)


def rule_names() -> tuple[str, ...]:
    """Return the names of all ops with a rule, sorted."""
    return tuple(sorted(_RULES))
