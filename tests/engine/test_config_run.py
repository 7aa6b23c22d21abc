"""Schedulers with a config: the same training on several devices, states in pieces, and faults."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import THOROUGH
from selection import spread
from test_executor import null_devices
from test_state_faults import faulty, named_devices

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.runtime.device import Device

RUNS = 2
BATCH, WIDTH = 24, 48
RNG = np.random.default_rng(4)
FEEDS = {
    "x": RNG.standard_normal((BATCH, WIDTH)).astype(np.float32),
    "target": RNG.standard_normal((BATCH, WIDTH)).astype(np.float32),
}

Params = dict[str, vs.Tensor]


def cards() -> list[Device]:
    """Three cards that are not there."""
    return null_devices(3)[1]


def model(backup: bool = True) -> tuple[vs.Tensor, Params, dict[vs.Tensor, vs.Tensor]]:
    """Loss, parameters and updates of two layers in signals."""
    rng = np.random.default_rng(5)
    x, target = vs.input("x", (BATCH, WIDTH)), vs.input("target", (BATCH, WIDTH))
    params: Params = {}
    h = x
    for i in range(2):
        with vs.signal(f"layer.{i}"):
            first = rng.standard_normal((WIDTH, 2 * WIDTH)).astype(np.float32) / 8
            second = rng.standard_normal((2 * WIDTH, WIDTH)).astype(np.float32) / 8
            params[f"up{i}"] = vs.state(first, "up", backup=backup)
            params[f"down{i}"] = vs.state(second, "down", backup=backup)
            h = h + vs.relu(h @ params[f"up{i}"]) @ params[f"down{i}"]
    loss = vs.losses.mse(h, target)
    updates = vs.optim.adamw(params, vs.grad(loss, params), lr=1e-2)
    return loss, params, dict(updates)


def train(
    devices: list[Any], config: Any, runs: int = RUNS
) -> tuple[list[float], dict[str, NDArray]]:
    """The losses of some steps, and the parameters after them."""
    loss, params, updates = model()
    with vs.Scheduler(devices, config=config) as sched:
        step = sched.compile(loss, updates=updates)
        losses = [float(step(**FEEDS)) for _ in range(runs)]
        return losses, {name: sched.read(state) for name, state in params.items()}


@cache
def on_numpy() -> tuple[list[float], dict[str, NDArray]]:
    """What numpy trains, without a config."""
    return train(["cpu"], None)


def close(got: tuple[list[float], dict[str, NDArray]]) -> None:
    wanted = on_numpy()
    np.testing.assert_allclose(got[0], wanted[0], 1e-5)
    for name, value in wanted[1].items():
        np.testing.assert_allclose(got[1][name], value, 1e-3, 1e-4, err_msg=name)


def both(devices: list[str], shard: Any) -> dict[str, Any]:
    """Both layers cut over all devices."""
    section = {"devices": devices, "shard": shard}
    return {"layer.0": section, "layer.1": section}


@pytest.mark.parametrize(
    "shard", [{"axis": 0}, {"weights": "columns", "ratio": "auto"}, "auto"], ids=str
)
def test_training_on_two_devices(devices: list[str], shard: Any) -> None:
    names = list(dict.fromkeys([devices[0], "cpu"]))
    close(train(names, both(names, shard)))


def test_training_on_two_vulkan_devices(two_devices: list[str]) -> None:
    opened = named_devices(two_devices[:2])
    close(train(opened, both([d.name for d in opened], {"axis": 0, "ratio": [2, 1]})))


def pipelined(devices: list[str], schedule: str) -> dict[str, Any]:
    """Both layers as stages."""
    stages = ["layer.0", "layer.1"]
    about = {"stages": stages, "microbatches": 4, "schedule": schedule, "devices": devices}
    return {"pipeline": about}


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble", "dualpipe", "auto"])
def test_pipelines(schedule: str) -> None:
    devices = cards()
    close(train(devices, pipelined([d.name for d in devices[:2]], schedule)))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h2"])
def test_a_pipeline_of_two_vulkan_devices(two_devices: list[str], schedule: str) -> None:
    opened = named_devices(two_devices[:2])
    close(train(opened, pipelined([d.name for d in opened], schedule)))


def test_a_layer_a_device() -> None:
    devices = cards()
    names = [d.name for d in devices]
    config = {"layer.0": {"devices": [names[0]]}, "layer.1": {"devices": [names[1]]}}
    loss, _, updates = model()
    with vs.Scheduler(devices, config=config) as sched:
        step = sched.compile(loss, updates=updates)
        graph, plan = step.plan.graph, step.plan
        for node in graph.nodes:
            for i in range(2):
                if node.op == "matmul" and node.name.startswith(f"layer.{i}."):
                    assert plan.topology.devices[plan.placements[node.id].device].name == names[i]
        step(**FEEDS)


def test_without_matches_the_results_are_the_same_to_the_bit() -> None:
    devices = cards()
    wanted = train(devices, None)
    with pytest.warns(vs.VkschedWarning, match=r"the nearest name is layer\.0"):
        got = train(cards(), {"layers.0": {"devices": [devices[0].name]}})
    assert got[0] == wanted[0]
    for name, value in wanted[1].items():
        np.testing.assert_array_equal(got[1][name], value)


def test_a_file_says_the_same(tmp_path: Path) -> None:
    devices = cards()
    names = ", ".join(d.name for d in devices[:2])
    file = tmp_path / "train.yaml"
    file.write_text(f"layer.0: {{devices: [{names}], shard: {{axis: 0}}}}\n", "utf-8")
    close(train(devices, file))


def test_an_error_comes_before_anything_is_opened() -> None:
    with pytest.raises(vs.PlanError, match="got devcies; try devices"):
        vs.Scheduler(cards(), config={"layer.0": {"devcies": []}})


def test_a_device_that_is_not_there_is_reported_when_compiling() -> None:
    loss, _, updates = model()
    config = {"layer.0": {"devices": ["vulkan:77"]}}
    with (
        vs.Scheduler(cards(), config=config) as sched,
        pytest.raises(vs.VkschedError, match="vulkan:77"),
    ):
        sched.compile(loss, updates=updates)


def test_states_lie_in_pieces_and_move_as_a_whole() -> None:
    # written by the user, read by a graph without updates, and by one with other sections
    devices = cards()
    names = [d.name for d in devices]
    loss, params, updates = model()
    with vs.Scheduler(devices, config=both(names[:2], {"axis": 0})) as sched:
        step = sched.compile(loss, updates=updates)
        step(**FEEDS)
        pieces = [n for n in step.plan.graph.nodes if n.op == "state" and "up@" in n.name]
        assert len(pieces) >= 4
        was = sched.read(params["up0"])
        doubled = sched.compile(params["up0"] * 2.0)
        np.testing.assert_allclose(doubled(), 2 * was, 1e-6)
        sched.write(params["up0"], was * 0)
        np.testing.assert_array_equal(sched.read(params["up0"]), was * 0)
        np.testing.assert_array_equal(doubled(), was * 0)
        step(**FEEDS)
        assert np.abs(sched.read(params["up0"])).max() > 0


def test_a_report_counts_the_bytes_of_sums() -> None:
    # gradients to where they are added up, and the new weights back: as much as a ring takes
    devices = cards()
    names, (loss, params, updates) = [d.name for d in devices], model()
    with vs.Scheduler(devices, config=both(names, {"axis": 0})) as sched:
        step = sched.compile(loss, updates=updates)
        step(**FEEDS)
        report = step.report()
    weights = sum(4 * param.size for param in params.values())
    assert [each.device for each in report.sent] == names
    for each in report.sent:
        assert each.sums_bytes == pytest.approx(2 / 3 * weights, rel=0.01)
        assert each.all_bytes == pytest.approx(4 / 3 * weights, rel=0.01)
        assert each.line() in str(report)
    assert report.as_dict()["sent"][0]["sums_bytes"] == report.sent[0].sums_bytes


def test_a_report_of_one_device_tells_of_no_bytes() -> None:
    loss, _, updates = model()
    with vs.Scheduler(cards()[:1]) as sched:
        step = sched.compile(loss, updates=updates)
        step(**FEEDS)
        assert step.report().sent == ()


def test_states_in_pieces_are_saved_and_loaded_whole(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    file = tmp_path / "step.safetensors"
    devices = cards()
    config = both([d.name for d in devices[:2]], {"weights": "columns"})
    loss, params, updates = model()
    with vs.Scheduler(devices, config=config) as sched:
        step = sched.compile(loss, updates=updates)
        step(**FEEDS)
        vs.optim.save(file, sched, updates)
        wanted = [float(step(**FEEDS)), float(step(**FEEDS))]
        vs.optim.load(file, sched, updates)
        assert [float(step(**FEEDS)), float(step(**FEEDS))] == wanted
    loss, params, updates = model()
    with vs.Scheduler(["cpu"]) as sched:  # whole, on another set of devices
        step = sched.compile(loss, updates=updates)
        vs.optim.load(file, sched, updates)
        np.testing.assert_allclose([float(step(**FEEDS)), float(step(**FEEDS))], wanted, 1e-5)
    assert params


def submissions(index: int, config: Any) -> int:
    """How many submissions the runs make on a device."""
    watched: list[Device] = faulty(cards(), index, at=None)
    train(watched, config)
    counter = watched[index]
    assert isinstance(counter, vs.FaultInjectionDevice)
    return counter.calls["submit"]


@pytest.mark.scales
@pytest.mark.parametrize(
    ("shard", "kind", "index"),
    spread(
        [
            (*config, index)
            for index in (0, 1)
            for config in (
                ({"weights": "columns"}, "error"),
                ({"axis": 0}, "lost"),
                ({"weights": "rows", "ratio": "3:1"}, "lost"),
                ("1f1b", "lost"),
                ("zb-h2", "error"),
                ("dualpipe", "lost"),
            )
        ],
        1,
        4,
    ),
    ids=str,
)
@pytest.mark.timeout(900)
def test_faults_at_every_submission(shard: Any, kind: str, index: int) -> None:
    names = [d.name for d in cards()][:2]
    config = pipelined(names, shard) if isinstance(shard, str) else both(names, shard)
    count = submissions(index, config)
    assert count >= RUNS
    for at in range(1, count + 1, 1 if THOROUGH else 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vs.VkschedWarning)
            close(train(faulty(cards(), index, kind=kind, at=at), config))
