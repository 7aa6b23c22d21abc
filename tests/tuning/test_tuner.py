"""The tuner in a scheduler and on the command line: what is read, measured, kept and used."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from graphs import make_topology
from test_cli import call
from test_tuner_search import FakeBench

import vksched as vs
from vksched.cli.commands.tune import _short
from vksched.common.dtypes import NDArray
from vksched.common.user_warning import VkschedWarning
from vksched.ir.op import Call, Dispatch, Kernel, all_ops, get_op, no_variants
from vksched.ir.precision import HALF, PRECISION, PRECISIONS
from vksched.ir.tensor import apply
from vksched.ops.lowering.lower import choice_of
from vksched.runtime.cpu.cpu_device import CpuDevice
from vksched.runtime.device import Device
from vksched.runtime.vulkan.buffers import Buffer
from vksched.runtime.vulkan.context import Recording
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.storage import crash_marker
from vksched.storage.crash_marker import CrashMarker
from vksched.tuning import autotuner as tuner_module
from vksched.tuning.autotuner import Tuner, identity_of
from vksched.tuning.calibration_samples import calibration_samples
from vksched.tuning.device_cache import Identity
from vksched.tuning.kernel_benchmark import BLOCK_WORDS, CallBench
from vksched.tuning.measurement import FIRST_USE_S, Measurement, Mode, mode_of
from vksched.tuning.search import MeasurementSkipped, search
from vksched.tuning.tunable_calls import Tunable, calls_of, shader_hash, typical_graph
from vksched.tuning.variant_cache import TuningResult, VariantCache

pytestmark = pytest.mark.skipif(not vulkan_names(), reason="no Vulkan device here")
SHAPES = (8, 16), (16, 32)
CALL = "matmul float32[8,16] float32[16,32] -> float32[8,32] transpose_a=False, transpose_b=False"


def product() -> vs.Tensor:
    x, w = (vs.input(name, shape) for name, shape in zip("xw", SHAPES, strict=True))
    return vs.matmul(x, w, name="product")


def feeds() -> dict[str, NDArray]:
    rng = np.random.default_rng(5)
    return {n: rng.standard_normal(s, np.float32) for n, s in zip("xw", SHAPES, strict=True)}


@pytest.fixture
def name() -> str:
    return vulkan_names()[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results of this test's own, which "auto" may use."""
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    monkeypatch.setenv("VKSCHED_TUNE", "1")
    return tmp_path


