"""Caches: the user's folder of what is kept between starts, and files there that several processes
read and write: one writer at a time, and a reader sees the old file or the new one, whole. On
Windows a file that somebody has open cannot be replaced: there a call is tried again for a while.

Examples: tests/tuner/test_tuner_store.py.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import platformdirs

from .version import __version__

LOCK_S = 1.0
"""How long a writer waits for others."""
LEFT_NS = 3600 * 10**9
"""A file that was begun so long ago is of a process that ended before it was whole."""
BUSY = (5, 32, 33)
"""Windows' codes for a file that somebody has open, is replacing, or has locked."""

Result = TypeVar("Result")


def default_folder() -> Path | None:
    """Returns the user's folder for results: VKSCHED_CACHE, or where the system has such files;
    None where the user has no folders.
    """
    named = os.environ.get("VKSCHED_CACHE", "")
    try:
        return Path(named) if named else platformdirs.user_cache_path("vksched", appauthor=False)
    except RuntimeError:  # neither HOME nor an entry of the user
        return None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One writer at a time, whatever process it is in; the lock ends with its process.

    path: the lock's own file.

    Raises:
        OSError: another one does not give it back.
    """
    from filelock import FileLock, Timeout  # later starts write nothing

    try:
        with FileLock(path, timeout=LOCK_S, poll_interval=0.01):
            yield
    except Timeout:
        raise OSError(f"another process holds {path}") from None
    except NotImplementedError as error:  # a file system without locks, as filelock says so
        raise OSError(f"cannot lock {path}: {error}") from error


def read_whole(path: Path) -> bytes:
    """Returns the bytes of a file that others may replace at any time."""
    return _while_busy(path.read_bytes)


def replace_whole(path: Path, content: str | bytes) -> None:
    """Writes a file so that readers see the old one or the new one, whole. A text is UTF-8."""
    name = path.with_suffix(f".{secrets.token_hex(6)}.tmp")
    try:
        # with the mode that the user's files have
        with open(name, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        _while_busy(lambda: os.replace(name, path))
    except BaseException:
        with suppress(OSError):
            name.unlink()
        raise


def remove_old(folder: Path, most: int, names: str = "*.json") -> None:
    """Removes the files written first of those in a folder, until there are so many, and what
    processes left that ended while they wrote.
    """
    files = sorted(folder.glob(names), key=_changed_ns, reverse=True)
    begun = time.time_ns() - LEFT_NS
    left = [path for path in folder.glob("*.tmp") if _changed_ns(path) < begun]
    for old in [*files[most:], *left]:
        with suppress(OSError):  # Windows: somebody reads it
            old.unlink()


def _changed_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def _while_busy(call: Callable[[], Result]) -> Result:
    limit = time.monotonic() + LOCK_S
    while True:
        try:
            return call()
        except PermissionError as error:
            if getattr(error, "winerror", None) not in BUSY or time.monotonic() > limit:
                raise
        time.sleep(0.01)


PACKAGE = Path(__file__).parent
LOADED_NS = time.time_ns()
"""When this process began to load the package."""


def loaded_code() -> list[tuple[str, int, int]] | None:
    """Returns the files of those modules of the package that are loaded, with sizes and times: what
    was computed so far changes with one of them. None where a file is gone or was written since
    this process began: it may have loaded another one.
    """
    own = [module for name, module in list(sys.modules.items()) if name.startswith(__package__)]
    files = {str(file) for module in own if (file := getattr(module, "__file__", None))}
    folder = f"{PACKAGE}{os.sep}"  # beside it are native modules, whose names begin alike
    inside = [file for file in sorted(files) if file.startswith(folder)]
    told = [(file[len(folder) :], about_loaded(file)) for file in inside]
    found = [(file, *about) for file, about in told if about is not None]
    return found if len(found) == len(told) else None


def about_loaded(file: str) -> tuple[int, int] | None:
    """Returns the size and time of a file that is loaded; None where it is gone or was written
    since, so that it may not be the one that was loaded.
    """
    try:
        about = os.stat(file)
    except OSError:
        return None
    written_ns = max(about.st_mtime_ns, about.st_ctime_ns)  # a file may bring an old time along
    return (about.st_size, about.st_mtime_ns) if written_ns < LOADED_NS else None


def is_code(files: Iterable[tuple[str, int, int]]) -> bool:
    """Whether files of the package are still as `loaded_code` found them, for this process too."""
    folder = f"{PACKAGE}{os.sep}"
    return all(about_loaded(folder + file) == (size, time_ns) for file, size, time_ns in files)


@cache
def code_files() -> list[tuple[str, int, int]]:
    """Returns what changes with the package: its version; its files, with sizes and times."""
    found = [("version " + __version__, 0, 0)]
    with suppress(OSError):
        found += sorted(_files(str(PACKAGE), len(str(PACKAGE))))
    return found


def _files(folder: str, skipped: int) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith((".py", ".json")):
                about = entry.stat()
                yield entry.path[skipped:], about.st_size, about.st_mtime_ns
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                yield from _files(entry.path, skipped)
