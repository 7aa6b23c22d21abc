"""Heartbeat: one thread of this process that tells all other ends that it lives, and hears whether
they do.

    every TICK_S, for each channel:  heard anything since? --no, for TIMEOUT_S--> lost
                                     but what is sent arrives? --> lost after PATIENCE times that
    every HEARTBEAT_TICKS:                a few bytes, unless something is on its way anyway

Problem: a computer that works hard must not be taken for a dead one. Method: the thread does next
to nothing; silence is counted in its own turns, so a process that stood still itself blames nobody;
and where bytes lie unread the other end has spoken. On a slow network a large payload holds up the
acknowledgements of what comes the other way, so TCP there sends no more beats for a while: where
the payload arrives meanwhile, silence may last longer. A process that ended is noticed at once, as
its system closes the connection. Examples: tests/distributed/test_heartbeat.py.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ...common.fork_guard import in_child
from ...common.user_warning import warn

TICK_S = 0.25
HEARTBEAT_TICKS = 2
TIMEOUT_S = 2.0
"""Of silence, at most, until the other end is lost."""
PATIENCE = 4
"""So many times as long may be the silence of one who takes payload meanwhile."""
STUCK_TICKS = 4
"""Without anything taken, until what was sent counts as stuck."""


class HeartbeatChannel(Protocol):
    """A connection, as the heartbeat sees it."""

    heard: bool
    quiet: int
    """Ticks of silence."""
    stuck: int
    """Ticks since payload was last taken there."""

    def send_heartbeat(self) -> None:
        """Send a sign of life; never waits, never raises."""

    def has_unread(self) -> bool:
        """Whether bytes lie here that nobody has read."""

    def delivers(self) -> bool:
        """Whether the other end's system has taken more than beats since the last call."""

    def mark_lost(self, why: str) -> None:
        """End the connection."""


class HeartbeatMonitor:
    """timeout_s: of silence, at most, until the other end is lost; it may be set at any time."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._channels: list[HeartbeatChannel] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: HeartbeatChannel) -> None:
        """Watches a connection, until `remove`."""
        with self._lock:
            self._channels = [*self._channels, channel]
            if self._thread is None:
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._work, args=(self._ended,), name="vksched-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, channel: HeartbeatChannel) -> None:
        """Watches a connection no more; the thread ends with the last one."""
        with self._lock:
            self._channels = [each for each in self._channels if each is not channel]
            if not self._channels and self._thread is not None:
                self._ended.set()
                self._thread = None

    def tick(self, send: bool) -> None:
        """Does what is to be done every TICK_S."""
        most = max(1, int(self.timeout_s / TICK_S) - 1)  # the last word may be a tick old unnoticed
        for channel in self._channels:
            try:
                self._look_after(channel, most, send)
            except Exception as error:  # as of no thread left; the others go on
                warn(f"[cluster] a connection could not be ended: {error!r}")

    def _look_after(self, channel: HeartbeatChannel, most: int, send: bool) -> None:
        channel.stuck = 0 if channel.delivers() else channel.stuck + 1
        if channel.heard or channel.has_unread():
            channel.heard, channel.quiet = False, 0
        else:
            channel.quiet += 1
            patience = PATIENCE if channel.stuck < STUCK_TICKS else 1
            if channel.quiet >= most * patience:
                channel.mark_lost(f"silent for {channel.quiet * TICK_S:g} s")
                return
        if send:
            channel.send_heartbeat()

    def _work(self, ended: threading.Event) -> None:
        ticks = 0
        while not ended.wait(TICK_S):
            ticks += 1
            self.tick(ticks % HEARTBEAT_TICKS == 0)


HEARTBEAT_MONITOR = HeartbeatMonitor()
"""Of this process."""


@in_child
def _after_fork() -> None:
    HEARTBEAT_MONITOR.__init__(HEARTBEAT_MONITOR.timeout_s)  # type: ignore[misc]
