"""Report: what a run was predicted to take, and what it took.

    predict(plan)  --by run, split, device, op-->  RunReport  <--measured--  RunStats

A device tells how long a split took, not each op in it. So the time of a split is shared out to its
ops as predicted; with sync="op" every split is one op, and the times are each op's own. Examples:
tests/engine/test_report.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ..plan.predict import Prediction, predict
from ..plan.value import PlanValue
from ..runtime.stats import RunStats
from ..units import format_seconds


@dataclass(frozen=True, slots=True)
class Line:
    """What was predicted for some part of a run, and what was measured. known: the part of the
    predicted time that rests on measurements; the rest is estimated by work and rough speeds.
    """

    what: str
    predicted_s: float
    measured_s: float
    known: float

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s if self.predicted_s else float("inf")


@dataclass(frozen=True, slots=True)
class RunReport:
    """One run. devices: on their own clocks, by name. ops: by device and op, the longest first."""

    run: Line
    devices: tuple[Line, ...]
    ops: tuple[tuple[str, Line], ...]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain data that json.dumps takes."""
        return {
            "run": asdict(self.run),
            "devices": [asdict(line) for line in self.devices],
            "ops": [{"device": device, **asdict(line)} for device, line in self.ops],
        }

    def __str__(self) -> str:
        rows = [("", "predicted", "measured", "ratio", "known")]
        rows += [_cells(self.run.what, self.run)]
        for line in self.devices:
            rows.append(_cells(line.what, line))
            rows += [_cells(f"  {op.what}", op) for device, op in self.ops if device == line.what]
        wide = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, wide, strict=True))
            ).rstrip()
            for row in rows
        )


def make_report(plan: PlanValue, stats: RunStats, expected: Prediction | None = None) -> RunReport:
    """Returns a run beside its prediction. expected: of the plan, where that is known already."""
    expected = expected or predict(plan)
    predicted: dict[str, list[float]] = {}
    ops: dict[tuple[str, str], list[float]] = {}
    for split in expected.splits:
        measured_s = stats.splits[split.split].device_s
        whole = predicted.setdefault(split.device, [0.0, 0.0, 0.0])
        _add(whole, split.device_s, measured_s, split.measured_s)
        nodes_s = sum(split.now_s.values())
        for op, seconds in split.now_s.items():
            share = seconds / nodes_s if nodes_s else 1 / len(split.now_s)
            known_s = split.known_s.get(op, 0.0)
            shared_s = max(0.0, measured_s - split.fixed_s) * share
            _add(ops.setdefault((split.device, op), [0.0, 0.0, 0.0]), seconds, shared_s, known_s)
    devices = tuple(_line(name, each) for name, each in predicted.items())
    by_op = [(device, _line(op, each)) for (device, op), each in ops.items()]
    by_op.sort(key=lambda found: -found[1].measured_s)
    known = _known(sum(each[2] for each in predicted.values()), predicted.values())
    return RunReport(Line("run", expected.seconds, stats.seconds, known), devices, tuple(by_op))


def _add(to: list[float], *amounts: float) -> None:
    for position, amount in enumerate(amounts):
        to[position] += amount


def _line(what: str, each: list[float]) -> Line:
    return Line(what, each[0], each[1], _known(each[2], [each]))


def _known(measured_s: float, of: Iterable[list[float]]) -> float:
    whole = sum(each[0] for each in of)
    return min(1.0, measured_s / whole) if whole else 0.0


def _cells(what: str, line: Line) -> tuple[str, str, str, str, str]:
    times = format_seconds(line.predicted_s), format_seconds(line.measured_s)
    return what, *times, f"{line.ratio:.2f}", f"{100 * line.known:.0f} %"
