"""Disk caches: the user's folder for results that persist between processes. Files have one writer
at a time, and readers see either the old or the new file, whole. Windows cannot replace an open
file: there a call is repeated for a while.

Plans and costs are read from these files, and cached steps of language models reveal what a user
runs. Therefore folders are created for this user only (0700, files 0600), and a folder that others
may write to is not used. On Windows the user's profile has these permissions. A damaged file is
renamed: the user can inspect it, and no process reads it again.

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
"""Maximum time that a writer waits for the lock."""
STALE_NS = 3600 * 10**9
"""Temporary files that are older belong to a process that ended before it finished them."""
DISK_FULL = [getattr(errno, n) for n in ("ENOSPC", "EDQUOT", "EROFS") if hasattr(errno, n)]
"""Error codes of a full disk, an exhausted quota or a read-only file system."""
_NOT_OFFERED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
BUSY = (5, 32, 33)
"""Windows' error codes for a file that another process has open, replaces or has locked."""

Result = TypeVar("Result")


def default_folder() -> Path | None:
    """Return the user's cache folder: VKSCHED_CACHE, or the system's default. Return None if the
    user has no home folder or if others may write there; the latter is logged.
    """
    named = os.environ.get("VKSCHED_CACHE", "")
    try:
        found = Path(named) if named else platformdirs.user_cache_path("vksched", appauthor=False)
    except RuntimeError:  # neither HOME nor a passwd entry
        return None
    if not named:
        _revoke_permissions(found)
    return found if _is_own(found) else None


def folder_of(name: str) -> Path | None:
    """Return the folder of one kind of results. Return None if the user has no home folder or if
    others may write there; the latter is logged.
    """
    whole = default_folder()
    if whole is None:
        return None
    found = whole / name
    _revoke_permissions(found)
    return found if _is_own(found) else None


def _is_own(folder: Path) -> bool:
    """Return True if a folder does not exist or only this user may write there; log who else
    may.
    """
    try:
        why = others_who_write(folder.stat())
    except OSError:
        return True
    if why:
        _warn_once(
            f"[cache] expected {folder} to be yours alone, got {why}; the cache is not used "
            f"there; try `chmod 700`, or VKSCHED_CACHE={folder / 'new'}"
        )
    return not why


def _revoke_permissions(folder: Path) -> None:
    """Remove write permissions of others from the user's own folder: older versions granted
    them.
    """
    with suppress(OSError, AttributeError):
        about = folder.stat()
        if about.st_uid == os.geteuid() and about.st_mode & 0o022:
            folder.chmod(0o700)


def others_who_write(about: os.stat_result) -> str:
    """Return who may write a file or a folder except this user and root; "" if nobody."""
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
    """Return True if a group is the user's private group, as on systems with umask 002."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user.pw_name and not set(found.gr_mem) - {user.pw_name}


@cache
def _warn_once(text: str) -> None:
    # printed on stderr unless the program configures logging
    logging.getLogger("vksched").warning(text)


@contextmanager
def optional_write(folder: Path) -> Iterator[None]:
    """Suppress errors of writing to a folder: caches are optional. `warn_full` logs a full disk."""
    try:
        yield
    except OSError as error:
        warn_full(folder, error)


def warn_full(folder: Path, error: OSError, effect: str = "", hint: str = "") -> bool:
    """Log once per file system that a folder has no space left; return True if `error` is that
    error.

    Parameters
    ----------
    effect, hint
        Additional text: the feature that is disabled, and a remedy.
    """
    if error.errno not in DISK_FULL:
        return False
    disk = existing(folder).stat().st_dev
    if disk not in _full:
        _full.add(disk)
        _warn_once(
            f"[cache] expected room in {folder}, got none ({error.strerror}): results cannot be "
            f"cached there and are computed again by each start{effect}; try to free some, or "
            f"VKSCHED_CACHE=<folder>{hint}"
        )
    return True


_full: set[int] = set()
"""Full file systems that were logged."""


def room_error(folder: Path, size: int) -> OSError | None:
    """Return the error of creating a file of some bytes in a folder, which may not exist; None if
    it can be created. Quotas count. No file remains.
    """
    try:
        file = _unnamed_file(existing(folder))
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
    """Return a folder if it exists, else its closest existing parent."""
    return next((each for each in (folder, *folder.parents) if each.exists()), Path.cwd())


def _unnamed_file(folder: Path) -> int:
    """Return the descriptor of a new unnamed file, which is removed when it is closed."""
    with suppress(OSError, AttributeError):  # not every file system supports O_TMPFILE
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    path = folder / f".{secrets.token_hex(6)}.tmp"
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    path.unlink()
    return file


def make_folder(path: Path) -> None:
    """Create a cache folder and its missing parents, for this user only.

    Raises
    ------
    OSError
        The folder cannot be created.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not path.is_dir():
        raise NotADirectoryError(f"expected a folder, got a file: {path}")


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


