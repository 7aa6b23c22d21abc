"""The precision and the KV cache of language models by device: "auto", the default, and "fast"."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import vulkan_names
from gguf_models import Tiny, logits_of, write
from test_executor import null_devices
from test_precision_networks import like_a_card
from text_reader import TextReader

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.engine.request_precision import Precision
from vksched.generation.device_precision import AUTO, FAST, cache_type_of, mode_of
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.precision import BYTES, HALF, MIXED, SINGLE, precision_of
from vksched.plan.costs import node_cost
from vksched.runtime.device import Device
from vksched.topology.device_spec import MIB, DeviceSpec
from vksched.topology.limits import Limits

TEXT = [3, 7, 1, 50, 9]
TINY = Tiny(kind="Q4_0", layers=2)
WITH_FLOAT16 = Limits(float16=True, storage16=True, storage_buffers=8)
GPU = DeviceSpec("gpu:0", "null", limits=WITH_FLOAT16)
SOFTWARE = replace(GPU, limits=replace(WITH_FLOAT16, software=True))
OLD_GPU = DeviceSpec("gpu:1", "null")
CPU = DeviceSpec("cpu", "cpu")


def build_model(folder: Path, tiny: Tiny = TINY) -> LanguageModel:
    return with_weights(folder, tiny)[0]


def with_weights(folder: Path, tiny: Tiny = TINY) -> tuple[LanguageModel, dict[str, NDArray]]:
    weights = write(tiny, folder / "tiny.gguf", np.random.default_rng(0))
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model, weights


def described(*specs: DeviceSpec) -> list[Device]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(spec, clock) for spec in specs]


def words(reader: SlotSteps, start: str = "quantized_linear") -> dict[str, set[str]]:
    """Return by device the precision of products by quantized weights, or of other ops."""
    out: dict[str, set[str]] = {}
    for run in reader.steps.runs.values():
        plan = run.plan
        for node in plan.graph.nodes:
            if node.op.startswith(start):
                out.setdefault(plan.device_of(node.name), set()).add(precision_of(node.attrs))
    return out


def caches(reader: SlotSteps) -> dict[str, set[str]]:
    """Return by device the types of the KV cache."""
    out: dict[str, set[str]] = {}
    for run in reader.steps.runs.values():
        plan = run.plan
        for node in plan.graph.nodes:
            if node.name.endswith((".keys", ".values")):
                out.setdefault(plan.device_of(node.name), set()).add(node.type.dtype)
    return out


@pytest.mark.parametrize(
    ("spec", "auto", "fast", "cache"),
    [
        (GPU, MIXED, MIXED, "f16"),
        (OLD_GPU, SINGLE, SINGLE, "f32"),
        (SOFTWARE, SINGLE, SINGLE, "f32"),
        (CPU, SINGLE, BYTES, "f32"),
    ],
    ids=["float16", "no float16", "software", "cpu"],
)
def test_each_kind_of_device_has_its_own(
    spec: DeviceSpec, auto: str, fast: str, cache: str
) -> None:
    assert (mode_of(spec, AUTO), mode_of(spec, FAST)) == (auto, fast)
    assert cache_type_of(spec) == cache


def test_drivers_on_the_cpu_stay_in_float32(tmp_path: Path) -> None:
    model, weights = with_weights(tmp_path, Tiny(layers=1))
    wanted = logits_of(Tiny(layers=1), weights, np.array(TEXT))[-1]
    for name in ("cpu", *vulkan_names()):
        with vs.Scheduler([name]) as sched:
            if name != "cpu" and not sched.topology.devices[0].limits.software:
                continue
            reader = SlotSteps(sched, model, 16, 1)
            np.testing.assert_allclose(reader.prefill(0, TEXT, 0), wanted, rtol=1e-3, atol=1e-3)
            assert set().union(*words(reader, "attention").values()) == {SINGLE}
            assert set().union(*caches(reader).values()) == {"float32"}


def test_a_gpu_with_float16_is_mixed_by_default(tmp_path: Path) -> None:
    model, weights = with_weights(tmp_path)
    wanted = logits_of(TINY, weights, np.array(TEXT))[-1]
    with vs.Scheduler(described(GPU)) as sched:
        reader = SlotSteps(sched, model, 16, 1)
        got = reader.prefill(0, TEXT, 0)
        assert words(reader) == words(reader, "attention") == {GPU.name: {MIXED}}
        assert caches(reader) == {GPU.name: {"float16"}}
    error = np.square(got - wanted).sum() / np.square(wanted).sum()
    assert 1e-10 < error < 1e-5  # rounded, and little


def shaders_of(reader: SlotSteps) -> set[str]:
    """Return the names of all shaders of a reader's steps."""
    found: set[str] = set()
    for run in reader.steps.runs.values():
        for node_id in (n for split in run.plan.splits for n in split.nodes):
            node = run.plan.graph.nodes[node_id]
            spec = run.plan.topology.devices[0]
            lowering = node_cost.lower_node(spec, run.plan.graph, node)
            found.update(dispatch.shader for dispatch in lowering.dispatches)
    return found


