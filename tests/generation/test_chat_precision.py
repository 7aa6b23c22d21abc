"""The precision "auto" of language models: the CPU's layers round activations, no others do."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from gguf_models import Tiny, write
from test_executor import null_devices

import vksched as vs
from vksched.generation.generator import AUTO, Generator
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.precision import BYTES, SINGLE, precision_of
from vksched.runtime.device import Device

TEXT = [3, 7, 1, 50, 9]
TINY = Tiny(kind="Q4_0", layers=2)


def build_model(folder: Path) -> LanguageModel:
    write(TINY, folder / "tiny.gguf", np.random.default_rng(0))
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model


def words(reader: Generator) -> dict[str, set[str]]:
    """Return by device the precision of products by weights of few bits."""
    out: dict[str, set[str]] = {}
    for run in reader._runs.values():
        plan = run.plan
        for node in plan.graph.nodes:
            if node.op.startswith("quantized_linear"):
                out.setdefault(plan.device_of(node.name), set()).add(precision_of(node.attrs))
    return out


def test_the_cpu_alone_rounds_activations(tmp_path: Path) -> None:
    model, read = build_model(tmp_path), {}
    for own, asked in ((SINGLE, AUTO), (SINGLE, None), (BYTES, None), (SINGLE, BYTES)):
        with vs.Scheduler(["cpu"], precision=own) as sched:
            reader = Generator(sched, model, 16, precision=asked)
            read[own, asked] = reader.prefill(TEXT)
            assert words(reader) == {"cpu": {SINGLE if (own, asked) == (SINGLE, None) else BYTES}}
    exact, rounded = read[SINGLE, None], read[BYTES, None]
    np.testing.assert_array_equal(read[SINGLE, AUTO], rounded)
    np.testing.assert_array_equal(read[SINGLE, BYTES], rounded)
    assert 0 < np.square(rounded - exact).sum() < 0.003 * np.square(exact).sum()


def test_a_card_has_float32_whatever_its_scheduler_has(tmp_path: Path) -> None:
    model, devices = build_model(tmp_path), null_devices(1)[1]
    with vs.Scheduler(devices, precision=BYTES) as sched:
        for asked, wanted in ((AUTO, SINGLE), (None, BYTES)):
            reader = Generator(sched, model, 16, precision=asked)
            reader.prefill(TEXT)
            assert words(reader) == {devices[0].name: {wanted}}


def test_the_cpu_rounds_where_no_card_works_from_the_beginning(tmp_path: Path) -> None:
    model, devices = build_model(tmp_path), null_devices(1)[1]
    with warnings.catch_warnings(), vs.Scheduler(lost(devices)) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        x = vs.input("x", (2,))
        sched.compile(x + 1, {"*": devices[0].name})(x=np.zeros(2, np.float32))
        assert sched.failed_devices
        reader = Generator(sched, model, 16, precision=AUTO)
        reader.prefill(TEXT)
        assert words(reader) == {"cpu": {BYTES}}


def lost(devices: list[Device]) -> list[Device]:
    """Devices whose first one fails at once."""
    return [vs.FaultInjectionDevice(devices[0], at=0, times=1), *devices[1:]]


def test_layers_next_to_a_card_keep_what_they_began_with(tmp_path: Path) -> None:
    model, devices = build_model(tmp_path), null_devices(1)[1]
    card = devices[0].name
    with vs.Scheduler(devices) as sched:
        placement = {"*": card, "blk.1.*": "cpu"}
        reader = Generator(sched, model, 16, placement, precision=AUTO)
        reader.prefill(TEXT)
        assert words(reader) == {card: {SINGLE}, "cpu": {BYTES}}


def test_what_comes_to_the_cpu_by_a_loss_is_not_rounded(tmp_path: Path) -> None:
    model = build_model(tmp_path)

    def read(devices: list[Device]) -> tuple[dict[str, set[str]], np.ndarray]:
        with warnings.catch_warnings(), vs.Scheduler(devices) as sched:
            warnings.simplefilter("ignore", vs.VkschedWarning)
            reader = Generator(sched, model, 16, precision=AUTO)
            for count in (2, 3, 4):
                reader.prefill(TEXT[:count])
            got = reader.prefill(TEXT)
            return words(reader), got

    devices = null_devices(1)[1]
    where, wanted = read(devices)
    assert where == {devices[0].name: {SINGLE}}
    devices = null_devices(1)[1]
    counted = vs.FaultInjectionDevice(devices[0], at=None)
    read([counted, *devices[1:]])
    devices = null_devices(1)[1]
    faulty = vs.FaultInjectionDevice(devices[0], at=counted.calls["submit"] // 2, times=1)
    where, got = read([faulty, *devices[1:]])
    assert where == {"cpu": {SINGLE}}
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)
