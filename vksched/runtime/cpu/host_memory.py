"""Host memory: its size, and how much of it this process uses."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from ...topology.device_spec import GIB


def host_memory_bytes() -> tuple[int, int]:
    """Return the host's memory and the available part of it, within the container's limit."""
    total, free = _memory_bytes()
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.isdigit() and used.isdigit():
        total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    return total, free


def _memory_bytes() -> tuple[int, int]:
    """Return them from /proc on Linux, else from psutil; 4 GiB if neither is available."""
    fields = dict(re.findall(r"(\w+):\s+(\d+) kB", _read("/proc/meminfo")))
    if "MemTotal" in fields and "MemAvailable" in fields:
        return int(fields["MemTotal"]) * 1024, int(fields["MemAvailable"]) * 1024
    with suppress(ImportError, OSError):
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)
    return 4 * GIB, 4 * GIB


def resident_bytes() -> int | None:
    """Return the resident memory of this process; None if neither Linux nor psutil reports it."""
    fields = _read("/proc/self/statm").split()
    if len(fields) > 1:
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    with suppress(ImportError, OSError):
        import psutil

        return int(psutil.Process().memory_info().rss)
    return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