@pytest.mark.parametrize(
    ("asked", "word", "kind", "most"), [(AUTO, MIXED, "", 1e-5), (BYTES, BYTES, "_int8", 1e-3)]
)
@pytest.mark.parametrize("name", vulkan_names())
def test_kernels_of_gpus_compute_it(
    name: str, asked: str, word: str, kind: str, most: float, tmp_path: Path
) -> None:
    """A driver with float16 that is taken for a GPU."""
    device = like_a_card(name)
    if device is None:
        pytest.skip(f"{name} has no float16")
    tiny = Tiny(kind="Q4_0", layers=1)
    model, weights = with_weights(tmp_path, tiny)
    text = [3, 7, 1, 50, 9, 2, 60, 4, 11]  # steps of 8 tokens and of one
    wanted = logits_of(tiny, weights, np.array(text))[-1]
    limits = device.spec.limits
    with vs.Scheduler([device], tune=False) as sched:
        reader = SlotSteps(sched, model, 16, 1, precision=asked)
        got = reader.prefill(0, text, 0)
        assert words(reader) == {device.name: {word}}
        attention = SINGLE if word == BYTES else word
        assert words(reader, "attention") == {device.name: {attention}}
        cache = "float32" if word == BYTES else "float16"
        assert caches(reader) == {device.name: {cache}}
        shaders = shaders_of(reader)
    if word != BYTES or limits.integer_dot:
        assert {f"quant_gemv_merged{kind}_q4_0", f"quant_gemv_merged_rope{kind}_q4_0"} <= shaders
    if limits.memory_model:
        assert f"attention_decode{'' if word == BYTES else '_fp16'}" in shaders
    error = np.square(got - wanted).sum() / np.square(wanted).sum()
    assert 1e-12 < error < most


@pytest.mark.parametrize("own", [SINGLE, HALF, BYTES])
def test_the_precision_of_a_scheduler_counts(own: str, tmp_path: Path) -> None:
    model = build_model(tmp_path)
    with vs.Scheduler(described(GPU), precision=own) as sched:
        for asked, wanted in ((None, own), (AUTO, MIXED), (SINGLE, SINGLE)):
            reader = SlotSteps(sched, model, 16, 1, precision=asked)
            reader.prefill(0, TEXT, 0)
            assert words(reader) == {GPU.name: {wanted}}
            cache = "float16" if wanted in (MIXED, HALF) else "float32"
            assert caches(reader) == {GPU.name: {cache}}


@pytest.mark.parametrize(
    ("precision", "cache"),
    [
        ("bfloat16", "float32"),
        (BYTES, "float32"),
        ({"*": SINGLE}, "float32"),
        ({"*": SINGLE, "blk.1.*": MIXED}, "float16"),
        (HALF, "float16"),
    ],
    ids=["bfloat16", "int8", "all in float32", "one layer", "float16"],
)
def test_modes_without_float16_have_a_float32_cache(
    precision: Precision, cache: str, tmp_path: Path
) -> None:
    model = build_model(tmp_path)
    with vs.Scheduler(described(GPU)) as sched:
        reader = SlotSteps(sched, model, 16, 1, precision=precision)
        reader.prefill(0, TEXT, 0)
        assert caches(reader) == {GPU.name: {cache}}


