"""When nobody helps the thread that computes: for a while after a helper has delayed it.

    delay 3 ms    24 ms alone    helped    delay soon after    48 ms alone    helped ...

Problem: other programs hold cores, in this container or in others, which no account of the system
shows. A helper that loses its core within a piece has the caller wait for milliseconds.
Method: the caller measures how long it waits; nothing else is needed. After a delay it is alone for
8 times as long, so delays add an eighth. If the next delay follows soon, it is alone for twice as
long as the last time, as a core that is taken stays so. Results do not depend on it.
Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DELAY_S = 3e-4
"""A wait that is longer than the longest piece by this is a delay; native/loops/program/program.cpp
has the same, and is alone for as long within a run.
"""
ALONE = 8
MOST_S = 0.5
"""So long nobody helps at most: the load may be gone by then."""


class Pauses:
    """When nobody helps. Safe to ask and to tell from any thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._until_s = -float("inf")
        self._last_s = 0.0

    def is_on(self) -> bool:
        """Whether nobody should help now."""
        return self._clock() < self._until_s

    def tell(self, delayed_s: float) -> None:
        """Begins a pause where helpers have delayed their caller, 0 s where they have not."""
        now_s = self._clock()
        if delayed_s <= 0 or now_s < self._until_s:
            return
        soon = now_s - self._until_s < self._last_s
        self._last_s = min(MOST_S, max(ALONE * delayed_s, 2 * self._last_s if soon else 0.0))
        self._until_s = now_s + self._last_s


of_process = Pauses()
"""Of all devices: they compute on the same cores."""
