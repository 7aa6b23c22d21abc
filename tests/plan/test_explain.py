"""What a plan tells when asked: of itself, of one node, in numbers, and of machines elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from graphs import (
    CPU,
    NAMED,
    A,
    B,
    C,
    Named,
    chain,
    device_of,
    diamond,
    fences_of,
    make_plan,
    make_topology,
    mlp,
    picky,
    random_plan,
    source,
    transfers_of,
)

import vksched as vs
from vksched.plan.costs.node_cost import node_seconds
from vksched.plan.explain.explain_plan import COMMAND, NAMES, ROWS, explain_plan
from vksched.plan.types.plan_types import Upload
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

WHY = "gather binds 4 buffers, the device allows 3"
FOUR = np.arange(4, dtype=np.int32)


def picked() -> vs.Plan:
    """Two layers on two devices, then a gather that only numpy runs."""
    pick = vs.gather(mlp(2, half=1)[0][0], FOUR, name="pick")
    outputs = {"rows": pick, "flat": vs.reshape(pick, (-1,), name="flat")}
    return make_plan(outputs, mlp(2, half=1)[1], picky(False, False))


# -- one node --------------------------------------------------------------------------------------


def test_op_that_fell_to_numpy_reads_as_agreed() -> None:
    assert picked().explain("pick").splitlines() == [
        "pick: gather -> float32[4,64] (1.0 KiB), %12",
        "  with axis=0",
        "  runs on cpu in split 2",
        f"  reason: as null:0 cannot: {WHY}; null:1 cannot: {WHY}",
        "  reads layer.1.relu (2.0 KiB) on null:1, crosses",
        "  reads constant (16 B) on cpu",
        "  read by flat, a view of it",
        "  goes to the caller",
        "  crosses: layer.1.relu, 2.0 KiB, null:1 -> cpu (split 2)",
        "  devices:",
        f"    null:0  cannot: {WHY}",
        f"    null:1  cannot: {WHY}",
        "  * cpu     can, about 0.103 us, copies about 0.256 us in: 0.359 us",
    ]


def test_value_that_crosses_names_both_ends_and_the_bytes() -> None:
    plan = picked()
    line = "  crosses: layer.0.relu, 2.0 KiB, null:0 -> null:1 (split 1)"
    assert line in plan.explain("layer.0.relu").splitlines()  # where it is made
    assert line in plan.explain("layer.1.scale").splitlines()  # where it is read
    assert "  read by layer.1.scale (2.0 KiB) on null:1, crosses" in plan.explain("layer.0.relu")
    assert "crosses" not in plan.explain("layer.0.shift")


def test_every_device_gives_its_seconds_or_its_reason() -> None:
    slow = replace(make_topology(1).devices[0], name="slow", bytes_per_s=1e3)
    topology = Topology((picky(False).devices[0], slow, DeviceSpec("cpu", "cpu")))
    plan = make_plan(vs.gather(source(), FOUR, name="pick"), topology=topology)
    null, other, cpu = plan.node_as_dict("pick")["devices"]
    assert null == {
        "device": A,
        "supports": False,
        "unsupported_reason": WHY,
        "seconds": None,
        "note": "",
        "measured": False,
        "in_s": None,
        "in_measured": False,
        "out_s": None,
        "out_measured": False,
        "total_s": None,
    }
    node = plan.graph.nodes[plan.find("pick")[0]]
    for verdict, spec in ((other, slow), (cpu, topology.devices[-1])):
        assert verdict["supports"] and verdict["seconds"] == node_seconds(spec, plan.graph, node)
    shown = next(line for line in plan.explain("pick").splitlines() if "* slow" in line)
    assert shown.startswith("  * slow    can, about 2.06 s, copies about ")


def test_full_device_that_could_run_an_op_says_that_it_is_full() -> None:
    h = vs.input("x", (64, 64))
    for i in range(6):
        h = vs.mul(h, vs.weight(np.ones((64, 64), np.float32), f"w{i}"), name=f"n{i}")
    plan = make_plan(h, topology=make_topology(1, [100_000]))
    first, cpu = plan.node_as_dict("n5")["devices"]
    assert (
        first["supports"]
        and first["note"].startswith("null:0 is full: it would take")
        and cpu["supports"]
    )
    assert plan.node_as_dict("n0")["devices"][0]["note"] == ""


def test_view_names_what_it_views_and_its_readers() -> None:
    a = vs.exp(source(), name="a")
    view = vs.reshape(vs.reshape(a, (-1,), name="flat"), (64, 8), name="v")
    plan = make_plan([vs.neg(view, name="y"), vs.tanh(a, name="z")], {"a": B, "y": B, "z": B})
    about = plan.node_as_dict("v")
    assert about["view_of"] == "a" and about["device"] == B and about["devices"] == []
    assert [r["name"] for r in about["readers"]] == ["y"]
    assert "  is a view of a: it never runs, and is where that is, on null:1" in plan.explain("v")
    text = plan.explain("a")
    assert "  read by flat, v, views of it" in text.splitlines()
    assert "  read by y through v (2.0 KiB) on null:1" in text.splitlines()
    assert "  reads a through v (2.0 KiB) on null:1" in plan.explain("y").splitlines()


def test_weight_tells_where_its_copies_live() -> None:
    w = vs.weight(np.ones(64, np.float32), name="w")
    one, two = vs.mul(source(), w, name="one"), vs.add(source_of("z"), w, name="two")
    plan = make_plan([one, two], {"one": A, "two": C})
    assert plan.node_as_dict("w")["copies"] == [
        {"device": A, "bytes": 256},
        {"device": C, "bytes": 256},
    ]
    text = plan.explain("w")
    assert "  lives on: null:0 (256 B), null:2 (256 B)" in text
    assert "  reason: weight; also on null:2, for the ops there" in text


def source_of(name: str) -> vs.Tensor:
    return vs.input(name, (8, 64))


def test_input_tells_where_it_goes() -> None:
    about = make_plan(*diamond(None, A, B, CPU)).node_as_dict("x")
    assert about["device"] == "caller"
    assert [(c["source"], c["target"], c["bytes"]) for c in about["transfers"]] == [
        ("caller", A, 2048),
        ("caller", B, 2048),
    ]


def test_int64_input_says_why_devices_refuse_it() -> None:
    plan = make_plan(vs.add(vs.input("n", (40,), "int64"), 1, name="y"), topology=make_topology(1))
    assert "null:0  cannot: int64 values of n may not fit 32 bits" in plan.explain("y")


def test_pattern_tells_of_a_few_in_full_and_of_many_in_lines() -> None:
    plan = make_plan(*mlp(12))
    few = plan.explain("layer.3.*")
    assert few.count("  devices:") == 3 and few.count("lives on: ") == 2
    many = plan.explain("*.scale").splitlines()
    assert len(many) == 13 and many[0].startswith("12 nodes;")
    assert many[1] == "  layer.0.scale: mul float32[8,64], null:0, weight layer.0.w lives here"


def test_node_ids_do_as_well() -> None:
    plan = make_plan(*chain([A, B]))
    (number,) = plan.find("n1")
    assert plan.explain(number) == plan.explain("n1") and plan.device_of(number) == B


@pytest.mark.parametrize("ask", ["explain", "node_as_dict", "device_of", "find"])
def test_unknown_names_get_close_ones(ask: str) -> None:
    plan = make_plan(*mlp(4))
    with pytest.raises(
        vs.PlanError, match=r"\[plan\] expected a node that .*; close: layer\.3\.sc"
    ):
        getattr(plan, ask)("layer.3.skale")
    with pytest.raises(vs.PlanError, match=r"got none; there is: x, layer\.0\.w, .*, \.\.\."):
        getattr(plan, ask)("??")
    with pytest.raises(vs.PlanError, match="a node id below"):
        getattr(plan, ask)(99)
    with pytest.raises(vs.PlanError, match="a name, a pattern or a node id, got <Tensor x"):
        getattr(plan, ask)(source())


@pytest.mark.parametrize("ask", ["node_as_dict", "device_of"])
def test_one_node_is_asked_for_one(ask: str) -> None:
    with pytest.raises(
        vs.PlanError, match=r"expected one node, got 4 .*; try one of layer\.0\.scale"
    ):
        getattr(make_plan(*mlp(4)), ask)("*.scale")


@pytest.mark.parametrize("seed", range(6))
def test_every_node_of_a_plan_can_be_explained(seed: int) -> None:
    plan = random_plan(seed, 30, 2)
    crossed: set[tuple[str, str, int]] = set()
    for node in plan.graph.nodes:
        about = plan.node_as_dict(node.id)
        assert json.loads(json.dumps(about)) == about
        assert plan.explain(node.id).startswith(f"{node.name}: {node.op} -> {node.type}")
        crossed |= {(c["name"], c["target"], c["split"]) for c in about["transfers"]}
    names = [d.name for d in plan.topology.devices]
    wanted = {
        (plan.graph.nodes[c.node].name, names[s.device], s.id)
        for s in plan.splits
        for c in s.uploads
        if c.source >= 0 or names[s.device] != CPU
    }
    assert crossed == wanted


# -- the whole plan --------------------------------------------------------------------------------


def test_text_of_a_large_plan_is_a_screen_or_two() -> None:
    placement = {f"layer.{i}.*": (A, B)[i % 2] for i in range(200)}
    plan = make_plan(mlp(200)[0], placement, make_topology(2))
    text = plan.explain()
    lines = text.splitlines()
    assert len(lines) < 80 and max(map(len, lines)) < 200
    assert "... 188 splits more, of 564 nodes" in lines
    assert 'plan.explain("name") tells more of one' in text
    for_command = explain_plan(plan, COMMAND)
    assert "--node NAME tells more of one" in for_command and "plan.explain" not in for_command
    assert "  null:0: 500 nodes and weights" in lines


@pytest.mark.parametrize("hosts", [16, 17, 40, 300])
def test_text_about_many_computers_sums_them_up(hosts: int) -> None:
    base = DeviceSpec("", "null", label="a card")
    names = [f"node{host}/null:{card}" for host in range(hosts) for card in range(2)]
    topology = Topology((*[replace(base, name=name) for name in names], DeviceSpec(CPU, "cpu")))
    last = names[-1]
    plan = make_plan(mlp(4)[0], {"layer.[012].*": names[0], "layer.3.*": last}, topology)
    text = plan.explain()
    assert len(text) < 8_000 and max(map(len, text.splitlines())) < 400
    rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if line[:2] == "  "}
    nodes = sum(len(split.nodes) for split in plan.splits)
    here = sum(len(s.nodes) for s in plan.splits if topology.devices[s.device].name == last)
    assert rows[f"node{hosts - 1}"] == str(here) and rows["node0"] == str(nodes - here)
    assert (f"{hosts + 1 - ROWS + 1:,} more" in text) == (hosts + 1 > ROWS)
    assert f"and {2 * hosts - NAMES:,} more: a card" in text


def test_of_runs_that_decide_it_is_not_reported_that_all_fits_one_device() -> None:
    graph, _ = vs.build_graph(mlp(2)[0])
    for policy in ("earliest-finish", "work-stealing"):
        text = vs.plan_graph(graph, make_topology(2), policy=policy).explain()
        assert "null:1 has no work: each run decides again" in text
        assert "what GPUs can run fits" not in text


def test_gpus_behind_those_that_have_all_work_are_reported() -> None:
    message = "null:1 has no work: what GPUs can run fits null:0; try "
    plan = make_plan(mlp(2)[0], topology=make_topology(2))
    assert f'  {message}placement={{"PATTERN": "DEVICE"}}' in plan.explain().splitlines()
    assert f"  {message}--place PATTERN=DEVICE" in explain_plan(plan, COMMAND).splitlines()
    silent = (
        make_plan(mlp(2)[0], {"layer.1.*": B}, make_topology(2)),
        make_plan(
            mlp(2)[0], {"*": B}, make_topology(2)
        ),  # the first one is passed over, not forgotten
        make_plan(mlp(2)[0], {"*": CPU}, make_topology(2)),
        make_plan(mlp(2)[0], topology=make_topology(1)),
        make_plan(mlp(2)[0], topology=make_topology(2, [4000, 0])),  # it is too small
    )
    for plan in silent:
        assert "no work" not in plan.explain()


def test_table_of_devices_has_80_columns() -> None:
    plan = make_plan(mlp(400)[0], topology=make_topology(2, [1 << 40, 1 << 40]))
    devices = (replace(plan.topology.devices[0], name="vulkan:10", label="A card"),)
    plan = replace(plan, topology=Topology((*devices, *plan.topology.devices[1:])))
    lines = plan.explain().splitlines()
    assert lines[2].split()[:2] == ["device", "nodes"] and lines[6] == "  vulkan:10: A card"
    assert max(map(len, lines[2:6])) <= 80


def test_rules_of_a_large_plan_are_counted_by_kind() -> None:
    lines = [line.strip() for line in make_plan(*mlp(24, half=12)).explain().splitlines()]
    assert lines.count("24 x weight ... lives here") == 2
    assert lines.count("12 x next to ...") == 2


def test_many_values_of_a_split_are_summed_up() -> None:
    parts = [vs.exp(vs.input(f"x{i}", (64,))) for i in range(20)]
    lines = make_plan(parts).explain().splitlines()
    assert "  in   14 more (3.5 KiB)" in lines and "  out  14 more (3.5 KiB)" in lines


def test_fallbacks_stand_above_the_splits() -> None:
    text = picked().explain()
    line = f"numpy runs 1 node of gather (pick), as null:0 and null:1 cannot: {WHY}"
    assert text.index(line) < text.index("split 0 on")


@pytest.mark.parametrize("shape", NAMED.values(), ids=list(NAMED))
def test_numbers_agree_with_the_plan(shape: Named) -> None:
    plan = make_plan(*shape.build(), copies=2)
    assert len(plan.transfers) == shape.transfers == plan.as_dict()["transfers"]
    assert all(isinstance(c, Upload) for c in plan.transfers)
    sizes = [plan.graph.nodes[c.node].type.device_bytes for c in transfers_of(plan)]
    assert plan.transfer_bytes == sum(sizes) == plan.as_dict()["transfer_bytes"]
    assert plan.fences == fences_of(plan) == shape.fences
    assert plan.barriers == sum(len(s.barriers) for s in plan.splits)
    for name in plan.names:
        assert plan.device_of(name) == device_of(plan, name)


def test_buffers_of_a_device_sum_up_to_its_peak() -> None:
    plan = make_plan(*mlp(4), copies=3)
    sizes = plan.buffers()
    assert list(sizes) == [A, B, C, CPU]
    for name in (A, B, C):
        assert sizes[name].total_bytes == sizes[name].peak_bytes
    one = make_plan(*mlp(4)).buffers()[A]
    assert sizes[A].weight_bytes == one.weight_bytes == 2 * (2048 + 256)
    assert sizes[A].activation_bytes == 3 * one.activation_bytes == 3 * 4096
    assert (one.upload_bytes, one.download_bytes) == (2048, 2048)
    assert one.capacity_bytes == 4 << 30 and one.resident_bytes == 0
    on_cpu = make_plan(mlp(4)[0], topology=make_topology(0)).buffers()[CPU]
    assert on_cpu.peak_bytes == on_cpu.activation_bytes == 4096  # weights are the caller's arrays
    assert on_cpu.total_bytes == 4096 + on_cpu.weight_bytes


def test_plain_data_has_everything() -> None:
    plan = picked()
    data = json.loads(json.dumps(plan.as_dict()))
    assert data == plan.as_dict()
    assert data["outputs"] == [{"name": "rows", "node": "pick"}, {"name": "flat", "node": "flat"}]
    flat = next(p for p in data["placements"] if p["name"] == "flat")
    assert flat["view_of"] == "pick" and flat["split"] is None and flat["inputs"] == ["pick"]
    assert [d["nodes"] for d in data["devices"]] == [3, 3, 1]
    assert data["splits"][1]["barriers"] == list(plan.splits[1].barriers)
    assert len(data["locations"]) == len(plan.locations)
    assert Topology.from_dict(data["topology"]) == plan.topology


# -- machines --------------------------------------------------------------------------------------


def test_machines_come_back_from_json() -> None:
    topology = Topology((*picky(False, True).devices[:-1], DeviceSpec("cpu", "cpu", "numpy")))
    assert Topology.from_dict(json.loads(json.dumps(topology.as_dict()))) == topology
    own = Topology(
        (replace(topology.devices[0], disable_aliasing=True, memory_node="p"), topology.devices[-1])
    )
    assert Topology.from_dict(own.as_dict()) == own


def test_a_few_lines_make_a_machine() -> None:
    card = {"name": "card", "kind": "vulkan", "memory_bytes": 1 << 34, "flops_per_s": 8_000_000}
    topology = Topology.from_dict({"devices": [{**card, "limits": {"storage_buffers": 16}}]})
    assert [d.name for d in topology.devices] == ["card", "cpu"]
    first = topology.devices[0]
    assert (first.memory_bytes, first.flops_per_s, first.limits.storage_buffers) == (2**34, 8e6, 16)
    assert first.limits.max_invocations == 128
    assert device_of(make_plan(vs.neg(source(), name="y"), topology=topology), "y") == "card"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"memory": 5}, "device 0 has no field 'memory'; try memory_node"),
        (
            {"memory_bytes": "5"},
            "expected a whole number of 0 or more as memory_bytes of device 0, got '5'",
        ),
        ({"memory_bytes": -5}, "of 0 or more as memory_bytes"),
        ({"memory_bytes": True}, "expected a whole number"),
        ({"bytes_per_s": float("nan")}, "expected a number of 0 or more"),
        ({"bytes_per_s": 0}, "speeds of at least 1 a second"),
        ({"kind": "cuda"}, "a kind of vulkan, null, cpu for device 0, got 'card' and 'cuda'"),
        ({"name": ""}, "expected a name"),
        ({"disable_aliasing": 1}, "expected true or false"),
        ({"limits": {"shared": 3}}, "the limits of device 0 has no field 'shared'"),
        ({"limits": {"max_groups": [1, 2]}}, "expected 3 whole numbers"),
        ({"limits": 7}, "expected a mapping for the limits of device 0, got 7"),
        ({"name": "cpu"}, "distinct device names"),
    ],
)
def test_wrong_machines_are_clear_errors(change: dict[str, object], match: str) -> None:
    card = {"name": "card", "kind": "vulkan"}
    with pytest.raises(vs.PlanError, match=r"^\[topology\] .*" + match.replace("[", r"\[")):
        Topology.from_dict({"devices": [{**card, **change}]})


@pytest.mark.parametrize("data", [None, [], {}, {"devices": {}}, {"devices": [], "more": 1}])
def test_what_is_no_machine_is_refused(data: object) -> None:
    with pytest.raises(vs.PlanError, match=r'expected \{"devices": \[\.\.\.\]\}'):
        Topology.from_dict(data)
    with pytest.raises(vs.PlanError, match="expected a mapping for device 0"):
        Topology.from_dict({"devices": [3]})


# -- states and observers --------------------------------------------------------------------------


def test_states_are_reported_like_weights() -> None:
    held = vs.state(np.zeros((8, 64), np.float32), name="cache")
    after = vs.add(held, source(), name="next")
    graph, _ = vs.build_graph(vs.neg(held, name="y"), {held: after})
    plan = vs.plan_graph(graph, make_topology(2))
    assert plan.node_as_dict("cache")["copies"] == [{"device": A, "bytes": 2048}]
    assert "  lives on: null:0 (2.0 KiB)" in plan.explain("cache")
    assert "  reason: writes cache" in plan.explain("cache.next")
    header, row = plan.explain().splitlines()[2:4]
    assert header.split()[2:4] == ["weights", "states"] and row.split()[4:6] == ["2.0", "KiB"]
    assert plan.buffers()[A].state_bytes == 2048 and plan.as_dict()["devices"][0]["states"] == [
        "cache"
    ]
    assert plan.buffers()[A].total_bytes == plan.buffers()[A].peak_bytes
    assert "states" not in make_plan(*chain([A])).explain()


def test_values_that_an_observer_sees_are_named() -> None:
    plan = make_plan(*chain([A, A]))
    seen = replace(plan.splits[0], observed=plan.find("n0"))
    observed = replace(plan, splits=(seen,))
    assert "  seen n0 (2.0 KiB) by an observer" in observed.explain().splitlines()
    assert observed.as_dict()["splits"][0]["observed"] == ["n0"]
