"""Timeline types: lanes, spans on their rows, links, counters and plans, as plain values.

    host      run   [ run 0                              ]
              host  [copy x][ wait for split 0 ][copy h]
    vulkan:0  work         [ split 0           ]              measured
              predicted    [ split 0     ]                    what the plan expected, below it
              ops          [matmul][relu ]

Spans of one row of a lane may overlap; row_layout.py assigns them to tracks. Examples:
tests/viz/test_view_make.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...common.formatting import format_moment, format_seconds

ROWS = (
    "run",
    "host",
    "mark",
    "work",
    "transfer_queue",
    "predicted",
    "transfer_queue predicted",
    "ops",
)
"""The rows of a lane from top to bottom: runs, and work of the host for devices; events without
duration; measured splits, and work of the copy queue; both as predicted; the predicted ops of
splits.
"""
PREDICTED_ROWS = frozenset(("predicted", "transfer_queue predicted", "ops"))
"""Rows of predicted spans."""
HOST = 0
"""The lane of the host; devices follow."""


Between = tuple[int, str, str]
"""A value that goes from host to host: its node, and the lanes of both."""


class Span(NamedTuple):
    """A measured or predicted interval.

    lane: its number. row: one of ROWS. kind: "run", "copy", "wait", "host_op", "split",
    "transfer_queue", "op", or the name of any other event. start_s, end_s: seconds from the origin.
    run, plan, split, node: their numbers, or -1. bytes: the bytes of a copy. expected_s: the plan's
    prediction for a measured span, or None. details: further text. between: the ends of a send or a
    receive.
    """

    lane: int
    row: str
    kind: str
    name: str
    start_s: float
    end_s: float
    run: int = -1
    plan: int = -1
    split: int = -1
    node: int = -1
    bytes: int = 0
    expected_s: float | None = None
    details: str = ""
    between: Between | None = None

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Link(NamedTuple):
    """A dependency of one span on another.

    source, target: their numbers. kind: "copy" of a value, "fence" that the host waited for,
    "submit" by the host, or "order" of two splits. bytes: the bytes transferred. name: the names of
    the values.
    """

    source: int
    target: int
    kind: str
    bytes: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """The host or a device. label: its description."""

    name: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number over time, as bytes of memory. At times_s[i] it becomes values[i]. most: its
    maximum, or 0 if unknown.
    """

    lane: int
    name: str
    times_s: Sequence[float]
    values: Sequence[float]
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of a plan.

    type: the type of its result. reads: name and type of each operand. seconds: its predicted time.
    explain: all facts of the plan about it.
    """

    name: str
    op: str
    type: str
    reads: tuple[str, ...] = ()
    seconds: float = 0.0
    explain: str = ""


@dataclass(frozen=True, slots=True)
class SplitView:
    """A split of a plan.

    nodes: numbers. waits: splits awaited before it. sources: for each value that enters, its source
    split (-1: the host), its name and bytes.
    """

    lane: int
    nodes: tuple[int, ...]
    waits: tuple[int, ...] = ()
    sources: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PredictedSpan:
    """An interval of the simulated run of a plan.

    kind: "split", "transfer_queue", "copy" or "wait". lane: its device. split: -1 for results that
    are fetched. Times are relative to the start of the run.
    """

    kind: str
    lane: int
    split: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PlanView:
    """The parts of a plan that timelines show.

    about: its explanation. alive_bytes: for each split, the memory in use on its device while it
    runs. capacity_bytes: for each lane, 0 for the host. decides: True if each of its runs has
    splits of its own.
    """

    name: str
    about: str
    nodes: Sequence[NodeView]
    splits: Sequence[SplitView]
    predicted: Sequence[PredictedSpan]
    seconds: float = 0.0
    alive_bytes: Sequence[int] = ()
    capacity_bytes: Sequence[int] = ()
    decides: bool = False


@dataclass(frozen=True, slots=True)
class TimelineValue:
    """The content of a timeline; timeline.py adds drawing.

    summary: a line below the title. critical: numbers of the spans on the critical path. shown:
    start and end of the initial view: the runs without the preparation before them; everything if
    both are equal.
    """

    title: str
    summary: str
    lanes: Sequence[Lane]
    spans: Sequence[Span]
    links: Sequence[Link] = ()
    counters: Sequence[Counter] = ()
    plans: Sequence[PlanView] = ()
    critical: frozenset[int] = frozenset()
    notes: Sequence[str] = ()
    shown: tuple[float, float] = (0.0, 0.0)

    @property
    def end_s(self) -> float:
        """The end of the last span."""
        return max((span.end_s for span in self.spans), default=0.0)


def comes_before(copy: Span | PredictedSpan, split: Span | PredictedSpan) -> bool:
    """Return True if a copy enters its split; a copy that begins after the start of the split
    leaves it.
    """
    return copy.start_s <= split.start_s


def tip_of(timeline: TimelineValue, span: Span) -> str:
    """Return the tooltip of a span, with one line for each fact."""
    lane = timeline.lanes[span.lane].name
    word = "predicted" if span.row in PREDICTED_ROWS else "measured"
    lines = [span.name, f"{span.kind} on {lane}" + (f", run {span.run}" if span.run >= 0 else "")]
    if span.node >= 0:
        node = timeline.plans[span.plan].nodes[span.node]
        lines.append(f"{node.op} -> {node.type}")
    lines.append(f"{word} {format_seconds(span.seconds)} from {format_moment(span.start_s)}")
    if span.expected_s is not None:
        lines.append(f"predicted {format_seconds(span.expected_s)}")
    return "\n".join([*lines, *([span.details] if span.details else [])])
