"""Graphs and plans as plain data, and back: nothing that plans or people ask for is lost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from drawn_plans import draw_case
from selection import draws

import vksched as vs
from vksched.common.schema import check
from vksched.ir.graph import Graph
from vksched.plan.serialize.graph_codec import decode_graph, encode_graph
from vksched.plan.serialize.plan_codec import PlanRecord, decode_plan_inputs, decode_plan_record
from vksched.plan.serialize.plan_request import PlanRequest
from vksched.planner.planner import POLICIES, answer
from vksched.storage.content_hash import hash_of
from vksched.trace.format import GraphDocument, PlanDocument

SEEDS = draws(30, 200)


def through_json(planned: PlanRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the documents of a plan as a file gives them back."""
    graph, plan = json.loads(json.dumps(planned.as_document(), allow_nan=False))
    plan["graph"] = 0
    check(graph, GraphDocument, "graph")
    check(plan, PlanDocument, "plan")
    return graph, plan


def drawn(seed: int) -> PlanRecord:
    case, policy = draw_case(seed), POLICIES[seed % len(POLICIES)]
    request = PlanRequest(
        policy,
        "latency" if policy != "auto" or seed % 3 else "latency=1,energy=0.5",
        case.overrides,
        case.copies,
        case.resident or {},
        dict.fromkeys(case.observed, 1),
        case.with_cpu,
    )
    return PlanRecord(answer(request, case.graph, case.topology), request, "compile")


def test_a_request_that_is_read_equals_the_one_that_was_written() -> None:
    resident, observed = {0: frozenset({1, 2}), 1: frozenset({3})}, {4: 2}
    overrides = (("layer.*", "cpu"), (3, "vulkan:0"))
    for request in (
        PlanRequest("auto", "latency"),
        PlanRequest("auto", "energy", overrides, 2, resident, observed, True, {"ring": 1}),
    ):
        read = PlanRequest.from_dict(json.loads(json.dumps(request.as_dict())))
        assert read == request
        assert hash(read.overrides) == hash(request.overrides)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_asked_gives_the_same_plan_again(seed: int) -> None:
    try:
        planned = drawn(seed)
    except vs.VkschedError:
        pytest.skip("there is no plan")
    graph, document = through_json(planned)
    request, again, topology = decode_plan_inputs(graph, document)
    assert topology == planned.plan.topology
    assert again.bounds == planned.plan.graph.bounds and again.views == planned.plan.graph.views
    record = PlanRecord(answer(request, again, topology), request, "compile")
    other = through_json(record)[1]
    del document["graph"], other["graph"]
    assert other == document


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_that_is_read_back_says_the_same(seed: int) -> None:
    try:
        planned = drawn(seed)
    except vs.VkschedError:
        pytest.skip("there is no plan")
    plan, again = planned.plan, decode_plan_record(*through_json(planned)).plan
    if planned.request.policy in ("auto", "priority"):
        assert again.explain() == plan.explain()
        assert again.metrics == plan.metrics
    for split in plan.splits:
        name = plan.graph.nodes[split.nodes[0]].name
        assert again.explain(name) == plan.explain(name)


def graph_with(outputs: Any) -> Graph:
    return vs.build_graph(outputs)[0]


def test_attributes_keep_their_types() -> None:
    x = vs.input("x", (4,))
    outputs = [vs.clip(x, -float("inf"), 1.0), vs.leaky_relu(x, -0.0), vs.cast(x, "int32")]
    graph = graph_with(outputs)
    again = decode_graph(json.loads(json.dumps(encode_graph(graph), allow_nan=False)))
    assert [node.attrs for node in again.nodes] == [node.attrs for node in graph.nodes]
    assert [node.type for node in again.nodes] == [node.type for node in graph.nodes]


def test_a_graph_that_is_read_back_takes_no_memory() -> None:
    weight = vs.weight(np.ones((4, 4), np.float32))
    document = encode_graph(graph_with(vs.input("x", (1, 4)) @ weight))
    large = 1 << 16  # a weight of 16 GiB, if it were there
    for node in document["nodes"]:
        node["shape"] = [large if size == 4 else size for size in node["shape"]]
        if "shape" in node["attrs"]:
            node["attrs"]["shape"] = node["shape"]
    again = decode_graph(document)
    (array,) = again.data.values()
    assert array.shape == (large, large) and array.strides == (0, 0)


@pytest.mark.parametrize(
    "array",
    [
        np.array(3.0, np.float32), np.zeros((0, 3), np.float32), np.array([True, False]),
        np.arange(12).reshape(3, 4).T, np.arange(12)[::2], np.broadcast_to(np.int8(1), (3, 5)),
    ],
)  # fmt: skip
def test_hashes_tell_arrays_apart_by_their_bytes(array: np.ndarray[Any, Any]) -> None:
    assert hash_of(array) == hash_of(array.copy()) != hash_of(np.append(array, array.dtype.type(1)))


def test_an_array_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(1000)
    first = hash_of(array)
    monkeypatch.setattr("hashlib.sha256", None)
    assert hash_of(array) == first


def test_what_is_no_graph_is_one_error() -> None:
    document = encode_graph(graph_with(vs.input("x", (4,)) + 1.0))
    document["nodes"][-1]["op"] = "dance"
    with pytest.raises(vs.PlanError, match=r"\[trace\] the graph .* cannot be made again: .*dance"):
        decode_graph(document)
