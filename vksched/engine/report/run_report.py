"""Run report: predicted times, measured times, and the time breakdown of a run.

    predictions.py      predicted and measured: the run, its devices, its ops --+
    time_breakdown.py   the activity of each device at each moment -------------+--> text, data,
    transfers.py        bytes that devices send to each other ------------------+    picture
    advice.py           devices to remove or to add ----------------------------+

Examples: tests/engine/test_report.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...common.formatting import count_of, format_seconds
from ...viz.svg import framed, save_picture
from .advice import Advice
from .predictions import PredictionRow
from .report_chart import MAX_OPS, draw_report
from .time_breakdown import TimeBreakdown, TimeSpan
from .transfers import TransferVolume


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of one run, or the medians of several.

    run: the wall time. devices: the busy time of each device by name. ops: by device and op, the
    longest first. runs: the number of measured runs. graphs: the number of graphs of a run. times,
    timeline: the breakdown and the spans of each device and the host, of the run of median length.
    bound_s: the lower bound of the predicted time over all placements on these devices. advice:
    devices to remove or to add; None if not requested. notes: inconsistencies of these numbers.
    sent: the bytes that each device sends to others in a run.
    """

    run: PredictionRow
    devices: tuple[PredictionRow, ...]
    ops: tuple[tuple[str, PredictionRow], ...]
    runs: int
    graphs: int
    times: tuple[TimeBreakdown, ...]
    timeline: tuple[TimeSpan, ...]
    bound_s: float = 0.0
    advice: Advice | None = None
    notes: tuple[str, ...] = ()
    sent: tuple[TransferVolume, ...] = ()

    @property
    def of_bound(self) -> tuple[float, float] | None:
        """The predicted and the measured time divided by the bound; None if the bound is 0."""
        if not self.bound_s:
            return None
        return self.run.predicted_s / self.bound_s, self.run.measured_s / self.bound_s

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data for json.dumps."""
        return {
            "run": asdict(self.run),
            "runs": self.runs,
            "graphs": self.graphs,
            "devices": [asdict(line) for line in self.devices],
            "ops": [{"device": device, **asdict(line)} for device, line in self.ops],
            "times": [share.as_dict() for share in self.times],
            "timeline": [asdict(span) for span in self.timeline],
            "bound_s": self.bound_s,
            "of_bound": self.of_bound,
            "advice": self.advice.as_dict() if self.advice is not None else None,
            "notes": list(self.notes),
            "sent": [asdict(each) for each in self.sent],
        }

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write the report as an SVG file: a timeline, and predicted and measured times.

        Raises
        ------
        PlanError
            The name does not end in .svg, or the file cannot be written.
        """
        save_picture(path, self._repr_svg_)

    def _repr_svg_(self) -> str:
        colours = {share.device: number for number, share in enumerate(self.times)}
        lines = self.run, *self.devices
        pairs = [(line.what, colours.get(line.what), line) for line in lines]
        pairs += [(f"{op.what} on {d}", colours.get(d), op) for d, op in self.ops[:MAX_OPS]]
        title = f"a run of {format_seconds(self.run.measured_s)}"
        subtitle = "; ".join(self._summary())
        return draw_report(title, subtitle, self.times, self.timeline, pairs)

    def _repr_html_(self) -> str:
        return framed(self._repr_svg_(), "tables", str(self))

    def tables(self) -> tuple[Sequence[tuple[str, ...]], Sequence[tuple[str, ...]]]:
        """Return two tables of text cells with header rows: predicted and measured times, and the
        time breakdown of each device.
        """
        expected: list[tuple[str, ...]] = [("", "predicted", "measured", "ratio", "known")]
        expected.append(_cells("run", self.run))
        for line in self.devices:
            expected.append(_cells(line.what, line))
            here = [op for device, op in self.ops if device == line.what]
            expected += [_cells(f"  {op.what}", op) for op in here]
        done: list[tuple[str, ...]] = [("", "busy", "copying", "waiting", "idle")]
        for share in self.times:
            parts = share.busy_s, share.copying_s, share.waiting_s, share.idle_s
            done.append((share.device, *(_part(part, share.wall_s) for part in parts)))
        return expected, done

    def lines(self) -> list[str]:
        """Return the lines of text below the tables."""
        advised = self.advice.lines() if self.advice is not None else []
        sent = [each.line() for each in self.sent]
        return [*self._summary(), *self._bound(), *sent, *advised, *self.notes]

    def _bound(self) -> list[str]:
        if self.of_bound is None:
            return []
        expected, taken = (f"{times:.3g}" for times in self.of_bound)
        return [
            f"lower bound {format_seconds(self.bound_s)}: predicted at {expected} times of it, "
            f"measured at {taken}"
        ]

    def _summary(self) -> list[str]:
        out: list[str] = []
        if self.runs > 1:
            out.append(f"medians of {self.runs} runs; what each device did is of the middle one")
        if self.graphs > 1:
            out.append(f"each run is {count_of(self.graphs, 'graph')}, one after the other")
        return out

    def __str__(self) -> str:
        expected, done = map(_columns, self.tables())
        return "\n".join([*expected, "", *done, *([""] if self.lines() else []), *self.lines()])


def _cells(what: str, line: PredictionRow) -> tuple[str, ...]:
    taken = format_seconds(line.measured_s)
    if not line.predicted_s:
        return what, "-", taken, "-", "-"
    expected, known = format_seconds(line.predicted_s), f"{100 * line.known:.0f} %"
    return what, expected, taken, f"{line.ratio:.2f}", known


def _part(seconds: float, wall_s: float) -> str:
    return f"{format_seconds(seconds)} {100 * seconds / wall_s if wall_s else 0.0:3.0f} %"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in rows
    ]
