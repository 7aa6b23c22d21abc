"""Nodes of ONNX files that no op expresses: other computers run them only if owners allow it."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import clusters
import numpy as np
import pytest
from click.testing import CliRunner
from cluster_nodes import StartedWorkers, on_cpus
from onnx import helper, parser

import vksched as vs
from vksched.cli import main
from vksched.cluster import ray_cluster
from vksched.cluster.worker_process import ClusterWorker
from vksched.common.dtypes import NDArray
from vksched.importers.onnx.nodes.cpu_node import declare
from vksched.ir.graph import Graph
from vksched.ir.tensor import Tensor, apply
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.plan.multi_host.host_plan_codec import (
    HostPlanCodec,
    Weights,
    decode_host_plan,
    encode_host_plan,
)
from vksched.plan.plan import Plan
from vksched.planner.partition.host_partition import cut
from vksched.planner.planner import STATIC
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.topology import Topology

X = np.array([[[4, 1], [2, 3]]] * 5, np.float32)
TEXT = """<ir_version: 10, opset_import: ["" : 18]>
g (float[5,2,2] x) => (float[5] y) {
  half = Constant <value = float {0.5}> ()
  h = Mul(x, half)
  d = Det(h)
  y = Neg(d) }"""
"""Det has no op."""


def model() -> Any:
    return vs.load(parser.parse_model(TEXT))


def graph() -> Graph:
    (stage,) = [model().lower({"x": X})]
    return vs.build_graph(stage.outputs)[0]


def topology(onnx_ops: bool, gpu: bool = False) -> Topology:
    """node1, which computes whatever it may a thousand times as fast as the driver's CPU."""
    far = DeviceSpec("node1/cpu", "cpu", flops_per_s=1e12, bytes_per_s=1e12, onnx_ops=onnx_ops)
    card = (DeviceSpec("node1/null:0", "null", onnx_ops=onnx_ops),) if gpu else ()
    return Topology((*card, far, DeviceSpec("cpu", "cpu", flops_per_s=1e6, bytes_per_s=1e6)))


def device_of(plan: Plan, op: str) -> str:
    (node,) = (node.id for node in plan.graph.nodes if node.op == op)
    return plan.topology.devices[plan.placements[node].device].name


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("policy", STATIC)
def test_plans_have_such_nodes_where_they_may_run(policy: str, gpu: bool) -> None:
    plan = vs.plan_graph(graph(), topology(False, gpu), policy=policy).verify()
    assert device_of(plan, "onnx.Det") == "cpu"
    assert "its owner does not allow" in plan.explain()
    plan = vs.plan_graph(graph(), topology(True, gpu), policy=policy)
    assert device_of(plan, "onnx.Det") == "node1/cpu"


@pytest.mark.parametrize("policy", STATIC)
def test_a_placement_that_cannot_be_is_reported(policy: str) -> None:
    plan = vs.plan_graph(graph(), topology(False), policy=policy, overrides=[("*", "node1/cpu")])
    assert device_of(plan, "onnx.Det") == "cpu" and device_of(plan, "neg") == "node1/cpu"
    assert any("onnx.Det is of an ONNX file" in note for note in plan.notes)


def test_verify_knows_where_they_may_not_run() -> None:
    plan = vs.plan_graph(graph(), topology(True))
    wrong = dataclasses.replace(plan, topology=topology(False))
    with pytest.raises(vs.PlanError, match="does not allow"):
        wrong.verify()


# -- parts -----------------------------------------------------------------------------------------


def part() -> HostPlan:
    """That of node1, with a node of an ONNX file in it."""
    plan = vs.plan_graph(graph(), topology(True), overrides=[("*", "node1/cpu")])
    (found,) = (each for each in cut(plan) if each.host == "node1")
    return found


def sent(found: HostPlan) -> tuple[Any, Any]:
    document = json.loads(json.dumps(encode_host_plan(found, str)))
    weights = Weights(found)

    def weight(digest: str) -> NDArray:
        return np.frombuffer(b"".join(p.tobytes() for p in weights[digest]), np.uint8)

    return document, weight


def test_parts_with_such_nodes_are_refused_unless_they_are_allowed() -> None:
    document, weight = sent(part())
    assert decode_host_plan(document, weight, onnx_ops=True).host == "node1"
    with pytest.raises(vs.PlanError, match=r"got onnx\.Det, .* --onnx-ops"):
        decode_host_plan(document, weight)
    with pytest.raises(vs.PlanError, match="--onnx-ops"):
        HostPlanCodec().read(json.dumps(document).encode(), weight, str)
    assert HostPlanCodec(onnx_ops=True).read(json.dumps(document).encode(), weight, str)


