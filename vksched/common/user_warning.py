"""Warnings to the user, at the user's own line, which cannot break what goes on."""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType


class VkschedWarning(UserWarning):
    """Something works, but not as well as the user may expect; the text says why and what to do."""


def warn(text: str) -> None:
    """Warn as `warn_user` does, but never raises: for faults that a run survives, for worker
    threads, and midway through freeing. Where warnings are errors, it logs the text.
    """
    try:
        warn_user(text)
    except VkschedWarning:
        logging.getLogger("vksched").warning(text)  # on stderr, unless the program says otherwise


def warn_user(text: str) -> None:
    """Warn at the first line outside of the package, however deep below it the call is. A worker
    thread has no such line: there it warns at the line that calls this.
    """
    modules: list[str] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        modules.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    package = __name__.partition(".")[0]
    theirs = next((m for m in modules if m.partition(".")[0] != package), _WORKERS[0])
    if theirs in _WORKERS:
        theirs = next((m for m in modules if m != __name__), __name__)
    warnings.warn(text, VkschedWarning, stacklevel=1 + modules.index(theirs))


_WORKERS = ("concurrent.futures.thread", "threading")
"""Modules whose lines are the first ones outside the package in a worker thread."""
