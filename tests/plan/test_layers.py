"""Layers: names to layers, and where each runs."""

from __future__ import annotations

import pytest
from graphs import A, B, chain, make_plan, make_topology, mlp, transformer

import vksched as vs
from vksched.plan.costs.node_cost import node_seconds
from vksched.plan.explain.layer_table import SHOWN, find_layers, layer_lines, layer_of


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("layer.0.wide", "layer.0"),
        ("h.11.ln_1.mean", "h.11"),
        ("/encoder/layer.0/attention/self/MatMul", "/encoder/layer.0"),
        ("/layer1/layer1.0/conv1/Conv", "/layer1/layer1.0"),
        ("stage2.conv", "stage2"),
        ("block_7.relu", "block_7"),
        ("matmul_6", "matmul_6"),
        ("conv2d.w", "conv2d.w"),
        ("softmax", "softmax"),
        ("", ""),
    ],
)
def test_a_layer_is_a_name_up_to_its_number(name: str, layer: str) -> None:
    assert layer_of(name) == layer


def test_neighbours_on_the_same_device_are_one_line() -> None:
    plan = make_plan(*mlp(5, half=2))
    found = find_layers(plan)
    assert [(e.name, e.count, dict(e.nodes)) for e in found] == [
        ("layer.0 .. layer.1", 2, {A: 6}),
        ("layer.2 .. layer.4", 3, {B: 9}),
    ]
    weights = sum(n.type.device_bytes for n in plan.graph.nodes if n.op == "weight")
    assert sum(e.weight_bytes for e in found) == weights
    seconds = sum(
        node_seconds(plan.topology.devices[s.device], plan.graph, plan.graph.nodes[n])
        for s in plan.splits
        for n in s.nodes
    )
    assert sum(sum(e.seconds.values()) for e in found) == pytest.approx(seconds)
    lines = layer_lines(plan)
    assert lines[0].split() == ["layers", "nodes", "device", "predicted", "weights"]
    assert lines[1].startswith("layer.0 .. layer.1") and " 6  null:0 " in lines[1]
    assert len(lines) == 3


def test_a_layer_may_run_on_several_devices() -> None:
    outputs, placement = mlp(2)
    plan = make_plan(outputs, {**placement, "layer.1.relu": B})
    first, second = find_layers(plan)
    assert first.name == "layer.0" and first.nodes == {A: 3}
    assert second.name == "layer.1" and second.nodes == {A: 2, B: 1}
    assert "null:0 (2 nodes), null:1 (1 node)" in layer_lines(plan)[2]


def test_a_weight_counts_where_it_is_read_first() -> None:
    x, w = vs.input("x", (8, 8)), vs.weight([[1.0] * 8] * 8, name="w")
    for i in range(3):
        with vs.name_scope(f"layer.{i}"):
            x = vs.matmul(x, w, name="product")
    plan = make_plan(x, {"layer.2.*": B})
    assert [e.weight_bytes for e in find_layers(plan)] == [256, 0]


def test_many_lines_are_cut_and_the_data_has_all() -> None:
    plan = make_plan(*chain([A, B] * 40), make_topology(2))
    found, lines = find_layers(plan), layer_lines(plan)
    assert len(found) == 80 and len(lines) == SHOWN + 1
    assert lines[-4] == f"... {80 - SHOWN + 1} lines more, which --json has"
    assert lines[-1].startswith("n79")
    assert sum(e.as_dict()["layers"] for e in found) == 80


def test_a_transformer_is_read_as_its_layers() -> None:
    plan = make_plan(*transformer(6, half=3))
    names = [e.name for e in find_layers(plan)]
    assert any(name.startswith("layer.0") or " .. layer." in name for name in names)
    assert len(names) <= 5
