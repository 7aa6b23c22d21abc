"""Solo or all selector: is one device alone faster than all of them together?

Problem: devices may share something: the cores that two software drivers compute on, the bus, the
power. Then each is slower while another one works, and the time of a piece does not say why. Also,
each piece is a submission that the host waits for, where one device alone needs no answer. Method:
whole runs are compared. Where a device alone should be faster by what its own pieces took, it gets
all of the next runs. What it really takes then decides.

    together 45, 43 ms | gpu:1 alone should take 31 ms: tried | 22, 21 ms: it stays alone
                       | 48, 50 ms: together again            | 60 ms: it slows down: together again

A choice that lost is tried again, so rarely that all tries take a small share of the time. Where a
device is probed that was slow, its times and those of all together count no more. Complexity:
O(pieces * devices) for a run. Examples: tests/planner/test_dynamic.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from .dispatcher import Speeds
from .options import Options

MARGIN = 0.9
"""A device is tried alone where it should take at most this share of a run's time."""
RUNS = 2
"""Runs that say that a device alone is slower; that another choice is to be tried, one says."""
SHARE = 0.02
"""Of all time, that may be lost by trying again what was slower."""
WORSE, MUCH_WORSE = 1.3, 2.0
"""A device alone has slowed down where two runs, or one, took so many times as long as before."""


class SoloOrAllSelector:
    """Who takes the next run: one device, or all of them. It learns from run to run."""

    def __init__(self, options: Options) -> None:
        self.alone: int | None = None
        """The device that takes all; None where each piece finds its own."""
        self._options = options
        all_pieces = [piece.seconds.keys() for piece in options.pieces]
        whole = set[int]().union(*all_pieces).intersection(*all_pieces)
        self._whole: Sequence[int] = sorted(whole) if len(options.on) > 1 else ()
        self._last: dict[int | None, deque[float]] = {}
        self._since_s = 0.0
        self._met: set[int | None] = set()

    def choose(self, speeds: Speeds) -> int | None:
        """Return who takes the next run, as `alone` has it."""
        now_s = self._took_s(self.alone)
        if now_s is None or not self._whole:
            return self.alone
        if self.alone is not None:
            if len(self._last[self.alone]) < RUNS:
                return self.alone
            together_s = self._took_s(None)
            if together_s is None or together_s < now_s or self._rested(together_s - now_s):
                self._go(None)
            return self.alone
        should_s = {d: self._alone_s(d, speeds) for d in self._whole}
        best = min(self._whole, key=lambda device: (should_s[device], device))
        tried_s = self._took_s(best)
        if tried_s is not None and tried_s > now_s and not self._rested(tried_s - now_s):
            return None
        if should_s[best] < MARGIN * now_s:
            self._go(best)
        return self.alone

    def see(self, seconds: float, cold: bool = False) -> None:
        """Take in how long a run took by the last choice. cold: it did what drivers had put off
        until then, which does not count the first time.
        """
        if cold and self.alone not in self._met:
            self._met.add(self.alone)
            return
        last = self._last.setdefault(self.alone, deque(maxlen=RUNS + 1))
        known_s = self._took_s(self.alone)
        if self.alone is not None and known_s is not None:
            slow = [s > WORSE * known_s for s in (*last, seconds)][-RUNS:]
            if seconds > MUCH_WORSE * known_s or all(slow):
                self._last.clear()  # the world has changed
                self._go(None)
                return
        last.append(seconds)
        self._since_s += seconds

    def forget(self, devices: Collection[int]) -> None:
        """Some devices that were slow are probed in the next run."""
        for who in (*devices, None) if devices else ():
            self._last.pop(who, None)

    def _alone_s(self, device: int, speeds: Speeds) -> float:
        pieces = self._options.pieces
        return speeds.of(device) * sum(piece.seconds[device] for piece in pieces)

    def _took_s(self, who: int | None) -> float | None:
        """Returns what a run took of late; None where none says it."""
        last = self._last.get(who)
        return sorted(last)[(len(last) - 1) // 2] if last else None

    def _rested(self, lost_s: float) -> bool:
        """Whether what takes so much longer may be tried again."""
        return self._since_s * SHARE > RUNS * lost_s

    def _go(self, who: int | None) -> None:
        self._last.pop(who, None)
        self._since_s = 0.0
        self.alone = who
