"""The tape of VKSCHED_TRACE, shared by all schedulers of a process.

    VKSCHED_TRACE=t.json python program.py       t-%p.json: %p stands for the process id

The file is written when a scheduler closes and when the program ends, each time with all events
recorded by then. A file that cannot be written causes a warning. Examples:
tests/trace/test_environment.py.
"""

from __future__ import annotations

import atexit
import os
import threading

from ..common.errors import VkschedError
from ..common.fork_guard import in_child
from ..common.user_warning import warn
from .events import Event, Trace
from .tape import Tape

VARIABLE = "VKSCHED_TRACE"


class FileTape(Tape):
    """A tape with a file of its own, in the process that created it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path.replace("%p", str(os.getpid()))
        self.pid = os.getpid()
        self._is_new = False

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        self._is_new = True

    def flush(self) -> None:
        """Write the file if there are new events; warn if that fails."""
        if not self._is_new or os.getpid() != self.pid:
            return
        self._is_new = False
        try:
            self.save(self.path)
        except VkschedError as error:
            warn(f"{error}; try another {VARIABLE}")


_tapes: dict[tuple[str, int], FileTape] = {}
_lock = threading.Lock()


def with_tape(trace: Trace) -> Trace:
    """Return a trace with the tape of this process among its sinks, if VKSCHED_TRACE is set."""
    tape = _tape()
    if tape is not None and tape not in trace.sinks:
        trace.add(tape)
    return trace


def write_tape() -> None:
    """Write the tape of this process, if VKSCHED_TRACE is set."""
    tape = _tape()
    if tape is not None:
        tape.flush()


def _tape() -> FileTape | None:
    """Return the tape of this process, or None if the variable is unset or empty."""
    path = os.environ.get(VARIABLE, "").strip()
    if not path:
        return None
    with _lock:
        key = path, os.getpid()
        if key not in _tapes:
            _tapes[key] = FileTape(path)
            atexit.register(_tapes[key].flush)
        return _tapes[key]


@in_child
def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()
