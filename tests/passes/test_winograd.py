"""Convolutions rewritten: which ones, what they may take, and that they stay what they were."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from graphs import numpy_outputs

import vksched as vs
from vksched.ir.attrs import Attrs
from vksched.ir.graph import Graph
from vksched.ir.op import Call, get_op
from vksched.ops.lowering.lower import cache_key, variants_of
from vksched.passes.constraints import RewriteConstraints
from vksched.passes.set_precision import set_precision
from vksched.passes.winograd import SHARE_OF_MEMORY, convolve
from vksched.topology.limits import Limits
from vksched.topology.tuned_variants import TunedVariants

RNG = np.random.default_rng(6)
W = RNG.standard_normal((12, 9, 3, 3)).astype(np.float32)
BIAS = RNG.standard_normal(12).astype(np.float32)
X = RNG.standard_normal((2, 9, 13, 11)).astype(np.float32)
ROOM = RewriteConstraints(limits=Limits(storage_buffers=8), memory_bytes=1 << 30)


def graph_of(
    w: Any = W, size: int = 13, constraints: RewriteConstraints = ROOM, **more: Any
) -> Graph:
    x = vs.input("x", (2, w.shape[1] * more.get("groups", 1), size, 11))
    output = vs.conv(x, vs.weight(w, "w"), vs.weight(BIAS, "bias"), name="y", **more)
    return convolve(vs.build_graph(output)[0], constraints)


def tile_of(graph: Graph) -> object:
    """The tiles of the one convolution; None where it was left alone."""
    return graph.ops[-1].attrs.get("tile")


def infinite() -> Any:
    w = W.copy()
    w[3, 2, 1, 1] = np.inf
    return w


def test_convolution_with_a_known_weight_is_rewritten() -> None:
    graph = graph_of(padding=1)
    assert [node.op for node in graph.ops] == ["winograd_conv"]
    assert graph.nodes[graph.outputs[0][1]].name == "y"
    assert "w" in graph.aliases and [n.type.shape for n in graph.weights] == [(12,), (36, 12, 9)]
    (got,) = numpy_outputs(graph, {"x": X})
    x, w = vs.input("x", X.shape), vs.weight(W)
    before = vs.build_graph(vs.conv(x, w, vs.weight(BIAS), padding=1))[0]
    (wanted,) = numpy_outputs(before, {"x": X})
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def test_small_images_take_small_tiles_or_none() -> None:
    """Of few tiles the transformed weights, which are larger, take longest."""
    tiles = (tile_of(graph_of(padding=1, size=size)) for size in (13, 9, 2))
    assert tuple(tiles) == (4, 2, None)


@pytest.mark.parametrize(
    "more",
    [
        {"stride": 2},
        {"dilation": 2},
        {"w": W[:, :3], "groups": 3},
        {"w": W[..., :2]},
        {"w": W[:, :4]},
        {"w": infinite()},
        {"w": W * np.float32(np.nan)},
        {"w": W * np.float32(1e35)},
        {"constraints": RewriteConstraints(memory_bytes=1 << 30)},
        {
            "constraints": RewriteConstraints(
                limits=Limits(storage_buffers=8, max_buffer_bytes=1 << 12), memory_bytes=1 << 30
            )
        },
        {"constraints": RewriteConstraints(limits=ROOM.limits, memory_bytes=1 << 10)},
        {
            "constraints": RewriteConstraints(
                pinned_devices={"w": "cpu"}, limits=ROOM.limits, memory_bytes=1 << 30
            )
        },
    ],
    ids=str,
)
def test_other_convolutions_are_left_alone(more: dict[str, Any]) -> None:
    assert tile_of(graph_of(**more)) is None


def test_weight_that_comes_with_the_run_is_left_alone() -> None:
    output = vs.conv(vs.input("x", X.shape), vs.input("w", W.shape))
    assert tile_of(convolve(vs.build_graph(output)[0], ROOM)) is None


def test_memory_of_points_is_bounded() -> None:
    """The second layer takes what room the first has left."""
    small, large = (16 * W.size // 9 * 4, 36 * W.size // 9 * 4)
    x = vs.input("x", X.shape)
    output = vs.concat([vs.conv(x, vs.weight(W), padding=1) for _ in range(3)], 1)
    before = vs.build_graph(output)[0]
    constraints = RewriteConstraints(
        limits=ROOM.limits, memory_bytes=SHARE_OF_MEMORY * (small + large)
    )
    tiles = [node.attrs.get("tile") for node in convolve(before, constraints).ops]
    assert tiles == [4, 2, None, None]


def test_graphs_share_points() -> None:
    w = vs.weight(W)
    first, second = (
        convolve(vs.build_graph(vs.conv(vs.input("x", (n, 9, 13, 11)), w, padding=1))[0], ROOM)
        for n in (2, 4)
    )
    (key,), (other,) = first.keys.values(), second.keys.values()
    assert key == other
    (points,), (same,) = first.data.values(), second.data.values()
    assert np.shares_memory(points, same)


@pytest.mark.parametrize("device", vulkan_names())
def test_rewritten_on_a_device(device: str) -> None:
    x, w = vs.input("x", X.shape), vs.weight(W)
    wanted = numpy_outputs(vs.build_graph(vs.conv(x, w, padding=1))[0], {"x": X})[0]
    with vs.Scheduler([device]) as sched:
        run = sched.compile(vs.conv(x, w, padding=1, name="y"))
        assert "winograd_conv" in run.plan.explain()
        got = run(x=X)
        shown = run.plan.explain("y")
    assert "tile=4" in shown
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def test_what_a_device_would_refuse_stays_as_it_is() -> None:
    """The direct convolution runs where the points' kernels bind too much."""
    few = RewriteConstraints(limits=Limits(), memory_bytes=1 << 30)
    assert tile_of(graph_of(padding=1, constraints=few)) is None
    assert tile_of(graph_of(padding=1)) is not None


