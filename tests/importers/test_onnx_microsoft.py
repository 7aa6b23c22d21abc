"""The com.microsoft ops against onnxruntime, as the onnx package has no reference for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import vksched as vs

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import onnx_case
from onnx_case import MICROSOFT, OneNode, check

sched = onnx_case.sched  # the fixture

RNG = np.random.default_rng(7)
Case = partial(OneNode, domain=MICROSOFT)


def rand(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> Any:
    return np.array(values, np.int32)


B, S, H, D = 2, 3, 2, 16
W = H * D
MASK = ints([1, 1, 0], [1, 1, 1])
PLACES = np.array([[0, 1, 2], [3, 4, 5]])
ROWS = [
    Case("Gelu", [rand(2, 5)]),
    Case("QuickGelu", [rand(2, 5)], {"alpha": 1.5}),
    Case("FastGelu", [rand(2, 5), rand(5)]),
    Case("FastGelu", [rand(2, 5)], label="no bias"),
    Case("BiasGelu", [rand(2, 5), rand(5)]),
    Case("SkipLayerNormalization", [rand(B, S, W), rand(B, S, W), rand(W), rand(W)]),
    Case(
        "SkipLayerNormalization",
        [rand(B, S, W), rand(S, W), rand(W), None, rand(W)],
        {"epsilon": 1e-5},
        "y - - sum",
        label="sum",
    ),
    Case(
        "SkipSimplifiedLayerNormalization",
        [rand(B, S, W), rand(B, S, W), rand(W), rand(W)],
        {"epsilon": 1e-5},
        "y - - sum",
    ),
    Case("SimplifiedLayerNormalization", [rand(B, S, W), rand(W)], domain=""),
    Case(
        "EmbedLayerNormalization",
        [
            ints([1, 2, 0], [3, 0, 1]),
            ints([0, 1, 1], [0, 0, 1]),
            *(rand(4, W), rand(5, W), rand(2, W), rand(W), rand(W)),
            MASK,
        ],
        wanted="y count sum",
    ),
    Case(
        "EmbedLayerNormalization",
        [
            ints([1, 2, 0], [3, 0, 1]),
            *(None, rand(4, W), rand(5, W), None, rand(W), rand(W), None),
            ints([2, 1, 0], [0, 1, 4]),
        ],
        wanted="y count",
        label="positions",
    ),
    Case("FusedMatMul", [rand(2, 3, 4), rand(2, 5, 4)], {"transB": 1, "alpha": 0.5}),
    Case(
        "FusedMatMul",
        [rand(3, 2, 4), rand(2, 4, 5)],
        {"transBatchA": 1},
        label="batch",
    ),
    Case("FusedMatMul", [rand(4), rand(2, 4, 5)], {"transA": 1}, label="row"),
    Case(
        "FusedGemm",
        [rand(3, 4), rand(4, 5), rand(5)],
        {"activation": "LeakyRelu", "activation_alpha": 0.2, "alpha": 0.5},
    ),
    Case(
        "FusedConv",
        [rand(1, 2, 5, 5), rand(3, 2, 3, 3), rand(3), rand(1, 3, 5, 5)],
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
    ),
    Case(
        "FusedConv",
        [rand(1, 2, 5), rand(3, 2, 3), rand(3)],
        {"activation": "Clip", "activation_params": [-0.5, 0.5]},
        label="clip",
    ),
    # -- attention ---------------------------------------------------------------------------------
    *(
        Case(
            "Attention",
            [rand(B, S, 5), rand(5, 3 * W), rand(3 * W), mask],
            {"num_heads": H, "unidirectional": causal},
            label=label,
        )
        for label, mask, causal in (
            ("plain", None, 0),
            ("causal", None, 1),
            ("mask", MASK, 0),
            ("mask of queries", np.tril(np.ones((B, S, S), np.int32)), 0),
            ("lengths", ints(2, 3), 0),
            ("ends and starts", ints(3, 2, 1, 0), 0),
        )
    ),
    Case(
        "Attention",
        [rand(B, S, 5), rand(5, 3 * W), rand(3 * W), None, rand(2, B, H, 2, D)],
        {"num_heads": H, "unidirectional": 1},
        "y present",
        label="past",
    ),
    Case(
        "Attention",
        [rand(B, S, 5), rand(5, 2 * W + 4), rand(2 * W + 4), None, None, rand(1, H, S, S)],
        {"num_heads": H, "qkv_hidden_sizes": [W, W, 4], "scale": 0.3},
        label="sizes",
    ),
    *(
        Case("MultiHeadAttention", values, {"num_heads": H, **attrs}, wanted, label=label)
        for label, values, attrs, wanted in (
            ("plain", [rand(B, S, W), rand(B, 4, W), rand(B, 4, W)], {}, "y"),
            ("bias", [rand(B, S, W), rand(B, 4, W), rand(B, 4, W), rand(3 * W)], {}, "y"),
            (
                "mask",
                [rand(B, S, W), rand(B, S, W), rand(B, S, W), None, MASK],
                {"mask_filter_value": -50.0},
                "y",
            ),
            (
                "scores",
                [rand(B, S, W), rand(B, S, W), rand(B, S, W), None, None, rand(B, 1, S, S)],
                {"unidirectional": 1},
                "y k v",
            ),
            ("heads", [rand(B, S, W), rand(B, H, 4, D), rand(B, H, 4, D)], {}, "y"),
            (
                "past",
                [
                    *(rand(B, S, W), rand(B, S, W), rand(B, S, W), None, None, None),
                    *(rand(B, H, 2, D), rand(B, H, 2, D)),
                ],
                {},
                "y k v",
            ),
        )
    ),
    *(
        Case("RotaryEmbedding", values, attrs, label=label)
        for label, values, attrs in (
            (
                "all",
                [rand(B, S, W), np.array([[0, 1, 2], [3, 4, 5]]), rand(9, D // 2), rand(9, D // 2)],
                {},
            ),
            (
                "from one on",
                [rand(B, H, S, D), np.array([4]), rand(9, D // 2), rand(9, D // 2)],
                {"interleaved": 1},
            ),
            (
                "in part",
                [rand(B, S, W), PLACES, rand(9, 2), rand(9, 2)],
                {"rotary_embedding_dim": 4, "num_heads": H},
            ),
        )
    ),
]


def grouped(
    label: str,
    lengths: list[int],
    new: int,
    room: int,
    attrs: dict[str, Any] | None = None,
    more: tuple[Any, ...] = (),
    packed: bool = False,
) -> OneNode:
    """lengths: keys of each batch, with the new ones. room: keys that the buffers hold."""
    batch, total = len(lengths), max(lengths)
    qkv = [rand(batch, new, 2 * W), rand(batch, new, W), rand(batch, new, W)]
    if packed:
        qkv = [np.concatenate(qkv, 2), None, None]
    return Case(
        "GroupQueryAttention",
        [
            *qkv,
            *(rand(batch, H, room, D), rand(batch, H, room, D)),
            *(np.array(lengths, np.int32) - 1, np.array(total, np.int32), *more),
        ],
        {"num_heads": 2 * H, "kv_num_heads": H, **(attrs or {})},
        "y k v",
        label=label,
        lengths=tuple(lengths),
    )


CACHES = (rand(16, D // 2), rand(16, D // 2))
ROWS += [
    grouped("prompt", [3, 3], 3, 0),
    grouped("prompt, packed, rotary", [3, 3], 3, 0, {"do_rotary": 1}, CACHES, True),
    grouped("one more", [5], 1, 4, {"do_rotary": 1, "rotary_interleaved": 1}, CACHES),
    grouped("one more of each", [5, 3], 1, 4, {"do_rotary": 1}, CACHES),
    grouped("window", [6], 2, 4, {"local_window_size": 3, "softcap": 5.0}),
    grouped("smooth", [5, 5], 1, 4, {"smooth_softmax": 1}),
    grouped("sinks", [5], 2, 3, {}, (None, None, None, None, rand(2 * H))),
    grouped("buffer", [4], 1, 6, {"do_rotary": 1}, (*CACHES, np.array([[3]]))),
    grouped("scores", [5], 1, 4, {}, (None, None, None, rand(1, 1, 1, 5))),
]


def blocks(label: str, bits: int, zeros: str) -> OneNode:
    depth, columns, block = 40, 3, 16
    count = -(-depth // block)
    packed = RNG.integers(0, 256, (columns, count, block * bits // 8), dtype=np.uint8)
    scales = rand(columns, count)
    feeds = {
        "": None,
        "packed": RNG.integers(0, 256, (columns, -(-count * bits // 8)), dtype=np.uint8),
        "float": rand(columns, count) + 8,
    }[zeros]
    return Case(
        "MatMulNBits",
        [rand(2, depth), packed, scales, feeds, None, rand(columns)],
        {"K": depth, "N": columns, "bits": bits, "block_size": block},
        fixed=(1, 2, 3, 5),
        label=f"{label} {zeros}",
    )


ROWS += [blocks(f"{bits} bits", bits, zeros) for bits in (4, 8) for zeros in ("", "packed")]
ROWS += [
    blocks("4 bits", 4, "float"),
    Case(
        "GatherBlockQuantized",
        [
            RNG.integers(0, 256, (5, 16), dtype=np.uint8),
            np.array([[1, 4]]),
            rand(5, 2),
            RNG.integers(0, 256, (5, 1), dtype=np.uint8),
        ],
        {"block_size": 16, "bits": 4, "quantize_axis": 1, "gather_axis": 0},
        fixed=(0, 2, 3),
    ),
]


@pytest.mark.parametrize("case", ROWS, ids=[f"{c.op} {c.label}".strip() for c in ROWS])
def test_equals_onnxruntime(case: OneNode, sched: vs.Scheduler) -> None:
    check(case, sched)
