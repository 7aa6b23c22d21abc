"""Networks exported with PyTorch equal onnxruntime: on one device, two, and with the CPU between.

Held to: the largest absolute error of each output is at most 1e-4 of its largest magnitude; at
least 95 % of the floating-point work, by the rules of the ops, is on the Vulkan devices.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_reuse
from conftest import vulkan_names
from models import NAMES, dimensions, example_inputs, make_model
from selection import spread as some_of

import vksched as vs
from vksched.ir.op import get_op
from vksched.plan.plan import Plan

onnxruntime = pytest.importorskip("onnxruntime")

plans = test_reuse.plans  # the fixture
TOLERANCE = 1e-4
QUANTISED = {
    "bert_mini_dynamic": 0.05,
    "lstm_tagger_dynamic": 0.05,
    "small_conv_qdq": 0.03,
    "small_conv_qoperator": 0.02,
}
"""Tolerances of networks that round to 8 bits: a sum that differs in its last digit may round to
the next step, one of 255, and each layer of a network that is rounded throughout adds some (0.021
seen); the states of a recurrent layer we do not round at all.
"""
WORK_ON_DEVICE = 0.95

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


class Bench:
    """Schedulers, loaded models and references, each made when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.schedulers: dict[str, vs.Scheduler] = {}
        self.load = cache(self._load)
        self.reference = cache(self._reference)
        self.alone = cache(self._alone)

    def scheduler(self, where: str) -> vs.Scheduler:
        """The scheduler of one of the sets "cpu", "one", "two" of devices."""
        if where not in self.schedulers:
            names = vulkan_names()
            if where != "cpu" and not names:
                pytest.skip("no Vulkan device here")
            sets = {"cpu": ["cpu"], "one": names[:1], "two": (names * 2)[: max(2, len(names))][:2]}
            self.schedulers[where] = vs.Scheduler(sets[where])
        return self.schedulers[where]

    def _load(self, name: str) -> Any:
        return vs.load(make_model(name, self.folder))

    def _reference(self, name: str) -> tuple[Arrays, Arrays]:
        """Inputs, and what onnxruntime makes of them without its own rewriting of the graph."""
        inputs = example_inputs(name, seed=0)
        self.load(name)
        return inputs, run_onnxruntime(self.folder / f"{name}.onnx", inputs)

    def _alone(self, name: str) -> tuple[Arrays, tuple[Plan, ...]]:
        """What one device makes of a network, and the plans."""
        run = self.scheduler("one").compile(self.load(name))
        found, plans = run(**self.reference(name)[0]), run.plans
        run.close()
        return found, plans

    def placeable(self, name: str) -> tuple[str, ...]:
        """The names of the nodes that one device runs, in the order of the plans; numpy tries."""
        spec = self.scheduler("one").devices[0].spec
        with vs.Scheduler([vs.SimulatedDevice(spec, vs.SimulatedClock())]) as sched:
            run = sched.compile(self.load(name))
            run(**self.reference(name)[0])
            splits = [(plan, split) for plan in run.plans for split in plan.splits]
        nodes = [p.graph.nodes[n] for p, s in splits for n in s.nodes if s.device == 0]
        return tuple(node.name for node in nodes)


def run_onnxruntime(path: Path, inputs: Arrays) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


@pytest.fixture(scope="module")
def bench(folder: Path) -> Iterator[Bench]:
    bench = Bench(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vs.VkschedWarning)  # what numpy does is asserted below
        yield bench
    for scheduler in bench.schedulers.values():
        scheduler.close()


def assert_equal(name: str, found: Arrays, wanted: Arrays) -> None:
    assert list(found) == list(wanted)
    for key, expected in wanted.items():
        assert found[key].shape == expected.shape and found[key].dtype == expected.dtype
        error = np.abs(found[key] - expected).max() / np.abs(expected).max()
        assert error <= QUANTISED.get(name, TOLERANCE), f"{key}: {error:.2e}"


def flops(plans: tuple[Plan, ...]) -> Counter[str]:
    """The floating-point work of plans by device, from the ops' own rules; views do none."""
    out: Counter[str] = Counter()
    for plan in plans:
        nodes = plan.graph.nodes
        for split in plan.splits:
            for node in (nodes[n] for n in split.nodes):
                types = tuple(nodes[i].type for i in node.inputs)
                work = get_op(node.op).work(types, node.type, node.attrs)
                floating = node.type.dtype.startswith("float")
                out[plan.topology.devices[split.device].name] += work.flops if floating else 0.0
    return out


