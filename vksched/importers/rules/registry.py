"""The registry of rules, by domain and op type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from onnx import TensorProto

from ...errors import UnsupportedOp, VkschedError
from ...ops.tensor import Tensor
from ..elements import NARROW_FLOATS, PLAIN, element_name
from ..values import Value
from .narrow import round_float

if TYPE_CHECKING:
    from ..node import NodeContext

MICROSOFT = "com.microsoft"
Results = Tensor | Value | Sequence[Tensor | Value | None]
Build = Callable[["NodeContext"], Results]
_Build = TypeVar("_Build", bound=Build)


@dataclass(frozen=True, slots=True)
class Rule:
    """How one ONNX op is expressed. types: the element types that its tensors may have. rounds: its
    results are rounded to theirs.
    """

    domain: str
    op_type: str
    build: Build
    types: frozenset[int]
    rounds: bool = False

    def __call__(self, n: NodeContext) -> list[Tensor | Value | None]:
        """Returns the results by position.

        Raises:
            UnsupportedOp: it cannot express this call.
        """
        for value in n.inputs:
            if value is not None and value.is_tensor and value.elem_type not in self.types:
                raise UnsupportedOp(f"{self.op_type} of {element_name(value.elem_type)}")
        built = self.build(n)
        found: list[Tensor | Value | None] = (
            [built] if isinstance(built, (Tensor, Value)) else list(built)
        )
        return [self._fitted(n, i, result) for i, result in enumerate(found)]

    def _fitted(
        self, n: NodeContext, index: int, result: Tensor | Value | None
    ) -> Tensor | Value | None:
        inferred = n.inferred[index] if index < len(n.inferred) else None
        if not self.rounds or inferred is None or not isinstance(result, Tensor):
            return result
        narrow = inferred.elem_type in NARROW_FLOATS
        return round_float(result, inferred.elem_type) if narrow else result


_RULES: dict[tuple[str, str], Rule] = {}


def rule(
    *op_types: str, types: Collection[int] = PLAIN, domain: str = "", rounds: bool = False
) -> Callable[[_Build], _Build]:
    """Registers a function as the rule of one op or several.

    types: the element types that all operands may have: by default those whose arithmetic is that
        of the Tensor that holds them. rounds: bfloat16, too, of which the results are computed in
        float32 and rounded once.
    """
    allowed = frozenset(types) | ({TensorProto.BFLOAT16} if rounds else set())

    def register(build: _Build) -> _Build:
        for op_type in op_types:
            if (domain, op_type) in _RULES:
                raise VkschedError(f"[rule] {domain} {op_type} has two rules")
            _RULES[domain, op_type] = Rule(domain, op_type, build, allowed, rounds)
        return build

    return register


def find_rule(domain: str, op_type: str) -> Rule | None:
    """Returns the rule of an op, or None where it has none."""
    return _RULES.get(("" if domain == "ai.onnx" else domain, op_type))


def rules() -> tuple[Rule, ...]:
    """Returns all rules, sorted by domain and op type."""
    return tuple(_RULES[key] for key in sorted(_RULES))
