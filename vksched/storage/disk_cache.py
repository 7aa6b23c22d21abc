"""Disk caches: files with results that persist between processes.

    get --> read --> parse --> result; a damaged file is renamed
    put, update --> temporary file --> rename --> remove the oldest files

Readers see either the old or the new file, whole. Windows cannot replace an open file: there a call
is repeated for a while. Files are created for this user only (0600), and a file that others may
write to is not read. A damaged file is renamed to `.damaged`: the user can inspect it, and no
process reads it again. Only a bound of bytes removes the oldest files first, because they take the
room of the new one.

Examples: tests/storage/test_disk_cache.py.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import TypeVar

from ..common.errors import DECODE_ERRORS, VkschedError
from ..common.user_warning import warn
from .cache_folder import make_folder, others_who_write

LOCK = "lock"
"""The name of the lock file of a folder."""
LOCK_S = 1.0
"""Maximum time that a writer waits for the lock."""
STALE_NS = 3600 * 10**9
"""Temporary files that are older belong to a process that ended before it finished them."""
BUSY = (5, 32, 33)
"""Windows' error codes for a file that another process has open, replaces or has locked."""

_warned: set[tuple[Path, str]] = set()
"""Files and reasons that were warned about. If a file cannot be read: its folder and the error."""

Result = TypeVar("Result")
Parse = Callable[[bytes], Result]
"""A function of the content of a file; it returns the result.

Raises
------
StaleFile
    The file is intact, but is not used.
DECODE_ERRORS
    The file is damaged.
"""


class StaleFile(VkschedError):
    """The reason why an intact file is not used."""


