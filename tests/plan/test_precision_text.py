"""What a plan tells of precisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import make_topology

import vksched as vs
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.set_precision import set_precision
from vksched.plan.explain.precision_text import precision_lines
from vksched.planner.planner import plan_graph
from vksched.testing.op_cases.linalg.quantized_linear import blocks
from vksched.topology.limits import Limits


def lines(words: dict[str, str], **limits: bool) -> list[str]:
    x = vs.input("x", (64, 64))
    first = vs.matmul(x, x, name="first")
    out = vs.matmul(vs.relu(first), x, name="second")
    graph, ids = vs.build_graph(out)
    by_name = {graph.nodes[i].name: i for i in ids.values()}
    built = set_precision(graph, {by_name[name]: word for name, word in words.items()})
    topology = make_topology(1)
    gpu, *rest = topology.devices
    spec = replace(gpu, limits=replace(gpu.limits, **limits))
    plan = plan_graph(built, replace(topology, devices=(spec, *rest)), policy="priority")
    found = precision_lines(plan)
    assert all(line in plan.explain() for line in found)
    return [line.replace(spec.name, "gpu") for line in found]


def test_float32_is_not_reported() -> None:
    assert lines({}) == []


def test_devices_tell_what_they_do() -> None:
    both = {"first": "mixed", "second": "mixed"}
    none = "precision: 2 mixed; gpu computes 2 in float32: it has no float16"
    assert lines(both) == [none]
    software = "precision: 2 mixed; gpu computes 2 in float32, as CPU drivers do"
    assert lines(both, float16=True, software=True) == [software]
    each = {"first": "mixed", "second": "float16"}
    rounds = "precision: 1 mixed, 1 float16; gpu may round 2, as the variant of each says"
    assert lines(each, float16=True) == [rounds]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "mixed",
            "computes 1 in float32: it has no float16, with the weights of 1 held as float16",
        ),
        ("bfloat16", "computes 1 in float32, with the weights of 1 held as bfloat16"),
    ],
)
def test_weights_that_are_rounded_are_reported(word: str, message: str) -> None:
    """Of devices without float16, too, which unpack them."""
    x, w = vs.input("x", (3, 256)), vs.weight(np.ones((256, 192), np.float32))
    graph, _ = vs.build_graph(x @ w)
    mixed = set_precision(graph, dict.fromkeys(range(len(graph.nodes)), word))
    topology = make_topology(1)
    limits = topology.devices[0].limits
    built = optimize(mixed, RewriteConstraints(limits=limits, memory_bytes=1 << 30))
    (line,) = precision_lines(plan_graph(built, topology, policy="priority"))
    assert message in line


def test_codes_of_8_bits_are_reported() -> None:
    x, w = vs.input("x", (3, 64)), vs.quantized_weight(blocks("q8_0", 8, 64), "q8_0", (8, 64))
    with vs.Scheduler(["cpu"], precision="int8") as sched:
        plan = sched.compile(vs.linear(x, w) @ vs.weight(np.ones((8, 8), np.float32))).plan
    assert precision_lines(plan) == ["precision: 1 int8; numpy rounds 1"]
    graph, _ = vs.build_graph(vs.linear(x, w))
    built = optimize(set_precision(graph, dict.fromkeys(range(len(graph.nodes)), "int8")))
    (line,) = precision_lines(plan_graph(built, make_topology(1), policy="priority"))
    assert "computes 1 in float32: it has no integer dot products" in line
    gpu, *rest = make_topology(1).devices
    spec = replace(gpu, limits=replace(gpu.limits, integer_dot=True))
    topology = replace(make_topology(1), devices=(spec, *rest))
    (line,) = precision_lines(plan_graph(built, topology, policy="priority"))
    assert "may round 1, as the variant of each says" in line


def test_numpy_rounds() -> None:
    with vs.Scheduler(["cpu"], precision="mixed") as sched:
        x = vs.input("x", (8, 8))
        plan = sched.compile(x @ x).plan
    assert precision_lines(plan) == ["precision: 1 mixed; numpy rounds 1"]
    assert Limits().float16 is False
