"""Oracles of attention and of the rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle, onnx

scipy_special = pytest.importorskip("scipy.special")


def run_attention(arrays: list[NDArray], attrs: dict[str, Any], past: int) -> NDArray:
    """The ONNX reference implementation, of which past is the length of its cache."""
    from onnx.reference import ReferenceEvaluator

    q, k, v, *mask = arrays
    # ONNX fills a shorter last axis up, and does not repeat it
    mask = [np.broadcast_to(m, (*q.shape[:3], k.shape[2])) for m in mask]
    inputs = {"q": q, "k": k[:, :, past:], "v": v[:, :, past:]}
    inputs |= {"mask": mask[0]} if mask else {}
    inputs |= {"pk": k[:, :, :past], "pv": v[:, :, :past]} if past else {}
    order = [n if n in inputs else "" for n in ("q", "k", "v", "mask", "pk", "pv")]
    values = [
        onnx.helper.make_tensor_value_info(
            n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape
        )
        for n, x in inputs.items()
    ]
    node = onnx.helper.make_node("Attention", order, ["y"], **attrs)
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, None)
    graph = onnx.helper.make_graph([node], "one", values, [out])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=10
    )
    with np.errstate(all="ignore"):
        return np.asarray(ReferenceEvaluator(model).run(None, inputs)[0])


def has_onnx(arrays: list[NDArray], attrs: Any) -> bool:
    """Return True if ONNX supports the case: only here hidden keys that are NaN are ignored."""
    q, k = arrays[:2]
    past, scale = attrs["past_len"], attrs["scale"]
    assert isinstance(past, int) and isinstance(scale, float)
    return (
        onnx.defs.onnx_opset_version() >= 25
        and all(np.isfinite(x).all() for x in arrays[:3])
        and 0 <= past < max(1, k.shape[2])
        and scale > 0
        and 0 not in q.shape + k.shape
    )


def attention(case: OpSample) -> NDArray:
    """Of operands with heads before length, whichever order the case has them in."""
    attrs = dict(case.attrs)
    *bshd, result_bshd = attrs.pop("is_bshd")
    nan = attrs.pop("fully_masked_is_nan")
    attrs.pop("float32_sums", None)
    wide = [x if x.dtype == bool else x.astype(np.float64) for x in case.inputs]
    wide[:3] = [x.swapaxes(1, 2) if t else x for x, t in zip(wide, bshd, strict=False)]
    if nan or not has_onnx(wide, attrs):
        built = by_rows(wide, attrs, math.nan if nan else 0.0)
    else:
        feeds = {"scale": attrs["scale"], "softcap": attrs["softcap"]}
        feeds |= {"left_window_size": attrs["left"], "right_window_size": attrs["right"]}
        causal = attrs["right"] == 0
        feeds |= {"is_causal": 1, "right_window_size": -1} if causal else {}
        built = np.asarray(run_attention(wide, feeds, attrs["past_len"]), np.float32)
    return built.swapaxes(1, 2) if result_bshd else built


def by_rows(arrays: list[NDArray], attrs: Any, none: float = 0.0) -> NDArray:
    """Query by query, with the keys that it sees picked out first; none: where it sees none."""
    q, k, v = arrays[:3]
    (batches, heads, queries, _), keys = q.shape, k.shape[2]
    out = np.zeros((batches, heads, queries, v.shape[3]), np.float32)
    mask = np.broadcast_to(arrays[3] if len(arrays) > 3 else 0.0, (*q.shape[:3], keys))
    for b, h, i in np.ndindex(batches, heads, queries):
        group = h * k.shape[1] // heads
        seen = visible_range(attrs, mask[b, h, i], i)
        if not seen:
            out[b, h, i] = none
            continue
        with np.errstate(all="ignore"):
            scores = np.einsum("jd,d->j", k[b, group, seen], q[b, h, i]) * attrs["scale"]
            if attrs["softcap"]:
                scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
            if mask.dtype != bool:
                scores = scores + mask[b, h, i, seen]
            weights = scipy_special.softmax(scores)
            weights[scores == -math.inf] *= 0  # NaN where all are
            if np.isneginf(scores).all():
                weights[:] = 0
            there = weights != 0
            out[b, h, i] = weights[there] @ v[b, group, seen][there]
    return out


def gradient(case: OpSample) -> NDArray:
    """Query by query, by the matrix of derivatives of its softmax, written out."""
    q, k, v, g, *masks = (x if x.dtype == bool else x.astype(np.float64) for x in case.inputs)
    attrs: Any = case.attrs
    (batches, heads, queries, _), (shared, keys, _) = q.shape, v.shape[1:]
    parts = [np.zeros_like(x) for x in (q, k, v)]
    mask = np.broadcast_to(masks[0] if masks else 0.0, (*q.shape[:3], keys))
    cap = attrs["softcap"]
    for b, h, i in np.ndindex(batches, heads, queries):
        group = h * shared // heads
        seen = visible_range(attrs, mask[b, h, i], i)
        if not seen:
            continue
        scores = k[b, group, seen] @ q[b, h, i] * attrs["scale"]
        slope = np.full(len(seen), attrs["scale"])
        if cap:
            slope /= np.cosh(scores / cap) ** 2
            scores = cap * np.tanh(scores / cap)
        scores = scores + (0 if mask.dtype == bool else mask[b, h, i, seen])
        p = scipy_special.softmax(scores)
        jacobian = np.diag(p) - np.outer(p, p)
        ds = jacobian @ (v[b, group, seen] @ g[b, h, i]) * slope
        parts[0][b, h, i] = ds @ k[b, group, seen]
        parts[1][b, group, seen] += np.outer(ds, q[b, h, i])
        parts[2][b, group, seen] += np.outer(p, g[b, h, i])
    out = np.zeros(case.result_type().shape, np.float32)
    for of, part in zip(out, parts, strict=True):
        if part.size:
            flat = part.reshape(*of.shape[:2], -1)
            of[..., : flat.shape[2]] = flat
    return out


def visible_range(attrs: Any, mask: NDArray, query: int) -> list[int]:
    """The keys that a query sees, of so many as its mask has."""
    first = query + attrs["past_len"] - attrs["left"] if attrs["left"] >= 0 else 0
    last = query + attrs["past_len"] + attrs["right"] if attrs["right"] >= 0 else mask.size - 1
    stored = mask if mask.dtype == bool else mask != -math.inf
    return [j for j in range(max(first, 0), min(last + 1, mask.size)) if stored[j]]


def joined(case: FunctionSample) -> NDArray:
    q, k, v = (x.astype(np.float64) for x in case.inputs)
    heads, kv_heads = (4, 2) if case.name == "joined heads" else (3, 3)
    causal = case.name == "joined heads"
    apart = [
        np.stack(np.split(x, n, axis=2), axis=1)
        for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))
    ]
    attrs = {"scale": apart[0].shape[3] ** -0.5, "softcap": 0.0, "past_len": 0, "left": -1}
    out = by_rows(apart, attrs | {"right": 0 if causal else -1})
    return np.concatenate(list(np.moveaxis(out, 1, 0)), axis=2)


def is_bshd(x: NDArray, cos: NDArray, sin: NDArray, bshd: int, interleaved: bool) -> NDArray:
    """As multiplication by complex numbers."""
    half, out = bshd // 2, x.copy()
    turns = cos + 1j * sin
    turns = turns[:, None] if turns.ndim == 3 else turns
    if interleaved:
        pairs = x[..., :bshd].reshape(*x.shape[:-1], half, 2)
        product = (pairs[..., 0] + 1j * pairs[..., 1]) * turns
        out[..., :bshd] = np.stack([product.real, product.imag], -1).reshape(*x.shape[:-1], bshd)
    else:
        product = (x[..., :half] + 1j * x[..., half:bshd]) * turns
        out[..., :bshd] = np.concatenate([product.real, product.imag], -1)
    return np.asarray(out, np.float32)


def rotary(case: OpSample) -> NDArray:
    x, cos, sin = (a.astype(np.float64) for a in case.inputs)
    bshd = case.attrs["rotary_dim"]
    assert isinstance(bshd, int)
    return is_bshd(x, cos, sin, bshd, bool(case.attrs["interleaved"]))


def cached(case: FunctionSample) -> NDArray:
    angles = [[p * 100.0 ** (-i / 2) for i in range(2)] for p in range(6)]
    x = case.inputs[0].astype(np.float64)
    return is_bshd(x, np.cos(angles), np.sin(angles), 4, False)


ORACLES: dict[str, Oracle] = {
    "attention": attention,
    "attention_backward": gradient,
    "rotary_embedding": rotary,
}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {"attention": joined, "rotary_cache": cached}
