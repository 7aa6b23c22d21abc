"""Caches: the user's folder of what is kept between starts, and files there that several processes
read and write: one writer at a time, and a reader sees the old file or the new one, whole. On
Windows a file that somebody has open cannot be replaced: there a call is tried again for a while.

Plans and costs are taken from there, and steps of language models tell what a user runs. So folders
are made for this user alone (0700, files 0600), and a folder in which others may write is not used.
On Windows the user's profile has these rights. A file that makes no sense is set aside: the user
may look at it, and nothing reads it again.

Examples: tests/tuning/test_tuner_store.py.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

import platformdirs

from ..common.version import __version__

LOCK_S = 1.0
"""How long a writer waits for others."""
LEFT_NS = 3600 * 10**9
"""A file that was begun so long ago is of a process that ended before it was whole."""
NO_ROOM = [getattr(errno, n) for n in ("ENOSPC", "EDQUOT", "EROFS") if hasattr(errno, n)]
"""Errors of writing where the disk or the user's quota is full, or the disk is read-only."""
_NOT_OFFERED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
BUSY = (5, 32, 33)
"""Windows' codes for a file that somebody has open, is replacing, or has locked."""

Result = TypeVar("Result")


def default_folder() -> Path | None:
    """Return the user's folder for results: VKSCHED_CACHE, or where the system has such files;
    None where the user has no folders, or where others may write there, which is logged.
    """
    named = os.environ.get("VKSCHED_CACHE", "")
    try:
        found = Path(named) if named else platformdirs.user_cache_path("vksched", appauthor=False)
    except RuntimeError:  # neither HOME nor an entry of the user
        return None
    if not named:
        _take_back(found)
    return found if _is_own(found) else None


def folder_of(name: str) -> Path | None:
    """Return the folder of one kind of results; None where the user has no folders, or where
    others may write there, which is logged.
    """
    whole = default_folder()
    if whole is None:
        return None
    found = whole / name
    _take_back(found)
    return found if _is_own(found) else None


def _is_own(folder: Path) -> bool:
    """Whether nobody else may write in a folder, or there is none yet; who may is logged."""
    try:
        why = others_who_write(folder.stat())
    except OSError:
        return True
    if why:
        _warn_once(
            f"[cache] expected {folder} to be yours alone, got {why}; nothing is read or kept "
            f"there; try `chmod 700`, or VKSCHED_CACHE={folder / 'new'}"
        )
    return not why


def _take_back(folder: Path) -> None:
    """Takes rights from others in the user's own folder, as older versions made it with them."""
    with suppress(OSError, AttributeError):
        about = folder.stat()
        if about.st_uid == os.geteuid() and about.st_mode & 0o022:
            folder.chmod(0o700)


def others_who_write(about: os.stat_result) -> str:
    """Return who else may write a file or in a folder than this user and root; "" if nobody."""
    if not hasattr(os, "geteuid"):
        return ""
    if about.st_uid not in (0, os.geteuid()):
        return f"one of user {about.st_uid}"
    by_group = about.st_mode & 0o020 and not _is_own_group(about.st_gid)
    if by_group or about.st_mode & 0o002:
        return f"mode {about.st_mode & 0o777:o}"
    return ""


