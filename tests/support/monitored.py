"""Processes that tell of themselves, made by hand or run for a while, for tests of the monitor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vksched.monitor.top.snapshot import FORMAT, DeviceNow, ProcessNow, SchedulerNow

ROOT = Path(__file__).parent.parent.parent
MIB = 1 << 20

WORK = """
import sys, time
import numpy as np
import vksched as vs
x = vs.input("x", (8, 16))
y = vs.relu(x @ vs.weight(np.ones((16, 16), np.float32), name="w"))
a = np.ones((8, 16), np.float32)
with vs.Scheduler(sys.argv[1].split(",")) as sched:
    run = sched.compile(y)
    run(x=a)
    print("ready", flush=True)
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        run(x=a)
"""


def device_now(name: str = "vulkan:0", **changes: Any) -> DeviceNow:
    feeds: dict[str, Any] = {
        "name": name,
        "label": "A Card",
        "kind": "vulkan",
        "problem": "",
        "busy": 0.5,
        "history": (0, 50, 100),
        "now": "run 3, split 0: matmul (2 nodes)",
        "queue": 1,
        "memory_used_bytes": 3 * MIB,
        "memory_total_bytes": 4 * MIB,
        "memory_own_bytes": MIB,
        "temperature_c": 41.0,
        "runs": 3,
        "runs_per_s": 1.5,
        "copies": 6,
        "copies_per_s": 3.0,
        "copied_bytes": 6 * MIB,
        "copied_bytes_per_s": 3.0 * MIB,
        "busy_s": 1.0,
        "faults": 0,
    }
    return DeviceNow(**{**feeds, **changes})


def process_now(pid: int = 4711, *devices: DeviceNow, **changes: Any) -> ProcessNow:
    shown = devices or (device_now(),)
    sched = SchedulerNow(1, "auto", False, 1, 1, 2, 3, 1.5, 2.0, shown)
    feeds: dict[str, Any] = {
        "format": FORMAT,
        "version": "0.1.0",
        "pid": pid,
        "program": "stream.py",
        "started_s": 1e9,
        "time_s": 1e9 + 60,
        "tick_s": 0.5,
        "schedulers": (sched,),
    }
    return ProcessNow(**{**feeds, **changes})


@contextmanager
def working(
    home: Path, devices: list[str], seconds: float = 600.0, code: str = WORK
) -> Iterator[subprocess.Popen[str]]:
    """A process that runs a graph again and again and tells of itself; killed at the end."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": str(home),
        "VKSCHED_MONITOR": "1",
    }
    command = [sys.executable, "-c", code, ",".join(devices), str(seconds)]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def wait_until(found: Callable[[], object], limit_s: float = 30.0) -> None:
    """Ask until it is so; it fails where that takes too long."""
    end_s = time.monotonic() + limit_s
    while not found():
        assert time.monotonic() < end_s, "it did not come to be"
        time.sleep(0.01)
