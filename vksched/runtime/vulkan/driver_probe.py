"""Driver probe: lists the devices of all Vulkan drivers in a child process, because a driver may
crash.

    list -> child: loader -> driver, driver, ... -> devices as JSON         (the first time)
             died: one child per driver finds the crashing one, whose name is reported

A child costs a Python start and the import of the native modules. Later lists are made in this
process, because the drivers are known to survive it. driver_probe_cache.py stores this on disk for
later processes. VKSCHED_PROBE=inprocess never starts a child. Examples:
tests/runtime/test_drivers.py.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...common.env import word_of
from ...common.errors import VkschedError
from ...common.fork_guard import in_child
from . import binding
from .driver_probe_cache import Entry
from .mesa_shader_cache import settle_shader_cache

CHILD_LIMIT_S = 60.0
"""A driver without an answer by then hangs; a cold NVIDIA driver needs a few seconds."""

_CRASHED, _SILENT = DRIVER_ENDINGS = "crashed", "gave no answer"
"""The beginnings of the descriptions of children that a driver ended."""

_FROM_OUTSIDE = ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")
"""Signals of users and systems, which no driver sends."""
_FATAL, _INTERRUPTED = 0xC0000000, 0xC000013A
"""Windows: the least exit code of processes that an error ended, and the code after Ctrl-C."""

_MARK = "vksched-devices:"


def child_code(module: str, argument: str = "") -> str:
    """Return the code of a process that calls the function `child` of a module.

    Parameters
    ----------
    argument
        The argument of the call, as Python source.
    """
    return f"import sys; sys.path[:] = sys.argv[1:]; from {module} import child; child({argument})"


_CHILD = child_code(__name__)
_FILES = (".so", ".dll", ".dylib", ".json")
_NVIDIA = "libGLX_nvidia"
_NO_DISPLAY = (
    "; without a display try libEGL_nvidia in its manifest "
    "(docs/get-started/supported-platforms.md)"
)
_NOISE = ("Ignoring this JSON", "wrong ELF class", "wrong bit-type", "Found no drivers")

RawDevice = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the drivers.

    Parameters
    ----------
    problem
        Why there is no list.
    notes
        Drivers that the loader skipped, and why.
    """

    devices: tuple[RawDevice, ...] = ()
    problem: str | None = None
    notes: tuple[str, ...] = ()


_lock = threading.Lock()
_first: dict[tuple[str | None, ...], Answer] = {}


def ask_drivers() -> Answer:
    """Return the devices of all drivers, or why there are none; a crashing driver does no harm."""
    missing = binding.available()
    if missing is not None:
        return Answer(problem=missing)
    if not child_possible():
        return _list_here()
    key = tuple(v for k, v in sorted(os.environ.items()) if k.startswith("VK_"))
    with _lock:
        known = _first.get(key)
        if known is None:
            known = _first[key] = _list_first()
            return known
    if known.problem is not None or binding.forked():
        return known
    here = _list_here()
    return Answer(here.devices, here.problem, known.notes)


def _list_first() -> Answer:
    """List devices in this process if these drivers have survived that before, else in a child."""
    settle_shader_cache()
    entry = Entry(manifests(), _settings())
    notes = entry.take()
    if notes is None and settle_shader_cache(tries=True):
        # skip the cache: another variable may have changed the drivers
        entry = Entry(manifests(), _settings())
    answer = Answer() if notes is None else replace(_list_here(), notes=notes)
    if not answer.devices:
        answer = _list_in_child()
    if answer.devices:
        entry.put(answer.notes)
    return answer


@in_child
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


def child() -> None:
    """Run in the child: print the devices as one marked line."""
    without_core_file()
    answer = _list_here()
    print(_MARK + json.dumps({"devices": answer.devices, "problem": answer.problem}), flush=True)
    os._exit(0)  # some drivers crash at process exit, after the answer


