"""The calibrator in a scheduler and on the command line: what is measured, kept and used."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_cli import call

import vksched as vs
from vksched.common.errors import DeviceLost, DeviceTimeout, OutOfMemory, UnsupportedOp
from vksched.plan.costs.node_cost import first_cost
from vksched.runtime.device import Device
from vksched.storage.crash_marker import CrashMarker
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.driver_faults import FAULTS, without_faults
from vksched.topology.limits import Limits
from vksched.topology.tuned_variants import TunedVariants
from vksched.tuning import calibrator as calibrator_module
from vksched.tuning.autotuner import Tuner
from vksched.tuning.benchmarker import Transfer
from vksched.tuning.calibrate_device import QUICK_PASSES
from vksched.tuning.calibration_types import Calibration, Overheads, Sample, speeds_of
from vksched.tuning.calibrator import Calibrator, cost_cache_key
from vksched.tuning.cost_cache import CostCache
from vksched.tuning.device_cache import Identity
from vksched.tuning.first_use import FIRST_USE_S
from vksched.tuning.measurement import Mode
from vksched.tuning.tunable_calls import shader_hash
from vksched.tuning.variant_cache import TuningResult

CARD = DeviceSpec("vulkan:0", "vulkan", "Card", "driver 1", memory_node="0123")
X = np.ones((64, 64), np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of this test's own, which "auto" may use."""
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("VKSCHED_TUNE", "1")
    return tmp_path


class Benchmarker:
    """A benchmarker for which no time passes. busy: how many times longer all takes."""

    busy = 1.0

    def __init__(
        self, device: Device, asked: list[str], error: Exception | None, quick: bool
    ) -> None:
        self.spec, self.name = device.spec, device.name
        self.quick, self.readied_s = quick, 0.0
        self._asked, self._error = asked, error

    def overheads(self) -> Overheads:
        self._asked.append(f"{self.name} overheads")
        if self._error is not None:
            raise self._error
        return Overheads(*(self.busy * each for each in (1e-6, 2e-6, 3e-6, 4e-6, 5e-6)))

    def seconds(self, op: Any, call: Any, weights: Any = ()) -> float:
        self._asked.append(f"{self.name} {op.name}")
        return self.busy * 1e-4

    def transfers(self, size_bytes: int) -> tuple[Transfer, Transfer | None]:
        return Transfer(size_bytes / 2e9, None), Transfer(size_bytes / 1e9, None)