def replace_whole(path: Path, content: str | bytes) -> None:
    """Replace a file atomically, readable for this user only: readers see the old or the new
    content, whole. Text is encoded as UTF-8.
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
    """Rename a damaged file to `.damaged`, unless another process has replaced it.

    Parameters
    ----------
    content
        The bytes that were read.
    is_locked
        True if the lock of the folder is held.
    """
    with suppress(OSError), nullcontext() if is_locked else locked(path.parent / "lock"):
        if read_whole(path) == content:
            path.replace(path.with_suffix(".damaged"))


def remove_old(folder: Path, max_files: int, names: str = "*.json") -> None:
    """Remove the oldest files of a folder until `max_files` are left, and temporary files of
    processes that ended while they wrote.
    """
    files = sorted(folder.glob(names), key=_modified_ns, reverse=True)
    begun = time.time_ns() - STALE_NS
    left = [path for path in folder.glob("*.tmp") if _modified_ns(path) < begun]
    for old in [*files[max_files:], *left]:
        with suppress(OSError):  # Windows: another process reads it
            old.unlink()


def _modified_ns(path: Path) -> int:
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
"""The time at which this process began to load the package."""


def loaded_code() -> list[tuple[str, int, int]] | None:
    """Return the source files of the loaded modules of the package, with sizes and times: computed
    results depend on them. Return None if a file was removed or was written after this process
    began, because the process may have loaded another version.
    """
    own = [module for name, module in list(sys.modules.items()) if name.startswith(TOP)]
    files = {str(file) for module in own if (file := getattr(module, "__file__", None))}
    # the separator excludes native modules, whose names begin with the package's
    folder = f"{PACKAGE}{os.sep}"
    inside = [file for file in sorted(files) if file.startswith(folder)]
    about_files = [(file[len(folder) :], about_loaded(file)) for file in inside]
    found = [(file, *about) for file, about in about_files if about is not None]
    return found if len(found) == len(about_files) else None


def about_loaded(file: str) -> tuple[int, int] | None:
    """Return the size and time of a loaded file. Return None if the file was removed or was written
    after it was loaded.
    """
    try:
        about = os.stat(file)
    except OSError:
        return None
    written_ns = max(about.st_mtime_ns, about.st_ctime_ns)  # a copied file may have an old mtime
    return (about.st_size, about.st_mtime_ns) if written_ns < LOADED_NS else None


def is_code(files: Iterable[tuple[str, int, int]]) -> bool:
    """Return True if files of the package are unchanged since `loaded_code` listed them, and this
    process has loaded these versions.
    """
    folder = f"{PACKAGE}{os.sep}"
    new = {(str(file), size, time_ns) for file, size, time_ns in files} - _seen
    if not all(about_loaded(folder + file) == (size, time_ns) for file, size, time_ns in new):
        return False
    _seen.update(new)
    return True


_seen: set[tuple[str, int, int]] = set()
"""Files that `is_code` has found unchanged: this process has loaded these versions."""


@cache
def code_files() -> list[tuple[str, int, int]]:
    """Return the cache key of the package: its version, and its files with sizes and times."""
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
