"""Parts as documents: what a host reads is what the caller cut, and nonsense is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cut_plans import HOSTS, spread
from drawn_plans import draw_case
from graphs import A, B, chain, make_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.plan.multi_host.host_plan_codec import (
    HostPlanCodec,
    decode_host_plan,
    encode_host_plan,
)
from vksched.planner.partition.host_partition import cut
from vksched.storage.content_hash import digest_of, pieces_of
from vksched.storage.lazy_array import LazyArray, as_array


def sent(part: HostPlan) -> HostPlan:
    """The part as another computer reads it, its weights found by their hashes alone."""
    documents = HostPlanCodec()
    text, weights = documents.write(part, lambda key: f"state {id(key)}")

    def weight(digest: str) -> NDArray:
        return np.frombuffer(b"".join(p.tobytes() for p in weights[digest]), np.uint8)

    assert len(weights) == len(set(weights))
    return documents.read(text, weight, str.upper)


@settings(deadline=None, max_examples=examples(30))
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3))
def test_parts_are_read_as_they_were_cut(seed: int, hosts: list[str]) -> None:
    for part in cut(spread(draw_case(seed).plan("priority"), hosts)):
        read, plan = sent(part), part.plan
        for name in ("host", "numbers", "steps", "inputs", "results"):
            assert getattr(read, name) == getattr(part, name), name
        for name in ("policy", "copies", "placements", "splits", "final_waits", "memory"):
            assert getattr(read.plan, name) == getattr(plan, name), name
        assert read.plan.locations == plan.locations
        for name in (
            "nodes",
            "outputs",
            "backed_up_states",
            "words",
            "views",
            "bounds",
            "overwritten",
        ):
            assert getattr(read.plan.graph, name) == getattr(plan.graph, name), name
        assert read.plan.topology.devices == plan.topology.devices
        assert read.plan.graph.data.keys() == plan.graph.data.keys()
        assert read.plan.graph.initial.keys() == plan.graph.initial.keys()


def test_a_part_tells_only_of_nodes_that_it_has_to_do_with() -> None:
    plan = spread(make_plan(*chain([A] * 20 + [B])), ("node1", "node2"))
    _, one, two = (encode_host_plan(part, str) for part in cut(plan))
    assert len(one["nodes"]) > 20 > len(two["nodes"]) and one["size"] == two["size"]


def test_equal_weights_have_one_key_and_states_the_one_that_they_were_passed() -> None:
    x, held = vs.input("x", (4,)), vs.state(np.zeros(4, np.float32), "s")
    w, again = (vs.weight(np.arange(4, dtype=np.float32), name) for name in ("w", "again"))
    graph, ids = vs.build_graph([x * w * again], updates={held: held + x})
    (part,) = cut(vs.plan_graph(graph, vs.Topology.from_dict({"devices": []})))
    keys = sent(part).plan.graph.keys
    assert keys[ids[w]] == keys[ids[again]]
    assert keys[ids[held]] == f"STATE {id(held)}"


# -- weights as bytes ------------------------------------------------------------------------------


def test_the_hash_of_a_weight_is_of_its_own_bytes_however_it_is_held() -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 32, (37, 11), dtype=np.uint32)

    def make(first: int, out: NDArray) -> None:
        out[...] = words[first : first + len(out)]

    for array in (words, LazyArray(words.shape, make), np.asfortranarray(words)):
        for size_bytes in (1, 100, 1 << 20):
            assert b"".join(p.tobytes() for p in pieces_of(array, size_bytes)) == words.tobytes()
    late = LazyArray(words.shape, make)
    assert digest_of(late) == digest_of(words) != digest_of(words[::-1])
    assert late._materialized() is None, "no more of it is made than a piece"
    assert digest_of(np.broadcast_to(np.float32(2), (9, 5))) == digest_of(
        np.full((9, 5), 2, np.float32)
    )
    assert list(pieces_of(np.zeros((0, 3), np.float32))) == []
    assert np.array_equal(as_array(late), words)


# -- nonsense --------------------------------------------------------------------------------------


def with_node(document: dict[str, Any], **fields: Any) -> dict[str, Any]:
    nodes = document["nodes"]
    return {**document, "nodes": [{**nodes[0], **fields}, *nodes[1:]]}


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "no object": lambda d: [d],
    "nothing": lambda d: {},
    "a word for a number": lambda d: {**d, "copies": "two"},
    "no copies": lambda d: {**d, "copies": 0},
    "too many copies": lambda d: {**d, "copies": 1 << 40},
    "too many nodes": lambda d: {**d, "size": 1 << 62},
    "nodes below none": lambda d: {**d, "size": -1},
    "an id twice": lambda d: {**d, "nodes": d["nodes"] * 2},
    "an id outside": lambda d: with_node(d, id=-1),
    "an unknown op": lambda d: with_node(d, op="os.system"),
    "a shape of no size": lambda d: with_node(d, shape=[1 << 62, 1 << 62]),
    "a shape below none": lambda d: with_node(d, shape=[-4]),
    "a type that is none": lambda d: with_node(d, dtype="object"),
    "a split that is another's": lambda d: {**d, "numbers": [0, 1, 2]},
    "a device that is not there": lambda d: {
        **d,
        "splits": [{**d["splits"][0], "device": 9}],
    },
    "a step that is none": lambda d: {**d, "steps": [[0, [[1, 2]]]]},
    "steps twice": lambda d: {**d, "steps": d["steps"] * 2},
    "a place outside its page": lambda d: {
        **d,
        "locations": [[device, node, [0, 1 << 40, 512]] for device, node, _ in d["locations"]],
    },
    "a weight of no node": lambda d: {**d, "weights": [{"node": -1, "hash": "00"}]},
    "a weight of a far node": lambda d: {**d, "weights": [{"node": 1 << 40, "hash": "00"}]},
    "a state of no state": lambda d: {**d, "states": [{"node": 1 << 40, "key": "s"}]},
    "a link of no bytes": lambda d: {
        **d,
        "default_link": {"bytes_per_s": 0.0, "latency_s": 0.0},
    },
    "a link of no time": lambda d: {
        **d,
        "default_link": {"bytes_per_s": 1.0, "latency_s": {"float": "nan"}},
    },
    "a rule that is not there": lambda d: {**d, "reasons": []},
    "no cpu": lambda d: {**d, "topology": {"devices": []}, "memory": []},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_document_that_is_no_sound_part_is_refused(name: str) -> None:
    document = encode_host_plan(cut(spread(make_plan(*chain([A, B])), ("node1", "node2")))[1], str)
    document, array = json.loads(json.dumps(document)), np.ones(1, np.float32)
    assert decode_host_plan(document, lambda digest: array).host == "node1"
    with pytest.raises(vs.PlanError, match="parts|plan|machine"):
        decode_host_plan(WRONG[name](document), lambda digest: array)


# -- attributes that only builders would refuse ----------------------------------------------------


def image() -> vs.Tensor:
    return vs.input("x", (1, 2, 6, 6))


def weights() -> vs.Tensor:
    return vs.input("w", (4, 2, 3, 3))


def conv() -> vs.Tensor:
    return vs.conv(image(), weights(), vs.input("b", (4,)), stride=2, padding=1)


def product() -> vs.Tensor:
    return vs.matmul(vs.input("a", (4, 8)), vs.input("b", (8, 4)))


BIG = 1 << 62
HOSTILE: dict[str, tuple[Callable[[], vs.Tensor], dict[str, Any], str]] = {
    "axes from the end": (
        lambda: vs.reduce_sum(image(), 3),
        {"axes": [-1]},
        r"axes in 0\.\.3, each once, sorted as axes",
    ),
    "axes twice": (lambda: vs.reduce_sum(image(), 3), {"axes": [3, 3]}, "each once"),
    "no stride": (conv, {"stride": [0, 2]}, "an integer of 1 or more each as stride"),
    "a stride below none": (conv, {"stride": [-2, 2]}, "as stride"),
    "a dilation below none": (conv, {"dilation": [-1, 1]}, "as dilation"),
    "a dilation that overflows": (conv, {"dilation": [BIG, 1]}, "dilation below"),
    "a begin below none": (conv, {"begin": [-1, 1]}, "as begin"),
    "too few strides": (conv, {"stride": [2]}, "a tuple of 2 values as stride"),
    "no groups": (conv, {"groups": 0}, "as groups"),
    "a flag for a number": (conv, {"groups": True}, "as groups, got True"),
    "a scan from the end": (lambda: vs.cumsum(image(), 1), {"axis": -1}, "as axis, got -1"),
    "a scan of no axis": (lambda: vs.cumsum(image(), 1), {"axis": 4}, "as axis, got 4"),
    "a large kernel": (lambda: vs.max_pool(image(), 2), {"kernel": [BIG, BIG]}, "window below"),
    "a kernel beyond x": (lambda: vs.max_pool(image(), 2), {"kernel": [7, 2]}, "max_pool"),
    "results of no windows": (lambda: vs.max_pool(image(), 2), {"sizes": [9, 9]}, "max_pool"),
    "a softmax of no axis": (lambda: vs.softmax(image()), {"axis": 9}, "as axis"),
    "rows of no axis": (
        lambda: vs.gather(image(), vs.input("i", (3,), "int32"), 1),
        {"axis": -1},
        "as axis",
    ),
    "an axis twice": (lambda: vs.transpose(image()), {"axes": [3, 2, 1, 1]}, "each once"),
    "a slice of no step": (lambda: image()[:, :, ::2], {"steps": [0]}, "other than 0"),
    "a large padding": (
        lambda: vs.pad(image(), 1),
        {"begins": [BIG] * 4, "ends": [-BIG] * 4},
        "as begins",
    ),
    "a large shape": (lambda: vs.full((4,), 0.5), {"shape": [BIG, BIG]}, "as shape"),
    "no number": (lambda: vs.elu(image()), {"alpha": "one"}, "as alpha"),
    "an attribute too many": (lambda: vs.relu(image()), {"axis": 0}, "expected attributes none"),
    "a precision that is none": (product, {"precision": "any"}, "as precision"),
    "an epilogue of other ops": (
        product,
        {"epilogue": [1, [["transpose", [0], [["axes", [1, 0]]]]], []]},
        "steps that a fused elementwise op holds",
    ),
    "a register that is not there": (
        product,
        {"epilogue": [1, [["add", [0, 40], []]], []]},
        "register",
    ),
    "an epilogue without end": (
        product,
        {"epilogue": [1, [["neg", [0], []]] * 5000, []]},
        "at most 1024",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_part_with_attributes_that_no_builder_makes_is_refused(name: str) -> None:
    build, attrs, match = HOSTILE[name]
    graph = vs.build_graph(build())[0]
    (part,) = cut(vs.plan_graph(graph, vs.Topology.from_dict({"devices": []})))
    document = json.loads(json.dumps(encode_host_plan(part, str)))
    assert decode_host_plan(document, lambda digest: np.ones(1, np.float32)).plan.graph.nodes
    own = max(document["nodes"], key=lambda node: node["id"])
    own["attrs"].update(attrs)
    with pytest.raises(vs.PlanError, match=match):
        decode_host_plan(document, lambda digest: np.ones(1, np.float32))


def test_a_part_whose_call_lacks_an_attribute_or_operand_is_refused() -> None:
    graph = vs.build_graph(conv())[0]
    (part,) = cut(vs.plan_graph(graph, vs.Topology.from_dict({"devices": []})))
    for change, match in (
        (lambda own: own["attrs"].pop("stride"), "an attribute stride, got none"),
        (lambda own: own["inputs"].append(0), "expected 2 to 4 operands|conv"),
    ):
        document = json.loads(json.dumps(encode_host_plan(part, str)))
        own = max(document["nodes"], key=lambda node: node["id"])
        change(own)
        with pytest.raises(vs.PlanError, match=match):
            decode_host_plan(document, lambda digest: np.ones(1, np.float32))


def test_a_small_document_makes_no_million_nodes() -> None:
    document = encode_host_plan(cut(spread(make_plan(*chain([A, B])), ("node1", "node2")))[1], str)
    with pytest.raises(vs.PlanError, match="expected 1048576 placements, got"):
        decode_host_plan({**document, "size": 1 << 20}, lambda digest: np.ones(1, np.float32))


def test_what_is_shown_of_a_value_is_a_node() -> None:
    part = cut(spread(make_plan(*chain([A, B])), ("node1", "node2")))[2]
    document, array = json.loads(json.dumps(encode_host_plan(part, str))), np.ones(1, np.float32)
    ((_, (take,)), *_) = document["steps"]
    for shown in ([1 << 40], [-1]):
        take[2] = shown
        with pytest.raises(vs.PlanError, match="shows"):
            decode_host_plan(document, lambda digest: array)
