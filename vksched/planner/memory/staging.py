"""Staging buffers: places of values that are transferred between a device and the host.

    upload buffer   | x | h from split 2 | w0, then w2 | w1, then w3 |   see streaming_windows.py

Complexity: O(values * log(values)). Examples: tests/planner/test_streaming_windows.py,
tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.graph import Graph
from ...plan.types.offsets import (
    ALIGN_WORDS,
    Lifetime,
    aligned,
    assign_spans,
    largest_live_set,
)
from ...plan.types.plan_types import Span
from ...plan.types.split_draft import SplitDraft


def assign_staging(
    values: Iterable[tuple[int, int]], page_words: int, disable_aliasing: bool = False
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Return spans for transferred values, without reuse, and the page sizes."""
    spans: dict[int, Span] = {}
    pages: list[int] = []
    for key, words in values:
        size = max(aligned(words), ALIGN_WORDS)
        if not pages or disable_aliasing or pages[-1] + size > page_words:
            pages.append(0)
        spans[key] = Span(len(pages) - 1, pages[-1], words)
        pages[-1] += size
    return spans, tuple(pages)


def assign_upload_staging(
    graph: Graph,
    here: Sequence[SplitDraft],
    sets: int,
    page_words: int,
    disable_aliasing: bool = False,
) -> tuple[dict[int, Span], tuple[int, ...]]:
    """Return spans for the values that are uploaded to a device, and the page sizes.

    here: its splits. sets: the number of refilled splits that have their staging buffers at once.
    """
    lasting: list[tuple[int, int]] = []
    refilled: list[Lifetime] = []
    refill_index = 0
    for split_draft in here:
        for value, _ in split_draft.live_in:
            words = graph.words[value]
            if split_draft.refills and value in graph.data:
                refilled.append(Lifetime(value, words, refill_index, refill_index + sets - 1))
            else:
                lasting.append((value, words))
        refill_index += split_draft.refills
    spans, pages = assign_staging(lasting, page_words, disable_aliasing)
    if not refilled:
        return spans, pages
    shared, more = assign_spans(refilled, page_words, disable_aliasing, largest_live_set(refilled))
    moved = {v: span._replace(page=span.page + len(pages)) for v, span in shared.items()}
    return {**spans, **moved}, (*pages, *more)
