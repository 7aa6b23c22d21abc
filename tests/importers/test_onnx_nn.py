"""Layers against onnxruntime, where the node tests of the onnx package do not go: old opsets, rare
attributes, shapes that broadcast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vksched as vs

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import onnx_case  # noqa: E402
from onnx_case import OneNode as Case  # noqa: E402
from onnx_case import check  # noqa: E402

sched = onnx_case.sched  # the fixture

RNG = np.random.default_rng(11)


def rand(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def longs(*values: int) -> Any:
    return np.array(values, np.int64)


X, X2 = rand(1, 2, 5, 6), rand(2, 3, 5, 6)
ROWS = [
    Case("Conv", [X, rand(4, 1, 3, 2)], {"group": 2, "auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    Case("Conv", [rand(0, 2, 5), rand(3, 2, 3)], label="no images"),
    *(
        Case("ConvTranspose", [X, rand(2, 3, 3, 3), rand(3)], {"strides": [2, 3], **attrs}, label=k)
        for k, attrs in {
            "same upper": {"auto_pad": "SAME_UPPER"},
            "same lower": {"auto_pad": "SAME_LOWER"},
            "shape": {"output_shape": [10, 16]},
            "shape upper": {"output_shape": [8, 16], "auto_pad": "SAME_UPPER"},
            "shape beyond": {"output_shape": [12, 18]},
            "dilated": {"dilations": [2, 1], "output_padding": [1, 0], "pads": [1, 0, 0, 2]},
        }.items()
    ),
    *(
        Case("MaxPool", [X], {"kernel_shape": [3, 2], **attrs}, "y at", label=k)
        for k, attrs in {
            "indices": {"pads": [1, 0, 1, 1], "strides": [2, 1]},
            "columns": {"storage_order": 1, "strides": [2, 2]},
            "ceil": {"ceil_mode": 1, "strides": [2, 2], "dilations": [1, 2]},
        }.items()
    ),
    Case(
        "MaxPool",
        [RNG.integers(-128, 128, (1, 1, 6), dtype=np.int8)],
        {"kernel_shape": [3], "pads": [1, 1]},
        label="int8",
    ),
    *(
        Case("AveragePool", [X], {"kernel_shape": [3, 3], "strides": [2, 2], **attrs}, label=k)
        for k, attrs in {
            "same": {"auto_pad": "SAME_UPPER"},
            "padding": {"pads": [1, 1, 1, 1], "count_include_pad": 1},
            "ceil": {"pads": [1, 0, 1, 0], "ceil_mode": 1},
        }.items()
    ),
    Case("LpPool", [X], {"kernel_shape": [2, 3], "p": 3}, opset=18),
    Case("GlobalLpPool", [X], {"p": 1}),
    Case("BatchNormalization", [X, rand(2), rand(2), rand(2), rand(2) ** 2], opset=9),
    Case(
        "LayerNormalization",
        [rand(2, 3, 4), rand(4), rand(4)],
        {"epsilon": 1e-3},
        "y mean deviation",
    ),
    Case("LayerNormalization", [rand(2, 3, 4), rand(3, 4)], {"axis": 1}, label="no bias"),
    Case("MeanVarianceNormalization", [X], {"axes": [0, 2]}),
    Case("Gemm", [rand(3, 2), rand(4, 3), rand(2, 1)], {"transA": 1, "transB": 1, "beta": 0.5}),
    Case("MatMul", [np.arange(6).reshape(2, 3) << 30, np.arange(3) << 3], label="int64"),
    Case("Einsum", [rand(2, 3, 4), rand(4, 3)], {"equation": "...ij, ji -> ..."}),
    Case("Upsample", [X], {"scales": [1.0, 1.0, 2.0, 3.0]}, opset=7),
    Case("Upsample", [X, np.float32([1, 1, 2, 1.5])], {"mode": "linear"}, opset=9, fixed=(1,)),
    Case("Resize", [X, np.float32([1, 1, 0.6, 2])], opset=10, fixed=(1,)),
    *(
        Case(
            "Resize",
            [X, None, None, longs(1, 2, 4, 9)],
            {"coordinate_transformation_mode": transform, "mode": mode, **attrs},
            fixed=(3,),
            label=f"{mode} {transform}",
        )
        for mode, transform, attrs in (
            ("nearest", "asymmetric", {"nearest_mode": "ceil"}),
            ("linear", "pytorch_half_pixel", {}),
            ("cubic", "align_corners", {"cubic_coeff_a": -0.5}),
        )
    ),
    Case(
        "Resize",
        [X, np.float32([]), np.float32([]), longs(1, 2, 4, 9)],
        {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "floor"},
        opset=11,
        fixed=(1, 2, 3),
        label="half later",
    ),
    Case("DFT", [rand(2, 7, 3, 1), np.array(5)], {"onesided": 1}, fixed=(1,)),
    Case("DFT", [rand(2, 3, 4, 2), np.array(6)], {"axis": 2}, fixed=(1,), label="longer"),
    Case("STFT", [rand(2, 19, 1), np.array(3), rand(8)], {"onesided": 1}, fixed=(1,)),
    *(
        Case(
            "RoiAlign",
            [X2, np.float32([[0, 1, 4, 3], [-3, -2, 2, 9], [1, 1, 1.2, 1.1]]), longs(1, 0, 1)],
            {"output_height": 2, "output_width": 3, "sampling_ratio": 2, "spatial_scale": 0.7},
            opset=opset,
            label=str(opset),
        )
        for opset in (10, 16)
    ),
    Case(
        "GridSample",
        [X, rand(1, 3, 2, 2)],
        {"mode": "bilinear", "padding_mode": "reflection"},
        opset=16,
    ),
]

T, N, WIDTH, H = 4, 2, 3, 5


def layer(kind: str, label: str, attrs: dict[str, Any], more: tuple[Any, ...] = ()) -> Case:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    count = 2 if attrs.get("direction") == "bidirectional" else 1
    weights = [rand(count, gates * H, WIDTH), rand(count, gates * H, H), rand(count, 2 * gates * H)]
    return Case(
        kind,
        [rand(T, N, WIDTH), *weights, *more],
        {"hidden_size": H, **attrs},
        "y h c" if kind == "LSTM" else "y h",
        label=label,
    )


LENGTHS = np.array([2, 4], np.int32)
ROWS += [
    layer("RNN", "both ways", {"direction": "bidirectional"}, (LENGTHS, rand(2, N, H))),
    layer(
        "RNN",
        "affine",
        {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.1]},
    ),
    layer("GRU", "back", {"direction": "reverse", "linear_before_reset": 1}, (LENGTHS,)),
    layer(
        "GRU",
        "activations",
        {
            "activations": ["HardSigmoid", "LeakyRelu"],
            "activation_alpha": [0.25, 0.1],
            "activation_beta": [0.4],
            "clip": 0.7,
        },
    ),
    layer("LSTM", "both ways", {"direction": "bidirectional"}, (LENGTHS,)),
    layer(
        "LSTM",
        "peepholes",
        {"activations": ["Sigmoid", "Softsign", "Elu"]},
        (None, rand(1, N, H), rand(1, N, H), rand(1, 3 * H)),
    ),
    layer("LSTM", "input and forget", {"input_forget": 1}),
]


@pytest.mark.parametrize("case", ROWS, ids=[f"{c.op} {c.label}".strip() for c in ROWS])
def test_equals_onnxruntime(case: Case, sched: vs.Scheduler) -> None:
    check(case, sched)


def test_bfloat16_is_rounded_once(sched: vs.Scheduler) -> None:
    bfloat16 = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    a, b = np.arange(12).reshape(3, 4).astype(bfloat16), np.arange(8, 16).reshape(4, 2)
    b = b.astype(bfloat16)
    run = sched.compile(vs.load(Case("MatMul", [a, b]).model()))
    found = run(x0=a, x1=b)["y"]
    assert [node.op for plan in run.plans for node in plan.graph.ops] == [
        "matmul",
        "reduce_precision",
    ]
    run.close()
    exact = a.astype(np.float32) @ b.astype(np.float32)
    assert exact.max() > 256  # which eight bits do not hold
    np.testing.assert_array_equal(found, exact.astype(bfloat16))
