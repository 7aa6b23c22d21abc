"""Prediction table: predicted and measured times of a run, its devices and its ops.

A device measures the time of a split, not of each op. The time of a split is therefore divided
among its ops in proportion to the predictions; with submit_granularity="op" every split is one op,
and the times are exact. Complexity: O(splits * ops). Examples: tests/engine/test_report.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...plan.simulation.predict import Prediction
from ...runtime.run_stats import RunStats
from .run_history import WholeRun


@dataclass(frozen=True, slots=True)
class PredictionRow:
    """The predicted and measured time of a part of a run. known: the share of the predicted time
    that is based on measurements; the rest is estimated from FLOPs, bytes and rough speeds.
    predicted_s: 0 if there is no prediction, as for CPU steps between graphs.
    """

    what: str
    predicted_s: float
    measured_s: float
    known: float

    @property
    def ratio(self) -> float:
        """The measured time divided by the predicted time."""
        return self.measured_s / self.predicted_s if self.predicted_s else float("inf")


@dataclass(frozen=True, slots=True)
class PredictionTable:
    """The rows of a run. run: its wall time. devices: the busy time of each device by name. ops: by
    device and op, the longest first.
    """

    run: PredictionRow
    devices: tuple[PredictionRow, ...]
    ops: tuple[tuple[str, PredictionRow], ...]


@dataclass(slots=True)
class _Sum:
    """The seconds of a part of a run. measured_s: one entry per run."""

    predicted_s: float = 0.0
    known_s: float = 0.0
    measured_s: tuple[float, ...] = ()

    def add(self, predicted_s: float, known_s: float, measured_s: Sequence[float]) -> None:
        self.predicted_s += predicted_s
        self.known_s += known_s
        before = self.measured_s or (0.0,) * len(measured_s)
        self.measured_s = tuple(a + b for a, b in zip(before, measured_s, strict=True))

    def line(self, what: str) -> PredictionRow:
        measured_s = statistics.median_low(self.measured_s)
        return PredictionRow(what, self.predicted_s, measured_s, _part([self]))


def make_prediction_table(
    runs: Sequence[WholeRun], expected: Sequence[Prediction]
) -> PredictionTable:
    """Return the predictions and the medians of runs with one set of plans. The median of an even
    number of times is the lower middle one, so that it is a measured time.

    expected: the predictions by graph.
    """
    devices: dict[str, _Sum] = {}
    ops: dict[tuple[str, str], _Sum] = {}
    for number, prediction in enumerate(expected):
        _add_graph([run.graphs[number].stats for run in runs], prediction, devices, ops)
    for (device, op), measured_s in _steps(runs).items():
        devices.setdefault(device, _Sum()).add(0.0, 0.0, measured_s)
        ops.setdefault((device, op), _Sum()).add(0.0, 0.0, measured_s)
    by_op = [(device, each.line(op)) for (device, op), each in ops.items()]
    by_op.sort(key=lambda found: -found[1].measured_s)
    seconds = sum(prediction.seconds for prediction in expected)
    taken_s = statistics.median_low(run.seconds for run in runs)
    whole = PredictionRow("run", seconds, taken_s, _part(devices.values()))
    return PredictionTable(
        whole, tuple(each.line(name) for name, each in devices.items()), tuple(by_op)
    )


def _add_graph(
    stats: Sequence[RunStats],
    expected: Prediction,
    devices: dict[str, _Sum],
    ops: dict[tuple[str, str], _Sum],
) -> None:
    for split in expected.splits:
        measured_s = [each.splits[split.split].device_s for each in stats]
        whole = devices.setdefault(split.device, _Sum())
        whole.add(split.device_s, split.measured_s, measured_s)
        nodes_s = sum(split.now_s.values())
        for op, seconds in split.now_s.items():
            share = seconds / nodes_s if nodes_s else 1 / len(split.now_s)
            shared_s = [max(0.0, each - split.fixed_s) * share for each in measured_s]
            known_s = split.known_s.get(op, 0.0)
            ops.setdefault((split.device, op), _Sum()).add(seconds, known_s, shared_s)


def _steps(runs: Sequence[WholeRun]) -> Mapping[tuple[str, str], Sequence[float]]:
    """Return the seconds of CPU steps between graphs by device and op, for each run."""
    out: dict[tuple[str, str], list[float]] = {}
    for number, run in enumerate(runs):
        for step in run.steps:
            seconds = out.setdefault(("cpu", step.op), [0.0] * len(runs))
            seconds[number] += step.end_s - step.start_s
    return out


def _part(sums: Iterable[_Sum]) -> float:
    """Return the share of the predicted time that is based on measurements."""
    known_s, predicted_s = 0.0, 0.0
    for each in sums:
        known_s, predicted_s = known_s + each.known_s, predicted_s + each.predicted_s
    return min(1.0, known_s / predicted_s) if predicted_s else 0.0
