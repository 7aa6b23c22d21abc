"""The registry of rules, by domain and op type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onnx import TensorProto

from ....common.dtypes import FLOAT32
from ....common.errors import UnsupportedOp, VkschedError
from ....ir.tensor import Tensor
from ..nodes.elements import PLAIN, element_name
from ..nodes.functions import canonical_domain
from ..nodes.node import NodeContext
from ..nodes.values import Value
from .narrow_types import fit

BFLOAT16 = int(TensorProto.BFLOAT16)
Results = Tensor | Value | Sequence[Tensor | Value | None]
Build = Callable[["NodeContext"], Results]
_Build = TypeVar("_Build", bound=Build)


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one ONNX op.

    Attributes
    ----------
    types
        Allowed element types of tensor operands.
    rounds
        bfloat16 is computed as float32, and each result is rounded.
    """

    domain: str
    op_type: str
    build: Build
    types: frozenset[int]
    rounds: bool = False

    def __call__(self, n: NodeContext) -> list[Tensor | Value | None]:
        """Return the results by position.

        Raises
        ------
        UnsupportedOp
            The rule cannot express this call.
        """
        elem_types = [v.elem_type for v in n.inputs if v is not None and v.is_tensor]
        for elem_type in elem_types:
            if elem_type not in self.types and not (self.rounds and elem_type == BFLOAT16):
                raise UnsupportedOp(f"{self.op_type} of {element_name(elem_type)}")
        found = self.build(n)
        results: list[Tensor | Value | None] = (
            [found] if isinstance(found, (Tensor, Value)) else list(found)
        )
        if not self.rounds or BFLOAT16 not in elem_types:
            return results
        return [_rounded(n, i, result) for i, result in enumerate(results)]


def _rounded(n: NodeContext, index: int, result: Tensor | Value | None) -> Tensor | Value | None:
    """Return a result rounded if it is bfloat16, or if its type is not inferred."""
    inferred = n.inferred[index] if index < len(n.inferred) else None
    if not isinstance(result, Tensor) or result.dtype != FLOAT32:
        return result
    return fit(result, BFLOAT16) if inferred is None or inferred.elem_type == BFLOAT16 else result


_RULES: dict[tuple[str, str], Rule] = {}


def rule(
    *op_types: str,
    types: Collection[int] | None = None,
    domain: str = "",
    rounds: bool | None = None,
) -> Callable[[_Build], _Build]:
    """Register a function as the rule of one or more ops.

    Parameters
    ----------
    types
        Allowed element types of all operands, by default those with native storage.
    rounds
        Also allow bfloat16, and round results once; the default if `types` is omitted.
    """
    allowed = frozenset(PLAIN if types is None else types)

    def register(build: _Build) -> _Build:
        for op_type in op_types:
            if (domain, op_type) in _RULES:
                raise VkschedError(f"[rule] {domain} {op_type} has two rules")
            _RULES[domain, op_type] = Rule(
                domain, op_type, build, allowed, types is None if rounds is None else rounds
            )
        return build

    return register


def find_rule(domain: str, op_type: str) -> Rule | None:
    """Return the rule of an op, or None."""
    return _RULES.get((canonical_domain(domain), op_type))


def rules() -> tuple[Rule, ...]:
    """Return all rules, sorted by domain and op type."""
    return tuple(_RULES[key] for key in sorted(_RULES))
