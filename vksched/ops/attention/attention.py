"""Attention without a stored score matrix (flash attention).

q: rows of all heads that share keys   x   k, v: keys, split into parts
each (rows, part): sums, largest score, total weight -> one result, or parts that are combined
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...common.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    TensorType,
    as_float,
    as_int,
    broadcast_shapes,
)
from ...common.errors import DTypeError, GraphError, ShapeError
from ...ir.attr_domains import Domains, Flag, Float, Int, Optional, wholes
from ...ir.attrs import Attrs, AttrValue
from ...ir.op import Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ..elementwise.select import cast
from ..layout.reshape import reshape, transpose
from ..layout.slots import with_positions, with_slots
from ..reduction.softmax import as_mask
from .attention_cpu import CPU_KERNEL, attention_reference
from .attention_kernels import KERNEL, UNBOUNDED
from .attention_native import attention_program
from .attention_sizes import by_heads

# -- types and values --------------------------------------------------------------------------


SCORES: Domains = {
    "scale": Float(),
    "softcap": Float(0.0),
    "past_len": Int(1 - UNBOUNDED // 2, UNBOUNDED // 2 - 1),
    "left": Int(-1, UNBOUNDED // 2 - 1),
    "right": Int(-1, UNBOUNDED // 2 - 1),
}
"""Attributes for the scores and the visible keys, of attention and of its gradient."""
ATTENTION: Domains = {
    **SCORES,
    "is_bshd": wholes(0, 1, 4),
    "fully_masked_is_nan": Flag(),
    "float32_sums": Optional(Flag()),
}


def infer_attention(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    q, k, v = inputs[:3]
    if any(t.dtype != FLOAT32 for t in (q, k, v)):
        got = " and ".join(t.dtype for t in (q, k, v))
        raise DTypeError(f"[attention] expected float32, got {got}; try vs.cast")
    if any(t.rank != 4 for t in (q, k, v)):
        raise ShapeError(
            "[attention] expected (batch, heads, length, size) three times, got "
            f"{q.shape}, {k.shape} and {v.shape}; try num_heads= for (batch, length, heads * size)"
        )
    q, k, v = by_heads(inputs, attrs)
    if k.shape[:3] != v.shape[:3] or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ShapeError(
            "[attention] expected q (b, h, m, d), k (b, g, n, d) and v (b, g, n, e), "
            f"got {q.shape}, {k.shape} and {v.shape}"
        )
    heads, shared = q.shape[1], k.shape[1]
    if heads != shared and (shared == 0 or heads % shared):
        raise ShapeError(
            f"[attention] expected heads of q that are a multiple of those of k, got {heads} "
            f"and {shared}"
        )
    if len(inputs) > 3:
        mask, scores = inputs[3], (*q.shape[:3], k.shape[2])
        if mask.dtype not in (BOOL, FLOAT32):
            raise DTypeError(
                f"[attention] expected a mask of bool or float32, got {mask.dtype}; try vs.cast"
            )
        if mask.rank > 4 or broadcast_shapes("attention", mask.shape, scores) != scores:
            raise ShapeError(
                f"[attention] expected a mask that broadcasts to {scores}, got {mask.shape}"
            )
    shape = (*q.shape[:3], v.shape[3])
    if attrs.as_ints("is_bshd")[3]:
        shape = (shape[0], shape[2], shape[1], shape[3])
    return TensorType(shape, q.dtype)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    q, k, v = (t.shape for t in by_heads(inputs, attrs))
    flops = 2.0 * math.prod(q[:3]) * k[2] * (q[3] + v[3])
    return Work(flops, float(sum(t.device_bytes for t in inputs) + output.device_bytes))


register(
    Op(
        "attention",
        infer_attention,
        attention_reference,
        KERNEL,
        attrs=ATTENTION,
        operands=(3, 4),
        work=_work,
        roundable_operands=(0, 1, 2),
        cpu=CPU_KERNEL,
        native_program=attention_program,
    )
)


# -- builder -----------------------------------------------------------------------------------


def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    mask: TensorLike | None = None,
    *,
    causal: bool = False,
    past_len: int | Tensor = 0,
    window: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    softcap: float = 0.0,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    layout: str = "BHSD",
    kv_len: TensorLike | None = None,
    k_new: TensorLike | None = None,
    v_new: TensorLike | None = None,
    slots: TensorLike | None = None,
    k_pending: TensorLike | None = None,
    v_pending: TensorLike | None = None,
    chunk: int | None = None,
    float32_sums: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute softmax(q k^T * scale) v for every head, as ONNX Attention; scores are never stored.

    Masked keys and keys of weight 0 are ignored, even if k and v contain NaN or infinity there.

    Parameters
    ----------
    q, k, v : Tensor
        (b, h, m, d), (b, g, n, d) and (b, g, n, e). h is a multiple of g; h / g consecutive heads
        of q share a head of k and v. If float16 and float32 are mixed, the result is float32.
    mask : Tensor, optional
        Broadcasts to (b, h, m, n): bool, true for visible keys, or float32, added to the scores
        after the soft cap.
    causal : bool
        Query i sees the keys up to i + past_len.
    past_len : int or Tensor
        Position of the first query. A tensor of the type of `kv_len`, () or (b,), requires
        `kv_len`, and permits neither `chunk` nor pending rows.
    window : tuple of int or None
        Maximum distance of visible keys to the left and to the right of i + past_len.
    scale : float, optional
        Default: 1 / sqrt(d).
    softcap : float
        Replaces scores by softcap * tanh(score / softcap); 0: no soft cap.
    num_heads, num_kv_heads : int, optional
        Number of heads, if operands and result are (b, length, heads * size). Default of
        `num_kv_heads`: `num_heads`.
    layout : {"BHSD", "BSHD"}
        "BSHD": operands and result are (b, length, heads, size).
    kv_len : Tensor or int, optional
        Number of cached keys in use, at the start of k and v: an int or (b,) ints. `past_len` is
        counted from there. Time grows with `kv_len`, not with n. k and v may be float16 or
        `vs.dequantize_q8_0` of words; they are read without conversion.
    k_new, v_new : Tensor, optional
        Keys and values that follow the cached ones, of any length; they require `kv_len`.
    slots : Tensor, optional
        (b,) ints: the index on the first axis of k and v, of any size there, that holds the cached
        keys of each example; an example with another slot has none. `kv_len` is (b,) then. The
        result of an example does not depend on the others, to the bit.
    k_pending, v_pending : Tensor, optional
        (b, g, r, d) and (b, g, r, e): rows that the cache does not hold yet, in its element type
        (words for `vs.dequantize_q8_0`). Those of an example belong to its slot, from its `kv_len`
        on, and are visible to examples of the slot with a larger `kv_len`: b tokens of one text
        have kv_len n, n + 1, ... there. They require `slots` and new keys. k and v must be states,
        or `vs.dequantize_q8_0` of states, that the run updates with the same rows by
        `vs.dynamic_update_slice`, and that nothing else reads: kernels may write the rows earlier.
    chunk : int, optional
        The cached keys are visible from the last multiple of `chunk` up to `kv_len` on; requires
        `kv_len`.
    float32_sums : bool
        The precision mode "float16" applies as "mixed", for scores that float16 does not represent.

    Returns
    -------
    Tensor
        (b, h, m, e); 0 for a query without visible keys.
    """
    if (k_new is None) != (v_new is None):
        raise ShapeError("[attention] expected k_new and v_new, got one of the two")
    if (k_pending is None) != (v_pending is None):
        raise ShapeError("[attention] expected k_pending and v_pending, got one of the two")
    if layout not in ("BHSD", "BSHD"):
        raise ShapeError(f"[attention] expected a layout of BHSD or BSHD, got {layout!r}")
    new = () if k_new is None or v_new is None else (k_new, v_new)
    operands = [as_tensor(q)]
    operands += [as_tensor(t, like=operands[0]) for t in (k, v, *new)]
    operands = _promote_fp16(operands, (1, 2) if kv_len is not None else ())
    if num_heads is not None or num_kv_heads is not None:
        q, k, v, *rest = _split_heads(operands, num_heads, num_kv_heads)
        out = attention(
            *(q, k, v, mask),
            causal=causal,
            past_len=past_len,
            window=window,
            scale=scale,
            softcap=softcap,
            layout="BSHD",
            kv_len=kv_len,
            k_new=rest[0] if rest else None,
            v_new=rest[1] if rest else None,
            slots=slots,
            k_pending=k_pending,
            v_pending=v_pending,
            chunk=chunk,
            float32_sums=float32_sums,
        )
        return reshape(out, (*out.shape[:2], out.shape[2] * out.shape[3]), name=name)
    if not isinstance(window, Sequence) or len(window) != 2 or isinstance(window, str):
        raise ShapeError(f"[attention] expected a window (left, right), got {window!r}")
    left, right = (_bound(side) for side in window)
    dynamic_past = past_len if isinstance(past_len, Tensor) else None
    past = 0 if isinstance(past_len, Tensor) else as_int("attention", "past_len", past_len)
    if not 0 <= abs(past) < UNBOUNDED // 2:
        raise ShapeError(f"[attention] expected past_len under 2**29, got {past}")
    depth = operands[0].shape[-1] if operands[0].rank else 1
    if scale is None:
        scale = 1 / math.sqrt(max(1, depth))
    scale, softcap = (
        as_float("attention", what, value)
        for what, value in (("scale", scale), ("softcap", softcap))
    )
    if not (abs(scale) <= 3e38 and 0 <= softcap <= 3e38):
        raise DTypeError(
            f"[attention] expected a float32 scale and a softcap of 0 or more, got {scale!r} and "
            f"{softcap!r}"
        )
    attrs: dict[str, AttrValue] = {
        "scale": float(scale),
        "softcap": float(softcap),
        "past_len": past,
        "left": left,
        "right": 0 if causal else right,
        "is_bshd": (int(layout == "BSHD"),) * 4,
        "fully_masked_is_nan": False,
        **({"float32_sums": True} if float32_sums else {}),
    }
    if kv_len is not None:
        if mask is not None:
            raise ShapeError("[attention] expected a mask or kv_len, got both")
        cached, appended = operands[:3], operands[3:]
        used = as_tensor(kv_len) if slots is None else with_slots("attention", kv_len, slots)
        if dynamic_past is not None:
            examples = cached[0].shape[0] if cached[0].rank else 1
            used = with_positions("attention", used, dynamic_past, examples)
            attrs["has_positions"] = True
        if chunk is not None:
            attrs["chunk"] = as_int("attention", "chunk", chunk)
        if layout == "BSHD":
            appended = [transpose(t, (0, 2, 1, 3)) for t in appended]
        if k_pending is not None and v_pending is not None:
            appended += _pending_rows(cached, appended, attrs, (k_pending, v_pending))
        return apply("attention_with_kvcache", [*cached, used, *appended], attrs, name)
    own = new or None, slots, chunk, k_pending, dynamic_past
    if any(each is not None for each in own):
        raise ShapeError(
            "[attention] `k_new`, `v_new`, `slots`, `k_pending`, `v_pending`, `chunk` and a tensor "
            "as `past_len` require `kv_len`, the number of cached keys"
        )
    if mask is not None:
        operands.append(as_mask(mask, operands[0]))
    return apply("attention", operands, attrs, name)


