"""Socket folder: one socket per monitored process, with access control.

    $XDG_RUNTIME_DIR/vksched/  drwx------      or, if the system has no such folder,
        4711.sock              srw-------      vksched-UID in the folder for temporary files

Problem: other users of the host must neither read snapshots nor impersonate a process. Method: only
this user has access to the folder and the sockets, links are not followed, and both ends query the
peer's user id. Sockets of killed processes are removed by the next process.

Examples: tests/monitor/test_place.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import tempfile
import time
import warnings
from pathlib import Path

import platformdirs

from ..common.errors import VkschedError

SUFFIX = ".sock"
PATH_BYTES = 100
"""Systems accept socket paths shorter than about 103 bytes."""
ASK_S = 0.2
"""Timeout of the check whether a socket has a listener, in seconds."""
BEGUN_S = 60.0
"""Age in seconds after which a socket without a listener counts as abandoned."""


def available() -> str | None:
    """Return why this system has no Unix sockets, or None if it has."""
    if hasattr(socket, "AF_UNIX") and hasattr(os, "geteuid"):
        return None
    return "it needs Unix sockets, which Python has on Linux and macOS only"


def folder(make: bool = False) -> Path:
    """Return the folder of the sockets, created if requested.

    Raise VkschedError if other users may write to it, or it cannot be created.
    """
    missing = available()
    if missing is not None:
        raise VkschedError(f"[monitor] {missing}")
    path = _system_folder() or Path(tempfile.gettempdir()) / f"vksched-{os.geteuid()}"
    try:
        if make:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
        found = os.lstat(path)
    except FileNotFoundError:
        return path
    except OSError as error:
        raise VkschedError(f"[monitor] cannot make {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or not _private(found):
        raise VkschedError(
            f"[monitor] expected {path} to be a folder of this user's alone (mode 700), got "
            f"{_describe(found)}; try removing it, or setting XDG_RUNTIME_DIR to such a folder"
        )
    return path


def _system_folder() -> Path | None:
    """Return the folder below the user's runtime directory, if there is one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from platformdirs: a missing folder is no error
            path = platformdirs.user_runtime_path("vksched", appauthor=False)
        parent = os.stat(path.parent)
    except (OSError, RuntimeError, KeyError):
        return None
    mine = parent.st_uid == os.geteuid() and not parent.st_mode & 0o022
    return path if mine and stat.S_ISDIR(parent.st_mode) else None


def _private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def _describe(found: os.stat_result) -> str:
    kind = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFSOCK: "a socket"}
    what = kind.get(stat.S_IFMT(found.st_mode), "a file")
    return f"{what} of user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}"


def socket_path(pid: int) -> Path:
    """Return the socket path of a process."""
    return folder() / f"{pid}{SUFFIX}"


def listen(pid: int, clients: int) -> tuple[socket.socket, Path]:
    """Return a listening socket, which appears in the folder once it listens. Raise VkschedError on
    failure.
    """
    home = folder(make=True)
    path, before = home / f"{pid}{SUFFIX}", home / f"{pid}.new"
    if len(os.fsencode(path)) > PATH_BYTES:
        raise VkschedError(
            f"[monitor] expected a path of at most {PATH_BYTES} bytes for a socket, got {path}; "
            "try setting XDG_RUNTIME_DIR to a folder with a shorter path"
        )
    clean()
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before.unlink(missing_ok=True)
        own.bind(str(before))  # in a folder that no other user can enter
        before.chmod(0o600)
        own.listen(clients)
        own.setblocking(False)
        before.rename(path)
    except OSError as error:
        own.close()
        with contextlib.suppress(OSError):
            before.unlink()
        raise VkschedError(f"[monitor] cannot listen at {path}: {error}") from error
    return own, path


def connect(path: Path) -> socket.socket:
    """Return a connection to a process of this user.

    Raise VkschedError if there is no listener, or it belongs to another user.
    """
    folder()
    try:
        found = os.lstat(path)
    except OSError as error:
        raise VkschedError(
            f"[top] expected a monitored process at {path}, got none; try "
            "VKSCHED_MONITOR=1 or vs.Scheduler(monitor=True) there"
        ) from error
    if not stat.S_ISSOCK(found.st_mode) or not _private(found):
        raise VkschedError(
            f"[top] expected {path} to be a socket of this user's alone, got {_describe(found)}"
        )
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        own.settimeout(ASK_S)
        own.connect(str(path))
        own.setblocking(False)
    except OSError as error:
        own.close()
        if error.errno == errno.ECONNREFUSED:  # its process was killed
            with contextlib.suppress(OSError):
                path.unlink()
        raise VkschedError(f"[top] no process listens at {path}: {error.strerror}") from error
    if not is_mine(own):
        own.close()
        raise VkschedError(f"[top] expected a process of this user at {path}, got another's")
    return own


def is_mine(own: socket.socket) -> bool:
    """Return True if the peer is this user, as far as the system reports it; Linux does. Elsewhere
    only the modes of folder and socket protect.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    size = struct.calcsize("3i")
    try:
        credentials = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    except OSError:
        return False
    _, uid, _ = struct.unpack("3i", credentials)
    return bool(uid == os.geteuid())


def sockets() -> dict[int, Path]:
    """Return the sockets in the folder by process id; some may be abandoned.

    Raise VkschedError if other users may write to the folder.
    """
    try:
        names = sorted(folder().iterdir())
    except OSError:
        return {}
    return {int(p.stem): p for p in names if p.suffix == SUFFIX and p.stem.isdecimal()}


def clean() -> None:
    """Remove the sockets of killed processes.

    A starting process has a socket that does not listen yet, so only old ones count as abandoned.
    """
    home = folder()
    for path in (*home.glob(f"*{SUFFIX}"), *home.glob("*.new")):
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            if path.suffix != SUFFIX and abs(time.time() - found.st_mtime) < BEGUN_S:
                continue
            if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
                    asking.settimeout(ASK_S)
                    if asking.connect_ex(str(path)) == errno.ECONNREFUSED:
                        path.unlink()
