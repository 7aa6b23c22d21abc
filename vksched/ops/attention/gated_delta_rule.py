"""The gated delta rule: attention to a state of one size, which each token updates.

    S = exp(g) S;  S += k (beta (v - S^T k))^T;  o = S^T q        for one token after the other

    q, k, v, g, beta, S -> (batch, tokens + key size, heads, columns): o of each token, the last S

Source: Yang et al., Gated Delta Networks, 2024. Examples: tests/ops/test_gated_delta_rule.py.
"""

from __future__ import annotations

import numpy as np

from ...common.dtypes import FLOAT32, Shape, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.op import Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..elementwise.unary import exp
from ..layout.control import optimization_barrier
from ..layout.index import gather
from ..layout.reshape import concat, reshape, transpose
from ..reduction.reduce import reduce_sum
from .gated_delta_rule_cpu import CPU_KERNEL, gated_delta_rule_reference
from .gated_delta_rule_kernels import KERNEL

OP = "gated_delta_rule"
MAX_GRADIENT_TOKENS = 4096
"""The maximum number of tokens of a gradient, whose graph has some ops per token."""
NAMES = ("q", "k", "v", "g", "beta", "state")


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    q, _, v = inputs[:3]
    if q.rank != 4 or v.rank != 4 or not q.shape[3]:
        raise ShapeError(
            f"[{OP}] expected q (batch, tokens, key heads, key size) and v (batch, tokens, heads, "
            f"columns), got {q.shape} and {v.shape}"
        )
    batch, tokens, key_heads, size = q.shape
    heads, columns = v.shape[2:]
    if key_heads and heads % key_heads or heads and not key_heads:
        raise ShapeError(
            f"[{OP}] expected a multiple of the {key_heads} heads of q as heads of v, got {heads}"
        )
    wanted: tuple[Shape, ...] = (
        *(q.shape, q.shape, (batch, tokens, heads, columns)),
        *((batch, tokens, heads), (batch, tokens, heads)),
        (batch, size, heads, columns),
    )
    for name, operand, shape in zip(NAMES, inputs, wanted, strict=True):
        if operand.shape != shape:
            raise ShapeError(f"[{OP}] expected {name} of shape {shape}, got {operand.shape}")
        if operand.dtype != FLOAT32:
            raise DTypeError(f"[{OP}] expected {name} of float32, got {operand.dtype}")
    return TensorType((batch, tokens + size, heads, columns), FLOAT32)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Estimate the work: three products of the state and a vector for each token, in order."""
    q, v, state = inputs[0], inputs[2], inputs[5]
    moved = sum(each.device_bytes for each in inputs) + output.device_bytes
    tokens, size = q.shape[1], q.shape[3]
    return Work(7.0 * tokens * state.size + v.size, float(moved), float(2 * tokens * size))


register(
    Op(
        OP,
        _infer,
        gated_delta_rule_reference,
        KERNEL,
        attrs={},
        operands=(6, 6),
        work=_work,
        cpu=CPU_KERNEL,
    )
)


@gradient(OP)
def _gradient(call: VjpContext) -> VjpResult:
    """Differentiate the tokens one by one, which recomputes the forward pass."""
    if (tokens := call.inputs[0].shape[1]) > MAX_GRADIENT_TOKENS:
        raise ShapeError(
            f"[{OP}] expected at most {MAX_GRADIENT_TOKENS} tokens for a gradient, whose graph has "
            f"some ops per token, got {tokens}; try shorter sequences"
        )
    operands = tuple(optimization_barrier(x, call.grad) for x in call.inputs)
    return call.through(_unrolled(*operands), operands)


def _unrolled(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """Return the result as other ops compute it."""
    batch, tokens, key_heads, size = q.shape
    heads = v.shape[2]
    if key_heads != heads:
        of_head = np.array([head * key_heads // heads for head in range(heads)], np.int32)
        q, k = (gather(each, of_head, axis=2) for each in (q, k))

    def columns(x: Tensor, token: int) -> Tensor:
        """Return q or k of a token as factors of the state's rows, (batch, size, heads, 1)."""
        return reshape(transpose(x[:, token], (0, 2, 1)), (batch, size, heads, 1))

    def rows(x: Tensor, token: int) -> Tensor:
        """Return v, g or beta of a token as factors of the state, (batch, 1, heads, ...)."""
        return reshape(x[:, token], (batch, 1, heads, x.shape[3] if x.rank == 4 else 1))

    out = []
    for token in range(tokens):
        key = columns(k, token)
        state = state * exp(rows(g, token))
        seen = reduce_sum(state * key, 1, keepdims=True)
        state = state + key * ((rows(v, token) - seen) * rows(beta, token))
        out.append(reduce_sum(state * columns(q, token), 1, keepdims=True))
    return concat([*out, state], axis=1)


def gated_delta_rule(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    g: TensorLike,
    beta: TensorLike,
    state: TensorLike,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs of all tokens and the state after them, by the gated delta rule.

    For each head and token, the state S (key size, columns) becomes exp(g) S, then
    S + k (beta (v - S^T k))^T, and the output is S^T q. A token with g = 0 and beta = 0 leaves the
    state as it is. q and k are neither normalized nor scaled. A gradient is of at most 4096 tokens,
    because its graph has some ops per token.

    Shapes
    ------
    q, k
        (batch, tokens, key heads, key size).
    v
        (batch, tokens, heads, columns); heads i of v share key head i * key heads // heads.
    g, beta
        (batch, tokens, heads).
    state
        (batch, key size, heads, columns).
    result
        (batch, tokens, heads, columns), and the state.

    Raises
    ------
    ShapeError
        The shapes do not match.
    """
    operands = tuple(map(as_tensor, (q, k, v, g, beta, state)))
    result = apply(OP, operands, name=name)
    tokens = operands[0].shape[1]
    return result[:, :tokens], result[:, tokens:]