def test_a_config_outranks_the_defaults_of_devices(tmp_path: Path) -> None:
    model = build_model(tmp_path)
    config = {"blk.1": {"precision": SINGLE}}
    for placement in ({"*": GPU.name}, {"*": GPU.name, "output.*": "cpu"}):
        with vs.Scheduler(described(GPU), config=config) as sched:
            reader = SlotSteps(sched, model, 16, 1, placement)
            reader.prefill(0, TEXT, 0)
            (run, *_) = reader.steps.runs.values()
            modes = {
                node.name: precision_of(node.attrs)
                for node in run.plan.graph.nodes
                if node.op.startswith("attention")
            }
        assert {modes[name] for name in modes if name.startswith("blk.0.")} == {MIXED}
        assert {modes[name] for name in modes if name.startswith("blk.1.")} == {SINGLE}


def test_other_names_of_a_device_have_its_modes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A placement by a UUID."""
    model = build_model(tmp_path)
    with vs.Scheduler(described(GPU)) as sched:
        monkeypatch.setitem(sched._opened._aliases, "vulkan:0123abcd", GPU.name)
        assert sched.graphs.device_name("vulkan:0123abcd") == GPU.name
        reader = SlotSteps(sched, model, 16, 1, {"*": "vulkan:0123abcd"})
        reader.prefill(0, TEXT, 0)
        assert words(reader) == {GPU.name: {MIXED}}
        assert caches(reader) == {GPU.name: {"float16"}}


def test_the_cache_has_the_type_that_is_asked_for(tmp_path: Path) -> None:
    model = build_model(tmp_path)
    with vs.Scheduler(described(GPU)) as sched:
        for asked, dtype in (("f32", "float32"), ("f16", "float16"), ("q8_0", "uint32")):
            reader = SlotSteps(sched, model, 16, 1, cache_type=asked)
            reader.prefill(0, TEXT, 0)
            assert caches(reader) == {GPU.name: {dtype}}


@pytest.mark.parametrize("placement", [{"*": "gpu:0", "blk.1.*": "cpu"}, {"blk.1.*": "cpu"}])
def test_layers_next_to_a_gpu_have_their_own(placement: dict[str, str], tmp_path: Path) -> None:
    model, weights = with_weights(tmp_path)
    wanted = logits_of(TINY, weights, np.array(TEXT))[-1]
    for asked, on_cpu in ((None, SINGLE), (FAST, BYTES)):
        with vs.Scheduler(described(GPU)) as sched:
            reader = SlotSteps(sched, model, 16, 1, placement, precision=asked)
            got = reader.prefill(0, TEXT, 0)
            assert words(reader) == {GPU.name: {MIXED}, "cpu": {on_cpu}}
            assert caches(reader) == {GPU.name: {"float16"}, "cpu": {"float32"}}
            np.testing.assert_allclose(got, wanted, 0.1, 0.1)


def test_layers_that_do_not_fit_have_the_precision_of_the_cpu(tmp_path: Path) -> None:
    tiny = Tiny(layers=4, vocabulary=261)
    model, weights = with_weights(tmp_path, tiny)
    small = replace(GPU, memory_bytes=int(6 * MIB))
    with vs.Scheduler(described(small)) as sched:
        reader = SlotSteps(sched, model, 64, 1)
        got = reader.prefill(0, TEXT, 0)
        assert set(reader.steps.layers) == {GPU.name, "cpu"}
        assert words(reader, "attention") == {GPU.name: {MIXED}, "cpu": {SINGLE}}
        assert caches(reader) == {GPU.name: {"float16"}, "cpu": {"float32"}}
    np.testing.assert_allclose(got, logits_of(tiny, weights, np.array(TEXT))[-1], 0.02, 0.02)


def test_unequal_gpus_have_their_own(tmp_path: Path) -> None:
    model = build_model(tmp_path)
    with vs.Scheduler(described(GPU, OLD_GPU)) as sched:
        reader = SlotSteps(sched, model, 16, 1, {"*": GPU.name, "blk.1.*": OLD_GPU.name})
        reader.prefill(0, TEXT, 0)
        assert words(reader) == {GPU.name: {MIXED}, OLD_GPU.name: {SINGLE}}
        assert caches(reader) == {GPU.name: {"float16"}, OLD_GPU.name: {"float32"}}


def test_networks_keep_float32() -> None:
    x = vs.input("x", (4, 8))
    with vs.Scheduler(described(GPU)) as sched:
        plan = sched.reserve(x @ vs.weight(np.ones((8, 8), np.float32)))
    assert {precision_of(node.attrs) for node in plan.graph.nodes} == {SINGLE}


def test_the_cpu_alone_rounds_activations(tmp_path: Path) -> None:
    model, read = build_model(tmp_path), {}
    exact_ones = {(None, AUTO), (None, None), (BYTES, AUTO), (SINGLE, None)}
    for own, asked in (*exact_ones, (SINGLE, FAST), (BYTES, None), (SINGLE, BYTES)):
        with vs.Scheduler(["cpu"], precision=own) as sched:
            reader = SlotSteps(sched, model, 16, 1, precision=asked)
            read[own, asked] = reader.prefill(0, TEXT, 0)
            assert words(reader) == {"cpu": {SINGLE if (own, asked) in exact_ones else BYTES}}
    exact, rounded = read[SINGLE, None], read[BYTES, None]
    for each in exact_ones:
        np.testing.assert_array_equal(read[each], exact)
    np.testing.assert_array_equal(read[SINGLE, FAST], rounded)
    np.testing.assert_array_equal(read[SINGLE, BYTES], rounded)
    assert 0 < np.square(rounded - exact).sum() < 0.003 * np.square(exact).sum()


def test_a_card_has_its_own_whatever_its_scheduler_has(tmp_path: Path) -> None:
    model, devices = build_model(tmp_path), null_devices(1)[1]
    with vs.Scheduler(devices, precision=BYTES) as sched:
        for asked, wanted in ((AUTO, SINGLE), (FAST, SINGLE), (None, BYTES)):
            reader = SlotSteps(sched, model, 16, 1, precision=asked)
            reader.prefill(0, TEXT, 0)
            assert words(reader) == {devices[0].name: {wanted}}


def test_the_cpu_rounds_where_no_card_works_from_the_beginning(tmp_path: Path) -> None:
    model, devices = build_model(tmp_path), null_devices(1)[1]
    with warnings.catch_warnings(), vs.Scheduler(lost(devices)) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        x = vs.input("x", (2,))
        sched.compile(x + 1, {"*": devices[0].name})(x=np.zeros(2, np.float32))
        assert sched.failed_devices
        reader = SlotSteps(sched, model, 16, 1, precision=FAST)
        reader.prefill(0, TEXT, 0)
        assert words(reader) == {"cpu": {BYTES}}


def lost(devices: list[Device]) -> list[Device]:
    """Devices whose first one fails at once."""
    return [vs.FaultInjectionDevice(devices[0], at=0, times=1), *devices[1:]]


@pytest.mark.parametrize("spec", [DeviceSpec("null:0", "null"), GPU], ids=["float32", "float16"])
def test_what_comes_to_the_cpu_by_a_loss_is_not_rounded(spec: DeviceSpec, tmp_path: Path) -> None:
    model = build_model(tmp_path)

    def read(devices: list[Device]) -> tuple[dict[str, set[str]], dict[str, set[str]], np.ndarray]:
        with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
            warnings.simplefilter("ignore", vs.VkschedWarning)
            reader = SlotSteps(sched, model, 16, 1, precision=FAST)
            texts = TextReader(reader)
            for count in (2, 3, 4):
                texts.read(TEXT[:count])
            got = texts.read(TEXT)
            return words(reader), caches(reader), got

    where, _, wanted = read(described(spec))
    assert where == {spec.name: {mode_of(spec, FAST)}}
    counted = vs.FaultInjectionDevice(described(spec)[0], at=None)
    read([counted])
    faulty = vs.FaultInjectionDevice(described(spec)[0], counted.calls["submit"] // 2, times=1)
    where, types, got = read([faulty])
    assert where == {"cpu": {SINGLE}} and types == {"cpu": {"float32"}}
    tolerance = 1e-4 if mode_of(spec, FAST) == SINGLE else 0.02
    np.testing.assert_allclose(got, wanted, tolerance, tolerance)
