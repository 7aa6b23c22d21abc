"""Which Python, which system packages, and how to get them: the machine below the venv."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from setup_base import Setup, SetupError, hash_of

SUPPORTED = ((3, 10), (3, 11), (3, 12))
INCLUDE_FOLDERS = ("/usr/include", "/usr/local/include")
OTHER_DISTRIBUTIONS = """\
  Fedora: gcc-c++ make cmake vulkan-headers vulkan-loader-devel fmt-devel glslang
          spirv-tools python3-devel
  Arch:   base-devel cmake vulkan-headers vulkan-icd-loader fmt glslang spirv-tools python"""
DESCRIBE_PYTHON = (
    "import sys, os, json, sysconfig, importlib.util as u; print(json.dumps(dict("
    "path=sys.executable, version=sys.version_info[:2],"
    "base=os.path.realpath(sys.executable), ensurepip=u.find_spec('ensurepip') is not None,"
    "header=any(os.path.exists(os.path.join(d, 'Python.h')) for d in"
    " (sysconfig.get_path('include'), sysconfig.get_config_var('INCLUDEPY'))))))"
)


@dataclass(frozen=True)
class Python:
    """An interpreter as it described itself."""

    path: str
    version: tuple[int, int]
    base: str
    ensurepip: bool
    header: bool


@dataclass(frozen=True)
class Requirement:
    """A system package, and how to see that its content is there without asking apt."""

    apt: str
    tools: tuple[str, ...] = ()
    header: str = ""

    def present(self) -> bool:
        """True when one of the tools is on PATH, or the header is in a standard folder."""
        if self.tools:
            return any(shutil.which(tool) for tool in self.tools)
        return any((Path(folder) / self.header).exists() for folder in INCLUDE_FOLDERS)


BUILD_REQUIREMENTS = (
    Requirement("g++", tools=("g++", "c++")),
    Requirement("make", tools=("make",)),
    Requirement("cmake", tools=("cmake",)),
    Requirement("libvulkan-dev", header="vulkan/vulkan.h"),
    Requirement("libfmt-dev", header="fmt/core.h"),
    Requirement("glslang-tools", tools=("glslangValidator",)),
    Requirement("spirv-tools", tools=("spirv-val",)),
)


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
    supported = " to ".join(".".join(map(str, v)) for v in (SUPPORTED[0], SUPPORTED[-1]))
    if wanted:
        python = describe_python(find(wanted) or wanted)
        if python is None:
            raise SetupError(f"PYTHON={wanted} does not run", f"set PYTHON to a Python {supported}")
        if python.version not in SUPPORTED:
            version = ".".join(map(str, python.version))
            raise SetupError(
                f"PYTHON={wanted} is Python {version}, expected {supported}",
                "set PYTHON to another interpreter, or leave it out",
            )
        return python
    names = ["python3"] + [f"python{a}.{b}" for a, b in reversed(SUPPORTED)]
    for command in [running] + [path for path in map(find, names) if path]:
        python = describe_python(command)
        if python is not None and python.version in SUPPORTED:
            return python
    raise SetupError(
        f"no Python {supported} found (tried {', '.join(names)})",
        "install one, or name it: make setup PYTHON=/path/to/python",
    )


def python_requirements(python: Python, native: bool) -> list[str]:
    """apt packages that a distribution's own Python still needs for a venv and for building."""
    name = "python{}.{}".format(*python.version)
    if not python.base.startswith("/usr/bin/"):
        if native and not python.header:
            raise SetupError(
                f"{python.path} has no Python.h, which the native modules need",
                "install its headers, or name another interpreter with PYTHON=...",
            )
        return []
    needed = [] if python.ensurepip else [f"{name}-venv"]
    return needed + ([f"{name}-dev"] if native and not python.header else [])


