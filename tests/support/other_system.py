"""Python as it is on Windows or macOS, as far as Linux can play that.

    python tests/support/other_system.py win32 -m vksched devices
    python tests/support/other_system.py darwin -m pytest --collect-only tests

Code of this repository is told the other system's name and does not find what that system lacks:
modules (fcntl ...), functions and constants of `os` and `signal` (fork, SIGKILL ...), /proc. On
"win32" nobody can create a file whose name Windows refuses, or replace or remove one that this
process has open. Libraries see Linux as it is. Examples: tests/project/test_other_systems.py.
"""

from __future__ import annotations

import builtins
import os
import runpy
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = str(Path(__file__).resolve().parent.parent.parent)
PACKAGES = sysconfig.get_path("purelib")
"""Of others, though .venv lies in the repository."""

LINUX_OS = """
    sched_getaffinity sched_setaffinity pidfd_open memfd_create eventfd getrandom posix_fadvise
    posix_fallocate copy_file_range splice setns unshare O_DIRECT O_TMPFILE O_PATH O_LARGEFILE
    getxattr setxattr listxattr removexattr
""".split()
POSIX_OS = """
    fork forkpty register_at_fork wait wait3 wait4 waitid WNOHANG WIFEXITED WEXITSTATUS WIFSIGNALED
    WTERMSIG getuid geteuid getgid getegid getgroups getresuid setuid seteuid setgid getpgid getpgrp
    setpgid setsid killpg getpriority setpriority nice getloadavg chown fchown lchown chroot mkfifo
    mknod pread pwrite preadv pwritev readv writev sendfile sysconf confstr pathconf fpathconf
    statvfs fstatvfs uname openpty ttyname tcgetpgrp posix_spawn posix_spawnp pipe2 sync fdatasync
    fchdir lockf dup3 O_NONBLOCK O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_SYNC O_DSYNC O_NOCTTY
""".split()
LINUX_SIGNAL = ["SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGRTMIN", "SIGRTMAX", "pidfd_send_signal"]
POSIX_SIGNAL = """
    SIGKILL SIGALRM SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGPIPE SIGCHLD SIGSTOP SIGCONT SIGTSTP SIGTTIN
    SIGTTOU SIGBUS SIGTRAP SIGSYS SIGPROF SIGVTALRM SIGWINCH SIGIO alarm pause setitimer getitimer
    pthread_kill pthread_sigmask sigpending sigwait sigwaitinfo sigtimedwait siginterrupt
""".split()
POSIX_MODULES = {
    "fcntl", "resource", "pwd", "grp", "spwd", "termios", "tty", "pty", "syslog", "posix", "crypt",
    "readline", "curses", "_posixsubprocess",
}  # fmt: skip
NO_FOLDERS = ("/proc", "/sys")
REFUSED = set('<>:"|?*')
"""What no name of a file has on Windows."""


def hide(system: str) -> None:
    """Make this process look like one on "win32" or "darwin" to the code of this repository."""
    windows = {"win32": True, "darwin": False}[system]
    hidden_os = {*LINUX_OS, *(POSIX_OS if windows else ())}
    hidden_signal = {*LINUX_SIGNAL, *(POSIX_SIGNAL if windows else ())}
    _change(sys, set(), {"platform": system})
    _change(signal, hidden_signal, {})
    if not windows:
        _change(os, hidden_os, {})
        sys.addaudithook(_without_folders)
        return
    _change(os, hidden_os, {"name": "nt", "supports_dir_fd": set[object]()})
    _hide_modules()
    sys.addaudithook(_without_folders)
    sys.addaudithook(_with_good_names)
    for name, places in (("replace", (0, 1)), ("rename", (0, 1)), ("unlink", (0,))):
        setattr(os, name, _not_of_open_files(getattr(os, name), places))
    os.remove = os.unlink


def _is_ours(values: Mapping[str, Any]) -> bool:
    file = str(values.get("__file__") or "")
    return file.startswith(ROOT) and not file.startswith(PACKAGES) and values is not globals()


def _change(module: ModuleType, hidden: set[str], changed: Mapping[str, object]) -> None:
    class Changed(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if (name in hidden or name in changed) and _is_ours(sys._getframe(1).f_globals):
                if name in changed:
                    return changed[name]
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return super().__getattribute__(name)

    module.__class__ = Changed


def _hide_modules() -> None:
    plain = builtins.__import__

    def imported(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if not level and name.partition(".")[0] in POSIX_MODULES and _is_ours(globals or {}):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return plain(name, globals, locals, fromlist, level)

    builtins.__import__ = imported


_looking = threading.local()


def _without_folders(event: str, args: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and not getattr(_looking, "on", False):
        path = args[0]
        if isinstance(path, str) and path.startswith(NO_FOLDERS):
            raise FileNotFoundError(2, "No such file or directory", path)
    if event in ("os.fork", "os.forkpty"):
        raise OSError("this system does not fork")


def _with_good_names(event: str, args: tuple[Any, ...]) -> None:
    creates = event == "open" and isinstance(args[2], int) and args[2] & os.O_CREAT
    if creates or event == "os.mkdir":
        if isinstance(args[0], str) and set(args[0]) & REFUSED:
            raise OSError(22, "Invalid argument: Windows refuses this name", args[0])


def _not_of_open_files(call: Callable[..., None], places: tuple[int, ...]) -> Callable[..., None]:
    def called(*args: Any, **more: Any) -> None:
        inputs = [os.path.realpath(args[at]) for at in places if not isinstance(args[at], int)]
        if not more and {*inputs} & {*_open_files()}:
            error = PermissionError(13, "The file is open in this process", str(args[0]))
            error.winerror = 32  # type: ignore[attr-defined]
            raise error
        call(*args, **more)

    return called


def _open_files() -> Iterator[str]:
    _looking.on = True
    try:
        for each in os.listdir("/proc/self/fd"):
            try:
                yield os.readlink(f"/proc/self/fd/{each}")
            except OSError:
                continue  # the listing's own
        with open("/proc/self/maps", encoding="utf-8") as maps:
            yield from {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}
    finally:
        _looking.on = False


def main() -> None:
    """Run a module or a file as Python does, in the other system."""
    system, how, *rest = sys.argv[1:]
    import multiprocessing.connection  # noqa: F401  what libraries ask of Linux when imported
    import subprocess  # noqa: F401

    sys.path[0] = os.getcwd()
    hide(system)
    if how == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [how, *rest]
        sys.path[0] = str(Path(how).resolve().parent)
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    main()
