"""The user's cache folder: created for this user only, and not used if others may write to it.

Plans and costs are read from its files, and cached steps of language models reveal what a user
runs. Therefore folders have the permissions 0700. On Windows the user's profile has these
permissions. A full disk is logged once. Examples: tests/storage/test_cache_folder.py.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import platformdirs

DISK_FULL = [getattr(errno, n) for n in ("ENOSPC", "EDQUOT", "EROFS") if hasattr(errno, n)]
"""Error codes of a full disk, an exhausted quota or a read-only file system."""
_NOT_OFFERED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


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
