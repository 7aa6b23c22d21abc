"""Measuring a device: planted speeds come back from simulated devices, real ones give sense."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from selection import spread

import vksched as vs
from vksched.common.errors import DeviceLost, OutOfMemory, UnsupportedOp
from vksched.ir.op import Call, Op
from vksched.ir.precision import precision_of
from vksched.plan.costs.node_cost import family_of, node_seconds
from vksched.plan.types.offsets import aligned
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.vulkan import device_probe
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.perf_model import Curve, PerfModel
from vksched.topology.presets import card
from vksched.trace import SystemClock
from vksched.tuning.benchmarker import DeviceBenchmarker, Transfer
from vksched.tuning.calibrate_device import (
    MAX_PASSES,
    PASSES,
    QUICK_PASSES,
    SIZES,
    SPREAD_S,
    calibrate,
)
from vksched.tuning.calibration_samples import (
    calibration_samples,
    device_samples,
    typical_samples,
)
from vksched.tuning.calibration_types import Calibration, Overheads, speeds_of
from vksched.tuning.calibrator import open_benchmarker_of
from vksched.tuning.measurement import Measurement

pytestmark = pytest.mark.own_devices


SPEC = DeviceSpec("null:0", "null", flops_per_s=1e12, bytes_per_s=1e10, submit_s=1e-4)
CPU = device_probe.device_spec(device_probe.cpu_device())


def small(size: int = 64) -> vs.Graph:
    x, w = vs.input("x", (size, size)), vs.input("w", (size, size))
    return vs.build_graph([vs.softmax(x), vs.relu(x), x @ w, vs.transpose(x, (1, 0))])[0]


def simulated(
    spec: DeviceSpec, slowdown: float = 1.0, link: vs.Link | None = None
) -> DeviceBenchmarker:
    clock = vs.SimulatedClock()
    device = vs.SimulatedDevice(spec, clock, link=link, slowdown=slowdown)
    return DeviceBenchmarker(device, CpuDevice(CPU), clock)


def measured(benchmarker: DeviceBenchmarker, graph: vs.Graph) -> Calibration:
    wanted = calibration_samples(graph, benchmarker.spec)
    return calibrate(benchmarker, wanted, Calibration(speeds_of(benchmarker.spec)), Measurement())


@pytest.mark.parametrize("slowdown", spread([4.0, 1.0, 0.25], 1))
def test_the_speed_of_a_simulated_device_comes_back(slowdown: float) -> None:
    graph = small()
    found = measured(simulated(SPEC, slowdown), graph)
    assert found.overheads is not None and len(found.samples) == 4
    assert found.overheads.start_s == pytest.approx(slowdown * SPEC.submit_s, rel=1e-3)
    assert found.overheads.submit_s == pytest.approx(0.0, abs=1e-9)
    for sample in found.samples:
        assert sample.factor == pytest.approx(slowdown, rel=0.05)
    costed = replace(SPEC, costs=found.costs)
    for node in graph.ops:
        expected_s = slowdown * node_seconds(SPEC, graph, node)
        assert node_seconds(costed, graph, node) == pytest.approx(expected_s, rel=0.05)


def test_planted_costs_come_back() -> None:
    curves = (Curve("relu/bytes", ((-20.0, 3.0),)), Curve("*/flops", ((-20.0, 5.0),)))
    planted = PerfModel(
        curves, launch_s=4e-6, start_s=1e-5, submit_s=2e-5, fence_s=7e-6, run_s=5e-5, calls=1
    )
    graph = small()
    truth = replace(SPEC, costs=planted)
    found = measured(simulated(truth), graph)
    assert found.overheads is not None
    for name in ("launch_s", "start_s", "submit_s", "fence_s", "run_s"):
        expected_s = getattr(planted, name)
        assert getattr(found.overheads, name) == pytest.approx(expected_s, rel=0.01), name
    costed = replace(SPEC, costs=found.costs)
    for node in graph.ops:
        assert node_seconds(costed, graph, node) == pytest.approx(
            node_seconds(truth, graph, node), rel=0.05
        )


@pytest.mark.parametrize("link", [vs.Link(8e9, 2e-5), vs.Link(1e8, 0.0)])
def test_the_link_of_a_simulated_device_comes_back(link: vs.Link) -> None:
    found = measured(simulated(SPEC, link=link), small())
    assert found.link_in is not None and found.link_out is None
    assert found.link_in.bytes_per_s == pytest.approx(link.bytes_per_s, rel=1e-3)
    assert found.link_in.latency_s == pytest.approx(link.latency_s, abs=1e-9)


class Scripted:
    """A benchmarker that tells what it is asked, and fails as told."""

    name = "null:0"
    quick, readied_s = False, 0.0

    def __init__(self, error: Exception | None = None) -> None:
        self.spec = SPEC
        self.asked: list[str] = []
        self.error = error

    def overheads(self) -> Overheads:
        self.asked.append("overheads")
        return Overheads(launch_s=1e-6)

    def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float:
        self.asked.append(op.name)
        if self.error is not None:
            raise self.error
        return 1e-3

    def transfers(self, size_bytes: int) -> tuple[Transfer, Transfer | None]:
        self.asked.append("transfers")
        there = Transfer(size_bytes / 1e9, size_bytes / 4e9)
        return there, Transfer(size_bytes / 2e9, None)


def test_overheads_and_links_come_before_calls() -> None:
    benchmarker = Scripted()
    known = Calibration(speeds_of(SPEC))
    wanted = calibration_samples(small(), SPEC)
    found = calibrate(benchmarker, wanted, known, Measurement(0.0))
    assert (
        benchmarker.asked == ["overheads"] and found and not found.samples
    )  # nothing else is left of it
    again = calibrate(benchmarker, wanted, found, Measurement())
    assert benchmarker.asked[1:] == ["transfers"] * len(SIZES) + [call.op.name for call in wanted]
    assert again.link_in is not None and again.link_out is not None
    assert again.link_in.bytes_per_s == pytest.approx(0.8e9)
    assert again.link_out.bytes_per_s == pytest.approx(2e9)
    ways = {sample.op for sample in again.samples}
    assert "copy in" in ways and "copy out" not in ways
    benchmarker.asked.clear()
    calibrate(benchmarker, wanted[:1], again, Measurement())
    assert benchmarker.asked == [wanted[0].op.name]  # the rest is known
    benchmarker.asked.clear()
    sure = calibrate(benchmarker, [], replace(again, guessed=True), Measurement())
    assert benchmarker.asked == ["overheads"] and not sure.guessed


class Disturbed(Scripted):
    """A benchmarker beside which another program works while some passes go on."""

    def __init__(self, bad: Collection[int]) -> None:
        super().__init__()
        self.bad = bad

    def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float:
        number = self.asked.count(op.name)
        return super().seconds(op, call, weights) * (8.0 if number in self.bad else 1.0)


@pytest.mark.parametrize("bad", [range(0), range(1), range(10, 20), range(0, MAX_PASSES, 3)])
def test_passes_that_were_disturbed_do_not_count(bad: range) -> None:
    benchmarker, known = Disturbed(bad), Calibration(speeds_of(SPEC))
    wanted = calibration_samples(small(), SPEC)
    found = calibrate(benchmarker, wanted, known, Measurement(), thorough=True)
    calls = [call.op.name for call in wanted]
    asked = benchmarker.asked[1 + len(SIZES) :]
    assert len(asked) == MAX_PASSES * len(calls), "time hardly passes here"
    assert asked == MAX_PASSES * calls, "once for all before twice for one"
    quiet = calibrate(Disturbed(()), wanted, known, Measurement())
    assert found.samples == quiet.samples
    assert found.bytes_per_s == quiet.bytes_per_s > 0


@pytest.mark.parametrize(("pass_s", "passes"), [(0.75 * SPREAD_S, PASSES), (SPREAD_S / 8, 8)])
def test_passes_go_on_until_there_are_enough_and_time_has_passed(
    pass_s: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmarker, wanted = Scripted(), calibration_samples(small(), SPEC)
    calls = {call.op.name for call in wanted}

    def spent_s(_: Measurement) -> float:
        return sum(name in calls for name in benchmarker.asked) * pass_s / len(wanted)

    monkeypatch.setattr(Measurement, "spent_s", property(spent_s))
    calibrate(benchmarker, wanted, Calibration(speeds_of(SPEC)), Measurement(), thorough=True)
    assert sum(name in calls for name in benchmarker.asked) == passes * len(wanted)


def test_a_budget_that_ends_in_a_pass_leaves_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmarker, known = Scripted(), Calibration(speeds_of(SPEC))
    wanted, reported = calibration_samples(small(), SPEC), list[tuple[int, int]]()

    def tell(what: str, done: int, total: int) -> None:
        reported.append((done, total))
        if done == len(wanted) + 1:
            session.budget_s = 0.0

    session = Measurement(tell=tell)
    found = calibrate(benchmarker, wanted, known, session, thorough=True)
    assert sum(call.op.name in benchmarker.asked for call in wanted) == len(wanted)
    assert len(benchmarker.asked) - 1 - len(SIZES) == len(wanted) + 2
    assert found.samples == calibrate(Scripted(), wanted, known, Measurement()).samples
    assert all(done <= total for done, total in reported) and reported[-1] == (1, 1)


@pytest.mark.parametrize("error", [OutOfMemory("full"), UnsupportedOp("no")])
def test_a_call_that_cannot_be_measured_is_left_out(error: Exception) -> None:
    found = calibrate(
        Scripted(error),
        calibration_samples(small(), SPEC),
        Calibration(speeds_of(SPEC)),
        Measurement(),
    )
    assert found and {sample.op for sample in found.samples} == {"copy in"}


def test_a_device_that_fails_is_reported() -> None:
    benchmarker = Scripted(DeviceLost("gone"))
    with pytest.raises(DeviceLost):
        calibrate(
            benchmarker,
            calibration_samples(small(), SPEC),
            Calibration(speeds_of(SPEC)),
            Measurement(),
        )


def test_long_calls_are_not_tried() -> None:
    benchmarker = Scripted()
    slow = replace(SPEC, bytes_per_s=1e3, flops_per_s=1e3)
    benchmarker.spec = slow
    calibrate(
        benchmarker,
        calibration_samples(small(), slow),
        Calibration(speeds_of(slow)),
        Measurement(),
    )
    assert set(benchmarker.asked) == {"overheads", "transfers"}


def test_typical_samples_have_all_families_and_sizes() -> None:
    wanted = calibration_samples(typical_samples(), SPEC)
    families = [family_of(call.op) for call in wanted]
    assert set(families[:10]) >= {"elementwise", "linalg", "reduction", "conv", "layout"}
    products = dict.fromkeys(("attention", "quantized", "rnn"), "linalg")
    families = [products.get(family, family) for family in families]
    for family in set(families):
        sizes = [w.estimate_s for w, f in zip(wanted, families, strict=True) if f == family]
        assert max(sizes) > 100 * min(sizes), family


def test_gpus_with_float16_are_measured_in_mixed_too() -> None:
    graph, gpu = typical_samples(), card("rtx3060").spec("vulkan:0")
    software = replace(gpu, limits=replace(gpu.limits, software=True))
    single = calibration_samples(graph, gpu)
    assert device_samples(graph, software) == calibration_samples(graph, software)
    both = device_samples(graph, gpu)
    mixed = [call for call in both if precision_of(call.call.attrs) == "mixed"]
    assert [call for call in both if call not in mixed] == single
    assert {call.op.name for call in mixed} >= {"matmul", "conv", "attention"}
    assert not {call.place for call in mixed} & {call.place for call in single}
    assert precision_of(both[1].call.attrs) == "mixed", "a small budget covers both"


def test_equal_calls_of_a_graph_are_measured_once() -> None:
    x = vs.input("x", (64, 64))
    graph = vs.build_graph(vs.relu(vs.relu(vs.relu(vs.reshape(x, (16, 256))))))[0]
    found = calibration_samples(graph, SPEC)
    assert [call.op.name for call in found] == ["relu"]
    assert found[0].seconds == pytest.approx(3 * found[0].estimate_s)


def check(found: Calibration, count: int) -> None:
    assert found.overheads is not None and found.overheads.launch_s >= 0
    assert found.overheads.start_s >= 0 and found.overheads.run_s >= 0
    ops = {sample.op for sample in found.samples} - {"copy in", "copy out"}
    assert len(ops) == count and all(math.isfinite(s.factor) for s in found.samples)


def test_numpy_is_measured_like_other_devices() -> None:
    device = CpuDevice(CPU)
    try:
        # so large that other programs of the machine do not hide what a call takes
        found = measured(open_benchmarker_of(device, device, SystemClock()), small(512))
    finally:
        device.close()
    assert found.overheads is not None and found.link_in is None
    assert {s.op for s in found.samples} <= {"softmax", "relu", "matmul", "transpose"}
    assert len(found.samples) >= 2  # a call of next to no time may have none


@pytest.mark.parametrize("name", vulkan_names())
def test_vulkan_devices_are_measured(name: str) -> None:
    with vs.Scheduler([name], tune=False) as sched:
        device, host = sched.devices
        benchmarker = open_benchmarker_of(device, host, SystemClock())
        found = measured(benchmarker, small())
        check(found, 4)
        assert found.link_in is not None and found.link_out is not None
        assert all(sample.shaders for sample in found.samples if "copy" not in sample.op)
        sizes = [s for s in found.samples if s.op == "copy in"]
        assert len(sizes) == len(SIZES)


def test_operands_that_nothing_computes_are_weights() -> None:
    x, w = vs.input("x", (8, 64)), vs.weight(np.ones((64, 64), np.float32), name="w")
    graph, _ = vs.build_graph(vs.softmax(x @ vs.transpose(w, (1, 0))))
    weights = {call.op.name: call.weights for call in calibration_samples(graph, SPEC)}
    assert weights == {"transpose": (0,), "matmul": (), "softmax": ()}


@pytest.mark.parametrize(("most_bytes", "sets"), [(1 << 20, 4), (1 << 10, 1), (1 << 40, 24)])
def test_sets_of_weights_take_no_more_memory_than_needed(
    most_bytes: int, sets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, at = vs.weight(np.ones((256, 256), np.float32)), vs.input("at", (2,), "int32")
    (wanted,) = calibration_samples(vs.build_graph(vs.gather(w, at))[0], SPEC)
    assert wanted.weights == (0,)
    benchmarker, found = simulated(SPEC), [0]
    taken = benchmarker._taken

    def spied(graph: vs.Graph, *args: Any, **options: Any) -> Any:
        large = [array for array in graph.data.values() if array.nbytes == w.type.host_bytes]
        found.append(len(large))
        return taken(graph, *args, **options)

    monkeypatch.setattr("vksched.tuning.benchmarker.COLD_BYTES", most_bytes, raising=False)
    monkeypatch.setattr(benchmarker, "_taken", spied)
    benchmarker.seconds(wanted.op, wanted.call, wanted.weights)
    assert max(found) == sets


@pytest.mark.parametrize("name", vulkan_names())
def test_sets_of_weights_on_vulkan_fit_in_a_buffer(name: str) -> None:
    from vksched.tuning.vulkan_benchmarker import VulkanBenchmarker  # needs the native modules

    with vs.Scheduler([name], tune=False) as sched:
        benchmarker = open_benchmarker_of(*sched.devices, SystemClock())
        assert isinstance(benchmarker, VulkanBenchmarker)
        benchmarker.spec = replace(benchmarker.spec, max_buffer_bytes=1 << 20)
        for words in (1, 2097, 4033, 1 << 17, 1 << 18):
            sets = benchmarker._sets([vs.TensorType((words,), "float32")])
            assert 1 <= sets and 4 * sets * aligned(words) <= 1 << 20


@pytest.mark.parametrize("name", vulkan_names())
def test_calls_on_vulkan_take_their_weights_in_turn(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vksched.runtime.vulkan.single_dispatch import SingleDispatcher  # needs the native modules

    x, w = vs.input("x", (8, 60)), vs.weight(np.ones((60, 60), np.float32))
    offsets: dict[int, set[int]] = {0: set(), 1: set()}
    record = SingleDispatcher.record

    def spied(self: SingleDispatcher, recording: Any, lowering: Any, place: Any) -> None:
        for operand, seen in offsets.items():
            seen.add(place(operand).offset)
        record(self, recording, lowering, place)

    monkeypatch.setattr(SingleDispatcher, "record", spied)
    with vs.Scheduler([name], tune=False) as sched:
        device, host = sched.devices
        benchmarker = open_benchmarker_of(device, host, SystemClock())
        (wanted,) = calibration_samples(vs.build_graph(x @ w)[0], device.spec)
        assert wanted.weights == (1,)
        assert benchmarker.seconds(wanted.op, wanted.call, wanted.weights) > 0
    assert offsets[0] == {0} and len(offsets[1]) > 3
    apart = sorted(offsets[1])
    assert all(b - a >= 60 * 60 for a, b in itertools.pairwise(apart))


def test_a_quick_measurement_leaves_out_calls_that_are_long_or_large() -> None:
    h = vs.input("x", (64, 1 << 17))
    large = vs.exp(vs.input("y", (1 << 10, 1 << 15)))
    wanted = calibration_samples(vs.build_graph([vs.exp(h), vs.tanh(h), large])[0], SPEC)
    benchmarker = Scripted()
    benchmarker.quick = True
    slow = [replace(w, each_s=0.2 if w.op.name == "tanh" else 0.0) for w in wanted]
    none = Calibration(speeds_of(SPEC))
    found = calibrate(benchmarker, slow, none, Measurement(0.5))
    assert benchmarker.asked.count("exp") == QUICK_PASSES and "tanh" not in benchmarker.asked
    assert len(found.samples) == 1 + len([s for s in found.samples if s.op.startswith("copy")])


def test_the_shortest_of_quick_passes_counts() -> None:
    class Busy(Scripted):
        quick = True

        def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float:
            super().seconds(op, call, weights)
            return (3e-3, 1e-3, 9e-3)[self.asked.count(op.name) - 1]

    graph = vs.build_graph(vs.exp(vs.input("x", (256, 256))))[0]
    found = calibrate(
        Busy(), calibration_samples(graph, SPEC), Calibration(speeds_of(SPEC)), Measurement()
    )
    (sample,) = (sample for sample in found.samples if sample.op == "exp")
    assert sample.seconds(1e-6) == pytest.approx(1e-3)
    assert sample.taking(2e-3, 5e-6).seconds(5e-6) == pytest.approx(2e-3)