NARROW = RNG.integers(-128, 127, W.shape, endpoint=True).astype(np.int8)


def of_narrow(
    size: int = 48, scale: float | vs.Tensor = 0.01, w: Any = NARROW, zero: int | None = 3
) -> Graph:
    x = vs.input("x", (1, 9, size, 11))
    wide = vs.dequantize_linear(vs.weight(w, "w"), scale, zero)
    output = vs.conv(x, wide, vs.weight(BIAS, "bias"), padding=1, name="y")
    return convolve(vs.build_graph(output)[0], ROOM)


def test_points_of_a_weight_of_few_bits_are_built_in_each_run() -> None:
    graph = of_narrow()
    assert [node.op for node in graph.ops] == [
        "dequantize_linear",
        "winograd_weights",
        "winograd_conv",
    ]
    assert {n.name: n.type.dtype for n in graph.weights} == {"w": "int8", "bias": "float32"}
    x = RNG.standard_normal((1, 9, 48, 11)).astype(np.float32)
    (got,) = numpy_outputs(graph, {"x": x})
    wide = vs.weight((NARROW.astype(np.float32) - 3) * np.float32(0.01))
    before = vs.build_graph(vs.conv(vs.input("x", x.shape), wide, vs.weight(BIAS), padding=1))[0]
    (wanted,) = numpy_outputs(before, {"x": x})
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize(
    "more", [{"size": 40}, {"scale": 1e9}, {"scale": np.nan}, {"scale": vs.input("s", ())}]
)
def test_points_that_would_not_pay_or_may_be_too_large_are_not_built(more: dict[str, Any]) -> None:
    assert [node.op for node in of_narrow(**more).ops] == ["dequantize_linear", "conv"]


GPU = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=49152,
    storage_buffers=16,
    float16=True,
    subgroup_size=32,
    subgroup_sizes=(32,),
    matrices=("float16*float16+float32 16x16x16",),
)


def rewritten(limits: Limits, images: int, channels: int, side: int, precision: str = "") -> bool:
    """True if a GPU computes a layer of ResNet by Winograd's algorithm."""
    x = vs.input("x", (images, channels, side, side))
    w = vs.weight(np.full((channels, channels, 3, 3), 0.5, np.float32), "w")
    graph = vs.build_graph(vs.conv(x, w, padding=1))[0]
    if precision:
        graph = set_precision(graph, {node.id: precision for node in graph.nodes})
    constraints = RewriteConstraints(limits=limits, memory_bytes=1 << 33)
    return convolve(graph, constraints).ops[-1].op == "winograd_conv"


def test_a_gpu_of_many_cores_computes_few_results_directly() -> None:
    """One dispatch, or two with a split sum, instead of six of which each fills few cores."""
    cores = {"H100": 132, "RX 6600": 28, "unknown": 0}
    by_winograd = {
        (name, images): [
            rewritten(replace(GPU, cores=count), images, channels, side)
            for channels, side in ((64, 56), (128, 28), (256, 14))
        ]
        for name, count in cores.items()
        for images in (1, 32)
    }
    assert by_winograd["H100", 1] == [False] * 3
    assert by_winograd["RX 6600", 32] == [True] * 3
    assert by_winograd["unknown", 1] == by_winograd["unknown", 32] == [True] * 3


def test_a_convolution_by_cooperative_matrices_stays_one_dispatch() -> None:
    x, w = ((1, 64, 56, 56), (64, 64, 3, 3))
    conv = vs.conv(vs.input("x", x), vs.input("w", w), padding=1)
    attrs = Attrs({**conv.attrs, "precision": "mixed"})
    call = Call(tuple(t.type for t in conv.inputs), conv.type, attrs, GPU)
    coopmats = [name for name in variants_of(get_op("conv"), call) if name.startswith("coopmat")]
    tuned = TunedVariants({cache_key(get_op("conv"), call): coopmats[0]})
    assert rewritten(GPU, 1, 64, 56, "mixed")
    checked = replace(GPU, coopmat_checked=True)  # the static choice there
    assert not rewritten(checked, 1, 64, 56, "mixed")
    assert not rewritten(checked, 32, 64, 56, "mixed")
    assert rewritten(checked, 1, 64, 56)
    assert not rewritten(replace(GPU, tuned=tuned), 1, 64, 56, "mixed")
    assert rewritten(replace(GPU, tuned=tuned), 1, 64, 56)
