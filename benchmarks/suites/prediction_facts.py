"""Prediction: how well the seconds that plans count by hold, for whole models on each device.

    calibrate the device with the model's calls -> compile -> predict -> runs -> medians
    the same with one op at a time              ----------> predicted beside measured, op by op

Costs are measured anew and kept, as `vksched calibrate` does. A plan's prediction is made before
its runs, so that they cannot refine it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from vksched.bench.baselines.workloads import Spec
from vksched.bench.extra_metrics import ExtraMetric
from vksched.bench.networks_runner import NetworkRun
from vksched.bench.suite_loader import Facts, Suite, SuiteOptions
from vksched.bench.suites import fitting, specs_of
from vksched.common.dtypes import NDArray
from vksched.engine.executable import CompiledGraph
from vksched.engine.report.build_report import make_report
from vksched.engine.report.run_history import GraphRun, run_of
from vksched.engine.report.run_report import RunReport
from vksched.plan.simulation.predict import predict
from vksched.scheduler.scheduler import Scheduler
from vksched.trace import SystemClock
from vksched.tuning.autotuner import Tuner
from vksched.tuning.calibration_samples import calibration_samples
from vksched.tuning.calibrator import Calibrator
from vksched.tuning.measurement import Mode

ROUNDS = 9
BUDGET_S = 20.0
"""For calibrating one device with the calls of one model."""
GOAL = 0.2
"""A run should take no more and no less than predicted by this share."""
LISTED = 6
"""The ops that are told apart, those that take the longest."""


class Loaded(Protocol):
    """A network compiled on one device, ready to run. feeds: its inputs, by name."""

    compiled: CompiledGraph
    feeds: dict[str, NDArray]

    def result(self) -> NDArray:
        """Return the result of one run."""
        ...

    def close(self) -> None:
        """Free what it holds on its device."""
        ...


@dataclass(frozen=True)
class Model:
    """What is predicted. load: compiles it."""

    name: str
    load: Callable[[Scheduler], Loaded]

    @staticmethod
    def of(spec: Spec) -> Model:
        """Return the model of a case of the bench."""
        return Model(spec.name, lambda sched: NetworkRun(sched, spec))


@dataclass(frozen=True)
class Predicted:
    """What was predicted of a model's run on a device, and measured: medians, in seconds.

    ops: by op, with one op in each submission.
    """

    run: tuple[float, float]
    device: tuple[float, float]
    ops: Mapping[str, tuple[float, float]]


def prediction_facts(device: str, spec: Spec) -> Iterator[ExtraMetric]:
    """Yield how long one model takes on one device, beside what was predicted."""
    found = measure(device, Model.of(spec))
    note = "" if abs(found.run[1] / found.run[0] - 1) <= GOAL else f"over {100 * GOAL:.0f} % off"
    name = f"{spec.name}: a run, beside predicted"
    yield ExtraMetric(device, name, found.run[1], "s", found.run[0], note)
    yield ExtraMetric(device, f"{spec.name}: its device", found.device[1], "s", found.device[0])
    longest = sorted(found.ops, key=lambda op: -found.ops[op][1])[:LISTED]
    for op in longest:
        expected_s, taken_s = found.ops[op]
        yield ExtraMetric(device, f"{spec.name}: {op}", taken_s, "s", expected_s)


def measure(device: str, model: Model, calibrates: bool = True) -> Predicted:
    """Predict and measures a network on a device. calibrates: whether the device is measured with
    the calls of the model first; else plans count by what is known of it.
    """
    if calibrates:
        calibrate(device, model)
    whole = _reports(device, model, "split")
    ops: dict[str, list[tuple[float, float]]] = {}
    for report in _reports(device, model, "op"):
        for _, line in report.ops:
            ops.setdefault(line.what, []).append((line.predicted_s, line.measured_s))
    return Predicted(
        _medians([(r.run.predicted_s, r.run.measured_s) for r in whole]),
        _medians([_on_devices(r) for r in whole]),
        {op: _medians(each) for op, each in ops.items()},
    )


def calibrate(device: str, model: Model, budget_s: float = BUDGET_S) -> None:
    """Measure the calls of a model on a device, as `vksched calibrate` does, and keeps them."""
    with Scheduler([device], on_device_failure="raise") as sched:
        network = model.load(sched)
        graph = network.compiled.plan.graph
        network.close()
        mode = Mode(True, BUDGET_S, software=True)
        tuner, calibrator = Tuner(mode), Calibrator(mode)
        first, host = sched.devices[0], sched.devices[-1]
        wanted = calibration_samples(graph, tuner.tuned(first.spec))
        calibrator.measure(
            first, host, wanted, budget_s, lambda *_: None, SystemClock(), again=True
        )


def _reports(device: str, model: Model, sync: str) -> list[RunReport]:
    """Return reports of runs of a model on a device."""
    with Scheduler([device], on_device_failure="raise", submit_granularity={device: sync}) as sched:
        network = model.load(sched)
        expected, out = predict(network.compiled.plan), []
        for _ in range(ROUNDS):
            network.result()
            stats = network.compiled.stats
            assert stats is not None
            run = GraphRun(network.compiled.plan, stats, expected=expected)
            out.append(make_report([run_of(run)]))
        network.close()
    return out


def _on_devices(report: RunReport) -> tuple[float, float]:
    return (
        sum(line.predicted_s for line in report.devices),
        sum(line.measured_s for line in report.devices),
    )


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def software_models(_: SuiteOptions) -> list[Spec]:
    """Return the cases of the suite "models" that a CPU driver takes, too."""
    return fitting(specs_of("models"), "cpu")


def _device_facts(device: str, specs: Sequence[Spec], *_: object) -> Facts:
    return {f"{spec.name}: predicted": prediction_facts(device, spec) for spec in specs}


SUITE = Suite("prediction", software_models, measures_cases=False, device_facts=_device_facts)
