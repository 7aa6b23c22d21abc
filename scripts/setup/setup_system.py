"""Which system packages are missing, and how to get as many of them as can be had."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from setup_base import Outcome, Setup, SetupError
from setup_python import choose_python, describe_python, python_requirements

INCLUDE_FOLDERS = ("/usr/include", "/usr/local/include")
LOCK_WAIT_S = 300
"""How long to wait for another apt, an unattended upgrade for instance."""
RETRY_LOCK_WAIT_S = 10
OTHER_DISTRIBUTIONS = """\
  Fedora: gcc-c++ make cmake vulkan-headers vulkan-loader-devel fmt-devel glslang glslc
          spirv-tools python3-devel
  Arch:   base-devel cmake vulkan-headers vulkan-icd-loader fmt glslang shaderc spirv-tools
          python"""


@dataclass(frozen=True)
class Requirement:
    """A system package, and how to see that its content is there without asking apt."""

    apt: str
    tools: tuple[str, ...] = ()
    header: str = ""
    helpful: bool = False
    """It goes without: Ubuntu 22.04 has no glslc, and glslangValidator does the same, slowly."""

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
    Requirement("glslc", tools=("glslc",), helpful=True),
)


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


def apt(prefix: list[str], lock_wait_s: int) -> list[str]:
    """apt-get as root, asking nothing."""
    quiet = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    return [*quiet, "-o", f"DPkg::Lock::Timeout={lock_wait_s}"]


def update_lists(setup: Setup) -> bool:
    """Update apt's lists once in a run; False when a source could not be read.

    The other sources' lists are then there all the same. Without root the lists stay as they are.
    """
    with setup.apt.lock:
        if setup.apt.lists_whole is None:
            prefix = root_prefix()
            if prefix is None:
                return True
            try:
                # A source that is not reachable is only warned of unless this is asked for.
                errors = ["-o", "APT::Update::Error-Mode=any"]
                setup.call([*apt(prefix, LOCK_WAIT_S), *errors, "update"], "")
                setup.apt.lists_whole = True
            except SetupError as error:
                setup.note(f"{error.what}: going on with the lists that are there")
                setup.apt.lists_whole = False
        return setup.apt.lists_whole


def install_packages(setup: Setup, needed: list[str], helpful: Iterable[str] = ()) -> list[str]:
    """Install as root or through sudo without a password; else say the exact command.

    Packages that can be had are installed even where others cannot; returns those. Where one that
    is needed cannot be had it raises SetupError.
    """
    names = [*needed, *helpful]
    prefix = root_prefix()
    if prefix is None:
        raise SetupError(
            f"system packages are missing ({', '.join(names)}) and need root to install",
            f"run this, then the same make command again:\n\n  {apt_command(names)}\n\n"
            "or go without Vulkan, on numpy alone: VKSCHED_NO_NATIVE=1 make ...",
        )
    with setup.apt.lock:
        whole = update_lists(setup)
        failed = install_what_can_be_had(setup, prefix, names)
    if missing := [name for name in failed if name in needed]:
        raise SetupError(
            f"apt-get could not install {', '.join(missing)}"
            + ("" if whole else "; it could not read all of its package sources either"),
            "see what apt-get says above; mend its sources (on Ubuntu the packages are in "
            f"`universe`), or install by hand:\n\n  {apt_command(missing)}",
            show_log=True,
        )
    return [name for name in names if name not in failed]


def install_what_can_be_had(setup: Setup, prefix: list[str], names: list[str]) -> list[str]:
    """Install all at once, or else one by one; return those that could not be installed."""
    install = ["install", "-y", "--no-install-recommends"]
    try:
        setup.call([*apt(prefix, LOCK_WAIT_S), *install, *names], "")
        return []
    except SetupError:  # apt-get installs all or nothing
        failed = []
    for name in names:
        try:
            setup.call([*apt(prefix, RETRY_LOCK_WAIT_S), *install, name], "")
        except SetupError:
            failed.append(name)
    return failed


def known_to_apt(name: str) -> bool:
    """Return True if apt's lists have a package of this name."""
    command = ["apt-cache", "show", "--no-all-versions", name]
    quiet = subprocess.DEVNULL
    try:
        return not subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet).returncode
    except OSError:
        return False


def system_name(release: str = "/etc/os-release") -> str:
    """What the operating system calls itself."""
    try:
        lines = Path(release).read_text().splitlines()
    except OSError:
        return sys.platform
    names = [line.partition("=")[2].strip("\"'") for line in lines if line[:12] == "PRETTY_NAME="]
    return names[0] if names else sys.platform


def get_system_packages(setup: Setup) -> Outcome:
    if setup.venv_python.exists() and not setup.environ.get("PYTHON"):
        python = describe_python(str(setup.venv_python))
    else:
        python = choose_python(setup.environ.get("PYTHON", ""), sys.executable, shutil.which)
    requirements = BUILD_REQUIREMENTS if setup.native else ()
    apt = shutil.which("apt-get") and shutil.which("dpkg-query")
    installed = installed_packages if apt else lambda names: set()
    needed = missing_packages((r for r in requirements if not r.helpful), installed)
    if python is not None:
        needed += python_requirements(python, setup.native)
    helpful = missing_packages((r for r in requirements if r.helpful), installed) if apt else []
    if helpful and (needed or root_prefix() is not None):
        update_lists(setup)
    helpful = [name for name in helpful if known_to_apt(name)]
    if not needed and (not helpful or root_prefix() is None):
        return Outcome("all there")
    if not apt:
        raise SetupError(
            f"missing, by their Debian names: {', '.join(needed)}; apt-get installs these, and "
            f"this machine ({system_name()}) has none",
            f"install what your distribution calls them:\n{OTHER_DISTRIBUTIONS}",
        )
    return Outcome("installed " + ", ".join(install_packages(setup, needed, helpful)))