def _pending_rows(
    cached: list[Tensor],
    new: list[Tensor],
    attrs: dict[str, AttrValue],
    pending: tuple[TensorLike, TensorLike],
) -> list[Tensor]:
    """Return the pending rows of a cache. q8_0 rows of the cache replace their dequantized values
    in `cached`, because kernels write into them.
    """
    if not new:
        raise ShapeError("[attention] expected k_new and v_new with pending rows, got none")
    held = [t.inputs[0] for t in cached[1:] if t.op == "dequantize_q8_0"]
    if len(held) == 2:
        attrs["columns"] = cached[2].shape[-1]
        cached[1:] = held
    for tensor in cached[1:]:
        if tensor.op != "state":
            raise GraphError(
                "[attention] expected states as k and v with pending rows, got the result of "
                f"{tensor.op}; try vs.state"
            )
    return [as_tensor(t, like=own) for t, own in zip(pending, cached[1:], strict=True)]


def _promote_fp16(operands: list[Tensor], unchanged: tuple[int, ...]) -> list[Tensor]:
    """Convert float16 operands to float32 if both occur, except the `unchanged` operand indices."""
    own = {t.dtype for i, t in enumerate(operands) if i not in unchanged}
    if own != {FLOAT16, FLOAT32}:
        return operands
    return [
        cast(t, FLOAT32) if t.dtype == FLOAT16 and i not in unchanged else t
        for i, t in enumerate(operands)
    ]


def _bound(side: int | None) -> int:
    if side is None:
        return -1
    keys = as_int("attention", "window", side)
    if not 0 <= keys < UNBOUNDED // 2:
        raise ShapeError(f"[attention] expected a window of 0 or more keys or None, got {side}")
    return keys


def _split_heads(
    operands: list[Tensor], num_heads: int | None, num_kv_heads: int | None
) -> list[Tensor]:
    """Reshape (batch, length, heads * size) to (batch, length, heads, size)."""
    num_heads, num_kv_heads = (
        None if count is None else as_int("attention", what, count)
        for what, count in (("num_heads", num_heads), ("num_kv_heads", num_kv_heads))
    )
    counts = (
        num_heads or num_kv_heads or 0,
        *(num_kv_heads or num_heads or 0 for _ in operands[1:]),
    )
    out = []
    for tensor, count in zip(operands, counts, strict=True):
        if tensor.rank != 3 or count <= 0 or tensor.shape[2] % count:
            raise ShapeError(
                f"[attention] expected (batch, length, {count} heads * size), got {tensor.shape}"
            )
        out.append(reshape(tensor, (*tensor.shape[:2], count, tensor.shape[2] // count)))
    return out
