"""Rules for matmul, Gemm and Einsum."""

from __future__ import annotations

from onnx import TensorProto

from ....ir.tensor import Tensor
from ....ops import einsum, gemm, matmul
from ..nodes.elements import PLAIN
from ..nodes.node import NodeContext
from .registry import rule

WRAPPING = PLAIN | {TensorProto.UINT64}
"""UINT64 is stored with the bits of INT64, so its sums and products are correct."""


@rule("MatMul", types=WRAPPING, rounds=True)
def matmul_rule(n: NodeContext) -> Tensor:
    return matmul(n.tensor(0), n.tensor(1))


@rule("Gemm", types=WRAPPING, rounds=True)
def gemm_rule(n: NodeContext) -> Tensor:
    return gemm_of(n)


def gemm_of(n: NodeContext) -> Tensor:
    """Return alpha * a @ b + beta * c of operands 0 to 2."""
    return gemm(
        n.tensor(0),
        n.tensor(1),
        n.optional(2),
        n.attr("alpha", 1.0),
        n.attr("beta", 1.0),
        transpose_a=bool(n.attr("transA", 0)),
        transpose_b=bool(n.attr("transB", 0)),
    )


@rule("Einsum", types=WRAPPING, rounds=True)
def einsum_rule(n: NodeContext) -> Tensor:
    return einsum(n.attr("equation"), *n.tensors())
