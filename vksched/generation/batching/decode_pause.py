"""DecodePause: how long running answers wait between two decode steps.

    decode step | chunk of a prompt | moved prefix | chunk of a draft model's text | decode step
                 <------------------------- seconds ----------------------------->

One chunk may take any time. Others run only if their measured time fits below a limit.
"""

from __future__ import annotations


class DecodePause:
    """The time since the last decode step.

    max_s: the limit of several chunks, in seconds.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._seconds = 0.0
        self._has_chunk = False

    @property
    def is_long(self) -> bool:
        """True if the limit is exceeded."""
        return self._seconds > self._max_s

    def allows_chunk(self, seconds: float | None) -> bool:
        """Return True if a chunk may run now. seconds: its time, None if it is unknown."""
        if not self._has_chunk:
            return not self.is_long
        return seconds is not None and self._seconds + seconds <= self._max_s

    def add_chunk(self, seconds: float) -> None:
        """Note that a chunk has run."""
        self._seconds += seconds
        self._has_chunk = True

    def add_move(self, seconds: float) -> None:
        """Note that a prefix has moved, or that its states were stored."""
        self._seconds += seconds

    def end(self) -> None:
        """Note that all running answers got a token, or that there are none."""
        self._seconds, self._has_chunk = 0.0, False
