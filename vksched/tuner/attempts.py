"""Attempts: a note on disk of what is being tried on a device, for those who come after a crash.

    <results>.<random>.trying: {"key", "variant", "shaders"}

One file per process that measures, locked by it until it ends: a file that nobody holds tells of a
variant that took the device, or the whole process, with it. Examples: tests/tuner/test_tuner.py.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

SUFFIX = ".trying"


class Attempt:
    """One process's note beside a file of results; where none can be written, none is.

    results: None: nothing is kept at all.
    """

    def __init__(self, results: Path | None) -> None:
        self._path: Path | None = None
        self._file: IO[bytes] | None = None
        if results is None:
            return
        name = results.with_suffix(f".{secrets.token_hex(6)}")
        with suppress(OSError):
            results.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(name, "xb", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._path = name.with_name(name.name + SUFFIX)
            os.rename(name, self._path)  # locked before anybody looks for it

    def begin(self, key: str, variant: str, shaders: str) -> None:
        """Notes what is tried now instead of what was before."""
        self._write(json.dumps({"key": key, "variant": variant, "shaders": shaders}).encode())

    def end(self) -> None:
        """Notes that nothing is tried now."""
        self._write(b"")

    def close(self, failed: bool) -> None:
        """failed: what was begun took the device with it: the note stays."""
        file, path, self._file = self._file, self._path, None
        if file is None:
            return
        with suppress(OSError):
            if path is not None and not (failed and os.fstat(file.fileno()).st_size):
                path.unlink()
            fcntl.flock(file, fcntl.LOCK_UN)  # closing leaves it to children that were forked
        file.close()

    def _write(self, data: bytes) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), 0)
                os.pwrite(self._file.fileno(), data, 0)


def lost(results: Path | None) -> dict[str, dict[str, str]]:
    """Returns what took a device with it: by call key, the variants with a hash of the shaders."""
    out: dict[str, dict[str, str]] = {}
    for path in _notes(results):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # OSError: it is being tried
                note: dict[str, Any] = json.loads(file.read())
                fcntl.flock(file, fcntl.LOCK_UN)
            out.setdefault(str(note["key"]), {})[str(note["variant"])] = str(note["shaders"])
    return out


def forget(results: Path | None) -> None:
    """Removes all notes, those of others too."""
    for path in _notes(results):
        with suppress(OSError):
            path.unlink()


def _notes(results: Path | None) -> Iterator[Path]:
    if results is not None:
        with suppress(OSError):
            yield from results.parent.glob(f"{results.stem}.*{SUFFIX}")
