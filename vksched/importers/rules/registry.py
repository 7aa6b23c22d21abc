"""The registry of rules, by domain and op type."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...errors import UnsupportedOp, VkschedError
from ...ops.tensor import Tensor
from ..elements import PLAIN, element_name
from ..values import Value

if TYPE_CHECKING:
    from ..node import NodeContext

MICROSOFT = "com.microsoft"
Results = Tensor | Value | Sequence[Tensor | Value | None]
Build = Callable[["NodeContext"], Results]
_Build = TypeVar("_Build", bound=Build)


@dataclass(frozen=True, slots=True)
class Rule:
    """How one ONNX op is expressed. types: the element types that its tensors may have."""

    domain: str
    op_type: str
    build: Build
    types: frozenset[int]

    def __call__(self, n: NodeContext) -> list[Tensor | Value | None]:
        """Returns the results by position.

        Raises:
            UnsupportedOp: it cannot express this call.
        """
        for value in n.inputs:
            if value is not None and value.is_tensor and value.elem_type not in self.types:
                raise UnsupportedOp(f"{self.op_type} of {element_name(value.elem_type)}")
        found = self.build(n)
        return [found] if isinstance(found, (Tensor, Value)) else list(found)


_RULES: dict[tuple[str, str], Rule] = {}


def rule(
    *op_types: str, types: Collection[int] = PLAIN, domain: str = ""
) -> Callable[[_Build], _Build]:
    """Registers a function as the rule of one op or several.

    types: the element types that all operands may have: by default those whose arithmetic is that
        of the Tensor that holds them.
    """

    def register(build: _Build) -> _Build:
        for op_type in op_types:
            if (domain, op_type) in _RULES:
                raise VkschedError(f"[rule] {domain} {op_type} has two rules")
            _RULES[domain, op_type] = Rule(domain, op_type, build, frozenset(types))
        return build

    return register


def find_rule(domain: str, op_type: str) -> Rule | None:
    """Returns the rule of an op, or None where it has none."""
    return _RULES.get(("" if domain == "ai.onnx" else domain, op_type))


def rules() -> tuple[Rule, ...]:
    """Returns all rules, sorted by domain and op type."""
    return tuple(_RULES[key] for key in sorted(_RULES))
