"""Bars: shares and histories as characters, each of a requested width.

    bar(0.6, 10)  ██████░░░░        graph((0, 50, 100), 3)  ▁▄█        in ASCII  ######....  .=@

Examples: tests/viz/test_top_draw.py.
"""

from __future__ import annotations

from collections.abc import Sequence

LEVELS, LEVELS_ASCII = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
FULL, EMPTY = "█░", "#."


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """Return a bar; a share above 0 shows at least one mark."""
    marks = EMPTY if ascii_only else FULL
    full = min(width, max(round(share * width), 1 if share > 0 else 0))
    return marks[0] * full + marks[1] * (width - full)


def graph(percents: Sequence[int], width: int, ascii_only: bool = False) -> str:
    """Return a graph of the means of `width` intervals, the oldest first."""
    levels = LEVELS_ASCII if ascii_only else LEVELS
    count = min(width, len(percents))
    out = ""
    for column in range(count):
        begin, end = column * len(percents) // count, (column + 1) * len(percents) // count
        mean = sum(percents[begin:end]) / (end - begin)
        # show small nonzero values
        level = max(round(mean / 100 * (len(levels) - 1)), 1 if mean > 0 else 0)
        out += levels[min(level, len(levels) - 1)]
    return out.rjust(width)
