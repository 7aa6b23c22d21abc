"""How much memory the machine has: by the system's files, the container's limit, or psutil."""

from __future__ import annotations

import sys
import types

import pytest

from vksched.runtime.cpu import host_memory
from vksched.topology.device_spec import GIB


def test_host_memory_keeps_the_limit_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal:  8388608 kB\nMemFree: 1 kB\nMemAvailable:  4194304 kB",
        "/sys/fs/cgroup/memory.max": str(2 * GIB),
        "/sys/fs/cgroup/memory.current": str(GIB // 2),
    }
    monkeypatch.setattr(host_memory, "_read", lambda path: files[path])
    assert host_memory.host_memory_bytes() == (2 * GIB, 3 * GIB // 2)
    files["/sys/fs/cgroup/memory.max"] = "max"
    assert host_memory.host_memory_bytes() == (8 * GIB, 4 * GIB)


@pytest.mark.parametrize(
    ("reported", "wanted"),
    [
        (types.SimpleNamespace(total=8 * GIB, available=3 * GIB), (8 * GIB, 3 * GIB)),
        (None, (4 * GIB, 4 * GIB)),
    ],
    ids=["psutil", "nobody tells"],
)
def test_host_memory_where_no_file_tells(
    reported: object, wanted: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "_read", lambda path: "")
    psutil = types.SimpleNamespace(virtual_memory=lambda: reported) if reported else None
    monkeypatch.setitem(sys.modules, "psutil", psutil)  # None: it cannot be imported
    assert host_memory.host_memory_bytes() == wanted
