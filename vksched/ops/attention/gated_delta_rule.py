"""The gated delta rule: attention to a state of one size, which each token updates.

    S = exp(g) S;  S += beta (k v^T - b (S^T a)^T);  o = S^T q      for one token after the other

    q, k, v, g, beta, S[, a, b] -> (batch, tokens + key size, heads, columns): o of each token, the
                                   last S

a and b are k by default: the old value of a key is replaced. g decays all of a head's state by one
factor (Gated DeltaNet), or each channel of its keys by its own (Kimi Delta Attention). Keys a and b
of their own, with decays by channel, are those of RWKV 7.

Sources: Yang et al., Gated Delta Networks, 2024; https://arxiv.org/abs/2510.26692;
https://arxiv.org/abs/2503.14456. Examples: tests/ops/test_gated_delta_rule.py,
tests/ops/test_delta_rule_channels.py.
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
from ..layout.reshape import concat, expand, expand_dims, reshape, transpose
from ..reduction.reduce import reduce_sum
from .gated_delta_rule_channels import KERNEL
from .gated_delta_rule_cpu import CPU_KERNEL, gated_delta_rule_reference

OP = "gated_delta_rule"
MAX_GRADIENT_TOKENS = 4096
"""The maximum number of tokens of a gradient, whose graph has some ops per token."""
NAMES = ("q", "k", "v", "g", "beta", "state")
REMOVAL_NAMES = ("a", "b")
"""The keys by which old values are read and removed, if they are not k."""


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
    if len(inputs) == len(NAMES) + 1:
        raise ShapeError(f"[{OP}] expected both keys of the removal, a and b, or none, got a only")
    has_removal = len(inputs) > len(NAMES)
    of_head, of_channel = (batch, tokens, heads), (batch, tokens, heads, size)
    wanted: tuple[tuple[Shape, ...], ...] = (
        *((q.shape,), (q.shape,), ((batch, tokens, heads, columns),)),
        *((of_channel,) if has_removal else (of_head, of_channel), (of_head,)),
        *(((batch, size, heads, columns),), (q.shape,), (q.shape,)),
    )
    for name, operand, shapes in zip((*NAMES, *REMOVAL_NAMES), inputs, wanted, strict=False):
        if operand.shape not in shapes:
            expected = " or ".join(map(str, shapes))
            raise ShapeError(f"[{OP}] expected {name} of shape {expected}, got {operand.shape}")
        if operand.dtype != FLOAT32:
            raise DTypeError(f"[{OP}] expected {name} of float32, got {operand.dtype}")
    return TensorType((batch, tokens + size, heads, columns), FLOAT32)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Estimate the work: three products of the state and a vector for each token, in order; a
    fourth one if the keys of the removal are not k.
    """
    q, v, state = inputs[0], inputs[2], inputs[5]
    moved = sum(each.device_bytes for each in inputs) + output.device_bytes
    tokens, size = q.shape[1], q.shape[3]
    products = 7.0 if len(inputs) == len(NAMES) else 9.0
    return Work(products * tokens * state.size + v.size, float(moved), float(2 * tokens * size))


register(
    Op(
        OP,
        _infer,
        gated_delta_rule_reference,
        KERNEL,
        attrs={},
        operands=(6, 8),
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


def _unrolled(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *removal: Tensor
) -> Tensor:
    """Return the result as other ops compute it."""
    batch, tokens, key_heads, size = q.shape
    heads = v.shape[2]
    keys = (q, k, *removal)
    if key_heads != heads:
        of_head = np.array([head * key_heads // heads for head in range(heads)], np.int32)
        keys = tuple(gather(each, of_head, axis=2) for each in keys)
    q, k, *removal_keys = keys

    def columns(x: Tensor, token: int) -> Tensor:
        """Return q or k of a token as factors of the state's rows, (batch, size, heads, 1)."""
        return reshape(transpose(x[:, token], (0, 2, 1)), (batch, size, heads, 1))

    def rows(x: Tensor, token: int) -> Tensor:
        """Return v, g or beta of a token as factors of the state, (batch, 1, heads, ...)."""
        return reshape(x[:, token], (batch, 1, heads, x.shape[3] if x.rank == 4 else 1))

    out = []
    for token in range(tokens):
        key, value, rate = columns(k, token), rows(v, token), rows(beta, token)
        state = state * exp(columns(g, token) if g.rank == 4 else rows(g, token))
        reading, removing = (columns(each, token) for each in removal_keys or (k, k))
        seen = reduce_sum(state * reading, 1, keepdims=True)
        if removal_keys:
            state = state + rate * (key * value - removing * seen)
        else:
            state = state + key * ((value - seen) * rate)
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
    removal: tuple[TensorLike, TensorLike] | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs of all tokens and the state after them, by the gated delta rule.

    For each head and token, the state S (key size, columns) becomes exp(g) S, then
    S + k (beta (v - S^T k))^T, and the output is S^T q. A token with g = 0 and beta = 0 leaves the
    state as it is. q and k are neither normalized nor scaled. A gradient is of at most 4096 tokens,
    because its graph has some ops per token.

    Parameters
    ----------
    g
        The logarithms of decays: one for each head, or one for each element of its keys.
    removal
        The keys (a, b) of the old value that a token removes: S becomes
        S + beta (k v^T - b (S^T a)^T). None for (k, k).

    Shapes
    ------
    q, k
        (batch, tokens, key heads, key size).
    v
        (batch, tokens, heads, columns); heads i of v share key head i * key heads // heads.
    g
        (batch, tokens, heads), or (batch, tokens, heads, key size).
    beta
        (batch, tokens, heads).
    removal
        Each as k.
    state
        (batch, key size, heads, columns).
    result
        (batch, tokens, heads, columns), and the state.

    Raises
    ------
    ShapeError
        The shapes do not match.
    """
    operands = tuple(map(as_tensor, (q, k, v, g, beta, state, *(removal or ()))))
    decay, query = operands[3], operands[0]
    if removal and decay.rank == 3 and query.rank == 4:
        decay = expand(expand_dims(decay, 3), (*decay.shape, query.shape[3]))
        operands = (*operands[:3], decay, *operands[4:])
    result = apply(OP, operands, name=name)
    tokens = operands[0].shape[1]
    return result[:, :tokens], result[:, tokens:]
