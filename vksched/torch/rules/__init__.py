"""Rules: lower ATen ops to vksched ops, one function per op. They do not need PyTorch.

    @rule("relu.default")
    def relu_rule(call: Call, x: Tensor) -> Tensor:
        return relu(x)

A rule gets the operands as Tensors and Python numbers, and returns its results by position. It
raises UnsupportedOp with a reason if it cannot express a call; the op then runs in eager PyTorch.
"""

from __future__ import annotations

from . import (  # noqa: F401 - each declares its rules
    creation,
    elementwise,
    embedding,
    index,
    layout,
    linalg,
    norm,
    pool,
    reduction,
)
from .registry import Call, find_rule, operand, rule, rule_names

__all__ = ["Call", "find_rule", "operand", "rule", "rule_names"]
