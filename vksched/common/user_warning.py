"""Warnings that point to the user's code."""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType


class VkschedWarning(UserWarning):
    """A feature works with limitations; the message names the reason and a remedy."""


def warn(text: str) -> None:
    """Call `warn_user`, but log the text if warnings are errors.

    For use in worker threads, in cleanup code, and for faults that a run survives: it never raises.
    """
    try:
        warn_user(text)
    except VkschedWarning:
        logging.getLogger("vksched").warning(text)  # written to stderr by default


def warn_user(text: str) -> None:
    """Warn at the innermost stack frame outside of this package.

    A worker thread has no frame outside; the warning then points to the line that calls this
    function.
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
"""Modules of the outermost frames of worker threads."""
