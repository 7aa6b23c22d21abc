"""Crash markers: a file that names the variant being measured, so that it is skipped after a crash.

    <results>.<random>.trying: {"key", "variant", "shaders"}
    <results>.<random>.trying.lock: held by the process that measures, until it ends

Each measuring process has one marker. A marker whose lock is free names a variant that crashed the
device or the process. The lock is a separate file, because on Windows other processes cannot read a
locked file. Examples: tests/tuning/test_tuner.py.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from .cache_folder import make_folder

if TYPE_CHECKING:
    from filelock import BaseFileLock

SUFFIX = ".trying"
PROBE_S = 0.1
"""Time to wait for a lock: other processes hold it briefly to test it."""


class CrashMarker:
    """The crash marker of one process; without a writable folder nothing is recorded.

    Parameters
    ----------
    results
        The file of results; None: nothing is recorded.
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
            self._file = open(path, "xb", buffering=0)  # locked before other processes see it

    def begin(self, key: str, variant: str, shaders: str) -> None:
        """Record the variant that is measured from now on."""
        self._write(json.dumps({"key": key, "variant": variant, "shaders": shaders}).encode())

    def end(self) -> None:
        """Record that no variant is being measured."""
        self._write(b"")

    def close(self, failed: bool) -> None:
        """Close the marker.

        Parameters
        ----------
        failed
            True if the variant crashed the device: the marker stays.
        """
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
    """Return the variants that crashed a device: by call key, variants with a hash of their
    shaders.
    """
    out: dict[str, dict[str, str]] = {}
    for path in _notes(results):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            with _lock_of(path):  # OSError: another process measures it
                note: dict[str, Any] = json.loads(path.read_bytes())
            out.setdefault(str(note["key"]), {})[str(note["variant"])] = str(note["shaders"])
        if not path.exists():  # it ended meanwhile, and taking the lock created the lock file again
            _remove(_lock_path(path))
    return out


def forget(results: Path | None) -> None:
    """Remove all markers, also those of other processes."""
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
    from filelock import FileLock  # imported late: later starts measure nothing

    # Any thread may close a marker, not only the one that opened it.
    return FileLock(_lock_path(note), timeout=PROBE_S, poll_interval=0.01, thread_local=False)


def _remove(path: Path) -> None:
    with suppress(OSError):  # Windows: another process has it open
        path.unlink()