def make_venv(setup: Setup) -> str:
    python = choose_python(setup.environ.get("PYTHON", ""), sys.executable, shutil.which)
    to_do = "remove .venv and run again; PYTHON=... names another interpreter"
    setup.call([python.path, "-m", "venv", "--clear", str(setup.venv)], to_do)
    kept = ("system packages",)  # --clear took the stamps of everything that lived in the venv
    setup.stamps = {name: key for name, key in setup.stamps.items() if name in kept}
    setup.stamps["PYTHON"] = python.base
    return "Python {}.{}".format(*python.version)


def key_of_venv(setup: Setup) -> str:
    # Without PYTHON= any interpreter that made the venv stays good; a distribution upgrade that
    # turns /usr/bin/python3 into another version does not.
    base = setup.stamps.get("PYTHON", "")
    if setup.environ.get("PYTHON"):
        wanted = describe_python(setup.environ["PYTHON"])
        base = wanted.base if wanted else "does not run"
    return hash_of(setup.root, base, os.path.realpath(str(setup.venv_python)))


def missing_packages(
    requirements: Iterable[Requirement], installed: Callable[[list[str]], set[str]]
) -> list[str]:
    """apt names of the requirements that are neither seen on the machine nor known to dpkg."""
    unseen = [r.apt for r in requirements if not r.present()]
    known = installed(unseen) if unseen else set()
    return [name for name in unseen if name not in known]


def installed_packages(names: list[str]) -> set[str]:
    """Those of the named packages that dpkg has installed."""
    answer = subprocess.run(
        ["dpkg-query", "-W", "-f", "${binary:Package} ${db:Status-Status}\n", *names],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    lines = (line.split() for line in answer.stdout.decode().splitlines())
    return {words[0].split(":")[0] for words in lines if words[1:] == ["installed"]}


def apt_command(names: list[str]) -> str:
    """What a person types to install the packages."""
    install = "sudo apt-get install -y --no-install-recommends " + " ".join(names)
    return f"sudo apt-get update && {install}"


def root_prefix() -> list[str] | None:
    """What to put before a command that needs root: nothing, sudo, or None if neither works."""
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None:
        return None
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    code = subprocess.run([sudo, "-n", "true"], stderr=subprocess.DEVNULL, **quiet).returncode
    return None if code else [sudo, "-n"]


def install_packages(setup: Setup, names: list[str]) -> None:
    """Install with apt as root or through sudo without a password; else say the exact command."""
    prefix = root_prefix()
    if prefix is None:
        raise SetupError(
            f"system packages are missing ({', '.join(names)}) and need root to install",
            f"run this, then the same make command again:\n\n  {apt_command(names)}\n\n"
            "or go without Vulkan, on numpy alone: VKSCHED_NO_NATIVE=1 make ...",
        )
    apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    apt += ["-o", "DPkg::Lock::Timeout=300"]
    to_do = f"see what apt-get says above; by hand:\n\n  {apt_command(names)}"
    if not setup.apt_updated:
        setup.call([*apt, "update"], to_do)
        setup.apt_updated = True
    setup.call([*apt, "install", "-y", "--no-install-recommends", *names], to_do)


def get_system_packages(setup: Setup) -> str:
    if setup.venv_python.exists() and not setup.environ.get("PYTHON"):
        python = describe_python(str(setup.venv_python))
    else:
        python = choose_python(setup.environ.get("PYTHON", ""), sys.executable, shutil.which)
    requirements = BUILD_REQUIREMENTS if setup.native else ()
    apt = shutil.which("apt-get") and shutil.which("dpkg-query")
    missing = missing_packages(requirements, installed_packages if apt else lambda names: set())
    if python is not None:
        missing += python_requirements(python, setup.native)
    if not missing:
        return "all there"
    if not apt:
        raise SetupError(
            f"missing, by their Debian names: {', '.join(missing)}; this machine has no apt-get",
            f"install what your distribution calls them:\n{OTHER_DISTRIBUTIONS}",
        )
    install_packages(setup, missing)
    return "installed " + ", ".join(missing)
