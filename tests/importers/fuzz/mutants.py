"""Mutants of model files: a watch over what reads them, and processes that do, one by one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SPARE_BYTES = 512 << 20
LIMIT_S = 10
NO_MEMORY = ("MemoryError", "bad_alloc", "Unable to allocate", "allocate memory")
TESTS = Path(__file__).parents[1]
SCRIPTS = Path(__file__).parent
FOLDERS = [
    SCRIPTS,
    TESTS,
    TESTS / "onnx_calls",
    TESTS.parent,
    *(TESTS.parent / each for each in ("support", "plan", "planner", "generation")),
]


class Watch:
    """Collects the files that are opened outside a folder while it is armed."""

    def __init__(self, folder: Path) -> None:
        # The CPU backend looks there for what other programs take of the cores.
        self._allowed = (f"{folder.resolve()}{os.sep}", f"/proc/stat{os.sep}")
        self._code = tuple(f"{p}{os.sep}" for p in {sys.prefix, sys.base_prefix, *sys.path} if p)
        self.armed = False
        self.outside: list[str] = []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[object, ...]) -> None:
        if not self.armed or event != "open" or isinstance(args[0], int):
            return
        path = os.path.abspath(os.fsdecode(args[0]))  # type: ignore[arg-type]
        is_code = path.endswith((".py", ".pyc", ".so")) and path.startswith(self._code)
        if not is_code and not f"{path}{os.sep}".startswith(self._allowed):
            self.outside.append(path)


def left_behind(folder: Path) -> str:
    """Return the maps and descriptors that a process has in a folder."""
    maps = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line
    ]
    links = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
    opened = [os.readlink(link) for link in links if os.path.islink(link)]
    return " ".join(maps + [o for o in opened if o.startswith(str(folder))])


def maps_of(folder: Path) -> int:
    """Count this process's maps and descriptors of files in a folder."""
    gc.collect()
    return left_behind(folder).count(str(folder))


def read_mutants(
    script: str, seed: str, first: int, count: int, *options: str, python: Sequence[str] = ()
) -> tuple[list[str], int, int, int]:
    """Run a script of this folder, or by its path; returns what went wrong, and how many mutants
    were read, were refused, and ran. python: options of the interpreter.

    A process that ends at a mutant is followed by one that starts behind it.
    """
    wrong: list[str] = []
    loaded = refused = ran = 0
    end = first + count
    while first < end:
        command = [sys.executable, *python, str(SCRIPTS / script), "--seed", seed, *options]
        command += ["--first", str(first), "--count", str(end - first)]
        paths = os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": paths, "MALLOC_ARENA_MAX": "2"}
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=env, check=False
        )
        lines = done.stdout.splitlines()
        loaded += lines.count("loaded")
        ran += lines.count("ran well")
        refused += sum(line.startswith("refused") for line in lines)
        wrong += [line for line in lines if line.startswith("BAD")]
        if done.returncode in (0, 1) and f"read up to {end}" in lines:
            break
        started = [line for line in lines if line.startswith("mutant")]
        assert started, f"the process did not start: {done.stderr}"
        wrong.append(f"{started[-1]}: exit status {done.returncode}, {done.stderr[-300:]}")
        first = int(started[-1].split()[1]) + 1
        if len(wrong) > 20:
            break
    return wrong, loaded, refused, ran
