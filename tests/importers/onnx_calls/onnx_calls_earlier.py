"""How calls are drawn of ops that onnxruntime has in the default domain, and ONNX at those opsets
has not: those that came into it later, and those that it dropped.
"""

from __future__ import annotations

from functools import partial

from onnx_calls import Drawn, Source, calls

early = partial(calls, since=7, until=9)


@calls("LayerNormalization", since=7, until=16)
def layer_norm(s: Source) -> Drawn:
    shape = s.shape(1, 4, empty=False)
    axis = s.axis(len(shape))
    row = shape[axis:]
    kind = s.pick("float32", "float32", "float16", "float64")
    shift = s.values(row, kind) if s.chance(0.6) else None
    attrs = {"axis": s.pick(axis, axis % len(shape)), "epsilon": s.pick(1e-5, 1e-2, None)}
    plain = kind == "float32"  # of others onnxruntime has no mean and deviation
    return [s.values(shape, kind), s.values(row, kind), shift], attrs, s.pick(1, 3) if plain else 1


@calls("SimplifiedLayerNormalization", since=7)
def simplified(s: Source) -> Drawn:
    shape = s.shape(1, 3, empty=False)
    return [s.values(shape), s.values(shape[-1:])], {"epsilon": s.pick(1e-5, 1e-2, None)}


@early("ThresholdedRelu", "Affine", "Scale", "ScaledTanh", "ParametricSoftplus")
def of_one(s: Source) -> Drawn:
    names = {"ThresholdedRelu": ("alpha",), "Scale": ("scale",)}.get(s.op, ("alpha", "beta"))
    optional = s.op in ("ThresholdedRelu", "Affine", "Scale")
    attrs = {name: s.pick(0.5, -1.5, None if optional else 2.0) for name in names}
    return [s.values(s.shape(1, 4))], attrs


@calls("MeanVarianceNormalization", since=7, until=8)
def mean_variance(s: Source) -> Drawn:
    attrs = {"across_channels": s.pick(0, 1), "normalize_variance": s.pick(0, 1)}
    return [s.values((s.int(1, 2), s.int(1, 3), s.int(2, 4), s.int(2, 4)))], attrs


@early("ImageScaler")
def image_scaler(s: Source) -> Drawn:
    channels = s.int(1, 3)
    bias = [s.pick(0.5, -1.0, 2.0) for _ in range(channels)]
    return [s.values((s.int(1, 2), channels, 2, 3))], {"scale": s.pick(0.5, None), "bias": bias}


@early("Crop")
def crop(s: Source) -> Drawn:
    border = s.ints(4, 0, 2)
    attrs = {"border": border, "scale": s.ints(2, 1, 3) if s.chance(0.5) else None}
    return [s.values((1, s.int(1, 2), 5 + s.int(0, 2), 5 + s.int(0, 2)))], attrs


@early("DynamicSlice")
def dynamic_slice(s: Source) -> Drawn:
    shape = s.shape(1, 3, empty=False)
    axes = s.axes(len(shape)) if s.chance(0.6) else None
    count = len(shape) if axes is None else len(axes)
    ends = [s.pick(1000, s.int(-2, 4)) for _ in range(count)]
    inputs = [s.vector(s.ints(count, -3, 3)), s.vector(ends)]
    return [s.values(shape), *inputs, None if axes is None else s.vector(axes)], {}
