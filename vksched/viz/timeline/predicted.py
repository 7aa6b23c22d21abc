"""Predicted spans: the expected run of a plan as spans: splits, copies, waits and single ops.

Complexity: splits + nodes. Examples: tests/viz/test_view_make.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from .timeline_types import HOST, PlanView, PredictedSpan, Span

MAX_OPS = 50_000
"""Maximum number of ops with a span each, over all runs."""


def predicted_spans(view: PlanView, plan: int, run: int, start_s: float, ops: bool) -> list[Span]:
    """Return the spans of an expected run from its start on. ops: True to include single ops."""
    spans = [_span(view, plan, run, start_s, part) for part in view.predicted]
    if ops:
        for part in view.predicted:
            if part.kind == "split":
                spans += _ops(view, plan, run, start_s, part)
    return spans


def _span(view: PlanView, plan: int, run: int, start_s: float, part: PredictedSpan) -> Span:
    begin, end = start_s + part.start_s, start_s + part.end_s
    lane = part.lane if part.kind in ("split", "transfer_queue") else HOST
    row = "transfer_queue predicted" if part.kind == "transfer_queue" else "predicted"
    name = name_of(view, part.kind, part.split)
    return Span(lane, row, part.kind, name, begin, end, run, plan, part.split)


def _ops(
    view: PlanView, plan: int, run: int, start_s: float, part: PredictedSpan
) -> Iterator[Span]:
    """Yield the ops of a split, at its end: the overhead of a split comes first."""
    nodes = view.splits[part.split].nodes
    taken_s = sum(view.nodes[n].seconds for n in nodes)
    at_s = start_s + max(part.start_s, part.end_s - taken_s)
    for number in nodes:
        node = view.nodes[number]
        end_s = min(at_s + node.seconds, start_s + part.end_s)
        yield Span(part.lane, "ops", "op", node.name, at_s, end_s, run, plan, part.split, number)
        at_s = end_s


def name_of(view: PlanView, kind: str, split: int) -> str:
    """Return the display name of a split, a copy for it or a wait for it."""
    if split < 0:
        return "copy results" if kind == "copy" else kind
    if kind == "wait":
        return f"wait for split {split}"
    if kind in ("copy", "transfer_queue"):
        return f"copy for split {split}" if kind == "copy" else f"copies of split {split}"
    nodes = view.splits[split].nodes
    names = [view.nodes[n].name for n in (nodes[:1] + nodes[1:][-1:])]
    return f"split {split}: {' .. '.join(names)}"