@cache
def _is_own_group(group: int) -> bool:
    """Whether a group is this user's alone, as systems have it where folders are made with 775."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}


@cache
def _warn_once(text: str) -> None:
    logging.getLogger("vksched").warning(text)  # on stderr, unless the program says otherwise


@contextmanager
def kept_if_room(folder: Path) -> Iterator[None]:
    """Within, what cannot be written to a folder is not kept, which `warn_full` tells if there is
    no room. Caches go without.
    """
    try:
        yield
    except OSError as error:
        warn_full(folder, error)


def warn_full(folder: Path, error: OSError, effect: str = "", hint: str = "") -> bool:
    """Log that a folder has no room, once for each file system; returns whether that is the error.

    effect, hint: what is off besides, and what to try against that.
    """
    if error.errno not in NO_ROOM:
        return False
    disk = existing(folder).stat().st_dev
    if disk not in _full:
        _full.add(disk)
        _warn_once(
            f"[cache] expected room in {folder}, got none ({error.strerror}): what caches cannot "
            f"keep there is made anew by each start{effect}; try to free some, or "
            f"VKSCHED_CACHE=<folder>{hint}"
        )
    return True


_full: set[int] = set()
"""File systems without room that were told of."""


def room_error(folder: Path, size: int) -> OSError | None:
    """Return why a folder, which may be missing, cannot take a file of some bytes; None where it
    can. Nothing stays there. A quota counts, too.
    """
    try:
        file = _nameless(existing(folder))
    except OSError as error:
        return error
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        return None if error.errno in _NOT_OFFERED else error
    finally:
        os.close(file)
    return None


def existing(folder: Path) -> Path:
    """Return a folder, or the one around it that is there."""
    return next((each for each in (folder, *folder.parents) if each.exists()), Path.cwd())


def _nameless(folder: Path) -> int:
    """Return the descriptor of a new file that goes when it is closed."""
    with suppress(OSError, AttributeError):  # not every file system has such files
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    path = folder / f".{secrets.token_hex(6)}.tmp"
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    path.unlink()
    return file


def make_folder(path: Path) -> None:
    """Make a folder of a cache, and those around it that are missing, for this user alone.

    Raises:
        OSError: it cannot be made.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(f"expected a folder, got a file: {path}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One writer at a time, whatever process it is in; the lock ends with its process.

    path: the lock's own file.

    Raises:
        OSError: another one does not give it back.
    """
    from filelock import FileLock, Timeout  # later starts write nothing

    try:
        with FileLock(path, LOCK_S, 0o600, poll_interval=0.01):
            yield
    except Timeout:
        raise OSError(f"another process holds {path}") from None
    except NotImplementedError as error:  # a file system without locks, as filelock says so
        raise OSError(f"cannot lock {path}: {error}") from error


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file that other processes may replace at any time.

    Raises:
        OSError: there is none, or another user made it or may write it: its folder was open once.
    """
    return _while_busy(lambda: _read_own(path))


def _read_own(path: Path) -> bytes:
    with open(path, "rb") as file:
        why = others_who_write(os.fstat(file.fileno()))
        if why:
            raise PermissionError(f"expected a file that is yours alone, got {why}: {path}")
        return file.read()


def replace_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old one or the new one, whole; this user alone reads
    it. A text is UTF-8.
    """
    name = path.with_suffix(f".{secrets.token_hex(6)}.tmp")
    try:
        with open(name, "xb", opener=_private) as file:
            file.write(content.encode() if isinstance(content, str) else content)
        _while_busy(lambda: os.replace(name, path))
    except BaseException:
        with suppress(OSError):
            name.unlink()
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def set_aside(path: Path, content: bytes, is_locked: bool = False) -> None:
    """Rename a file that is damaged to `.damaged`, unless somebody has written it anew since.

    content: what was read of it. is_locked: whether the caller holds the lock of its folder.
    """
    with suppress(OSError), nullcontext() if is_locked else locked(path.parent / "lock"):
        if read_whole(path) == content:
            path.replace(path.with_suffix(".damaged"))


def remove_old(folder: Path, most: int, names: str = "*.json") -> None:
    """Remove the files written first of those in a folder, until there are so many, and what
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


PACKAGE = Path(__file__).parents[1]
TOP = PACKAGE.name
LOADED_NS = time.time_ns()
"""When this process began to load the package."""


def loaded_code() -> list[tuple[str, int, int]] | None:
    """Return the files of those modules of the package that are loaded, with sizes and times: what
    was computed so far changes with one of them. None where a file is gone or was written since
    this process began: it may have loaded another one.
    """
    own = [module for name, module in list(sys.modules.items()) if name.startswith(TOP)]
    files = {str(file) for module in own if (file := getattr(module, "__file__", None))}
    folder = f"{PACKAGE}{os.sep}"  # beside it are native modules, whose names begin alike
    inside = [file for file in sorted(files) if file.startswith(folder)]
    told = [(file[len(folder) :], about_loaded(file)) for file in inside]
    found = [(file, *about) for file, about in told if about is not None]
    return found if len(found) == len(told) else None


def about_loaded(file: str) -> tuple[int, int] | None:
    """Return the size and time of a file that is loaded; None where it is gone or was written
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
