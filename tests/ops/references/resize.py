"""Oracles of resize, resample, depth_to_space and space_to_depth."""

from __future__ import annotations

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.function_call import FunctionCall
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle
from .node import run_node

FLAGS = ("antialias", "exclude_outside")


def resample(case: OpSample) -> NDArray:
    """In plain Python."""
    x, indices, weights = case.inputs
    axis = int(case.attrs["axis"])  # type: ignore[arg-type]
    taps = [list(zip(i, w, strict=True)) for i, w in zip(indices.tolist(), weights.tolist())]  # noqa: B905
    rows = np.moveaxis(x, axis, -1)
    last = rows.shape[-1] - 1
    out = [
        [sum(w * row[min(max(i, 0), last)] for i, w in t if w) for t in taps]
        for row in rows.reshape(-1, last + 1).tolist()
    ]
    result = np.asarray(out, np.float32).reshape(*rows.shape[:-1], len(taps))
    return np.moveaxis(result, -1, axis)


def resize(case: FunctionSample) -> NDArray:
    assert isinstance(case, FunctionCall)
    x, feeds = case.inputs[0], dict(case.arguments)
    if x.ndim == 0:
        return x
    operands: list[NDArray | None] = [x, None, None, None]
    for place, what, dtype in ((1, "roi", "f4"), (2, "scales", "f4"), (3, "sizes", "i8")):
        if what in feeds:
            operands[place] = np.asarray(feeds.pop(what), dtype)
    if "axes" in feeds:
        feeds["axes"] = [a % x.ndim for a in feeds["axes"]]
    attrs = {k: int(v) if k in FLAGS else v for k, v in feeds.items()}
    if operands[3] is None:
        operands.pop()
    if x.size == 0:  # the reference divides by the size
        assert operands[3] is not None
        return np.empty(operands[3], x.dtype)
    if x.dtype == bool:  # which the reference does not take
        operands[0] = x.astype(np.int32)
    return run_node("Resize", operands, attrs, opset=19)[0].astype(x.dtype)


def depth_to_space(case: FunctionSample) -> NDArray:
    assert isinstance(case, FunctionCall)
    attrs = {"blocksize": case.arguments["block"], "mode": case.arguments["mode"]}
    return run_node("DepthToSpace", case.inputs, attrs, opset=13)[0]


def space_to_depth(case: FunctionSample) -> NDArray:
    assert isinstance(case, FunctionCall)
    return run_node("SpaceToDepth", case.inputs, {"blocksize": case.arguments["block"]}, opset=13)[
        0
    ]


ORACLES: dict[str, Oracle] = {"resample": resample}
FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "resize": resize,
    "depth_to_space": depth_to_space,
    "space_to_depth": space_to_depth,
}