class Rigs:
    """Stands for what measures devices. asked: all that was, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        monkeypatch.setattr(calibrator_module, "open_benchmarker_of", self.open)

    def open(self, device: Device, host: Device, clock: object, quick: bool) -> Any:
        return Benchmarker(device, self.asked, self.error, quick)


@pytest.fixture
def rigs(monkeypatch: pytest.MonkeyPatch) -> Rigs:
    return Rigs(monkeypatch)


class Hardware(vs.SimulatedDevice):
    """A null device that says it is a card."""

    def __init__(self, name: str, software: bool = False, **options: float) -> None:
        limits = Limits(software=software)
        spec = replace(CARD, name=name, memory_node=name, limits=limits, **options)
        super().__init__(spec, vs.SimulatedClock())


def relu(sched: vs.Scheduler) -> vs.CompiledGraph:
    return sched.compile(vs.relu(vs.input("x", X.shape)))


def test_hardware_is_measured_at_first_use_and_numpy_next_to_it(rigs: Rigs, folder: Path) -> None:
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        assert not sched.topology.devices[0].costs
        run = relu(sched)
        passes = QUICK_PASSES
        assert rigs.asked == [
            "vulkan:0 overheads", *passes * ["vulkan:0 relu"],
            "cpu overheads", *passes * ["cpu relu"],
        ]  # fmt: skip
        card, cpu = sched.topology.devices
        assert card.costs.calls == 1 and cpu.costs.calls == 1
        assert run.plan.topology.devices[0].costs == card.costs
        assert sched.topology.links.between("cpu", "vulkan:0").bytes_per_s == pytest.approx(2e9)
        assert sched.topology.links.between("vulkan:0", "cpu").bytes_per_s == pytest.approx(1e9)
        relu(sched)
        assert len(rigs.asked) == 2 + 2 * passes  # the same graph
        sched.compile(vs.exp(vs.input("x", X.shape)))
        assert rigs.asked[2 + 2 * passes :] == [*passes * ["vulkan:0 exp"], *passes * ["cpu exp"]]
    assert len([*folder.glob("costs/*.json")]) == 2
    rigs.asked.clear()
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        assert sched.topology.devices[0].costs.calls == 2  # kept on disk


@pytest.mark.parametrize(
    ("devices", "tune"),
    [
        (lambda: [Hardware("vulkan:0")], False),
        (lambda: [Hardware("vulkan:0", software=True)], False),
        (lambda: ["cpu"], False),
        (lambda: [vs.ThrottledDevice(Hardware("vulkan:0", software=True), 2.0)], "auto"),
        (lambda: [vs.SimulatedDevice(DeviceSpec("null:0", "null"), vs.SimulatedClock())], "auto"),
        (lambda: [vs.SimulatedDevice(DeviceSpec("null:0", "null"), vs.SimulatedClock())], True),
    ],
)
def test_nothing_is_measured_that_is_no_device_or_where_the_user_decided(
    rigs: Rigs, devices: Callable[[], list[Any]], tune: str | bool
) -> None:
    with vs.Scheduler(devices(), tune=tune) as sched:
        relu(sched)
        if tune is True:  # numpy is asked for, simulated devices are never
            assert not any(what.startswith("null") for what in rigs.asked)
        else:
            assert not rigs.asked


def test_a_variable_turns_measuring_off(
    rigs: Rigs, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKSCHED_TUNE", "0")
    with vs.Scheduler([Hardware("vulkan:0", software=True), "cpu"]) as sched:
        run = relu(sched)
        for _ in range(5):
            run(x=X)
    assert not rigs.asked and not [*folder.rglob("*.json")]


@pytest.mark.parametrize(
    ("devices", "measured"),
    [
        (lambda: ["cpu"], {"cpu"}),
        (lambda: [Hardware("vulkan:0", software=True)], {"vulkan:0"}),
        (lambda: [Hardware("vulkan:0", software=True), "cpu"], {"vulkan:0", "cpu"}),
        (lambda: [Hardware("vulkan:0")], {"vulkan:0", "cpu"}),
    ],
)
def test_every_device_that_is_named_is_measured_once(
    rigs: Rigs, devices: Callable[[], list[Any]], measured: set[str]
) -> None:
    every = {f"{name} {what}" for name in measured for what in ("overheads", "relu")}
    with vs.Scheduler(devices()) as sched:
        relu(sched)
        assert set(rigs.asked) == every
        assert {spec.name for spec in sched.topology.devices if spec.costs} == measured
    for again in (every, set[str]()):
        rigs.asked.clear()
        with vs.Scheduler(devices()) as sched:
            relu(sched)
            relu(sched)
        assert set(rigs.asked) == again  # as the computer may have been busy


@pytest.mark.parametrize("busy", [(50.0, 1.0, 1.0), (1.0, 50.0, 1.0)])
def test_of_two_starts_the_one_that_was_not_busy_counts(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch, busy: Sequence[float]
) -> None:
    for times in busy:
        monkeypatch.setattr(Benchmarker, "busy", times)
        with vs.Scheduler([Hardware("vulkan:0", software=True, launch_s=1e-6)]) as sched:
            graph, topology = relu(sched).plan.graph, sched.topology
            assert topology.devices[0].costs.launch_s <= 1e-5  # as it is right to a factor of ten
    assert first_cost(topology.devices[0], graph, graph.ops[0]).seconds == pytest.approx(1e-4)
    assert topology.devices[0].costs.launch_s == pytest.approx(1e-6)


def test_software_translates_long_kernels_only_where_it_is_fastest(rigs: Rigs) -> None:
    x, w = vs.input("x", (64, 64)), vs.weight(X)
    slow, fast = (
        Hardware(f"vulkan:{n}", software=True, flops_per_s=f) for n, f in ((0, 1e9), (1, 1e10))
    )
    with vs.Scheduler([slow, fast]) as sched:
        sched.compile(vs.softmax(vs.relu(x) @ w))
    assert "vulkan:0 relu" in rigs.asked and "vulkan:0 matmul" not in rigs.asked
    assert "vulkan:1 relu" in rigs.asked and "vulkan:1 matmul" in rigs.asked
    with vs.Scheduler([Hardware("vulkan:0", software=True, flops_per_s=1e9)]) as sched:
        sched.compile(vs.softmax(vs.relu(x) @ w))  # alone, it is the fastest
    assert "vulkan:0 matmul" in rigs.asked


def first_use() -> tuple[Hardware, Identity, Calibration]:
    """Return a software device after its first use, what it is kept under, and what is kept."""
    device = Hardware("vulkan:0", software=True)
    identity = cost_cache_key(device.spec)
    assert identity is not None
    with vs.Scheduler([device]) as sched:
        relu(sched)
    known = CostCache().load(identity)
    assert known is not None
    return device, identity, known


def test_time_of_first_use_is_spent_once_in_the_life_of_a_device(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, identity, known = first_use()
    assert 0 < known.spent_s < FIRST_USE_S
    assert CostCache().add(identity, Calibration(speeds_of(device.spec), spent_s=FIRST_USE_S))
    rigs.asked.clear()
    with vs.Scheduler([Hardware("vulkan:0", software=True)]) as sched:
        sched.compile(vs.exp(vs.input("x", X.shape)))
        assert not rigs.asked and sched.topology.devices[0].costs.calls == known.costs.calls


def test_software_is_measured_where_somebody_asked(rigs: Rigs) -> None:
    with vs.Scheduler([Hardware("vulkan:0", software=True)], tune=5.0) as sched:
        relu(sched)
        assert "vulkan:0 relu" in rigs.asked


def test_measurements_that_somebody_asked_for_leave_the_first_use_its_time(rigs: Rigs) -> None:
    _, identity, known = first_use()
    assert CostCache().add(identity, replace(known, spent_s=0.0, starts=0, pace=2.0))
    for _ in range(3):
        with vs.Scheduler([Hardware("vulkan:0", software=True)], tune=5.0) as sched:
            sched.compile(vs.exp(vs.input("x", X.shape)))
    now = CostCache().load(identity)
    assert now is not None and (now.spent_s, now.starts) == (known.spent_s, known.starts)
    assert now.pace == 1 and len(now.samples) == len(known.samples) + 1
    once = {sample.place: sample.factor for sample in known.samples}
    for sample in now.samples:  # what was not measured anew is as slow as it was
        assert sample.factor == pytest.approx(2 * once.get(sample.place, sample.factor / 2))


def test_a_measurement_that_fails_is_paid_from_the_same_time(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()

    def fail(self: Benchmarker) -> Overheads:
        self._asked.append("overheads")
        time.sleep(0.12)
        raise DeviceTimeout("slow")

    monkeypatch.setattr(Benchmarker, "overheads", fail)
    with vs.Scheduler([Hardware("vulkan:0", software=True)]) as sched:
        for op in (vs.relu, vs.exp, vs.tanh, vs.neg, vs.sqrt, vs.abs, vs.sin, vs.cos):
            sched.compile(op(vs.input("x", X.shape)))
    assert 1 <= len(rigs.asked) <= 3 and time.monotonic() - began < 60


def test_where_nothing_is_retained_the_process_knows_what_it_measured(
    rigs: Rigs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "file" / "no folder"))
    for count in (True, True, False):  # as in two starts
        rigs.asked.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vs.VkschedWarning)
            with vs.Scheduler([Hardware("vulkan:0", software=True)]) as sched:
                relu(sched)
                assert sched.topology.devices[0].costs
        assert bool(rigs.asked) == count


@pytest.mark.parametrize("error", [OutOfMemory("full"), UnsupportedOp("no")])
def test_what_cannot_be_measured_breaks_no_compile(rigs: Rigs, error: Exception) -> None:
    rigs.error = error
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        run = relu(sched)
        assert not sched.topology.devices[0].costs and not sched.failed_devices
        np.testing.assert_array_equal(run(x=X), X)


def test_a_device_that_fails_while_it_is_measured_is_left_out(rigs: Rigs) -> None:
    rigs.error = DeviceLost("gone")
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        with pytest.warns(vs.VkschedWarning, match="vulkan:0.*gone"):
            run = relu(sched)
        assert "vulkan:0" in sched.failed_devices
        np.testing.assert_array_equal(run(x=X), X)


def test_what_took_the_device_with_it_is_not_tried_again(rigs: Rigs, folder: Path) -> None:
    identity = cost_cache_key(Hardware("vulkan:0").spec)
    assert identity is not None
    marker = CrashMarker(CostCache().path(identity))
    marker.begin("relu", "bytes", "")
    marker.close(failed=True)
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        relu(sched)
    assert "vulkan:0 relu" not in rigs.asked and "cpu relu" in rigs.asked


def test_a_device_on_which_submissions_ended_a_program_is_let_be(rigs: Rigs) -> None:
    identity = cost_cache_key(Hardware("vulkan:0").spec)
    assert identity is not None
    marker = CrashMarker(CostCache().path(identity))
    marker.begin("submissions", "", "")
    marker.close(failed=True)
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        relu(sched)
    assert not any(what.startswith("vulkan:0") for what in rigs.asked)


def test_a_device_that_is_busy_is_not_blamed(rigs: Rigs) -> None:
    rigs.error = DeviceTimeout("busy")
    with vs.Scheduler([Hardware("vulkan:0")]) as sched:
        relu(sched)
        assert not sched.failed_devices


def test_two_cards_reach_each_other_through_the_host(rigs: Rigs) -> None:
    with vs.Scheduler([Hardware("vulkan:0"), Hardware("vulkan:1")]) as sched:
        relu(sched)
        links = sched.topology.links
    both = links.between("vulkan:0", "vulkan:1")
    assert both.bytes_per_s == pytest.approx(1 / (1 / 1e9 + 1 / 2e9))
    assert links.between("vulkan:1", "vulkan:0") == both


def test_costs_count_for_the_speeds_from_which_they_were_measured() -> None:
    calibrator = Calibrator(Mode(True, math.inf, software=True))
    known = Calibration(
        speeds_of(CARD), Overheads(1e-6), samples=(Sample("relu", "bytes", -10.0, 2.0),)
    )
    identity = cost_cache_key(CARD)
    assert identity is not None
    calibrator._known[identity] = known
    assert calibrator.costed(CARD).costs == known.costs
    faster = replace(CARD, bytes_per_s=2 * CARD.bytes_per_s)
    assert calibrator.costed(faster) == faster


def test_devices_are_retained_by_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = DeviceSpec("cpu", "cpu", "numpy", "numpy 2.0")
    assert cost_cache_key(DeviceSpec("null:0", "null", driver="1")) is None
    assert cost_cache_key(replace(CARD, driver="")) is None
    assert cost_cache_key(CARD) == cost_cache_key(replace(CARD, name="vulkan:7"))
    assert cost_cache_key(CARD) != cost_cache_key(replace(CARD, driver="driver 2"))
    assert cost_cache_key(cpu) is not None and cost_cache_key(cpu) != cost_cache_key(CARD)
    queued = replace(CARD, limits=Limits(copy_queue=True, tuned=TunedVariants({"op f[1]": "b"})))
    assert cost_cache_key(CARD) == cost_cache_key(queued), "no kernel differs"
    software = replace(CARD, limits=Limits(software=True))
    monkeypatch.setattr(calibrator_module, "usable_cores", lambda: 2)
    two, card = cost_cache_key(software), cost_cache_key(CARD)
    monkeypatch.setattr(calibrator_module, "usable_cores", lambda: 3)
    assert (
        cost_cache_key(software) != two and cost_cache_key(CARD) == card
    )  # it runs on these cores


@pytest.mark.parametrize("feature", sorted({name for fault in FAULTS for name in fault.leave_out}))
def test_a_device_without_a_feature_does_not_use_what_was_measured_with_it(feature: str) -> None:
    value = ("float16*float16+float32 16x16x16",) if feature == "matrices" else True
    whole = replace(CARD, limits=replace(Limits(), **{feature: value}))
    samples = (Sample("relu", "bytes", -10.0, 2.0, shader_hash("relu")),)
    known = Calibration(speeds_of(CARD), Overheads(1e-6), samples=samples)
    Calibrator(Mode(True)).teach(whole, known)
    assert Calibrator(Mode(True)).costed(whole).costs == known.costs
    faults = [fault for fault in FAULTS if feature in fault.leave_out]
    faulty = replace(whole, limits=without_faults(whole.limits, faults))
    assert Calibrator(Mode(True)).costed(faulty) == faulty

    tuned = Tuner(Mode(True))
    tuned._keep(whole, [TuningResult("relu f[1]", "b", "a", {"a": 2.0, "b": 1.0})])
    assert tuned.results(whole) and not tuned.results(faulty)
    assert tuned.file(whole) != tuned.file(faulty)


@pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")
def test_the_command_measures_tells_and_forgets(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = vulkan_names()[0]
    args = ["calibrate", "--devices", f"{name},cpu", "--time-budget", "1.5"]
    report = json.loads(call(capsys, *args, "--json")[1])
    assert [device["name"] for device in report["devices"]] == [name, "cpu"]
    known = report["devices"][0]["calibration"]
    assert known["overheads"]["submit_s"] >= 0 and known["link_in"]["bytes_per_s"] > 0
    assert Path(report["devices"][0]["file"]).parent == folder / "costs"
    table = call(capsys, *args)[1]
    assert name in table and "GB/s" in table and "kept in" in table
    with vs.Scheduler([name]) as sched:
        assert all(device.costs.calls for device in sched.topology.devices)
    gone = call(capsys, "calibrate", "--devices", f"{name},cpu", "--clear")[1]
    assert gone.count("forgotten") == 2
    assert not [*(folder / "costs").glob("*.json")]


def test_a_budget_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, reported = call(capsys, "calibrate", "--time-budget", "0")
    assert code == 1 and "[calibrate] expected a budget above 0 seconds" in reported
