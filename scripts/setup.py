#!/usr/bin/env python3
"""Make this machine ready for vksched; `make setup` runs it and a second run does nothing.

Each step has a key, the hash of everything it depends on, kept in .venv/setup-stamps.json. A step
runs when its key changed or its result is gone. All output goes to build/setup.log.

Variables: PYTHON (interpreter for .venv), VKSCHED_NO_NATIVE=1 (no compiler, no Vulkan, numpy only),
VKSCHED_SETUP_SOFTWARE=1 (get software Vulkan devices even where there is a hardware one).

Standard library only. It must at least start on any Python from 3.8, to look for a better one.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from setup_base import LEFT_OUT, Outcome, Setup, SetupError, hash_of, hash_of_files
from setup_python import MODEL_PACKAGE, get_python_packages, key_of_venv, make_venv
from setup_system import BUILD_REQUIREMENTS, get_system_packages
from setup_vulkan import (
    answer_file,
    get_devices,
    get_validation,
    key_of_machine,
    validation_layer,
)

LOG_TAIL_LINES = 40


def build_native(setup: Setup) -> Outcome:
    if not setup.native:
        return LEFT_OUT
    to_do = "mend what the compiler says above and run again; without it: VKSCHED_NO_NATIVE=1"
    command = [str(setup.venv_python), "native/build.py", "--work", "build/native"]
    setup.call(command, to_do)
    return Outcome()


def has_native(setup: Setup) -> bool:
    return any(setup.venv.glob("lib*/python*/site-packages/vksched_native/stamp.json"))


def compile_shaders(setup: Setup) -> Outcome:
    if not setup.native and not shutil.which("glslangValidator"):
        return LEFT_OUT
    to_do = "mend the shader named above and run again"
    setup.call([str(setup.venv_python), "build_shaders.py"], to_do)
    return Outcome()


@dataclass(frozen=True)
class Step:
    """One step: a key over its inputs, whether its results are there, and the work."""

    name: str
    key: Callable[[Setup], str]
    there: Callable[[Setup], bool]
    run: Callable[[Setup], Outcome]


STEPS = (
    Step(
        "system packages",
        lambda s: hash_of(s.native, BUILD_REQUIREMENTS),
        lambda s: True,
        get_system_packages,
    ),
    Step(".venv", key_of_venv, lambda s: s.venv_python.exists(), make_venv),
    Step(
        "Python packages",
        lambda s: hash_of(hash_of_files(s.root, "pyproject.toml"), MODEL_PACKAGE),
        lambda s: True,
        get_python_packages,
    ),
    Step(
        "native modules (minutes at first)",
        lambda s: hash_of(s.native, hash_of_files(s.root, "native")),
        lambda s: not s.native or has_native(s),
        build_native,
    ),
    Step(
        "shaders (minutes at first)",
        lambda s: hash_of(s.native, hash_of_files(s.root, "shaders", "build_shaders.py")),
        lambda s: not s.native or (s.root / "vksched/spirv/manifest.json").exists(),
        compile_shaders,
    ),
    Step(
        "Vulkan devices",
        lambda s: hash_of(s.native, key_of_machine(), s.environ.get("VKSCHED_SETUP_SOFTWARE", "")),
        lambda s: not s.native or answer_file(s).exists(),
        get_devices,
    ),
)
VALIDATION_STEP = Step(
    "validation layer",
    lambda s: "1",
    lambda s: validation_layer() is not None,
    get_validation,
)


def steps_to_run(setup: Setup, steps: Iterable[Step]) -> list[Step]:
    """The steps whose stamp differs from their key, or whose results are gone.

    A new .venv takes the results of all later steps with it.
    """
    todo = [s for s in steps if setup.stamps.get(s.name) != s.key(setup) or not s.there(setup)]
    names = [step.name for step in todo]
    return [s for s in steps if s in todo or ".venv" in names]


@contextmanager
def dots(every_s: float = 15.0) -> Iterator[None]:
    """Prints a dot now and then, to show that a long step goes on."""
    done = threading.Event()

    def show() -> None:
        while not done.wait(every_s):
            print(".", end="", flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def run_steps(setup: Setup, steps: Iterable[Step]) -> None:
    todo = steps_to_run(setup, steps)
    for number, step in enumerate(todo, 1):
        print(f"[set-up {number}/{len(todo)}] {step.name} ... ", end="", flush=True)
        setup.note(f"\n=== {step.name}")
        setup.stamps.pop(step.name, None)  # until it has ended well, whatever ends it
        setup.write_stamps()
        start = time.monotonic()
        try:
            with dots():
                outcome = step.run(setup)
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt)
            print("interrupted" if stopped else "failed", flush=True)
            raise
        remark = outcome.remark
        print(f"{time.monotonic() - start:.1f} s{remark and ': ' + remark}", flush=True)
        if outcome.whole:
            # After the work: making a venv or installing a driver changes what the key looks at.
            setup.stamps[step.name] = step.key(setup)
            setup.write_stamps()


def failure_message(error: SetupError, log: str, log_name: str) -> str:
    """The end of the log when it helps, what failed, what to do."""
    lines = []
    if error.show_log:
        tail = log.splitlines()[-LOG_TAIL_LINES:]
        lines += [*tail, "", f"set-up failed (the whole log: {log_name})"]
    else:
        lines += ["", "set-up stopped"]
    text = "\n".join([*lines, f"  what:  {error.what}", f"  to do: {error.to_do}"])
    return re.sub(r"://[^/\s'\"]+", "://...", text)  # a package index may have a password in it


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make this machine ready for vksched.")
    parser.add_argument("--validation", action="store_true", help="the validation layer as well")
    options = parser.parse_args(arguments)
    root = Path(__file__).resolve().parent.parent
    setup = Setup(root, os.environ)
    steps = (*STEPS, VALIDATION_STEP) if options.validation else STEPS
    setup.read_stamps()
    if not steps_to_run(setup, steps):
        return 0
    log_path = root / "build" / "setup.log"
    log_path.parent.mkdir(exist_ok=True)
    with open(str(log_path.parent / "setup.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make demo` and `make test` in two terminals
        setup.read_stamps()
        try:
            print("what the steps of the set-up say goes to build/setup.log", flush=True)
            with open(str(log_path), "wb") as setup.log:
                run_steps(setup, steps)
        except SetupError as error:
            log = log_path.read_text(errors="replace")
            print(failure_message(error, log, "build/setup.log"), file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nset-up interrupted; the next run goes on from here", file=sys.stderr)
            return 130
    print("ready; `source .venv/bin/activate` gives you python with vksched, and `vksched devices`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
