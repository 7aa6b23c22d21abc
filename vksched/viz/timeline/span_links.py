"""Span links: dependencies between spans, by the plan and by the actions of the host.

    copy x --> split 0 --copy h--> split 1        a split waits for the copies of the host for it,
                  '--fence--> wait for 0          and for the splits whose values it reads
    copy x --> copies in of 2 --> split 2         a copy queue is between the host and a split

Complexity: spans + reads. Examples: tests/viz/test_view_make.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from .timeline_types import PREDICTED_ROWS, Link, PlanView, Span, comes_before

KINDS = ("split", "transfer_queue", "copy", "wait", "submit", "send", "recv")


def find_links(spans: Sequence[Span], plans: Sequence[PlanView]) -> list[Link]:
    """Return the links within each run, for measured and predicted spans separately."""
    groups: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for number, span in enumerate(spans):
        if span.run >= 0 and span.kind in KINDS:
            groups[span.run, span.plan, span.row in PREDICTED_ROWS].append(number)
    out: list[Link] = []
    for (_, plan, _), group in groups.items():
        out += _links(spans, group, plans[plan] if plan >= 0 else None)
    return out


def _links(spans: Sequence[Span], group: Sequence[int], view: PlanView | None) -> Iterator[Link]:
    splits = {spans[n].split: n for n in group if spans[n].kind == "split"}
    sends = {spans[n].between: n for n in group if spans[n].kind == "send"}
    asides = {
        (spans[n].split, comes_before(spans[n], spans[splits[spans[n].split]])): n
        for n in group
        if spans[n].kind == "transfer_queue" and spans[n].split in splits
    }
    for number in group:
        span = spans[number]
        if span.kind == "recv" and span.between in sends:
            yield Link(sends[span.between], number, "copy", span.bytes, span.name)
        split = splits.get(span.split)
        if span.kind == "wait" and split is not None:
            yield Link(split, number, "fence")
        elif span.kind in ("copy", "transfer_queue") and split is not None:
            enters = comes_before(span, spans[split])
            other = asides.get((span.split, enters), split) if span.kind == "copy" else split
            ends = (number, other) if enters else (other, number)
            yield Link(*ends, "copy", span.bytes, span.name)
        elif span.kind == "submit" and split is not None:
            yield Link(number, split, "submit")
    if view is not None and not view.decides:
        for split, number in splits.items():
            yield from _between_splits(view, split, number, splits)


def _between_splits(
    view: PlanView, split: int, number: int, splits: Mapping[int, int]
) -> Iterator[Link]:
    moved: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for source, name, size in view.splits[split].sources:
        if source in splits:
            moved[source].append((name, size))
    for source, values in moved.items():
        names = ", ".join(name for name, _ in values)
        yield Link(splits[source], number, "copy", sum(size for _, size in values), names)
    for source in view.splits[split].waits:
        if source in splits and source not in moved:
            yield Link(splits[source], number, "order")
