"""Solo or all selector: runs on one device or on all of them, by the measured times of whole runs.

Problem: devices may share a resource: the cores of two software drivers, the bus, or the power.
Each is then slower while another one works, and the time of a piece does not show the reason. Each
piece is also a submission that the host waits for, which a single device avoids. Method: whole runs
are compared. If a device alone should be faster by the times of its own pieces, it gets all pieces
of the next runs. Their measured time then decides.

    together 45, 43 ms | gpu:1 alone should take 31 ms: tried | 22, 21 ms: it stays alone
                       | 48, 50 ms: together again            | 60 ms: it slows down: together again

A rejected choice is tried again, rarely enough that all trials take a small share of the time.
After a probe of a slow device, its earlier times and the times of all devices together no longer
count.
Complexity: O(pieces * devices) for a run. Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from .dispatcher import Speeds
from .options import Options

MARGIN = 0.9
"""A device is tried alone if its expected time is at most this share of a run's time."""
RUNS = 2
"""Runs that prove a device alone slower. One run suffices to try another choice."""
SHARE = 0.02
"""Maximum share of the total time that trials of slower choices may lose."""
WORSE, MUCH_WORSE = 1.3, 2.0
"""A device alone has slowed down if two runs, or one, exceed the previous time by these ratios."""


class SoloOrAllSelector:
    """The choice of the devices of the next run: one device, or all. It learns from run to run."""

    def __init__(self, options: Options) -> None:
        self.alone: int | None = None
        """The device that runs all pieces, or None if each piece is placed on its own."""
        self._options = options
        all_pieces = [piece.seconds.keys() for piece in options.pieces]
        whole = set[int]().union(*all_pieces).intersection(*all_pieces)
        self._capable: Sequence[int] = sorted(whole) if len(options.on) > 1 else ()
        self._last: dict[int | None, deque[float]] = {}
        self._since_s = 0.0
        self._warmed_up: set[int | None] = set()

    def choose(self, speeds: Speeds) -> int | None:
        """Return the device of the next run, with the meaning of `alone`."""
        now_s = self._recent_s(self.alone)
        if now_s is None or not self._capable:
            return self.alone
        if self.alone is not None:
            if len(self._last[self.alone]) < RUNS:
                return self.alone
            together_s = self._recent_s(None)
            if together_s is None or together_s < now_s or self._may_retry(together_s - now_s):
                self._switch(None)
            return self.alone
        should_s = {d: self._alone_s(d, speeds) for d in self._capable}
        best = min(self._capable, key=lambda device: (should_s[device], device))
        tried_s = self._recent_s(best)
        if tried_s is not None and tried_s > now_s and not self._may_retry(tried_s - now_s):
            return None
        if should_s[best] < MARGIN * now_s:
            self._switch(best)
        return self.alone

    def see(self, seconds: float, cold: bool = False) -> None:
        """Record the time of a run with the last choice.

        cold: True if the run includes work that drivers had deferred; it does not count the first
        time.
        """
        if cold and self.alone not in self._warmed_up:
            self._warmed_up.add(self.alone)
            return
        last = self._last.setdefault(self.alone, deque(maxlen=RUNS + 1))
        known_s = self._recent_s(self.alone)
        if self.alone is not None and known_s is not None:
            slow = [s > WORSE * known_s for s in (*last, seconds)][-RUNS:]
            if seconds > MUCH_WORSE * known_s or all(slow):
                self._last.clear()  # earlier times no longer apply
                self._switch(None)
                return
        last.append(seconds)
        self._since_s += seconds

    def forget(self, devices: Collection[int]) -> None:
        """Forget the times of slow devices that the next run probes."""
        for who in (*devices, None) if devices else ():
            self._last.pop(who, None)

    def _alone_s(self, device: int, speeds: Speeds) -> float:
        pieces = self._options.pieces
        return speeds.of(device) * sum(piece.seconds[device] for piece in pieces)

    def _recent_s(self, who: int | None) -> float | None:
        """Return the recent time of a run, or None if it is unknown."""
        last = self._last.get(who)
        return sorted(last)[(len(last) - 1) // 2] if last else None

    def _may_retry(self, lost_s: float) -> bool:
        """Return True if a choice that loses this many seconds may be tried again."""
        return self._since_s * SHARE > RUNS * lost_s

    def _switch(self, who: int | None) -> None:
        self._last.pop(who, None)
        self._since_s = 0.0
        self.alone = who
