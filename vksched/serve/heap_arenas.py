"""The number of heaps of the C library: it bounds the memory that a server keeps.

glibc gives threads up to 8 heaps for each core, and each heap keeps the largest amount that it ever
needed. The requests of a server run in many threads, so that its memory would grow for hours.
"""

from __future__ import annotations

import ctypes
import os
import sys

ARENAS = 2
_M_ARENA_MAX = -8  # of malloc.h


def limit_arenas() -> bool:
    """Let glibc create no more than two heaps, unless MALLOC_ARENA_MAX is set; return True if it
    does. Call this before threads start: heaps that exist remain. Other C libraries are left alone.
    """
    if not sys.platform.startswith("linux") or "MALLOC_ARENA_MAX" in os.environ:
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    return bool(set_option(_M_ARENA_MAX, ARENAS))