def assert_work_on_devices(plans: tuple[Plan, ...]) -> None:
    """Nor is a node left to the reference evaluator, whose work no rule knows."""
    left = {node.op for plan in plans for node in plan.graph.ops if get_op(node.op).opaque}
    assert not left
    work = flops(plans)
    assert work["cpu"] <= (1 - WORK_ON_DEVICE) * work.total(), dict(work)


def spread(names: tuple[str, ...], devices: list[str]) -> dict[str, str]:
    """A placement that gives each device its part of the nodes, in order."""
    return {n: devices[i * len(devices) // len(names)] for i, n in enumerate(names)}


@pytest.mark.parametrize("name", some_of(NAMES, 3))
def test_a_network_equals_onnxruntime_on_one_device(name: str, bench: Bench) -> None:
    _, wanted = bench.reference(name)
    found, built = bench.alone(name)
    assert_equal(name, found, wanted)
    assert_work_on_devices(built)


@pytest.mark.each_value
@pytest.mark.parametrize("where", ["two", "between", "cpu"])
@pytest.mark.parametrize("name", some_of(NAMES, 5))
def test_a_network_equals_onnxruntime(name: str, where: str, bench: Bench) -> None:
    sched = bench.scheduler("cpu" if where == "cpu" else "two")
    vulkan = [d.name for d in sched.devices[:-1]]
    parts = {"two": vulkan, "between": [*vulkan[:1], "cpu", *vulkan[1:]], "cpu": ["cpu"]}[where]
    inputs, wanted = bench.reference(name)
    placement = spread(bench.placeable(name), parts) if where != "cpu" else {}
    run = sched.compile(bench.load(name), placement=placement)
    assert_equal(name, run(**inputs), wanted)
    used = {p.topology.devices[s.device].name for p in run.plans for s in p.splits}
    assert used >= set(parts)
    if where == "two":
        assert_work_on_devices(run.plans)
    run.close()


@pytest.mark.parametrize("name", ["mobilenet_v3", "bert_mini", "dlrm"])
def test_a_second_call_makes_nothing(
    name: str,
    bench: Bench,
    plans: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sched = bench.scheduler("two")
    inputs, wanted = bench.reference(name)
    run = sched.compile(bench.load(name))
    run(**inputs)
    before, planned, segments = test_reuse.created_objects(sched), len(plans), run.segments
    monkeypatch.setattr("vksched.models.program.FrameLowering", None)  # nothing is lowered, either
    for seed in (0, 1):
        found = run(**example_inputs(name, seed))
        assert seed or assert_equal(name, found, wanted) is None
    assert (
        test_reuse.created_objects(sched) == before
        and len(plans) == planned
        and run.segments == segments
    )
    run.close()


def test_a_decode_loop_compiles_once_per_length(
    bench: Bench,
    plans: list[int],
) -> None:
    """The keys and values of each step are the past of the next, at first of no tokens."""
    name, limit = "gpt2_mini_past", 3
    run = bench.scheduler("one").compile(bench.load(name), limit=limit)
    path = bench.folder / f"{name}.onnx"
    rng = np.random.default_rng(1)

    def decode(steps: int) -> None:
        ids = rng.integers(0, 400, (1, 4))
        inputs = example_inputs(name, 0, batch=1, sequence=4, past_sequence=0, total_sequence=4)
        for _ in range(steps):
            length = inputs["past_key_values.0.key"].shape[2] + ids.shape[1]
            mask = np.ones((1, length), np.int64)
            inputs = {**inputs, "input_ids": ids, "attention_mask": mask}
            found = run(**inputs)
            assert_equal(name, found, run_onnxruntime(path, inputs))
            ids = found["logits"][:, -1:].argmax(-1)
            past = {f"past_key_values.{k[8:]}": v for k, v in found.items() if k != "logits"}
            inputs = {**inputs, **past}

    decode(3)
    first = len(plans)
    decode(3)
    assert first == 3 and len(plans) == first, "each length is planned once"
    decode(4)
    assert len(plans) == 4 and len(run.plans) == limit, "the one not used for longest is gone"
    run.close()


@pytest.mark.parametrize("name", ["bert_mini", "t5_mini", "unet", "lstm_tagger", "small_conv"])
def test_symbolic_dimensions_may_be_of_any_size(name: str, bench: Bench) -> None:
    sizes = {k: {"height": 32, "width": 80}.get(k, v + 1) for k, v in dimensions(name).items()}
    inputs = example_inputs(name, 2, **sizes)
    bench.load(name)
    run = bench.scheduler("one").compile(bench.load(name))
    wanted = run_onnxruntime(bench.folder / f"{name}.onnx", inputs)
    assert_equal(name, run(**inputs), wanted)
    run.close()
