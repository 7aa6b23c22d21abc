"""Products of many rows that rotate their results: which do, and values as before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from evaluated import evaluate

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.set_precision import set_precision
from vksched.testing.op_cases.linalg.quantized_linear import words
from vksched.topology.limits import Limits

GPU = Limits(
    storage_buffers=9,
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=65536,
    subgroup_sizes=(32,),
    float16=True,
    matrices=("float16*float16+float32 16x16x16",),
    coopmat_checked=True,
)
K, ROWS, SIZE = 256, 100, 32
START = vs.input("start", (), "int32")


def values(*shape: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def prompt(
    rotated: int = 2,
    dims: int = SIZE,
    apart: bool = False,
    read: bool = False,
    rows: int = ROWS,
    x: vs.Tensor | None = None,
) -> dict[str, vs.Tensor]:
    """Heads of three products, the first `rotated` of them with rotary embedding.

    apart: each has tables of its own. read: something else reads the heads before they rotate.
    """
    x = vs.input("x", (1, rows, K)) if x is None else x
    places = START + vs.arange(rows)
    built = {}
    stored = [vs.weight(values(rows + 8, dims // 2, seed=seed)) for seed in range(6)]
    for number, count in enumerate((4, 2, 2)):
        n = count * SIZE
        w = vs.dequantize(vs.weight(words("q4_K", n, K, number)), "q4_K", K)
        y = vs.transpose(vs.reshape(vs.linear(x, w), (1, rows, count, SIZE)), (0, 2, 1, 3))
        if read:
            built[f"read{number}"] = vs.tanh(y)
        if number < rotated:
            first = 2 * number if apart else 0
            cos, sin = (vs.gather(table, places) for table in stored[first : first + 2])
            y = vs.rotary_embedding(y, cos, sin, rotary_dim=dims, name=f"rotated{number}")
        built[f"y{number}"] = vs.neg(y)
    return built


def graph_of(outputs: Mapping[str, vs.Tensor], limits: Limits = GPU, **constraints: Any) -> Graph:
    graph, _ = vs.build_graph(outputs)
    graph = set_precision(graph, {node.id: "mixed" for node in graph.nodes})
    return optimize(graph, RewriteConstraints(limits=limits, **constraints))


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.ops if node.id not in graph.views]


def test_the_product_of_a_prompt_rotates_its_heads() -> None:
    graph = graph_of(prompt())
    ops = ops_of(graph)
    assert not {"transpose", "rotary_embedding", "merged_linear"} & {*ops}
    (one,) = [node for node in graph.nodes if node.op == "merged_linear_rope"]
    assert one.attrs["heads"] == 6 and one.attrs["head_size"] == SIZE and one.attrs["by_heads"]


def test_heads_of_one_device_are_rotated() -> None:
    """Layers on several devices have a pin each; nodes that passes create have none."""
    outputs = prompt()
    built, _ = vs.build_graph(outputs)
    pins = {node.name: "gpu:0" for node in built.nodes}
    placed = graph_of(outputs, pinned_devices=pins)
    assert "merged_linear_rope" in ops_of(placed)
    assert not {"transpose", "rotary_embedding"} & {*ops_of(placed)}
    apart = graph_of(outputs, pinned_devices={**pins, "rotated1": "gpu:1"})
    assert "merged_linear_rope" not in ops_of(apart)


@pytest.mark.parametrize("rotated", [1, 2, 3])
def test_values_are_those_of_the_graph_before(rotated: int) -> None:
    outputs = prompt(rotated=rotated, dims=16)
    built, _ = vs.build_graph(outputs)
    fused = graph_of(outputs)
    assert "merged_linear_rope" in ops_of(fused)
    inputs = {"x": values(1, ROWS, K, seed=4) / 16, "start": np.asarray(3, np.int32)}
    wanted, got = (
        {name: found[i] for name, i in graph.outputs}
        for graph in (built, fused)
        for found in (evaluate(graph, inputs),)
    )
    for name, array in wanted.items():
        # x is rounded to float16 in mixed
        np.testing.assert_allclose(got[name], array, atol=1e-3 * np.abs(array).max())


def test_rows_of_a_cache_are_cast_together() -> None:
    outputs = prompt()
    wide = {name: vs.neg(vs.cast(outputs[name].inputs[0], "float16")) for name in ("y1", "y2")}
    fused, (built, _) = graph_of(outputs | wide), vs.build_graph(outputs | wide)
    assert ops_of(fused).count("cast") == 1 and ops_of(built).count("cast") == 2
    inputs = {"x": values(1, ROWS, K, seed=4) / 16, "start": np.asarray(3, np.int32)}
    before, after = (evaluate(graph, inputs) for graph in (built, fused))
    for (name, i), (_, j) in zip(built.outputs, fused.outputs, strict=True):
        largest = np.abs(before[i]).max()
        np.testing.assert_allclose(after[j], before[i], atol=2e-3 * largest, err_msg=name)


@pytest.mark.parametrize(
    "outputs",
    [prompt(rotated=0), prompt(dims=12), prompt(apart=True), prompt(read=True)],
    ids=["nothing rotates", "no whole vec4s", "several tables", "another reader"],
)
def test_others_keep_their_transposes(outputs: dict[str, vs.Tensor]) -> None:
    ops = ops_of(graph_of(outputs))
    assert "merged_linear_rope" not in ops and "transpose" in ops


def test_devices_without_float16_keep_theirs() -> None:
    assert "merged_linear_rope" in ops_of(graph_of(prompt(), replace(GPU, matrices=())))
    for limits in (replace(GPU, float16=False), replace(GPU, software=True)):
        assert "merged_linear_rope" not in ops_of(graph_of(prompt(), limits))


@pytest.mark.parametrize("rows", [2, 8, 9, 15])
def test_prompts_of_few_rows_keep_theirs(rows: int) -> None:
    """GEMV kernels multiply up to eight rows; those of less than a matrix stay apart."""
    graph = graph_of(prompt(rows=rows))
    ops = ops_of(graph)
    assert "merged_linear_rope" not in ops and ops.count("transpose") == 3
    assert ("merged_linear" in ops) == (rows <= 8)


def test_observed_values_stay() -> None:
    ops = ops_of(graph_of(prompt(), observed=frozenset({"rotated1"})))
    assert "merged_linear_rope" not in ops