class Opened:
    """Stands for the benches of a tuner: the last variant is the fastest, and no time passes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[str] = []
        self.error: Exception | None = None
        monkeypatch.setattr(tuner_module, "_open_bench", self.open)

    @contextmanager
    def open(self, device: Device, call: Tunable) -> Iterator[FakeBench]:
        self.keys.append(call.key)
        if self.error is not None:
            raise self.error
        count = len(call.names)
        yield FakeBench({name: 1e-3 * (count - i) for i, name in enumerate(call.names)})


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


@pytest.fixture
def variants(name: str) -> tuple[str, ...]:
    """Of the product on that device: the static choice first."""
    with vs.Scheduler([name], tune=False) as sched:
        names = calls_of(small_graph(), sched.devices[0].spec)[CALL].names
    assert len(names) > 2
    return names


def keep(device: Device, variants: tuple[str, ...]) -> Identity:
    """Write a result as `vksched tune` does: the last variant is the fastest."""
    identity = identity_of(device.spec)
    assert identity is not None
    static, best = variants[0], variants[-1]
    seconds = {static: 2e-3, best: 1e-3}
    VariantCache().add(
        identity, [TuningResult(CALL, best, static, seconds, {}, shader_hash("matmul"))]
    )
    return identity


def variant_of(run: vs.CompiledGraph) -> str:
    return str(run.plan.node_as_dict("product")["variant"])


def test_tune_of_a_scheduler_says_what_is_read_and_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert mode_of("auto") == Mode(True, FIRST_USE_S, software=False)
    assert mode_of(True) == Mode(True, math.inf, software=True)
    assert mode_of(2) == Mode(True, 2.0, software=True)
    assert mode_of(False) == Mode(False)
    monkeypatch.setenv("VKSCHED_TUNE", "0")
    assert mode_of("auto") == Mode(False)
    for wrong in ("always", 0, -1.0, None):
        with pytest.raises(vs.PlanError, match="expected tune of"):
            vs.Scheduler(["cpu"], tune=wrong)  # type: ignore[arg-type]


def test_retained_results_choose_the_variant_and_change_no_result(
    name: str, variants: tuple[str, ...], opened: Opened
) -> None:
    static, *_, best = variants
    with vs.Scheduler([name], tune=False) as sched:
        plain = sched.compile(product())
        assert variant_of(plain) == static
        expected = plain(**feeds())
        keep(sched.devices[0], variants)
    with vs.Scheduler([name]) as sched:
        tuned = sched.compile(product())
        assert variant_of(tuned) == best
        message = f"variant: {best}, tuned of {', '.join(variants[:-1])}"
        assert message in tuned.plan.explain("product")
        tuned.plan.verify()
        np.testing.assert_allclose(tuned(**feeds()), expected, rtol=1e-4, atol=1e-5)
        again = vs.Topology.from_dict(json.loads(json.dumps(tuned.plan.as_dict()["topology"])))
        assert dict(again.devices[0].limits.tuned) == {CALL: best}
    with vs.Scheduler([name], tune=False) as sched:
        assert variant_of(sched.compile(product())) == static, "nothing is read"
    assert opened.keys == [], "a CPU driver is not measured by itself"


def test_results_of_other_shaders_are_not_used(name: str, variants: tuple[str, ...]) -> None:
    with vs.Scheduler([name]) as sched:
        identity = keep(sched.devices[0], variants)
        store = VariantCache()
        found = store.load(identity)[CALL]
        store.add(identity, [replace(found, shaders="of before")])
        store.add(identity, [replace(found, key="op_of_another_release f[1]")])
        assert variant_of(sched.compile(product())) == variants[0]


def test_missing_calls_are_measured_once_and_retained(
    name: str, variants: tuple[str, ...], opened: Opened
) -> None:
    recorder = vs.Recorder()
    with vs.Scheduler([name], tune=True, trace=vs.Trace(sinks=[recorder])) as sched:
        run = sched.compile(product())
        assert opened.keys == [CALL] and variant_of(run) == variants[-1]
        np.testing.assert_allclose(run(**feeds()), feeds()["x"] @ feeds()["w"], atol=1e-4)
        sched.compile({"again": product()})
        assert opened.keys == [CALL]
    (event,) = recorder.select("tune")
    assert event.device == name and event.fields == {"calls": 1, "missing": 0}
    with vs.Scheduler([name], tune=5.0) as sched:
        assert variant_of(sched.compile(product())) == variants[-1]
    assert opened.keys == [CALL], "known from before"


def test_only_what_runs_on_a_device_is_measured_there(opened: Opened) -> None:
    names = vulkan_names()[:1] * 2
    with vs.Scheduler(names, tune=True) as sched:
        sched.compile(product(), {"product": "cpu"})
        assert opened.keys == []
        sched.compile(product(), {"product": f"{names[0]}#2"})
        assert opened.keys == [CALL]


def test_devices_without_kernels_or_memory_keep_the_static_choice(
    name: str, variants: tuple[str, ...], opened: Opened
) -> None:
    for error in (vs.OutOfMemory("[storage] none left"), vs.UnsupportedOp("no")):
        opened.error = error
        opened.keys.clear()
        with vs.Scheduler([name], tune=True) as sched:
            assert variant_of(sched.compile(product())) == variants[0]
            sched.compile({"again": product()})
            assert opened.keys == [CALL], "it is not tried again"
    with vs.Scheduler(["cpu"], tune=True) as sched:
        sched.compile(product())
    assert opened.keys == [CALL]


def test_device_that_fails_while_tuning_is_left_out(name: str, opened: Opened) -> None:
    opened.error = vs.DeviceLost("[wait] lost")
    with vs.Scheduler([name], tune=True) as sched:
        with pytest.warns(VkschedWarning, match=f"{name} failed in tuning: .*runs on cpu"):
            run = sched.compile(product())
        assert sched.failed_devices.keys() == {name}
        np.testing.assert_allclose(run(**feeds()), feeds()["x"] @ feeds()["w"], atol=1e-4)
    with vs.Scheduler([name], tune=True, on_device_failure="raise") as sched:
        with pytest.raises(vs.DeviceLost) as failed:
            sched.compile(product())
        assert (failed.value.device, failed.value.during) == (name, "tuning")


def test_variant_that_loses_the_device_is_not_tried_again(
    name: str, variants: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    static, *others, deadly = variants
    known = {static: 2e-3, **dict.fromkeys(others, 9e-3)}

    class Losing(FakeBench):
        def run(self, variant: str, repeat: int) -> float:
            tried.append(variant)
            return super().run(variant, repeat)

    @contextmanager
    def open(device: Device, call: Tunable) -> Iterator[FakeBench]:
        lost: dict[str, Exception] = {deadly: vs.DeviceLost("[wait] lost")}
        yield Losing(known, errors=lost)

    monkeypatch.setattr(tuner_module, "_open_bench", open)
    with (
        vs.Scheduler([name], tune=True) as sched,
        pytest.warns(VkschedWarning, match=f"{name} failed in tuning"),
    ):
        sched.compile(product())
    assert deadly in tried
    tried.clear()
    for _ in range(2):
        with vs.Scheduler([name], tune=True) as sched:
            assert variant_of(sched.compile(product())) == variants[0]
            assert not sched.failed_devices
    assert {*tried} == {*known} and len(tried) <= 3 * len(known), "measured once"
    identity = identity_of(sched._preparing.specs[name])
    assert identity is not None
    (found,) = VariantCache().load(identity).values()
    assert found.dropped == {deadly: tuner_module.LOST}
    assert VariantCache().clear(identity) and not VariantCache().crashed_variants(identity)


def test_process_that_dies_leaves_word_of_what_it_tried(tmp_path: Path) -> None:
    store, device = VariantCache(tmp_path), Identity("00ff", "driver", "card")
    marker = CrashMarker(store.path(device))
    marker.begin("op f[1]", "b", "1234")
    marker.begin("op f[1]", "a", "1234")
    assert store.crashed_variants(device) == {}, "it is at it"
    marker.close(failed=False)
    assert store.crashed_variants(device) == {} and not list(tmp_path.glob("tuned/*"))
    dying = "\n".join(
        [
            "import os, sys; from pathlib import Path",
            "from vksched.storage.crash_marker import CrashMarker",
            "from vksched.tuning.device_cache import Identity",
            "from vksched.tuning.variant_cache import VariantCache",
            "device = Identity('00ff', 'driver', 'card')",
            "marker = CrashMarker(VariantCache(Path(sys.argv[1])).path(device))",
            "marker.begin('op f[1]', 'a', '1234'); print('begun', flush=True)",
            "sys.stdin.read(); os._exit(1)",
        ]
    )
    with subprocess.Popen(
        [sys.executable, "-c", dying, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stdout.readline().strip() == b"begun"
        assert store.crashed_variants(device) == {}, "another process is at it"
        process.communicate()
    assert store.crashed_variants(device) == {"op f[1]": {"a": "1234"}}
    assert store.crashed_variants(replace(device, driver="another")) == {}
    (note,) = tmp_path.glob("tuned/*.trying")
    note.write_text("[" * 200_000)
    assert store.crashed_variants(device) == {}
    assert not store.clear(device) and not list(tmp_path.glob("tuned/*")), "results: none"


def test_looking_for_a_note_that_goes_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, device = VariantCache(tmp_path), Identity("00ff", "driver", "card")
    marker, notes = CrashMarker(store.path(device)), crash_marker._notes

    def notes_then_close(results: Path | None) -> list[Path]:
        found = list(notes(results))
        marker.close(failed=False)
        return found

    monkeypatch.setattr(crash_marker, "_notes", notes_then_close)
    assert store.crashed_variants(device) == {} and not list(tmp_path.glob("tuned/*"))


def test_device_that_is_at_work_is_not_measured(name: str, opened: Opened) -> None:
    with vs.Scheduler([name], tune=True) as sched:
        (device, _) = sched.devices
        assert isinstance(device, VulkanDevice)
        recording = device.context.recording()
        recording.begin()
        recording.end()
        recording.submit()  # nobody has seen the end of it yet
        assert device.busy()
        sched.compile(product())
        assert opened.keys == []
        recording.wait(60)
        assert not device.busy()
        sched.compile({"again": product()})
        assert opened.keys == [CALL]


def test_bench_that_waits_behind_other_work_is_abandoned(
    name: str, variants: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(recording: Recording, timeout_s: float) -> None:
        raise vs.DeviceTimeout("[wait] not done")

    with monkeypatch.context() as patched, vs.Scheduler([name], tune=True) as sched:
        patched.setattr(Recording, "wait", late)  # in the bench; closing sees the end
        assert variant_of(sched.compile(product())) == variants[0]
        assert not sched.failed_devices
    with vs.Scheduler([name], tune=False) as sched:
        (device, _) = sched.devices
        assert isinstance(device, VulkanDevice)
        call = calls_of(small_graph(), device.spec)[CALL]
        for others in (True, False):
            bench = CallBench(device, call.op, call.call)
            with monkeypatch.context() as patched:
                patched.setattr(bench, "close", partial(late, bench._recording, 0))
                patched.setattr(type(device.context), "pending", lambda *_, others=others: others)
                wanted = MeasurementSkipped if others else vs.DeviceTimeout
                with pytest.raises(wanted), bench:
                    late(bench._recording, 0)
            assert device.context._device.retained.pop() is bench
            bench.close()


def test_budget_that_is_spent_measures_nothing_more(name: str, opened: Opened) -> None:
    with vs.Scheduler([name], tune=False) as sched:
        device = sched.devices[0]
        calls = calls_of(typical_graph(), device.spec)
        tuner = Tuner(Mode(True, 1e-9, software=True))
        assert tuner.measure(device, calls.values(), lambda *_: None) == ()
        assert not tuner.wants(device.spec) and len(tuner.missing(device.spec, calls)) > 4
        assert not Tuner(mode_of("auto")).wants(device.spec), "software"
        hardware = replace(device.spec, limits=replace(device.spec.limits, software=False))
        assert Tuner(mode_of("auto")).wants(hardware)


# -- on the device ---------------------------------------------------------------------------------


def test_bench_runs_every_variant_and_sees_one_that_writes_nothing(name: str) -> None:
    """And one that leaves out the end of a result of which only the ends are compared."""
    declared = get_op("matmul")
    assert declared.kernel is not None
    lower, variants = declared.kernel.lower, declared.kernel.variants

    def some(call: Call) -> tuple[Dispatch, ...]:
        if call.variant == "nothing":
            return ()
        if call.variant == "half":
            half = replace(call.output, shape=(call.output.shape[0] // 2, call.output.shape[1]))
            x = replace(call.inputs[0], shape=(half.shape[0], call.inputs[0].shape[1]))
            call = replace(call, inputs=(x, call.inputs[1]), output=half, variant=known.names[-1])
        return lower(call)

    kernel = Kernel(
        declared.kernel.shaders, some, variants=lambda c: (*variants(c), "nothing", "half")
    )
    op = replace(declared, kernel=kernel)
    x, w = vs.input("x", (2048, 4)), vs.input("w", (4, BLOCK_WORDS // 1024))
    with vs.Scheduler([name], tune=False) as sched:
        device = sched.devices[0]
        assert isinstance(device, VulkanDevice)
        (known,) = calls_of(vs.build_graph(vs.matmul(x, w))[0], device.spec).values()
        names = (*known.names, "nothing", "half")
        with CallBench(device, op, known.call) as bench:
            found = search(known.key, names, bench, lambda: math.inf)
    assert found is not None and found.seconds.keys() == set(known.names)
    assert found.dropped.keys() == {"nothing", "half"}
    assert all(seconds > 0 for seconds in found.seconds.values())


@pytest.mark.parametrize("word", PRECISIONS)
def test_exact_kernels_are_right_next_to_those_that_sum_in_float16(word: str) -> None:
    """Calls of "float16" begin with sums in float16, which are as far off as it allows."""
    gpu = make_topology(1).devices[0]
    spec = replace(gpu, limits=replace(gpu.limits, float16=True))
    x, w = vs.input("x", (64, 512)), vs.input("w", (512, 64))
    product = apply("matmul", (x, w), {**vs.matmul(x, w).attrs, PRECISION: word})
    (known,) = calls_of(vs.build_graph(product)[0], spec).values()
    values = np.ones(64, np.float32)
    results = {v: values * (1 + 3e-3 * v.startswith("fp16acc")) for v in known.names}
    reported = FakeBench({v: 0.001 + 0.001 * v.startswith("fp16acc") for v in known.names}, results)

    @contextmanager
    def bench(device: Device, call: Tunable) -> Iterator[FakeBench]:
        yield reported

    found = tuner_module._measure(CpuDevice(spec), known, {}, bench, Measurement(9.0))
    assert found is not None and found.dropped == {}
    assert not found.best.startswith("fp16acc")
    assert known.names[0].startswith("fp16acc") == (word == HALF)


class OnDirtyMemory(CallBench):
    """A bench that gets memory in which a small integer was everywhere: subnormal floats."""

    def _storage(self, words: int) -> Buffer:
        buffer = super()._storage(words)
        self._spread(np.full(BLOCK_WORDS, 3, np.uint32), buffer, buffer.words)
        return buffer


def test_scratch_holds_usual_numbers_whatever_was_there_before(name: str) -> None:
    """Kernels read the rests of scratch tiles, too, and take far longer over subnormal numbers."""
    x, w = vs.input("x", (1, 64, 14, 14)), vs.weight(np.ones((32, 64, 1, 1), np.float32))
    graph = vs.build_graph(vs.conv(x, w, stride=2))[0]
    with vs.Scheduler([name], tune=False) as sched:
        device = sched.devices[0]
        assert isinstance(device, VulkanDevice)
        (conv,) = calibration_samples(graph, device.spec)
        with OnDirtyMemory(device, conv.op, conv.call) as bench:
            bench.run(choice_of(conv.op, conv.call).variant, 1)
            words = min(bench._scratch.words, BLOCK_WORDS)
            assert words > 64, "this convolution has scratch"
            bench._copy(bench._scratch, 0, bench._block, 0, words)
            numbers = np.abs(bench._block.array[:words].view(np.float32))
    assert not ((numbers != 0) & (numbers < np.finfo(np.float32).tiny)).any()


def test_command_measures_keeps_and_forgets(
    name: str,
    variants: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
) -> None:
    monkeypatch.setattr("vksched.tuning.tunable_calls.typical_graph", small_graph)
    monkeypatch.setenv("COLUMNS", "200")  # long names of variants leave the call less room
    asked = ("tune", "--devices", name, "--time-budget", "60")
    code, out, err = call(capsys, *asked, "--json")
    assert (code, err) == (0, "")
    (device,) = json.loads(out)["devices"]
    assert (device["name"], device["measured"], device["left"]) == (name, 1, [])
    (reported,) = device["calls"]
    assert reported["key"] == CALL and reported["seconds"].keys() == {*variants}
    assert reported["gain"] >= 1 and Path(device["file"]).parent == folder / "tuned"
    code, out, _ = call(capsys, *asked)
    assert code == 0 and "matmul f32[8,16] f32[16,32]" in out
    assert "0 calls measured, 1 known before; in " in out
    code, out, _ = call(capsys, *asked, "--clear")
    assert code == 0 and "forgotten" in out and not Path(device["file"]).exists()
    assert "nothing was known" in call(capsys, *asked, "--clear")[1]
    code, _, err = call(capsys, "tune", "--time-budget", "0")
    assert code == 1 and "above 0 seconds" in err
    code, _, err = call(capsys, "tune", "--devices", "cpu")
    assert code == 1 and "expected a Vulkan device, got cpu" in err


def test_command_that_is_stopped_says_where_its_results_are(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, opened: Opened
) -> None:
    other = vs.matmul(vs.input("a", (24, 16)), vs.input("b", (16, 40)))
    graph = vs.build_graph({"one": product(), "other": other})[0]
    monkeypatch.setattr("vksched.tuning.tunable_calls.typical_graph", lambda: graph)
    measure = tuner_module._measure

    most = 0

    def some(*args: Any) -> TuningResult | None:
        if len(opened.keys) >= most:
            raise KeyboardInterrupt
        return measure(*args)

    monkeypatch.setattr(tuner_module, "_measure", some)
    code, out, err = call(capsys, "tune", "--devices", name)
    assert code == 130 and "stopped; nothing was measured yet: the same command goes on" in err
    most = 1
    code, out, err = call(capsys, "tune", "--devices", name)
    reported = re.search(
        "stopped; what was measured is kept in (.+): the same command goes on", err
    )
    assert code == 130 and out == "" and reported
    assert opened.keys[0] in Path(reported[1]).read_text()
    monkeypatch.setattr(tuner_module, "_measure", measure)
    assert "1 call measured, 1 known before" in call(capsys, "tune", "--devices", name)[1]


def test_numbers_of_a_call_are_short() -> None:
    assert _short("norm f[4] -> f[4] eps=9.999999960041972e-13, axis=12") == (
        "norm f[4] eps=1e-12 axis=12"
    )


def small_graph() -> vs.Graph:
    return vs.build_graph(product())[0]


def test_command_tunes_the_calls_of_a_model(
    name: str,
    variants: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    opened: Opened,
) -> None:
    onnx = pytest.importorskip("onnx")
    text = "g (float[n,16] x, float[16,32] w) => (float[n,32] y) { y = MatMul(x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    onnx.save(model, tmp_path / "m.onnx")
    code, out, _ = call(
        capsys, "tune", str(tmp_path / "m.onnx"), "--free-dim", "n=8", "--devices", name, "--json"
    )
    assert code == 0 and opened.keys == [CALL]
    assert [c["best"] for c in json.loads(out)["devices"][0]["calls"]] == [variants[-1]]


def test_plan_command_shows_what_is_tuned(
    name: str, variants: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with vs.Scheduler([name], tune=False) as sched:
        keep(sched.devices[0], variants)
    file = tmp_path / "graph.py"
    file.write_text(
        "import vksched as vs\n"
        "y = vs.matmul(vs.input('x', (8, 16)), vs.input('w', (16, 32)), name='product')\n"
    )
    code, out, _ = call(capsys, "plan", f"{file}:y", "--devices", name, "--node", "product")
    assert code == 0 and f"variant: {variants[-1]}, tuned" in out


def test_typical_calls_are_of_all_ops_with_variants(name: str) -> None:
    """A kernel that gets variants wants typical calls of it."""
    with vs.Scheduler([name], tune=False) as sched:
        spec = sched.devices[0].spec
    tuned = {c.op.name for s in limits_of(spec) for c in calls_of(typical_graph(), s).values()}
    rules = {rule_of(op) for op in all_ops()}
    assert "matmul" in tuned and rules == {None, *map(rule_of, tuned)}


def limits_of(spec: vs.DeviceSpec) -> list[vs.DeviceSpec]:
    on_card = {"software": False, "float16": True, "storage_buffers": 16}
    on_card |= {"subgroup_size": 32, "subgroup_sizes": (32,)}
    on_card |= {"subgroup_shuffle": True, "subgroup_arithmetic": True}
    changes: list[dict[str, Any]] = [{"software": True}, {"software": False}, on_card]
    return [replace(spec, limits=replace(spec.limits, **change)) for change in changes]


def rule_of(op: str) -> object:
    """What names an op's variants, often the same for a family of ops."""
    kernel = get_op(op).kernel
    return None if kernel is None or kernel.variants is no_variants else kernel.variants
