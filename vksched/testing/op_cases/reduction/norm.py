"""Samples of layer_norm and rms_norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .... import ops
from ....common.dtypes import FLOAT16, NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import Tensor, input
from ..op_sample import ErrorSample, OpSample, floats
from .softmax import edge_rows


def norm(
    kind: str, shape: tuple[int, ...], axis: int, scaled: bool, shifted: bool, eps: float = 1e-5
) -> OpSample:
    inputs = [floats(*shape) * 3 + 1]
    inputs += [floats(*shape[axis:], seed=i + 1) for i in range(scaled + shifted)]
    attrs: dict[str, AttrValue] = {
        "axis": axis,
        "eps": eps,
        "kind": kind,
        "scaled": scaled,
        "shifted": shifted,
    }
    name = f"axis {axis}{' scaled' * scaled}{' shifted' * shifted} eps {eps:g}"
    return OpSample(kind, tuple(np.asarray(x, np.float32) for x in inputs), attrs, name)


def of_scales(shape: tuple[int, int], scales: tuple[float, ...]) -> NDArray:
    """Return rows of values of alternating scales."""
    rows = floats(*shape) * 3 + 1
    return np.asarray(rows * np.resize(scales, shape[0])[:, None], np.float32)


NORM_SHAPES = [
    ((1,), 0),
    ((7,), 0),
    ((5, 24), 1),
    ((3, 5, 131), 2),
    ((3, 5, 131), 1),
    ((200, 9), 1),
    ((2100, 32), 1),
    ((9, 1024), 1),
]


def to_fp16(case: OpSample) -> OpSample:
    """Return a sample whose result is stored as float16."""
    attrs = {**case.attrs, "dtype": FLOAT16}
    return replace(case, attrs=attrs, name=f"{case.name} to float16", exact=False)


CASES = [
    *(
        norm("layer_norm", shape, axis, scaled, shifted)
        for shape, axis in NORM_SHAPES
        for scaled, shifted in ((True, True), (False, False))
    ),
    norm("layer_norm", (4, 60), 1, True, False, 1e-12),
    norm("layer_norm", (4, 60), 1, False, True, 0.1),
    norm("layer_norm", (2, 17000), 1, True, True),
    norm("layer_norm", (0, 6), 1, True, True),
    norm("layer_norm", (6, 0), 1, True, True),
    *(
        norm("rms_norm", shape, axis, scaled, False)
        for shape, axis in NORM_SHAPES
        for scaled in (True, False)
    ),
    *(
        OpSample(
            kind,
            (x,),
            {"axis": 1, "eps": 1e-5, "kind": kind, "scaled": False, "shifted": False},
            name,
        )
        for kind in ("layer_norm", "rms_norm")
        for name, x in (
            ("constant", np.full((2, 50), 4.0, np.float32)),
            ("edges", edge_rows()),
            ("far from 0", floats(3, 200) + np.float32(1000)),
            ("constant far from 0", np.full((1, 10007), 123456.7, np.float32)),
            ("very far from 0", floats(1, 16000) + np.float32(1e6)),
        )
    ),
    # rows with squares beyond float32, next to others
    *(
        OpSample(
            kind,
            (of_scales(shape, scales),),
            {"axis": 1, "eps": eps, "kind": kind, "scaled": False, "shifted": False},
            f"scales {', '.join(f'{s:g}' for s in scales)} eps {eps:g}",
        )
        for kind in ("layer_norm", "rms_norm")
        for shape in ((6, 24), (7, 131), (130, 64), (2, 17001))
        for scales, eps in (((1e20, 1.0, 1e37), 1e-5), ((1e-22, 1.0, 1e-34), 0.0))
    ),
    *(
        OpSample(
            kind,
            (of_scales((130, 64), (1e-19, 1e-25, 1e18)),),
            {"axis": 1, "eps": 1e-37, "kind": kind, "scaled": False, "shifted": False},
            "small eps",
        )
        for kind in ("layer_norm", "rms_norm")
    ),
]

CASES += [
    OpSample(
        "layer_norm_backward",
        (floats(*case.inputs[0].shape, seed=7), *case.inputs[: 1 + bool(case.attrs["scaled"])]),
        {name: value for name, value in case.attrs.items() if name != "shifted"},
        f"{case.attrs['kind']} {case.name}",
    )
    for case in CASES
    # norms of one value are constant, so that all digits cancel; the gradient of this one sums
    # squares that drivers flush to 0
    if case.name != "small eps"
    and (case.inputs[0].shape != (1,) or (case.op == "layer_norm" and not case.attrs["scaled"]))
]
ROUNDED = [
    to_fp16(case)
    for case in (
        *(norm("layer_norm", (2, 3, 11, 7), 2, *flags) for flags in ((True, True), (False, False))),
        *(norm("rms_norm", shape, 1, True, False) for shape in ((130, 1024), (5, 32))),
        norm("layer_norm", (0, 8), 1, True, True),
        *(case for case in CASES if case.name.startswith("scales")),
    )
    if case.op != "layer_norm_backward" and case.inputs[0].shape[-1] < 2000
]
"""Samples whose results are stored as float16."""


def x() -> Tensor:
    return input("x", (4, 6))


def whole() -> Tensor:
    return input("i", (4, 6), "int32")


ERRORS = [
    ErrorSample(lambda: ops.layer_norm(x(), np.ones(5, np.float32)), ShapeError, r"shape \(6,\)"),
    ErrorSample(lambda: ops.layer_norm(x(), eps=-1), DTypeError, "eps"),
    ErrorSample(lambda: ops.layer_norm(x(), eps=1e-39), DTypeError, "or of 1.2e-38 or more"),
    ErrorSample(lambda: ops.rms_norm(x(), eps=1e-60), DTypeError, "or of 1.2e-38 or more"),
    ErrorSample(lambda: ops.rms_norm(x(), eps=1e39), DTypeError, "finite number as eps"),
    ErrorSample(lambda: ops.layer_norm(input("s", ())), ShapeError, "scalar"),
    ErrorSample(lambda: ops.layer_norm(whole()), DTypeError, "cast"),
    ErrorSample(lambda: ops.rms_norm(x(), axis=-3), ShapeError, "axis in"),
    ErrorSample(lambda: ops.rms_norm(x(), np.ones((4, 5), np.float32), 0), ShapeError, "shape"),
]
