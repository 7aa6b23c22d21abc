"""Sharded graphs compute what the graph as written does, in the parts and with the copies meant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from tests.support.evaluated import evaluate, next_states
from vksched.common.dtypes import NDArray
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.ir.graph_builder import BuildResult
from vksched.parallel.apply_config import AppliedConfig, apply_config
from vksched.parallel.config.read_config import read_config
from vksched.plan.costs.node_cost import node_seconds
from vksched.plan.simulation.simulate_plan import simulate
from vksched.plan.types.plan_types import HOST
from vksched.planner.planner import plan_graph
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

SPEEDS = (3e12, 1e12, 1e12)
TOPOLOGY = Topology(
    (
        *(
            DeviceSpec(f"g{i}", "null", flops_per_s=speed, bytes_per_s=speed / 25)
            for i, speed in enumerate(SPEEDS)
        ),
        DeviceSpec("cpu", "cpu", flops_per_s=1e9),
    )
)
TWO, THREE = ["g0", "g1"], ["g0", "g1", "g2"]


class Costs:
    """Costs of the machine by its specs."""

    def seconds(self, graph: Graph, node: int, device: str) -> float:
        spec = TOPOLOGY.devices[TOPOLOGY.index(device)]
        return node_seconds(spec, graph, graph.nodes[node])

    def run_seconds(self, built: BuildResult) -> float:
        plan = plan_graph(built.graph, TOPOLOGY, overrides=tuple(built.pinned_devices.items()))
        return simulate(plan).seconds


def applied(
    config: Mapping[str, Any], outputs: Any, updates: Any = None
) -> tuple[Graph, AppliedConfig]:
    """The graph as written, and what the config makes of it."""
    graph, _ = build_graph(outputs, updates)
    return graph, apply_config(graph, read_config(dict(config)), TOPOLOGY, Costs())


def close(got: NDArray, wanted: NDArray, name: str) -> None:
    """Compare sums in another order: what cancels is as exact as the largest value is."""
    largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0))
    np.testing.assert_allclose(got, wanted, 2e-4, 2e-5 * largest, err_msg=name)


def check(
    config: Mapping[str, Any], feeds: Mapping[str, NDArray], outputs: Any, updates: Any = None
) -> AppliedConfig:
    """Compare outputs and next states with those of the graph as written."""
    graph, built = applied(config, outputs, updates)
    wanted, got = evaluate(graph, feeds), evaluate(built.graph, feeds)
    for (name, old), (_, new) in zip(graph.outputs, built.graph.outputs, strict=True):
        close(got[new], wanted[old], name)
    was, now = next_states(graph, wanted), next_states(built.graph, got)
    assert was.keys() == now.keys()
    for key, value in was.items():
        close(now[key], value, key.name)
    plan_graph(
        built.graph, TOPOLOGY, overrides=built.overrides, pipeline_order=built.pipeline_order
    )  # verified
    return built


def random(seed: int, *shape: int) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def plain_mlp(
    batch: int, width: int, layers: int
) -> tuple[dict[str, NDArray], vs.Tensor, dict[str, vs.Tensor]]:
    """Feeds, loss and parameters of a network with residual layers in signals layer.0 and on."""
    x, target = vs.input("x", (batch, width)), vs.input("target", (batch, width))
    params: dict[str, vs.Tensor] = {}
    h = x
    for i in range(layers):
        with vs.signal(f"layer.{i}"):
            a = params[f"a{i}"] = vs.state(random(i, width, 2 * width) / 8, "a")
            b = params[f"b{i}"] = vs.state(random(i + 9, 2 * width, width) / 8, "b")
            c = params[f"c{i}"] = vs.state(random(i + 99, 2 * width), "c")
            h = h + vs.relu(h @ a + c) @ b
    loss = vs.losses.mse(h, target)
    feeds = {"x": random(1, batch, width), "target": random(2, batch, width)}
    return feeds, loss, params


def mlp(batch: int, width: int, layers: int) -> tuple[dict[str, NDArray], vs.Tensor, Any]:
    """Feeds, loss and updates of that network."""
    feeds, loss, params = plain_mlp(batch, width, layers)
    return feeds, loss, vs.optim.adamw(params, vs.grad(loss, params), lr=1e-3)


def copied(built: AppliedConfig) -> Counter[str]:
    """Count the bytes that each device hands on, by a plan of the sharded graph."""
    plan = plan_graph(built.graph, TOPOLOGY, overrides=built.overrides)
    names = [d.name for d in TOPOLOGY.devices]
    out: Counter[str] = Counter()
    for split in plan.splits:
        for copy in split.uploads:
            if copy.source != HOST:
                source = names[plan.splits[copy.source].device]
                out[source] += built.graph.nodes[copy.node].type.device_bytes
    return out


@pytest.mark.each_value
@pytest.mark.parametrize("devices", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize(
    "shard",
    [
        {"axis": 0},
        {"axis": 0, "ratio": "auto"},
        {"axis": 1},
        {"weights": "columns"},
        {"weights": "rows"},
        {"weights": "columns", "ratio": "auto"},
        "auto",
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["both", "last", "mixed"])
def test_a_training_step(devices: list[str], shard: Any, where: str) -> None:
    feeds, loss, updates = mlp(48, 96, 2)
    section = {"devices": devices, "shard": shard}
    config: dict[str, Any] = {"layer.1": section}
    if where == "both":
        config["layer.0"] = section
    elif where == "mixed":
        config["layer.0"] = {"devices": ["g1"]}
    check(config, feeds, loss, updates)


def test_a_step_by_unequal_parts() -> None:
    feeds, loss, updates = mlp(48, 64, 2)
    shard = {"axis": 0, "ratio": "3:1"}
    config = {f"layer.{i}": {"devices": TWO, "shard": shard} for i in range(2)}
    built = check(config, feeds, loss, updates)
    places = dict(built.overrides)
    relus = [n for n in built.graph.nodes if n.op == "relu" and n.name.startswith("layer.0.")]
    rows = {places[n.id]: n.type.shape[0] for n in relus}
    assert rows == {"g0": 36, "g1": 12}


def test_data_parallel_adds_up_like_a_ring() -> None:
    # 2 (n - 1) / n of the bytes of all gradients for each device: their sum, and the new weights
    feeds, loss, updates = mlp(1536, 96, 2)
    config = {f"layer.{i}": {"devices": THREE, "shard": {"axis": 0}} for i in range(2)}
    built = check(config, feeds, loss, updates)
    weights = 2 * (2 * 96 * 192) * 4
    wanted = 2 * (3 - 1) / 3 * weights
    for device, got in copied(built).items():
        if device in THREE:
            assert wanted <= got <= 1.03 * wanted, device


def test_heads_stay_whole() -> None:
    # columns of a head stay together, attention runs by heads, and one sum crosses at the end
    batch, length, heads, each = 2, 16, 4, 16
    width = heads * each
    x = vs.input("x", (batch, length, width))
    with vs.signal("attention"):
        parts = []
        for i, name in enumerate("qkv"):
            y = x @ vs.weight(random(i, width, width) / 8, name)
            parts.append(vs.transpose(vs.reshape(y, (batch, length, heads, each)), (0, 2, 1, 3)))
        mixed = vs.attention(*parts)
        back = vs.reshape(vs.transpose(mixed, (0, 2, 1, 3)), (batch, length, width))
        out = back @ vs.weight(random(5, width, width) / 8, "o")
    config = {"attention": {"devices": TWO, "shard": {"weights": "columns"}}}
    built = check(config, {"x": random(7, batch, length, width)}, out)
    found = [n.type.shape for n in built.graph.nodes if n.op == "attention"]
    assert found == [(batch, heads // 2, length, each)] * 2
    assert Counter(n.op for n in built.graph.nodes)["concat"] <= 1


def test_experts_by_device() -> None:
    # a batched product over experts, each with weights of its own
    x = vs.input("x", (4, 32, 48))
    with vs.signal("experts"):
        h = vs.relu(x @ vs.weight(random(0, 4, 48, 64), "up"))
        y = h @ vs.weight(random(1, 4, 64, 48), "down")
    config = {"experts": {"devices": TWO, "shard": {"axis": 0}}}
    built = check(config, {"x": random(2, 4, 32, 48)}, y)
    weights = [n.type.shape[0] for n in built.graph.nodes if n.op == "weight"]
    assert weights == [2, 2, 2, 2]


def test_a_sequence_by_blocks() -> None:
    # queries by blocks, all keys and values: those cross, and nothing else does
    q, k, v = (vs.input(name, (1, 2, 64, 16)) for name in "qkv")
    with vs.signal("mix"):
        out = vs.attention(q, k, v) * 2.0
    config = {"mix": {"devices": TWO, "shard": {"axis": 2}}}
    feeds = {name: random(i, 1, 2, 64, 16) for i, name in enumerate("qkv")}
    built = check(config, feeds, out)
    assert [n.type.shape[2] for n in built.graph.nodes if n.op == "attention"] == [32, 32]


def test_a_state_of_a_section_lives_on_its_device() -> None:
    """Whole, and though another device comes first."""
    x, scale = vs.input("x", (8, 16)), vs.state(random(0, 16), "scale")
    with vs.signal("s"):
        y = vs.relu(x) * scale
    total = vs.reduce_sum(y, (0,))
    built = check({"s": {"devices": ["g1"]}}, {"x": random(1, 8, 16)}, total, {scale: total})
    plan = plan_graph(built.graph, TOPOLOGY, overrides=built.overrides)
    assert plan.device_of("scale") == "g1" and not plan.transfer_bytes


def test_embedding_gradients_are_added_once() -> None:
    table = vs.state(random(0, 50, 32), "table")
    ids = vs.input("ids", (24,), "int32", bounds=(0, 49))
    with vs.signal("embed"):
        h = vs.gather(table, ids, axis=0) * 2.0
    loss = vs.reduce_mean(h * h)
    updates = vs.optim.sgd({"t": table}, vs.grad(loss, {"t": table}), lr=0.5)
    feeds = {"ids": np.random.default_rng(0).integers(0, 50, 24).astype(np.int32)}
    check({"embed": {"devices": THREE, "shard": {"axis": 0}}}, feeds, loss, updates)


def test_scattered_rows_are_added_to_the_first_part_alone() -> None:
    base = vs.input("base", (40, 64))
    rows = vs.input("rows", (24, 64))
    ids = vs.weight(np.arange(24, dtype=np.int32).reshape(24, 1) % 5, "ids")
    with vs.signal("s"):
        out = vs.scatter_nd(base, ids, rows * 1.0, reduction="add")
    feeds = {"base": random(0, 40, 64), "rows": random(1, 24, 64)}
    check({"s": {"devices": TWO, "shard": {"axis": 0}}}, feeds, out)


@pytest.mark.parametrize("kind", ["data", "columns"])
def test_unequal_devices_share_as_they_can(kind: str) -> None:
    # 3 : 1, so both take 3/4 of the faster one's time
    x = vs.input("x", (512, 1024))
    with vs.signal("layer"):
        h = vs.relu(x @ vs.weight(random(0, 1024, 4096), "up"))
        y = h @ vs.weight(random(1, 4096, 1024), "down")
    shard = {"axis": 0} if kind == "data" else {"weights": "columns"}
    config = {"layer": {"devices": TWO, "shard": shard | {"ratio": "auto"}}}
    graph, built = applied(config, vs.reduce_sum(y))
    work: Counter[str] = Counter()
    places = dict(built.overrides)
    for node in built.graph.nodes:
        if node.op == "matmul":
            work[places[node.id]] += Costs().seconds(built.graph, node.id, places[node.id])
    alone = sum(Costs().seconds(graph, n.id, "g0") for n in graph.nodes if n.op == "matmul")
    assert max(work.values()) <= 1.1 * 0.75 * alone


def test_auto_on_one_device_is_nothing() -> None:
    feeds, loss, updates = mlp(8, 16, 1)
    one = {"layer.0": {"devices": ["g0"], "shard": "auto"}}
    built = check(one, feeds, loss, updates)
    graph, _ = build_graph(loss, updates)
    assert len(built.graph.nodes) == len(graph.nodes)


def test_auto_leaves_small_work_alone_and_cuts_large_work() -> None:
    def node_count(width: int) -> int:
        x = vs.input("x", (width, width))
        with vs.signal("a"):
            y = x @ vs.weight(np.ones((width, width), np.float32), "w")
        _, found = applied({"a": {"devices": TWO, "shard": "auto"}}, vs.reduce_sum(y @ y))
        assert found.notes[0].startswith("shard: auto of a: ")
        return sum(n.op == "matmul" for n in found.graph.nodes)

    assert node_count(8) == 2
    assert node_count(4096) > 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"layer.0": {"devices": TWO, "shard": {"axis": 0, "ratio": [5, 2]}}},
            r"layer\.0: expected parts of 5:2 for g0, g1, got 48 elements along axis 0 of x",
        ),
        (
            {"layer.0": {"devices": ["g7"]}},
            r"layer\.0: expected devices of g0, g1, g2, cpu, got g7",
        ),
        (
            {"layer.0": {"shard": {"weights": "columns", "ratio": [5, 2]}, "devices": TWO}},
            "expected parts of 5:2 for g0, g1, got 128 elements along axis 1",
        ),
        (
            {"layer.*": {"devices": TWO, "shard": {"axis": 7}}},
            r"config: expected an axis of layer\.\*\.shard that a value there has, got 7 for x of "
            r"rank 2, .*; try axis: 0",
        ),
        ({"layer.*": {"devices": TWO, "shard": {"axis": -3}}}, "got -3 for x of rank 2"),
    ],
)
def test_what_cannot_be_is_one_error(config: dict[str, Any], message: str) -> None:
    _, loss, updates = mlp(48, 64, 1)
    with pytest.raises(vs.PlanError, match=message):
        applied(config, loss, updates)


def test_a_shard_that_cuts_nothing_warns() -> None:
    x = vs.input("x", (8, 16))
    with vs.signal("a"):
        y = vs.cumsum(x, 1)
    for shard, warned in (({"axis": 1}, True), ({"weights": "rows"}, True), ({"axis": 0}, False)):
        _, built = applied({"a": {"devices": TWO, "shard": shard}}, y)
        assert ("the shard of a cuts nothing" in built.warnings.get("a", "")) == warned


def test_names_that_match_nothing_warn() -> None:
    feeds, loss, updates = mlp(8, 16, 1)
    built = check({"layers.0": {"devices": ["g1"]}}, feeds, loss, updates)
    assert "nearest name is layer.0" in built.warnings["layers.0"]
    assert not built.overrides


OPS = ("relu", "matmul", "linear", "softmax", "transpose", "residual", "norm", "sum")
SHARDS: tuple[Any, ...] = (
    "auto",
    {"axis": 0, "ratio": "auto"},
    {"axis": 1, "ratio": "auto"},
    {"axis": -1},
    {"weights": "columns", "ratio": "auto"},
    {"weights": "rows", "ratio": "auto"},
    {"weights": "columns"},
)


def drawn_model(ops: Sequence[str], rows: int, width: int) -> tuple[vs.Tensor, Any]:
    """A chain of ops in signals of their own, with its loss and updates."""
    params: dict[str, vs.Tensor] = {}
    h = first = vs.input("x", (rows, width))
    for i, op in enumerate(ops):
        with vs.signal(f"s.{i}"):
            n = h.shape[-1]
            if op in ("matmul", "linear"):
                w = params[f"w{i}"] = vs.state(random(i, n, 2 * n if n < 64 else n // 2) / 4, "w")
                h = h @ w
                if op == "linear":
                    b = params[f"b{i}"] = vs.state(random(i, h.shape[-1]), "b")
                    h = h + b
            elif op == "relu":
                h = vs.relu(h)
            elif op == "softmax":
                h = vs.softmax(h)
            elif op == "transpose":
                h = vs.transpose(h, (1, 0))
            elif op == "residual":
                h = h + vs.tanh(h)
            elif op == "norm":
                h = vs.layer_norm(h, vs.weight(np.ones(n, np.float32), "g"))
            else:
                h = h * vs.reduce_sum(h, (0,), keepdims=True)
    loss = vs.reduce_mean(h * h) + vs.reduce_sum(first) * 0.01
    grads = vs.grad(loss, params) if params else {}
    return loss, vs.optim.sgd(params, grads, lr=0.1) if params else None


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(OPS), min_size=1, max_size=5),
    st.lists(st.sampled_from((None, *SHARDS)), min_size=5, max_size=5),
    st.lists(st.sampled_from((TWO, THREE, ["g2", "g0"])), min_size=5, max_size=5),
    st.sampled_from((32, 48)),
)
def test_drawn_configs_change_no_result(
    ops: list[str], shards: list[Any], devices: list[list[str]], rows: int
) -> None:
    loss, updates = drawn_model(ops, rows, 48)
    config = {
        f"s.{i}": {"devices": there, "shard": shard} if shard else {"devices": there[:1]}
        for i, (shard, there) in enumerate(zip(shards, devices, strict=True))
        if i < len(ops)
    }
    try:
        check(config, {"x": random(3, rows, 48) / 4}, loss, updates)
    except vs.PlanError as error:
        assert "which cannot be cut so" in str(error)
