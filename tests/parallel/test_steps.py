"""Steps: what another device waits for does not stand in one split with what comes of it."""

from __future__ import annotations

from test_shard import TOPOLOGY, TWO, applied, random

import vksched as vs
from vksched.planner.planner import plan_graph


def test_a_device_hands_on_before_it_goes_on() -> None:
    # the norm is computed by one device, and both multiply it
    x = vs.input("x", (64, 64))
    with vs.signal("first"):
        h = vs.layer_norm(x, vs.weight(random(0, 64), "gain"))
    with vs.signal("layer"):
        y = vs.relu(h @ vs.weight(random(1, 64, 256), "up"))
        y = y @ vs.weight(random(2, 256, 64), "down")
    config = {
        "first": {"devices": ["g0"]},
        "layer": {"devices": TWO, "shard": {"weights": "columns"}},
    }
    _, built = applied(config, y)
    plan = plan_graph(
        built.graph, TOPOLOGY, overrides=built.overrides, pipeline_order=built.pipeline_order
    )
    ops = [[built.graph.nodes[n].op for n in split.nodes] for split in plan.splits]
    (norm,) = (of for of in ops if "layer_norm" in of)
    assert norm == ["layer_norm"]
    assert sum("matmul" in of for of in ops) == 2


def test_what_does_not_cross_has_no_steps() -> None:
    x = vs.input("x", (64, 64))
    with vs.signal("layer"):
        y = vs.relu(x @ vs.weight(random(1, 64, 64), "w"))
    _, built = applied({"layer": {"devices": ["g0"]}}, y)
    assert not built.pipeline_order
