"""How much memory the machine has, and how much of it this process holds."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from ...topology.device_spec import GIB


def host_memory_bytes() -> tuple[int, int]:
    """Return the machine's memory and what is available of it, within the container's limit."""
    total, free = _memory_bytes()
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.isdigit() and used.isdigit():
        total, free = min(total, int(limit)), min(free, max(0, int(limit) - int(used)))
    return total, free


def _memory_bytes() -> tuple[int, int]:
    """Linux tells in a file, other systems tell psutil; 4 GiB where nobody tells."""
    fields = dict(re.findall(r"(\w+):\s+(\d+) kB", _read("/proc/meminfo")))
    if "MemTotal" in fields and "MemAvailable" in fields:
        return int(fields["MemTotal"]) * 1024, int(fields["MemAvailable"]) * 1024
    with suppress(ImportError, OSError):
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.total), int(memory.available)
    return 4 * GIB, 4 * GIB


def resident_bytes() -> int | None:
    """Return the memory of this process, where Linux or psutil tells."""
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
