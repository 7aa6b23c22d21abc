"""Timeline: what is drawn, as plain values: lanes, spans on their rows, links, counters, plans.

    host      run   [ run 0                              ]
              host  [copy x][ wait for split 0 ][copy h]
    vulkan:0  work         [ split 0           ]              measured
              predicted    [ split 0     ]                    what the plan expected, below it
              ops          [matmul][relu ]

Spans of one row of a lane may overlap; rows.py gives them tracks. Examples:
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
"""The rows of a lane from top to bottom: runs and what the host did for devices; things that take
no time; splits as measured, and what a copy queue did beside them; both as predicted; the ops of
splits, as predicted.
"""
PREDICTED_ROWS = frozenset(("predicted", "transfer_queue predicted", "ops"))
"""Rows of what a plan expects."""
HOST = 0
"""The lane of the host; devices follow."""


Between = tuple[int, str, str]
"""A value that goes from host to host: its node, and the lanes of both."""


class Span(NamedTuple):
    """Something that took time, or is predicted to.

    lane: its number; row: one of ROWS. kind: "run", "copy", "wait", "host_op", "split",
    "transfer_queue", "op", or the name of any other event. start_s, end_s: seconds from the origin.
    run, plan, split, node: which ones, -1 for none. bytes: that a copy moves. expected_s: what the
    plan expected of a measured span; None where it says nothing. details: further text. between: of
    a send or take.
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
    """One span waited for another. source, target: their numbers. kind: "copy" of a value, "fence"
    the host waited for, "submit" by the host, or "order" of two splits. bytes: that crossed. name:
    of the values.
    """

    source: int
    target: int
    kind: str
    bytes: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """The host or a device. label: what it is, in words."""

    name: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Counter:
    """A number over time, such as bytes of memory. At times_s[i] it becomes values[i]. most: what
    it may be at most; 0 where nobody says.
    """

    lane: int
    name: str
    times_s: Sequence[float]
    values: Sequence[float]
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of a plan. type: of its result; reads: name and type of each operand. seconds: what
    it is predicted to take. explain: all that the plan knows of it.
    """

    name: str
    op: str
    type: str
    reads: tuple[str, ...] = ()
    seconds: float = 0.0
    explain: str = ""


@dataclass(frozen=True, slots=True)
class SplitView:
    """A split of a plan. nodes: numbers. waits: splits waited for before it. sources: for each
    value that enters, the split it comes from (-1: the host), its name and bytes.
    """

    lane: int
    nodes: tuple[int, ...]
    waits: tuple[int, ...] = ()
    sources: tuple[tuple[int, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PredictedSpan:
    """A stretch of the simulated run of a plan. kind: "split", "transfer_queue", "copy" or "wait".
    lane: the device it is for. split: -1 for results that are copied out. Times from the start of
    the run.
    """

    kind: str
    lane: int
    split: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PlanView:
    """A plan as far as timelines show it. about: its explanation. alive_bytes: by split, the
    memory in use on its device while it runs. capacity_bytes: by lane; 0 of the host. decides:
    whether each of its runs has splits of its own.
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
    """Everything that is drawn; timeline.py adds how. told: a line below the title. critical:
    numbers of the spans that nothing else hides: a run takes as long as they do. shown: what is
    seen at first, from when to when: runs without what was made ready before them; all of it where
    both are the same.
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
        """When the last span is over."""
        return max((span.end_s for span in self.spans), default=0.0)


def comes_before(copy: Span | PredictedSpan, split: Span | PredictedSpan) -> bool:
    """Whether a copy for a split enters it; what is copied after its start came from it."""
    return copy.start_s <= split.start_s


def tip_of(timeline: TimelineValue, span: Span) -> str:
    """Returns what a tooltip of a span says, a line each."""
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
