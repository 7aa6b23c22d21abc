"""Memory of a model in onnxruntime: the peak growth of a fresh process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .numpy_functions import Array

PROGRAM = """
import sys
import numpy as np, onnxruntime
feeds = dict(np.load(sys.argv[2]))
onnxruntime.set_default_logger_severity(3)
def peak():  # not ru_maxrss, which a process takes over from the one that started it
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
before = peak()
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
for _ in range(3):
    session.run(None, feeds)
print(peak() - before)
"""


def growth_of(model: Path, feeds: Mapping[str, Array]) -> int | None:
    """Return bytes, including the session's copy of the weights, or None if the system reports
    none.
    """
    with tempfile.TemporaryDirectory() as folder:
        values = Path(folder) / "feeds.npz"
        np.savez(values, **feeds)  # type: ignore[arg-type]
        command = [sys.executable, "-c", PROGRAM, str(model), str(values)]
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(answer.stdout) if answer.returncode == 0 else None
