"""How calls of layers are drawn: windows, norms, recurrent layers, resampling, attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx_calls import Drawn, Source, calls
from onnx_calls_math import BYTES, scale_of, zero_of

AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID")


def window(s: Source, axes: int, auto: bool = True, dilated: bool = True) -> dict[str, Any]:
    """The attributes of a window, but its size."""
    attrs: dict[str, Any] = {}
    if s.chance(0.6):
        attrs["strides"] = s.ints(axes, 1, 3)
    if dilated and s.chance(0.3):
        attrs["dilations"] = s.ints(axes, 1, 2)
    if auto and s.chance(0.3):
        attrs["auto_pad"] = s.pick(*AUTO)
        if attrs["auto_pad"] != "VALID":
            attrs.pop("dilations", None)
    elif s.chance(0.7):
        attrs["pads"] = s.ints(2 * axes, 0, 2)
    return attrs


def room(s: Source, attrs: dict[str, Any], kernel: list[int]) -> list[int]:
    """Sizes of an image that has room for a kernel."""
    dilations = attrs.get("dilations", [1] * len(kernel))
    return [(k - 1) * d + s.int(1, 5) for k, d in zip(kernel, dilations, strict=True)]


@calls("Conv", "ConvInteger", "QLinearConv")
def conv(s: Source) -> Drawn:
    axes = s.pick(1, 2, 2, 2, 3) if s.op == "Conv" else s.pick(1, 2, 2)
    attrs = window(s, axes)
    kernel = s.ints(axes, 1, 3)
    groups = s.pick(1, 1, 2, 3)
    inner, outer = s.pick(1, 2), s.pick(1, 2)
    channels, outs = groups * inner, groups * outer
    attrs["group"] = groups if groups > 1 else s.pick(None, 1)
    attrs["kernel_shape"] = kernel if s.chance(0.6) else None
    shape = (s.int(1, 2), channels, *room(s, attrs, kernel))
    if s.op == "Conv":
        x, w = s.values(shape), s.values((outs, inner, *kernel))
        return [x, w, s.values((outs,)) if s.chance(0.5) else None], attrs
    a = s.pick(*BYTES)
    b = np.int8 if a == np.int8 else s.pick(*BYTES)
    x, w = s.values(shape, a, full=True), s.values((outs, inner, *kernel), b, full=True)
    if s.op == "ConvInteger":
        zeros = [zero_of(s, a) if s.chance(0.7) else None, zero_of(s, b)]
        return [x, w, *(zeros if s.chance(0.8) else [])], attrs
    columns = s.pick((), (outs,))
    bias = s.values((outs,), np.int32, full=False) if s.chance(0.5) else None
    zero = np.zeros(columns, b) if columns else zero_of(s, b)
    return [
        x, scale_of(s), zero_of(s, a), w, scale_of(s, columns), zero,
        scale_of(s) * np.float32(s.pick(1, 8, 50)), zero_of(s, a), bias,
    ], attrs  # fmt: skip


@calls("ConvTranspose")
def conv_transpose(s: Source) -> Drawn:
    axes = s.pick(1, 2, 2, 3)
    attrs = window(s, axes, auto=False)
    kernel = s.ints(axes, 1, 3)
    strides = attrs.get("strides", [1] * axes)
    dilations = attrs.get("dilations", [1] * axes)
    groups, inner, outer = s.pick(1, 1, 2), s.pick(1, 2), s.pick(1, 2)
    attrs["group"] = groups if groups > 1 else None
    attrs["kernel_shape"] = kernel if s.chance(0.6) else None
    if "pads" in attrs:
        reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
        attrs["pads"] = [s.int(0, r // 2) for r in reach * 2]
    if s.chance(0.4):
        least = [max(a, b) for a, b in zip(strides, dilations, strict=True)]
        attrs["output_padding"] = [s.int(0, m - 1) for m in least]
    sizes = s.ints(axes, 1, 4)
    if s.chance(0.2):
        attrs.pop("pads", None)
        attrs.pop("output_padding", None)
        attrs["auto_pad"] = s.pick("SAME_UPPER", "SAME_LOWER")
        attrs.pop("dilations", None)
        if s.chance(0.5):
            attrs["output_shape"] = [n * t for n, t in zip(sizes, strides, strict=True)]
    x = s.values((s.int(1, 2), groups * inner, *sizes))
    w = s.values((groups * inner, outer, *kernel))
    return [x, w, s.values((groups * outer,)) if s.chance(0.5) else None], attrs


@calls("MaxPool", "AveragePool", "LpPool")
def pool(s: Source) -> Drawn:
    axes = s.pick(1, 2, 2, 2, 3)
    dilated = s.opset >= {"MaxPool": 10, "AveragePool": 19, "LpPool": 18}[s.op]
    attrs = window(s, axes, dilated=dilated)
    kernel = s.ints(axes, 1, 3)
    attrs["kernel_shape"] = kernel
    if "pads" in attrs:
        attrs["pads"] = [s.int(0, k // 2) for k in kernel * 2]
    if s.opset >= (18 if s.op == "LpPool" else 10) and attrs.get("auto_pad") is None:
        attrs["ceil_mode"] = s.pick(0, 1, None)
    results = 1
    if s.op == "AveragePool":
        attrs["count_include_pad"] = s.pick(0, 1, None)
    elif s.op == "LpPool":
        attrs["p"] = s.pick(1, 2, None)  # of 3 onnxruntime keeps the sign
    else:
        results = s.int(1, 2) if s.opset >= 8 else 1
        attrs["storage_order"] = s.pick(0, 1, None) if results > 1 else None
    shape = (s.int(1, 2), s.int(1, 3), *room(s, attrs, kernel))
    only = ("float32",) if s.op == "LpPool" else ("float32", "float64", "int8", "uint8", "float16")
    return [s.values(shape, s.dtype(0, *only))], attrs, results


@calls("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(s: Source) -> Drawn:
    x = s.values((*s.shape(2, 2, empty=False), *s.shape(1, 3, empty=False)))
    return [x], {"p": s.pick(1, 2, 3, None)} if s.op == "GlobalLpPool" else {}


@calls("BatchNormalization")
def batch_norm(s: Source) -> Drawn:
    shape = s.shape(2, 5, empty=False)
    parameters = [s.values(shape[1:2]) for _ in range(3)]
    variance = np.abs(s.values(shape[1:2])) + np.float32(0.1)
    attrs: dict[str, Any] = {
        "epsilon": s.pick(1e-5, 1e-3, None),
        "momentum": s.pick(0.9, 0.5, None),
    }
    results = 1
    if s.opset >= 14 and s.chance(0.3):
        attrs["training_mode"] = 1
        results = s.pick(1, 3)
    if s.opset < 9 and s.chance(0.3):
        attrs["spatial"] = 1
    return [s.values(shape), *parameters, variance], attrs, results


@calls("InstanceNormalization", "GroupNormalization")
def channel_norm(s: Source) -> Drawn:
    batch, channels, *rest = s.shape(3, 4, empty=False)
    attrs: dict[str, Any] = {"epsilon": s.pick(1e-5, 1e-3, None)}
    size = channels
    if s.op == "GroupNormalization":
        divisors = [g for g in range(1, channels + 1) if channels % g == 0]
        attrs["num_groups"] = s.pick(*divisors)
        size = channels if s.opset >= 21 else attrs["num_groups"]
    rest[0] += 1  # of equal values it is a matter of rounding whether anything is left
    x = s.values((batch, channels, *rest))
    x = x + np.linspace(0, 1, x.size, dtype=np.float32).reshape(x.shape)
    return [x, s.values((size,)), s.values((size,))], attrs


@calls("LayerNormalization", "RMSNormalization")
def row_norm(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    axis = s.axis(len(shape))
    row = shape[axis:] if s.chance(0.8) else shape[-1:]
    dtype = s.dtype(0, "float32", "float16", "float64")
    shift = s.values(row, dtype) if s.op == "LayerNormalization" and s.chance(0.5) else None
    results = s.pick(1, 1, 2, 3) if s.op == "LayerNormalization" else 1
    attrs = {"axis": axis if axis != -1 or s.chance(0.5) else None, "epsilon": s.pick(1e-3, None)}
    return [s.values(shape, dtype), s.values(row, dtype), shift], attrs, results


@calls("LRN", "LpNormalization", "MeanVarianceNormalization")
def local_norm(s: Source) -> Drawn:
    x = s.values((*s.shape(2, 2, empty=False), *s.shape(2, 2, empty=False)))
    if s.op == "LRN":
        numbers = {n: round(float(s.rng.random()) + 0.1, 2) for n in ("alpha", "beta", "bias")}
        return [x], {"size": s.pick(1, 2, 3, 4, 5), **(numbers if s.chance(0.6) else {})}
    if s.op == "LpNormalization":
        return [x + np.float32(0.01)], {"axis": s.axis(4), "p": s.pick(1, 2, None)}
    x = s.values([d + 1 for d in x.shape])  # of one value onnxruntime gives no number
    return [x], {"axes": s.pick(None, [0, 2, 3], [2, 3], [0, 1, 2, 3])}


@calls("Dropout")
def dropout(s: Source) -> Drawn:
    x = s.values(s.shape())
    if s.opset < 12:
        return [x], {"ratio": s.pick(0.3, None)}  # what the mask is was not said
    ratio = np.float32(0.3) if s.chance(0.5) else None
    train = np.array(False) if s.chance(0.5) else None
    return [x, None if ratio is None else np.array(ratio), train], {}, s.int(1, 2)


@calls("RNN", "GRU", "LSTM")
def recurrent(s: Source) -> Drawn:
    gates, states = {"RNN": (1, 1), "GRU": (3, 1), "LSTM": (4, 2)}[s.op]
    time, batch, size, hidden = s.int(1, 4), s.int(1, 3), s.int(1, 3), s.int(1, 3)
    direction = s.pick("forward", "reverse", "bidirectional", None)
    ways = 2 if direction == "bidirectional" else 1
    layout = s.pick(0, 1, None) if s.opset >= 14 else None
    shape, held = (time, batch, size), (ways, batch, hidden)
    if layout:
        shape, held = (batch, time, size), (batch, ways, hidden)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction, "layout": layout}
    if s.op == "GRU":
        attrs["linear_before_reset"] = s.pick(0, 1, None)
    if s.op == "LSTM":
        attrs["input_forget"] = s.pick(0, 0, 1, None)
    if s.op != "LSTM" and s.chance(0.2):  # onnxruntime does not clip what h() is given
        attrs["clip"] = 0.7
    if s.chance(0.2):
        one = {"RNN": ["Relu"], "GRU": ["HardSigmoid", "Softsign"], "LSTM": ["HardSigmoid", "Tanh",
               "Softsign"]}[s.op]  # fmt: skip
        attrs["activations"] = one * ways
    lengths = s.rng.integers(1, time, batch, endpoint=True).astype(np.int32)
    operands = [
        s.values(shape),
        s.values((ways, gates * hidden, size), scale=0.7),
        s.values((ways, gates * hidden, hidden), scale=0.7),
        s.values((ways, 2 * gates * hidden)) if s.chance(0.6) else None,
        lengths if s.chance(0.4) else None,
        *(s.values(held) if s.chance(0.5) else None for _ in range(states)),
    ]
    if s.op == "LSTM":
        operands.append(s.values((ways, 3 * hidden)) if s.chance(0.3) else None)
    return operands, attrs, s.int(1, 1 + states)


TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric",
              "tf_crop_and_resize", None)  # fmt: skip


@calls("Resize")
@calls("Upsample", until=9)
def resize(s: Source) -> Drawn | None:
    mode = s.pick("nearest", "nearest", "linear", "linear", "cubic", None)
    axes = 2 if mode == "cubic" else s.pick(1, 2, 2, 3)
    shape = (s.int(1, 2), s.int(1, 2), *s.ints(axes, 1, 5))
    factors = [1.0, 1.0, *(s.pick(0.5, 0.6, 1.0, 1.5, 2.0, 2.0, 3.0) for _ in range(axes))]
    factors = [f if math.floor(d * f) else 1.0 for f, d in zip(factors, shape, strict=True)]
    x = s.values(shape)
    if s.op == "Upsample" or s.opset == 10:
        mode = None if mode == "cubic" else mode
        if s.op == "Upsample":
            factors = [max(1.0, f) for f in factors]
        if s.op == "Upsample" and s.opset < 9:
            return [x], {"mode": mode, "scales": factors}
        return [x, np.array(factors, np.float32)], {"mode": mode}
    attrs: dict[str, Any] = {"mode": mode}
    transforms = TRANSFORMS + (("half_pixel_symmetric",) if s.opset >= 19 else ())
    transform = s.pick(*transforms)
    attrs["coordinate_transformation_mode"] = transform
    if mode in ("nearest", None):
        attrs["nearest_mode"] = s.pick("floor", "ceil", "round_prefer_floor", "round_prefer_ceil",
                                       None)  # fmt: skip
    if mode == "cubic":
        attrs["cubic_coeff_a"] = s.pick(-0.5, None)
        attrs["exclude_outside"] = s.pick(0, 1, None)
    if mode in ("linear", "cubic") and s.opset >= 18 and transform != "tf_crop_and_resize":
        attrs["antialias"] = s.pick(0, 0, 1, None)
    roi = None
    if transform == "tf_crop_and_resize":
        low = [0.0, 0.0, *(round(float(s.rng.random()) * 0.4, 2) for _ in range(axes))]
        high = [1.0, 1.0, *(round(1.2 - float(s.rng.random()) * 0.4, 2) for _ in range(axes))]
        roi = np.array(low + high, np.float32)
        attrs["extrapolation_value"] = s.pick(-1.5, None)
    elif s.opset < 13 or s.chance(0.3):
        roi = np.zeros(0, np.float32)
    sizes = [math.floor(d * f) for d, f in zip(shape, factors, strict=True)]
    scales = np.array(factors, np.float32)
    whole = all(n == f * d for n, f, d in zip(sizes, factors, shape, strict=True))
    odd = not whole or 1 in sizes[2:] or 1.0 in factors[2:]
    if transform == "tf_crop_and_resize" and (odd or mode == "cubic"):
        return None  # there onnxruntime takes other places than ONNX's own tests
    if s.chance(0.5):
        return [x, roi, scales], attrs
    if s.opset >= 18 and roi is None and s.chance(0.4):
        attrs["axes"] = list(range(2, axes + 2))
        if not attrs.get("antialias") and s.chance(0.6):
            attrs["keep_aspect_ratio_policy"] = s.pick("not_larger", "not_smaller", "stretch")
        return [x, None, None, s.vector(sizes[2:])], attrs
    empty = np.zeros(0, np.float32) if s.opset < 13 else None
    return [x, roi, empty, s.vector(sizes)], attrs


@calls("GridSample")
def grid_sample(s: Source) -> Drawn:
    axes = s.pick(2, 2, 3) if s.opset >= 20 else 2
    modes = ("linear", "nearest", None) if s.opset >= 20 else ("bilinear", "nearest", None)
    mode = s.pick(*modes, "cubic" if s.opset >= 20 else "bicubic") if axes == 2 else s.pick(*modes)
    batch = s.int(1, 2)
    grid = s.rng.uniform(-1.4, 1.4, (batch, *s.ints(axes, 1, 4), axes)).astype(np.float32)
    x = s.values((batch, s.int(1, 2), *s.ints(axes, 2, 5)))
    # at borders PyTorch, whose rule this is, takes each tap of a cubic on its own
    border = () if mode in ("cubic", "bicubic") else ("border",)
    return [x, grid], {
        "mode": mode,
        "padding_mode": s.pick("zeros", *border, "reflection", None),
        "align_corners": s.pick(0, 1, None),
    }


@calls("MaxUnpool")
def unpool(s: Source) -> Drawn:
    batch, channels, h, w = s.int(1, 2), s.int(1, 2), s.int(1, 3), s.int(1, 3)
    whole = h * w * 4
    index = np.stack([s.rng.permutation(whole)[: h * w] for _ in range(batch * channels)])
    index = index + np.arange(batch * channels)[:, None] * whole
    x = s.values((batch, channels, h, w))
    at = index.reshape(x.shape).astype(np.int64)
    return [x, at], {"kernel_shape": [2, 2], "strides": [2, 2]}


@calls("Col2Im")
def col2im(s: Source) -> Drawn:
    image, block = s.ints(2, 3, 6), s.ints(2, 1, 3)
    attrs: dict[str, Any] = {"strides": s.ints(2, 1, 2) if s.chance(0.5) else None}
    attrs["pads"] = s.ints(4, 0, 1) if s.chance(0.5) else None
    strides, pads = attrs["strides"] or [1, 1], attrs["pads"] or [0] * 4
    places = math.prod(
        (image[i] + pads[i] + pads[i + 2] - block[i]) // strides[i] + 1 for i in range(2)
    )
    x = s.values((s.int(1, 2), s.int(1, 2) * math.prod(block), places))
    return [x, s.vector(image), s.vector(block)], attrs


@calls("DFT")
def dft(s: Source) -> Drawn | None:
    shape = (*s.shape(2, 3, empty=False), 1)
    axis = s.int(0, len(shape) - 2)
    inverse = s.pick(0, 1, None)
    onesided = None if inverse else s.pick(0, 1, None)
    x = s.values(shape)
    if not onesided and s.chance(0.5):
        x = s.values((*shape[:-1], 2))
    length = np.array(s.int(1, 8), np.int64) if s.chance(0.5) else None
    attrs: dict[str, Any] = {"inverse": inverse, "onesided": onesided}
    if s.opset < 20:
        return [x, length], {**attrs, "axis": axis}
    return [x, length, np.array(axis - len(shape) * s.chance(0.3), np.int64)], attrs


@calls("RoiAlign")
def roi_align(s: Source) -> Drawn:
    batch, count = s.int(1, 2), s.int(1, 3)
    corner = s.rng.uniform(0, 4, (count, 2))
    regions = np.concatenate([corner, corner + s.rng.uniform(0.5, 5, (count, 2))], 1)
    attrs: dict[str, Any] = {
        "output_height": s.int(1, 3), "output_width": s.int(1, 3),
        "sampling_ratio": s.pick(1, 2, 2, 0), "spatial_scale": s.pick(1.0, 0.5),
        "mode": s.pick("avg", None),
    }  # fmt: skip
    if s.opset >= 16:
        attrs["coordinate_transformation_mode"] = s.pick("half_pixel", "output_half_pixel", None)
    x = s.values((batch, s.int(1, 2), s.int(3, 7), s.int(3, 7)))
    index = s.rng.integers(0, batch, count).astype(np.int64)
    return [x, regions.astype(np.float32), index], attrs


@calls("Attention", until=23)
def attention(s: Source) -> Drawn:
    batch, heads, size = s.int(1, 2), s.pick(1, 2, 4), s.pick(1, 2, 4)
    shared = heads if s.chance(0.6) else s.pick(*[h for h in (1, 2, 4) if heads % h == 0])
    queries, keys, width = s.int(1, 4), s.int(1, 4), s.pick(1, 3, size)
    flat = s.chance(0.4)
    past = s.int(1, 3) if s.chance(0.4) else 0

    def operand(count: int, length: int, depth: int) -> Any:
        x = s.values((batch, count, length, depth))
        return x.transpose(0, 2, 1, 3).reshape(batch, length, -1).copy() if flat else x

    operands: list[Any] = [
        operand(heads, queries, size), operand(shared, keys, size), operand(shared, keys, width),
    ]  # fmt: skip
    mask = None
    if s.chance(0.5):
        tail = (queries, keys + past)
        shape = s.pick(tail, (1, 1, *tail), (batch, 1, *tail), (batch, heads, *tail))
        mask = s.values(shape, s.pick(np.float32, np.bool_))
        if mask.dtype == np.bool_:
            mask[..., 0] = True
    before = [s.values((batch, shared, past, d)) for d in (size, width)] if past else [None, None]
    attrs: dict[str, Any] = {
        "is_causal": s.pick(0, 1, None) if not past else None,
        "scale": s.pick(0.3, None),
        "softcap": s.pick(2.0, None),
    }
    if flat:
        attrs.update(q_num_heads=heads, kv_num_heads=shared)
    results = 1
    if past:
        results = 3
    elif s.chance(0.2):
        return [*operands, mask], attrs, 1
    return [*operands, mask, *before], attrs, results


@calls("RotaryEmbedding")
def rotary(s: Source) -> Drawn:
    batch, heads, length, size = s.int(1, 2), s.int(1, 3), s.int(1, 4), s.pick(2, 4, 8)
    rotary_size = s.pick(0, 0, *([size // 2] if size > 2 else []))
    half, flat = (rotary_size or size) // 2, s.chance(0.4)
    x = s.values((batch, length, heads * size) if flat else (batch, heads, length, size))
    attrs: dict[str, Any] = {
        "interleaved": s.pick(0, 1, None),
        "rotary_embedding_dim": rotary_size or None,
        "num_heads": heads if flat or rotary_size else None,
    }
    if s.chance(0.5):
        caches = [s.values((7, half)) for _ in range(2)]
        return [x, *caches, s.rng.integers(0, 7, (batch, length)).astype(np.int64)], attrs
    return [x, *(s.values((batch, length, half)) for _ in range(2))], attrs
