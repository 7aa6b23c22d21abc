"""The server process of `serve_load.py`: its model, its start and its memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "importers"), str(ROOT / "tests" / "support")]

from load_http import Violation  # noqa: E402


@dataclass(frozen=True)
class Settings:
    """The settings of a run. patience_s: the time limit for bodies; that for headers is a third."""

    device: str
    clients: int
    seconds: float
    seed: int = 0
    lose_every_s: float = 30.0
    restore_after_s: float = 10.0
    patience_s: float = 30.0


@dataclass
class Usage:
    """The memory and files of a process without clients. allocated_bytes: those in use, which the
    process reports. files: those that are open, without the two pipes of each child process: the
    number of children that compile grammars varies.
    """

    resident_bytes: int
    files: int
    threads: int
    allocated_bytes: int = 0

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Return the usage of a process."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        threads = Path(f"/proc/{pid}/task").iterdir()
        children = sum(len((each / "children").read_text().split()) for each in threads)
        files = len(list(Path(f"/proc/{pid}/fd").iterdir())) - 2 * children
        return cls(int(values["VmRSS"].split()[0]) << 10, files, int(values["Threads"]))

    def __str__(self) -> str:
        sizes = f"{self.resident_bytes / 2**20:.1f} MiB resident"
        if self.allocated_bytes:
            sizes += f", {self.allocated_bytes / 2**20:.2f} MiB allocated"
        return f"{sizes}, {self.files} files, {self.threads} threads"


def write_model(folder: Path) -> Path:
    """Write a small model with a token per byte, and return its path."""
    from served import tiny_model

    tiny_model(folder)
    return folder / "tiny.gguf"


@contextmanager
def server_process(model: Path, settings: Settings) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a server; yield its port and its process."""
    numbers = map(str, (settings.restore_after_s, settings.patience_s))
    command = [sys.executable, str(HERE / "load_server.py"), str(model), settings.device, *numbers]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise Violation("the server did not start")
            yield int(line), process
        finally:
            process.terminate()
