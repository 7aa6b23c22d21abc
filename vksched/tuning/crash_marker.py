"""Attempts: a note on disk of what is being tried on a device, for those who come after a crash.

    <results>.<random>.trying: {"key", "variant", "shaders"}
    <results>.<random>.trying.lock: held by the process that measures, until it ends

One note per process that measures. A note whose lock nobody holds tells of a variant that took the
device, or the whole process, with it. The lock is a file of its own: on Windows others cannot read
a file that is locked. Examples: tests/tuning/test_tuner.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..storage.disk_cache import make_folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

SUFFIX = ".trying"
PROBE_S = 0.1
"""How long a lock is waited for: others look for an instant whether it is held."""


class CrashMarker:
    """One process's note beside a file of results; where none can be written, none is.

    results: None: nothing is kept at all.
    """

    def __init__(self, results: Path | None) -> None:
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        self._lock: BaseFileLock | None = None
        if results is None:
            return
        path = results.with_suffix(f".{secrets.token_hex(6)}{SUFFIX}")
        with suppress(OSError):
            make_folder(results.parent)
            lock = _lock_of(path)
            lock.acquire()
            self._path, self._lock = path, lock
            self._file = open(path, "xb", buffering=0)  # locked before anybody looks for it

    def begin(self, key: str, variant: str, shaders: str) -> None:
        """Notes what is tried now instead of what was before."""
        self._write(json.dumps({"key": key, "variant": variant, "shaders": shaders}).encode())

    def end(self) -> None:
        """Notes that nothing is tried now."""
        self._write(b"")

    def close(self, failed: bool) -> None:
        """failed: what was begun took the device with it: the note stays."""
        path, self._path = self._path, None
        if path is None:
            return
        stays = False
        if self._file is not None:
            with suppress(OSError):
                stays = failed and self._file.tell() > 0
            self._file.close()
            self._file = None
        if not stays:
            _remove(path)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if not stays:
            _remove(_lock_path(path))

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.seek(0)
                self._file.truncate()
                self._file.write(data)


def crashed_variants(results: Path | None) -> dict[str, dict[str, str]]:
    """Returns what took a device with it: by call key, the variants with a hash of the shaders."""
    out: dict[str, dict[str, str]] = {}
    for path in _notes(results):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            with _lock_of(path):  # OSError: it is being tried
                note: dict[str, Any] = json.loads(path.read_bytes())
            out.setdefault(str(note["key"]), {})[str(note["variant"])] = str(note["shaders"])
        if not path.exists():  # it ended meanwhile: looking made its lock anew
            _remove(_lock_path(path))
    return out


def forget(results: Path | None) -> None:
    """Remove all notes, those of others too."""
    for path in _notes(results):
        _remove(path)
        _remove(_lock_path(path))


def _notes(results: Path | None) -> Iterator[Path]:
    if results is not None:
        with suppress(OSError):
            yield from results.parent.glob(f"{results.stem}.*{SUFFIX}")


def _lock_path(note: Path) -> Path:
    return note.with_name(note.name + ".lock")


def _lock_of(note: Path) -> BaseFileLock:
    from filelock import FileLock  # later starts try nothing

    # Any thread may close an marker, not only the one that began it.
    return FileLock(_lock_path(note), timeout=PROBE_S, poll_interval=0.01, thread_local=False)


def _remove(path: Path) -> None:
    with suppress(OSError):  # Windows: somebody has it open
        path.unlink()