class DiskCache:
    """Files with one kind of results, by name. Safe for threads and processes.

    Parameters
    ----------
    folder
        The folder; None if the user has none: then it contains nothing.
    stage, remedy
        The begin and the end of the warning about a file that is not used.
    max_files, max_bytes
        Maximum number of files with one suffix, and of their bytes; the oldest are removed.
    """

    def __init__(
        self,
        folder: Path | None,
        stage: str,
        remedy: str = "",
        max_files: float = math.inf,
        max_bytes: float = math.inf,
    ) -> None:
        self.folder = folder
        self._stage, self._remedy = stage, remedy
        self._max_files, self._max_bytes = max_files, max_bytes
        self._lock = threading.Lock()

    def path(self, name: str) -> Path | None:
        """Return the file of a name."""
        return None if self.folder is None else self.folder / name

    def get(self, name: str, parse: Parse[Result]) -> Result | None:
        """Return a result; None if there is none. A file that is not used causes one warning."""
        path = self.path(name)
        if path is None:
            return None
        found, error = _parsed(path, parse)
        if error is not None:
            self._warn(path, error)
        return found

    def set_aside(self, name: str, content: bytes, error: Exception) -> None:
        """Rename a file to `.damaged`, with one warning.

        Parameters
        ----------
        content
            The bytes that `get` parsed; a file that another process has replaced stays.
        error
            The damage, found after `get` returned.
        """
        path = self.path(name)
        if path is not None:
            _set_aside(path, content)
            self._warn(path, error)

    def put(
        self, name: str, content: bytes | memoryview, counted: str = "", with_lock: bool = False
    ) -> None:
        """Replace a file.

        Parameters
        ----------
        counted
            A pattern of the names that the maxima bound; by default all with the file's suffix.
        with_lock
            Hold the lock of the folder: no other process renames or removes files meanwhile.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        path = self._path_in_folder(name)
        with locked(path.parent / LOCK) if with_lock else nullcontext():
            self._write(path, content, counted or f"*{path.suffix}")

    def update(
        self,
        name: str,
        parse: Parse[Result],
        change: Callable[[Result | None], bytes],
        counted: str,
    ) -> list[Path]:
        """Replace a file depending on its content, while no other process does so. Return the files
        that were removed for it.

        Parameters
        ----------
        change
            Takes the result of the file, or None; returns the new content.
        counted
            A pattern of the names that `max_files` bounds.

        Raises
        ------
        OSError
            The file cannot be written.
        """
        path = self._path_in_folder(name)
        with locked(path.parent / LOCK):
            return self._write(path, change(_parsed(path, parse, is_locked=True)[0]), counted)

    def take(self, name: str, parse: Parse[Result]) -> Result | None:
        """Return a result and remove its file; None if there is none, or if another process was
        first.
        """
        found = self.get(name, parse)
        return found if self.clear(name) else None

    def clear(self, name: str) -> bool:
        """Remove a file; return True if there was one."""
        path = self.path(name)
        with suppress(OSError):
            if path is not None:
                path.unlink()
                return True
        return False

    def _path_in_folder(self, name: str) -> Path:
        """Return the file of a name in a folder that exists."""
        path = self.path(name)
        if path is None:
            raise FileNotFoundError("the user has no home")
        make_folder(path.parent)
        return path

    def _write(self, path: Path, content: bytes | memoryview, counted: str) -> list[Path]:
        def remove() -> list[Path]:
            limits = self._max_files - 1, counted, self._max_bytes - len(content)
            return remove_old(path.parent, *limits, without=path.name)

        frees_bytes = self._max_bytes < math.inf
        with self._lock:
            removed = remove() if frees_bytes else []
            _replace_whole(path, content)
            return removed if frees_bytes else remove()

    def _warn(self, path: Path, error: Exception) -> None:
        name = type(error).__name__
        key, why = (path, str(error)), f"{name}: {error}"
        if isinstance(error, StaleFile):
            why = str(error)
        elif isinstance(error, OSError):
            key = path.parent, name
        else:
            why += "; it is set aside as .damaged"
        if key not in _warned:
            _warned.add(key)
            warn(f"[{self._stage}] {path} is not used: {why}{self._remedy}")


def _parsed(
    path: Path, parse: Parse[Result], is_locked: bool = False
) -> tuple[Result | None, Exception | None]:
    """Return the result in a file, and why the file is not used. A damaged file is set aside.
    is_locked: True if the lock of the folder is held.
    """
    content = b""
    try:
        content = read_whole(path)
        return parse(content), None
    except FileNotFoundError:
        return None, None
    except (OSError, StaleFile) as error:
        return None, error
    except DECODE_ERRORS as error:
        _set_aside(path, content, is_locked)
        return None, error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an inter-process lock, which is released when its process ends.

    Parameters
    ----------
    path
        The lock file.

    Raises
    ------
    OSError
        Another process does not release the lock within LOCK_S.
    """
    # imported late: processes that only read caches do not need it
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, LOCK_S, 0o600, poll_interval=0.01):
            yield
    except Timeout:
        raise OSError(f"another process holds {path}") from None
    except NotImplementedError as error:
        # filelock reports a file system without locks with this error
        raise OSError(f"cannot lock {path}: {error}") from error


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file that other processes may replace at any time.

    Raises
    ------
    OSError
        The file does not exist, or another user created it or may write to it: the permissions of
        its folder were wrong once.
    """
    return _while_busy(lambda: _read_own(path))


def _read_own(path: Path) -> bytes:
    with open(path, "rb") as file:
        why = others_who_write(os.fstat(file.fileno()))
        if why:
            raise PermissionError(f"expected a file that is yours alone, got {why}: {path}")
        return file.read()


def _replace_whole(path: Path, content: bytes | memoryview) -> None:
    """Replace a file atomically, readable for this user only: readers see the old or the new
    content, whole.
    """
    name = path.with_suffix(f".{secrets.token_hex(6)}.tmp")
    try:
        with open(name, "xb", opener=_private) as file:
            file.write(content)
        _while_busy(lambda: os.replace(name, path))
    except BaseException:
        with suppress(OSError):
            name.unlink()
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _set_aside(path: Path, content: bytes, is_locked: bool = False) -> None:
    """Rename a damaged file to `.damaged`, unless another process has replaced it.

    Parameters
    ----------
    content
        The bytes that were read.
    is_locked
        True if the lock of the folder is held.
    """
    with suppress(OSError), nullcontext() if is_locked else locked(path.parent / LOCK):
        if read_whole(path) == content:
            path.replace(path.with_suffix(".damaged"))


def remove_old(
    folder: Path,
    max_files: float,
    names: str = "*.json",
    max_bytes: float = math.inf,
    without: str = "",
) -> list[Path]:
    """Remove the oldest files of a folder, not counting `without` and the lock file, until at most
    `max_files` with `max_bytes` are left, and temporary files of processes that ended while they
    wrote; other temporary files belong to writers. Return the removed files.
    """
    found: list[tuple[int, int, str]] = []
    old: list[str] = []
    begun, total_bytes = time.time_ns() - STALE_NS, 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # another process removed it
                about = entry.stat()
                if entry.name.endswith(".tmp"):
                    if about.st_mtime_ns < begun:
                        old.append(entry.name)
                elif fnmatch(entry.name, names) and entry.name not in (without, LOCK):
                    found.append((about.st_mtime_ns, about.st_size, entry.name))
    for number, (_, size_bytes, name) in enumerate(sorted(found, reverse=True)):
        total_bytes += size_bytes
        if number >= max_files or total_bytes > max_bytes:
            old.append(name)
    removed = []
    for name in old:
        with suppress(OSError):  # another process removed it or, on Windows, reads it
            (folder / name).unlink()
            removed.append(folder / name)
    return removed


def _while_busy(call: Callable[[], Result]) -> Result:
    limit = time.monotonic() + LOCK_S
    while True:
        try:
            return call()
        except PermissionError as error:
            if getattr(error, "winerror", None) not in BUSY or time.monotonic() > limit:
                raise
        time.sleep(0.01)