def test_what_this_process_knows_is_refused_too_and_what_none_knows() -> None:
    """Others of the same process may have declared an op before."""
    document, weight = sent(part())
    for op in ("onnx.Det", "onnx.part", "onnx.Loop", "onnx.ai.onnx.ml.Anything"):
        nodes = [{**n, "op": op} if n["op"] == "onnx.Det" else n for n in document["nodes"]]
        with pytest.raises(vs.PlanError, match="--onnx-ops"):
            decode_host_plan({**document, "nodes": nodes}, weight)


def endless() -> Tensor:
    """A loop of 2^60 turns, as a driver would write it by hand."""
    types = [helper.make_tensor_type_proto(kind, ()) for kind in (7, 9, 9)]
    names = [helper.make_value_info(name, t) for name, t in zip("ikK", types, strict=True)]
    body = helper.make_graph(
        [helper.make_node("Identity", ["k"], ["K"])], "body", names[:2], names[2:]
    )
    loop = helper.make_node("Loop", ["n", ""], [], name="loop", body=body)
    attrs = {
        "node": base64.b64encode(loop.SerializeToString()).decode(),
        "opsets": json.dumps({"": 18}),
        "given": (7, 0),
        "elem_types": (7,),
        "shapes": ((),),
        "reason": "",
    }
    return apply(declare("onnx.Loop"), [vs.constant(np.array(1 << 60))], attrs)


def test_no_caller_keeps_a_node_busy_with_a_loop(tmp_path: Path) -> None:
    nodes = StartedWorkers(tmp_path)
    try:
        with on_cpus([node := nodes("node1")]) as sched:
            with pytest.raises(vs.DeviceError, match="node1 refuses its host plan.*--onnx-ops"):
                forced(sched, endless())
            run = sched.compile(vs.input("x", (3,)) + 1, {"*": "node1/cpu"})
            np.testing.assert_array_equal(run(x=np.zeros(3, np.float32)), np.ones(3))
        node.wait_until_free()
    finally:
        nodes.close()


def forced(sched: vs.Scheduler, outputs: Tensor) -> None:
    """Send a part to a node whatever that tells of itself."""
    (remote,) = [d for d in sched.devices if d.name == "node1/cpu"]
    lying = dataclasses.replace(remote.spec, onnx_ops=True)  # type: ignore[attr-defined]
    own = DeviceSpec("cpu", "cpu")
    plan = vs.plan_graph(
        vs.build_graph(outputs)[0], Topology((lying, own)), overrides=[("*", "node1/cpu")]
    )
    (found,) = (each for each in cut(plan) if each.host == "node1")
    remote.worker.prepare(1 << 30, found)  # type: ignore[attr-defined]


# -- whole runs ------------------------------------------------------------------------------------


@contextmanager
def scheduler(folder: Path, onnx_ops: bool) -> Iterator[vs.Scheduler]:
    nodes = StartedWorkers(folder, onnx_ops=onnx_ops)
    try:
        with on_cpus([nodes("node1")]) as sched:
            yield sched
    finally:
        nodes.close()


@pytest.mark.parametrize("onnx_ops", [False, True])
def test_a_model_runs_either_way(tmp_path: Path, onnx_ops: bool) -> None:
    with scheduler(tmp_path, onnx_ops) as sched:
        run = sched.compile(model(), {"*": "node1/cpu"})
        np.testing.assert_allclose(run(x=X)["y"], -np.linalg.det(X / 2), rtol=1e-6)
        assert device_of(run.plan, "neg") == "node1/cpu"
        assert device_of(run.plan, "onnx.Det") == ("node1/cpu" if onnx_ops else "cpu")


def test_the_command_and_ray_pass_it_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs: list[bool] = []

    def start_worker(*about: object, onnx_ops: bool = False, **more: object) -> ClusterWorker:
        inputs.append(onnx_ops)
        raise vs.VkschedError("[worker] enough")

    monkeypatch.setattr("vksched.cluster.worker_process.ClusterWorker", start_worker)
    key = tmp_path / "key"
    clusters.make_credentials().save(key)
    for options in ([], ["--onnx-ops"]):
        CliRunner().invoke(main, ["worker", "--credentials", str(key), *options])
    for value in ("", "1"):
        monkeypatch.setenv("VKSCHED_ONNX_OPS", value)
        with pytest.raises(vs.VkschedError, match="enough"):
            ray_cluster._WorkerActor("a", clusters.make_credentials().text(), "tls", "127.0.0.1")
    assert inputs == [False, True, False, True]
