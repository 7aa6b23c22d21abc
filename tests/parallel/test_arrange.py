"""Graphs as pipelines: the gradients of the whole batch, in the order of the schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from selection import examples
from test_shard import SHARDS, TOPOLOGY, applied, check, mlp, plain_mlp, random

import vksched as vs
from tests.support.evaluated import evaluate
from vksched.parallel.pipeline import (
    PhaseTimes,
    PipelineSchedule,
    dualpipe,
    gpipe,
    interleaved,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_h2,
)
from vksched.planner.planner import plan_graph

SCHEDULES = {
    "gpipe": (2, ["g0", "g1"]),
    "1f1b": (3, ["g0", "g1", "g2"]),
    "interleaved": (4, ["g0", "g1"]),
    "zb-h1": (2, ["g0", "g1"]),
    "zb-h2": (3, ["g0", "g1", "g2"]),
    "zero-bubble": (2, ["g0", "g1"]),
    "dualpipe": (2, ["g0", "g1"]),
    "auto": (2, ["g0", "g1"]),
}
"""How many stages, and their devices in turns."""


def pipeline(stages: int, devices: list[str], schedule: str, batches: int = 4) -> dict[str, Any]:
    """A config of one pipeline over layers."""
    names = [f"layer.{i}" for i in range(stages)]
    about = {"stages": names, "microbatches": batches, "schedule": schedule, "devices": devices}
    return {"pipeline": about}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_those_of_the_whole_batch(schedule: str) -> None:
    stages, devices = SCHEDULES[schedule]
    feeds, loss, params = plain_mlp(24, 32, stages)
    grads = vs.grad(loss, params)
    config = pipeline(stages, devices, schedule)
    graph, built = applied(config, {"loss": loss, **grads})
    wanted, got = evaluate(graph, feeds), evaluate(built.graph, feeds)
    for (name, old), (_, new) in zip(graph.outputs, built.graph.outputs, strict=True):
        scale = np.abs(wanted[old]).max()
        np.testing.assert_allclose(got[new], wanted[old], 1e-5, 1e-5 * scale, err_msg=name)
    assert built.notes[0].startswith("pipeline: ")
    relus = [n for n in built.graph.nodes if n.op == "relu"]
    assert len(relus) == 4 * stages
    assert {n.type.shape[0] for n in relus} == {6}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h2", "dualpipe"])
def test_each_device_keeps_the_order_of_the_schedule(schedule: str) -> None:
    # the forward and backward passes of stages, as a plan has them in its splits
    stages, devices = SCHEDULES[schedule]
    _, loss, updates = mlp(24, 32, stages)
    _, built = applied(pipeline(stages, devices, schedule), loss, updates)
    plan = plan_graph(
        built.graph, TOPOLOGY, overrides=built.overrides, pipeline_order=built.pipeline_order
    )
    makers: dict[str, PipelineSchedule] = {
        "gpipe": gpipe(2, 4),
        "1f1b": one_f_one_b(3, 4),
        "interleaved": interleaved(2, 4),
        "zb-h2": zb_h2(3, 4),
        "dualpipe": dualpipe(2, 4),
    }
    for device, order in enumerate(makers[schedule].orders):
        wanted = [str(a) + f"/{a.stage}" for a in order if a.phase in "FBI"]
        got: list[str] = []
        for split in plan.splits:
            if split.device != device:
                continue
            for node in (built.graph.nodes[i] for i in split.nodes):
                if node.op not in ("relu", "where") or not node.name.startswith("layer."):
                    continue
                stage, batch = node.name.split(".")[1], node.name.rpartition("~")[2]
                got.append(f"{'F' if node.op == 'relu' else 'B'}{batch}/{stage}")
        assert got == [name.replace("I", "B") for name in wanted]


def test_devices_that_the_pipeline_overrules_warn() -> None:
    _, loss, updates = mlp(24, 32, 2)
    config = pipeline(2, ["g0", "g1"], "gpipe")
    for device, warned in (("g0", False), ("g2", True)):
        _, built = applied({**config, "layer.0": {"devices": [device]}}, loss, updates)
        assert ("devices of layer.0 have no effect" in built.warnings.get("layer.0", "")) == warned


def test_a_pipeline_without_training() -> None:
    x = vs.input("x", (8, 32))
    h = x
    for i in range(2):
        with vs.signal(f"layer.{i}"):
            h = vs.softmax(vs.relu(h @ vs.weight(random(i, 32, 32) / 4, "w")))
    built = check(pipeline(2, ["g0", "g1"], "1f1b"), {"x": random(5, 8, 32)}, h)
    assert "gpipe" in built.notes[0]


def test_stages_that_are_cut_themselves() -> None:
    feeds, loss, updates = mlp(24, 32, 2)
    config = pipeline(2, ["g0", "g2"], "1f1b")
    config["layer.0"] = {"devices": ["g0", "g1"], "shard": {"weights": "columns"}}
    built = check(config, feeds, loss, updates)
    where = {built.graph.nodes[i].name: device for i, device in built.overrides}
    assert {where[n] for n in where if n.startswith("layer.0.relu")} == {"g0", "g1"}
    assert {where[n] for n in where if n.startswith("layer.1.relu")} == {"g2"}


def test_devices_of_sections_serve_stages() -> None:
    _, loss, updates = mlp(24, 32, 2)
    config = pipeline(2, [], "gpipe")
    del config["pipeline"]["devices"]
    config |= {"layer.0": {"devices": ["g2"]}, "layer.1": {"devices": ["g1"]}}
    _, built = applied(config, loss, updates)
    where = {built.graph.nodes[i].name: device for i, device in built.overrides}
    assert where["layer.0.relu~3"] == "g2"
    assert where["layer.1.relu~0"] == "g1"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_parameters_and_moments_live_with_their_stage(schedule: str) -> None:
    """A device without a stage has none of them, though it is the first one."""
    _, loss, updates = mlp(24, 32, 2)
    _, built = applied(pipeline(2, ["g1", "g2"], schedule), loss, updates)
    plan = plan_graph(
        built.graph, TOPOLOGY, overrides=built.overrides, pipeline_order=built.pipeline_order
    )
    homes = {n.name: plan.device_of(n.name) for n in built.graph.nodes if n.op == "state"}
    assert homes.pop("adamw.steps") in ("g1", "g2")
    assert len(homes) == 18
    assert all(home == ("g1", "g2")["layer.1." in name] for name, home in homes.items())
    assert {split.device for split in plan.splits} <= {1, 2, plan.topology.cpu}


def test_embeddings_and_token_losses() -> None:
    # rows are scattered and added to zeros once; a loss with integer targets
    table = vs.state(random(0, 40, 16), "table")
    ids = vs.input("ids", (8, 6), "int32", bounds=(0, 39))
    target = vs.input("target", (8, 6), "int32", bounds=(0, 39))
    params = {"table": table}
    with vs.signal("layer.0"):
        h = vs.gather(table, ids, axis=0)
    with vs.signal("layer.1"):
        w = params["w"] = vs.state(random(1, 16, 40) / 4, "w")
        logits = vs.reshape(h @ w, (48, 40))
    loss = vs.losses.cross_entropy(logits, vs.reshape(target, (48,)))
    updates = vs.optim.adamw(params, vs.grad(loss, params), lr=1e-2)
    rng = np.random.default_rng(0)
    feeds = {name: rng.integers(0, 40, (8, 6)).astype(np.int32) for name in ("ids", "target")}
    check(pipeline(2, ["g0", "g1"], "zb-h1"), feeds, loss, updates)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (pipeline(2, ["g0", "g1"], "1f1b", 5), "microbatches that divide axis 0 of x, got 5 for"),
        (pipeline(2, ["g0", "g1"], "dualpipe", 3), "expected an even number of devices"),
        (pipeline(2, ["g0", "g1"], "interleaved"), r"try devices: \[a, b\] for 4 stages"),
        (pipeline(2, ["g9"], "1f1b"), r"pipeline: expected devices of .*, got g9"),
        (
            {"pipeline": {"stages": ["layer.1", "layer.0"], "microbatches": 2}},
            "expected stages that read those before them, got",
        ),
    ],
    ids=["divide", "odd", "one round", "device", "order"],
)
def test_what_cannot_be_is_one_error(config: dict[str, Any], message: str) -> None:
    _, loss, updates = mlp(24, 32, 2)
    with pytest.raises(vs.PlanError, match=message):
        applied(config, loss, updates)


def test_a_node_that_mixes_examples_is_named() -> None:
    x = vs.input("x", (8, 16))
    with vs.signal("layer.0"):
        h = vs.relu(x)
        h = h - vs.reduce_mean(h, (0,), keepdims=True, name="centre")
    with vs.signal("layer.1"):
        y = vs.tanh(h)
    with pytest.raises(vs.PlanError, match=r"mixes the examples of a batch"):
        applied(pipeline(2, ["g0", "g1"], "gpipe"), y)


def test_stages_that_are_not_there_warn() -> None:
    feeds, loss, updates = mlp(8, 16, 1)
    config = pipeline(2, ["g0", "g1"], "gpipe")
    built = check(config, feeds, loss, updates)  # layer.1 is missing
    assert list(built.warnings) == ["layer.1"]


EQUAL = PhaseTimes(1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("schedule", "bubble"),
    [
        (gpipe(4, 8), 3 / (8 + 3)),
        (one_f_one_b(4, 8), 3 / (8 + 3)),
        (interleaved(4, 8), 3 / (2 * 8 + 3)),
        (zb_h1(4, 8), 3 / (3 * 8 + 3)),
        (zb_h2(4, 8), 0.0),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_idle_shares_are_those_of_the_papers(schedule: PipelineSchedule, bubble: float) -> None:
    # between first and last action; 1F1B and GPipe fill and drain within it, on the device that
    # is idle most
    assert simulate(schedule, EQUAL).bubble_share == pytest.approx(bubble, abs=1e-9)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.integers(1, 4),
    st.sampled_from((1, 2, 3, 4, 6, 12)),
    st.sampled_from(sorted(SCHEDULES)),
    st.lists(st.sampled_from(("g0", "g1", "g2")), min_size=1, max_size=3, unique=True),
    st.lists(st.sampled_from((None, None, *SHARDS)), min_size=4, max_size=4),
)
def test_drawn_pipelines_change_no_result(
    stages: int, batches: int, schedule: str, devices: list[str], shards: list[Any]
) -> None:
    # of any schedule, with stages that are cut themselves
    feeds, loss, updates = mlp(12, 16, stages)
    config = pipeline(stages, devices, schedule, batches)
    for i, shard in enumerate(shards[:stages]):
        if shard is not None:
            config[f"layer.{i}"] = {"devices": ["g0", "g1"], "shard": shard}
    try:
        built = check(config, feeds, loss, updates)
    except vs.PlanError as error:
        refused = ("which cannot be cut so", "expected an even number", "try devices: [a, b]")
        if batches % len(devices):
            refused += ("microbatches in multiples of the devices",)
        assert any(part in str(error) for part in refused), error
        return
    assert built.notes[0].startswith("pipeline: ")
