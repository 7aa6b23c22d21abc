"""What all steps of the set-up share: the error that says what to do, the log, and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

STOP_WAIT_S = 2.0


class SetupError(Exception):
    """What failed, what to do about it, and whether the log tells more."""

    def __init__(self, what: str, to_do: str, show_log: bool = False):
        super().__init__(what)
        self.what, self.to_do, self.show_log = what, to_do, show_log


@dataclass(frozen=True)
class Outcome:
    """What a step says when it ends, and whether it got all that it is for.

    A step that got only a part is not remembered: the next run tries again.
    """

    remark: str = ""
    whole: bool = True


LEFT_OUT = Outcome("left out (VKSCHED_NO_NATIVE)")


class Commands:
    """The commands that run now, in any thread, so that an interruption can end them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def run(self, command: list[str], **options: Any) -> int:
        """Run a command to its end; return its exit code."""
        with self._lock:
            if self._stopped:
                raise SetupError("interrupted", "run again: it goes on from here")
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
            self._running.add(process)
        try:
            return process.wait()
        finally:
            with self._lock:
                self._running.discard(process)

    def count(self) -> int:
        """How many run now."""
        with self._lock:
            return len(self._running)

    def stop(self) -> None:
        """End what runs, and start nothing more. Ctrl-C in a terminal reached it already.

        They ignore SIGINT where this process does, as in the background of a script. One that is
        just starting may lose it.
        """
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for number in [signal.SIGTERM] if ignored else [signal.SIGINT, signal.SIGTERM]:
            for process in running:
                try:
                    process.wait(STOP_WAIT_S)
                except subprocess.TimeoutExpired:
                    process.send_signal(number)


@dataclass
class Apt:
    """What this run knows of apt: one step uses it at a time."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    lists_whole: bool | None = None
    """True if all sources could be read; None: not tried in this run."""


@dataclass
class Setup:
    """Where things are, and what the steps tell each other; each step has a log of its own."""

    root: Path
    environ: Mapping[str, str]
    log: IO[bytes] | None = None
    stamps: dict[str, str] = field(default_factory=dict)
    apt: Apt = field(default_factory=Apt)
    pip: threading.Lock = field(default_factory=threading.Lock)
    """One pip at a time writes into .venv."""
    commands: Commands = field(default_factory=Commands)

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def venv_python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def driver_folder(self) -> Path:
        """Where vksched looks for Vulkan drivers of its own (sys.prefix/share/...)."""
        return self.venv / "share" / "vksched" / "vulkan" / "icd.d"

    @property
    def native(self) -> bool:
        return self.environ.get("VKSCHED_NO_NATIVE", "") in ("", "0")

    def read_stamps(self) -> None:
        try:
            self.stamps = json.loads((self.venv / "setup-stamps.json").read_text())
        except (OSError, ValueError):
            self.stamps = {}

    def write_stamps(self) -> None:
        """Write the stamps beside the venv they describe; before there is one, keep them."""
        if self.venv_python.exists():
            text = json.dumps(self.stamps, indent=1, sort_keys=True)
            (self.venv / "setup-stamps.json").write_text(text + "\n")

    def call(self, command: list[str], to_do: str, cwd: Path | None = None) -> None:
        """Run a command with its output in the log; raises SetupError when it fails."""
        self.note("$ " + " ".join(shlex.quote(part) for part in command))
        try:
            code = self.commands.run(
                command,
                cwd=str(cwd or self.root),
                env=dict(self.environ, PYTHONUNBUFFERED="1"),
                stdout=self.log or subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self.note(str(error))
            code = 127
        if code:
            shown = " ".join(command[:4]) + (" ..." if len(command) > 4 else "")
            raise SetupError(f"`{shown}` ended with exit code {code}", to_do, show_log=True)

    def note(self, line: str) -> None:
        """Write a line to the log only."""
        if self.log:
            self.log.write(line.encode() + b"\n")
            self.log.flush()


def hash_of(*parts: object) -> str:
    """A short digest of printable values."""
    return hashlib.sha256(json.dumps([str(part) for part in parts]).encode()).hexdigest()[:16]


def hash_of_files(root: Path, *places: str) -> str:
    """A digest of names and contents of files and, recursively, of folders under root."""
    digest = hashlib.sha256()
    for place in places:
        path = root / place
        files = sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                data = file.read_bytes()
                digest.update(f"{file.relative_to(root)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def list_folder(folder: str) -> list[str]:
    """Sorted names in a folder, none when it is not there."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