def without_core_file() -> None:
    """Let this process write no core file: a crash of it is expected."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


def _list_here() -> Answer:
    try:
        return Answer(tuple(binding.describe_devices()))
    except (VkschedError, RuntimeError, OSError) as error:
        return Answer(problem=" ".join(str(error).split()) or type(error).__name__)


def child_possible() -> bool:
    """Return True if this process can call drivers in a child process."""
    if word_of("VKSCHED_PROBE", ("inprocess",)):
        return False
    # a frozen application would start itself instead of Python
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def _list_in_child() -> Answer:
    died, out, err = run_child(_CHILD, {})
    notes = _loader_errors(err)
    if died is None:
        for line in out.splitlines():
            if line.startswith(_MARK):
                data = json.loads(line[len(_MARK) :])
                return Answer(tuple(data["devices"]), data["problem"], notes)
        died = "ended without an answer"
    if died == "could not start":
        return _list_here()
    return Answer(problem=_explain_death(died, err), notes=notes)


def run_child(code: str, changes: Mapping[str, str]) -> tuple[str | None, str, str]:
    """Return how a child that calls drivers died (None: it did not), its output, and its errors.

    Parameters
    ----------
    code
        Its code, see `child_code`.
    changes
        Changes of the environment.
    """
    env = {**os.environ, "VK_LOADER_DEBUG": "error", **changes}
    command = [sys.executable, "-c", code, *(p or os.getcwd() for p in sys.path)]
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=CHILD_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return f"{_SILENT} for {CHILD_LIMIT_S:.0f} s", "", ""
    except OSError:
        return "could not start", "", ""
    return _death(done.returncode), done.stdout, done.stderr


def _death(code: int) -> str | None:
    """Return a description of the end of a process with this return code; None for the usual."""
    if code < 0:
        name = _signal_name(-code)
        return f"{'was ended' if name in _FROM_OUTSIDE else _CRASHED} with {name}"
    if code >= _FATAL and code != _INTERRUPTED:
        return f"{_CRASHED} with code 0x{code:08X}"
    return f"ended the process with code {code}" if code else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _explain_death(died: str, err: str) -> str:
    """Return one line that names the crashing driver, found by probing each alone, and a
    workaround.
    """
    bad: list[str] = []
    good: list[str] = []
    for manifest in manifests():
        own = dict.fromkeys(binding.DRIVER_SELECTORS[:2], manifest)
        how, _, _ = run_child(_CHILD, {**own, "VK_ADD_DRIVER_FILES": ""})
        if how is None:
            good.append(manifest)
        else:
            bad.append(f"the Vulkan driver of {manifest} {how}")
    if bad:
        way_out = "install it anew"
        if good:
            others = os.pathsep.join(good)
            way_out = (
                f"leave it out with VK_DRIVER_FILES={others} (VK_ICD_FILENAMES with Vulkan loaders "
                "before 1.3.207)"
            )
        return (
            f"{', '.join(bad)} while it listed its devices; {way_out}, or use numpy alone with "
            "VKSCHED_NO_VULKAN=1"
        )
    last = (err.strip().splitlines() or [""])[-1].strip()
    return (
        f"a Vulkan driver {died} while the devices were listed{f' ({last})' if last else ''}; "
        "try one driver at a time with VK_DRIVER_FILES=<its .json file>, or use numpy alone with "
        "VKSCHED_NO_VULKAN=1"
    )


def manifests() -> tuple[str, ...]:
    """Return the driver manifests that the loader reads (Linux: environment, then folders)."""
    for name in binding.DRIVER_SELECTORS[:2]:
        if name in os.environ:
            return tuple(dict.fromkeys(_expand(_split(os.environ[name]))))
    added = _split(os.environ.get("VK_ADD_DRIVER_FILES"))
    return tuple(dict.fromkeys([*_expand(added), *_expand(_data_folders("icd.d"))]))


def _settings() -> list[str]:
    """Return the other files that the loader reads: manifests of layers, and its settings."""
    return _expand(_data_folders("implicit_layer.d", "explicit_layer.d", "loader_settings.d"))


def _data_folders(*kinds: str) -> list[str]:
    """Return the existing folders of the loader, in order of its roots."""
    get, home = os.environ.get, str(Path.home())
    roots = [
        get("XDG_CONFIG_HOME") or f"{home}/.config",
        *_split(get("XDG_CONFIG_DIRS") or "/etc/xdg"),
        "/etc",
        get("XDG_DATA_HOME") or f"{home}/.local/share",
        *_split(get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"),
    ]
    folders = [os.path.join(root, "vulkan", kind) for root in roots for kind in kinds]
    return list(filter(os.path.isdir, folders))


def _split(paths: str | None) -> list[str]:
    return [p for p in (paths or "").split(os.pathsep) if p]


def _expand(paths: list[str]) -> list[str]:
    """Return files unchanged, and folders as their .json files."""
    out: list[str] = []
    for path in paths:
        folder = Path(path)
        out += sorted(map(str, folder.glob("*.json"))) if folder.is_dir() else [path]
    return out


def _loader_errors(err: str) -> tuple[str, ...]:
    """Return the loader's messages about drivers that it could not load, without duplicates."""
    found = (re.search(r"ERROR[^:]*:\s*(.+)", line) for line in err.splitlines())
    texts = [match.group(1).strip() for match in found if match]
    messages = [t for t in texts if any(e in t for e in _FILES) and not any(n in t for n in _NOISE)]
    return tuple(
        dict.fromkeys(t.rstrip(".") + _NO_DISPLAY if _NVIDIA in t else t for t in messages)
    )
