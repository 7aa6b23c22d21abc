"""Heartbeat: one thread of this process that sends heartbeats to all peers and detects lost peers.

    every TICK_S, for each channel:  anything received since? --no, for TIMEOUT_S--> lost
                                     but sent data is acknowledged? --> after PATIENCE * TIMEOUT_S
    every HEARTBEAT_TICKS:           a few bytes, unless other data is being sent

Problem: a busy host must not be taken for a dead one. Method: the thread does little work; silence
is counted in its own ticks, so a suspended process blames no peer; unread bytes count as received.
On a slow network a large payload delays the acknowledgements of the other direction, so TCP there
sends no heartbeats for a while: while the payload is acknowledged, silence may last longer. A
process that ends is detected at once, because its system closes the connection.

Examples: tests/distributed/test_heartbeat.py.
"""

from __future__ import annotations

import threading
from typing import Protocol

from ...common.fork_guard import in_child
from ...common.user_warning import warn

TICK_S = 0.25
HEARTBEAT_TICKS = 2
TIMEOUT_S = 2.0
"""Maximum silence in seconds before a peer is considered dead."""
PATIENCE = 4
"""Factor of TIMEOUT_S for a peer that acknowledges payload."""
STUCK_TICKS = 4
"""Ticks without acknowledgement until sent data counts as stuck."""


class HeartbeatChannel(Protocol):
    """A connection as the heartbeat monitor sees it."""

    heard: bool
    quiet: int
    """Ticks of silence."""
    stuck: int
    """Ticks since the last acknowledgement of payload."""

    def send_heartbeat(self) -> None:
        """Send a heartbeat; never blocks or raises."""

    def has_unread(self) -> bool:
        """Return True if received bytes are unread."""

    def delivers(self) -> bool:
        """Return True if the peer's system has acknowledged more than heartbeats since the last
        call.
        """

    def mark_lost(self, why: str) -> None:
        """Close the connection."""


class HeartbeatMonitor:
    """timeout_s: maximum silence in seconds before a peer is lost; may be changed at any time."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._channels: list[HeartbeatChannel] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: HeartbeatChannel) -> None:
        """Monitor a connection until `remove`."""
        with self._lock:
            self._channels = [*self._channels, channel]
            if self._thread is None:
                self._ended = threading.Event()
                self._thread = threading.Thread(
                    target=self._work, args=(self._ended,), name="vksched-heartbeat", daemon=True
                )
                self._thread.start()

    def remove(self, channel: HeartbeatChannel) -> None:
        """Stop monitoring a connection; the thread ends with the last one."""
        with self._lock:
            self._channels = [each for each in self._channels if each is not channel]
            if not self._channels and self._thread is not None:
                self._ended.set()
                self._thread = None

    def tick(self, send: bool) -> None:
        """Run the checks of one tick."""
        # the last bytes may be unnoticed for one tick
        most = max(1, int(self.timeout_s / TICK_S) - 1)
        for channel in self._channels:
            try:
                self._check_channel(channel, most, send)
            # for example, no thread can start; other connections continue
            except Exception as error:
                warn(f"[cluster] a connection could not be ended: {error!r}")

    def _check_channel(self, channel: HeartbeatChannel, most: int, send: bool) -> None:
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
"""The monitor of this process."""


@in_child
def _after_fork() -> None:
    HEARTBEAT_MONITOR.__init__(HEARTBEAT_MONITOR.timeout_s)  # type: ignore[misc]
