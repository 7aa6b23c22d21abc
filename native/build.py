#!/usr/bin/env python3
"""Build Kompute's Python module, its companion and the CPU kernels for the Python that runs this.

    kp 0.9.0 sdist (unmodified) + native/ -> cmake -> site-packages/vksched_native/

The modules are in a separate package, so that a user's `kp` is unaffected. A second run finds its
stamp and ends at once. A run after an interrupted one resumes it; --force rebuilds. It needs the
standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
KP = "0.9.0"
KP_SHA256 = "98e583dc6e9731ff6d7a3e3317817e4d93f7b2945929619e29a56325db279949"
PYBIND11 = "2.13.6"
MODULES = ("kp", "companion", "cpu_kernels")
SOURCES = (".txt", ".py", ".cpp", ".hpp")
IS_WINDOWS = sys.platform == "win32"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
INIT = '"""Native modules of vksched, built by its native/build.py."""\n'
PACKAGES = {
    "win32": "CMake, Visual Studio's C++ tools, the Vulkan SDK and `vcpkg install fmt`",
    "darwin": "brew install cmake fmt vulkan-headers vulkan-loader molten-vk",
}.get(sys.platform, "apt-get install cmake make g++ libvulkan-dev libfmt-dev")
CMAKE_READS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CMAKE_PREFIX_PATH", "VULKAN_SDK")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]


class BuildError(Exception):
    """A failure, and a remedy."""


def say(text: str) -> None:
    print(f"[native] {text}", flush=True)


def call(command: list[str], to_do: str) -> None:
    say("$ " + " ".join(re.sub(r"://[^/@]*@", "://", part) for part in command))
    if subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise BuildError(f"`{' '.join(command[:4])} ...` failed; {to_do}")


def settings(*more: str) -> str:
    """Return the settings that affect the build, as text."""
    return json.dumps([sys.version, SUFFIX, *map(os.environ.get, CMAKE_READS), *more])


def build_key() -> str:
    """Return a digest of the settings and all sources."""
    digest = hashlib.sha256(settings().encode())
    for path in sorted(p for p in HERE.rglob("*") if p.suffix in SOURCES):
        name = path.relative_to(HERE).as_posix()
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(package: Path, key: str) -> bool:
    try:
        stamp = json.loads((package / "stamp.json").read_text())
    except (OSError, ValueError):
        return False
    return stamp.get("key") == key and all((package / f"{m}{SUFFIX}").exists() for m in MODULES)


def check_tools() -> None:
    """Check for tools and headers; cmake reports missing libraries."""
    wanted = ["cmake"] if IS_WINDOWS else ["cmake", "make"]  # Visual Studio is no tool on PATH
    missing = [tool for tool in wanted if not shutil.which(tool)]
    named = IS_WINDOWS or os.environ.get("CXX")
    if not (named or shutil.which("c++") or shutil.which("g++")):
        missing.append("g++")
    if missing:
        raise BuildError(f"expected {', '.join(missing)} on PATH, got none; try: {PACKAGES}")
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").exists():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise BuildError(
            f"expected Python.h in {include}, got none; try: apt-get install python{version}-dev"
        )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def get_kp(work: Path) -> Path:
    """Return the unpacked kp source, downloaded once and checked against its digest."""
    archive = work / f"kp-{KP}.tar.gz"
    if not archive.exists() or sha256(archive) != KP_SHA256:
        archive.unlink(missing_ok=True)
        # pip's wheel cache is irrelevant: download stores the archive itself.
        call(
            [*PIP, "download", "--no-deps", "--no-binary=kp", "--dest", str(work), f"kp=={KP}"],
            "is the package index reachable?",
        )
    found = sha256(archive)
    if found != KP_SHA256:
        raise BuildError(f"expected sha256 {KP_SHA256} of {archive.name}, got {found}")
    source = work / f"kp-{KP}"
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(work, filter="data")
        else:
            tar.extractall(work)  # its digest was checked above
    return source


def get_pybind11(work: Path) -> Path:
    """Return pybind11's CMake folder: of this Python's package, or of a private copy."""
    try:
        import pybind11

        if pybind11.__version__ == PYBIND11:
            return Path(pybind11.get_cmake_dir())
    except ImportError:
        pass
    target = work / f"pybind11-{PYBIND11}"
    cmake_dir = target / "pybind11" / "share" / "cmake" / "pybind11"
    if not (cmake_dir / "pybind11Config.cmake").exists():
        command = [*PIP, "install", "--no-deps", "--target", str(target), f"pybind11=={PYBIND11}"]
        call(command, "is the package index reachable?")
    return cmake_dir


def python_library() -> str:
    """Return a path for CMake's PYTHON_LIBRARY. Modules resolve Python's symbols in the
    interpreter, except on Windows; elsewhere kp's CMake file needs any existing path.
    """
    if IS_WINDOWS:
        version = f"{sys.version_info.major}{sys.version_info.minor}"
        return str(Path(sys.base_prefix, "libs", f"python{version}.lib"))
    return sysconfig.get_path("stdlib")


def count_jobs() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_folder(work: Path) -> Path:
    return work / f"cmake-{sys.implementation.cache_tag}"


def compile_modules(work: Path, source: Path, pybind11_dir: Path) -> Path:
    """Configure and build; return the folder with the package of modules. An interrupted build with
    the same settings is resumed.
    """
    build = build_folder(work)
    include = sysconfig.get_path("include")
    configure = [
        "cmake",
        *("-S", str(HERE), "-B", str(build)),
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DKP_SOURCE={source}",
        f"-Dpybind11_DIR={pybind11_dir}",
        f"-DPYTHON_EXECUTABLE={sys.executable}",
        f"-DPYTHON_INCLUDE_DIR={include}",
        f"-DPYTHON_LIBRARY={python_library()}",
    ]
    wanted, settled = settings(*configure), build / "settings.json"
    if not settled.exists() or settled.read_text() != wanted:
        shutil.rmtree(build, ignore_errors=True)
    to_do = f"see above; missing packages: {PACKAGES}"
    call(configure, to_do)
    settled.write_text(wanted)
    release = ["--config", "Release", "-j", str(count_jobs())]
    call(["cmake", "--build", str(build), *release], to_do)
    return build / "modules"


def licences(source: Path, pybind11_dir: Path) -> dict[str, Path]:
    """Return the licences of the compiled-in libraries, by their installed names."""
    site = pybind11_dir.parents[3]
    found = {"LICENSE.kompute": [source / "LICENSE"]}
    found["LICENSE.pybind11"] = sorted(site.glob(f"pybind11-{PYBIND11}.dist-info/**/LICENSE*"))
    return {name: paths[0] for name, paths in found.items() if paths and paths[0].exists()}


def install(built: Path, package: Path, key: str, texts: dict[str, Path]) -> None:
    """Install the modules once they can be imported; by renaming, because a running Python may have
    the old ones open.
    """
    (built / package.name).mkdir(exist_ok=True)
    (built / package.name / "__init__.py").write_text(INIT)
    names = ", ".join(f"{package.name}.{module}" for module in MODULES)
    check = f"import sys; sys.path.insert(0, {str(built)!r}); import {names}"
    call([sys.executable, "-c", check], "the modules were built but cannot be imported, see above")
    package.mkdir(parents=True, exist_ok=True)
    (package / "stamp.json").unlink(missing_ok=True)
    for module in MODULES:
        new = package / f".{module}.new"
        shutil.copy2(built / package.name / f"{module}{SUFFIX}", new)
        new.replace(package / f"{module}{SUFFIX}")
    (package / "__init__.py").write_text(INIT)
    for name, path in texts.items():
        shutil.copy2(path, package / name)
    stamp = {"key": key, "kp": KP, "pybind11": PYBIND11}
    (package / "stamp.json").write_text(json.dumps(stamp, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build vksched's native modules for this Python.")
    default_work = HERE.parent / "build" / "native"
    parser.add_argument(
        "--work", type=Path, default=default_work, help="folder for all that is made"
    )
    parser.add_argument("--force", action="store_true", help="build even when all is current")
    options = parser.parse_args(arguments)
    package = Path(sysconfig.get_path("platlib")) / "vksched_native"
    key = build_key()
    if is_current(package, key) and not options.force:
        say(f"{package} is current")
        return 0
    start = time.monotonic()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    if options.force:
        shutil.rmtree(build_folder(work), ignore_errors=True)
    try:
        check_tools()
        source, pybind11_dir = get_kp(work), get_pybind11(work)
        built = compile_modules(work, source, pybind11_dir)
        install(built, package, key, licences(source, pybind11_dir))
        say(f"installed {package} in {time.monotonic() - start:.0f} s")
        code = 0
    except BuildError as error:
        print(f"[native] {error}", file=sys.stderr, flush=True)
        code = 1
    shutil.rmtree(build_folder(work), ignore_errors=True)  # complete or broken, it is not reused
    return code


if __name__ == "__main__":
    sys.exit(main())
