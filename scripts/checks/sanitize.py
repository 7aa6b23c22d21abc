#!/usr/bin/env python3
"""Run the tests of the native CPU kernels with the address and undefined-behaviour sanitizers.

    native/cpu_kernels + sanitizers -> build/sanitized -> planted faults, each must end its process
                                                       -> tests of kernels and ops, none may

Only the CPU kernels are built: no Kompute and no Vulkan. A second run compiles what changed. Any
argument is given to pytest in place of the tests. Exit code 77: the compiler has no sanitizers
here, the last line says what is missing.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "tests" / "support" / "sanitized"
WORK = ROOT / "build" / "sanitized"
REPORT = WORK / "report"
"""Where a sanitizer says what it found: pytest would take it for output of a test."""
MODULES = WORK / "modules"
MAX_MIB = 2048
"""Of one piece of memory: what strangers ask for is refused, as where there is less."""
FLAGS = (
    *("-O1", "-g1", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
MISSING = 77
"""As automake has it for a test that was left out."""
TESTS = (
    *("ops/native/test_*.py", "ops/test_extremes.py", "ops/test_gguf_formats.py"),
    *("ops/test_ops.py", "ops/test_reduction.py", "ir/test_attr_fuzz.py"),
)
"""The tests that run native kernels, and the fuzz test that draws attributes of ops."""
WRITE = """
import ctypes, sys, numpy as np
values = np.zeros(64, np.float32)
pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
ctypes.CDLL(sys.argv[1]).write_behind(pointer, 64)
"""
OVERFLOW = "import ctypes, sys; ctypes.CDLL(sys.argv[1]).overflow(1)"
PLANTED = {"heap-buffer-overflow": WRITE, "signed integer overflow": OVERFLOW}
"""What a sanitizer says, and the program that has it say so."""


MAX_LINES = 40
"""Of a report."""


class Missing(Exception):
    """What the machine lacks."""


def native_build() -> ModuleType:
    """Return native/build.py, which lies in no package."""
    spec = importlib.util.spec_from_file_location("native_build", ROOT / "native" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def say(text: str) -> None:
    print(f"[sanitize] {text}", flush=True)


def compiler() -> str:
    named = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not named or not shutil.which("cmake"):
        raise Missing("expected cmake and a C++ compiler on PATH; try apt-get install cmake g++")
    return named


def runtime(cxx: str) -> str:
    """Return the libraries that a process loads before all others: that of the address sanitizer,
    and C++'s, whose exceptions it has to see.

    Raises
    ------
    Missing
        The compiler has no sanitizers, or they do not run here.
    """
    if sys.platform != "linux":
        raise Missing(f"expected Linux, where LD_PRELOAD loads sanitizers, got {sys.platform}")
    WORK.mkdir(parents=True, exist_ok=True)
    trial = WORK / "trial.cpp"
    trial.write_text("int main() { return 0; }\n")
    program = str(trial.with_suffix(""))
    for command in ([cxx, *FLAGS, str(trial), "-o", program], [program]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise Missing(f"expected {cxx} to have sanitizers, got: {last}")
    name = "libclang_rt.asan-x86_64.so" if "clang" in cxx else "libasan.so"
    path = subprocess.run([cxx, f"-print-file-name={name}"], capture_output=True, text=True)
    found = Path(path.stdout.strip())
    if not found.is_absolute():
        raise Missing(f"expected {name} beside {cxx}, got none; try apt-get install libasan8")
    return f"{found.resolve()} libstdc++.so.6"


def compile_loops(cxx: str) -> None:
    """Build the loops; nothing is compiled that is current."""
    start, build = time.monotonic(), native_build()
    pybind11_dir = build.get_pybind11(ROOT / "build" / "native")
    configure = [
        *("cmake", "-S", str(SOURCE), "-B", str(WORK)),
        *("-DCMAKE_BUILD_TYPE=Debug", f"-DCMAKE_CXX_COMPILER={cxx}"),
        f"-DSANITIZE={';'.join(FLAGS)}",
        f"-Dpybind11_DIR={pybind11_dir}",
        f"-DPYTHON_EXECUTABLE={sys.executable}",
        f"-DPYTHON_INCLUDE_DIR={sysconfig.get_path('include')}",
        f"-DPYTHON_LIBRARY={build.python_library()}",
    ]
    build.call(configure, "see above")
    build.call(["cmake", "--build", str(WORK), "-j", str(build.count_jobs())], "see above")
    (MODULES / "vksched_native" / "__init__.py").write_text(build.INIT)
    say(f"built {MODULES} in {time.monotonic() - start:.0f} s")


def environ(library: str) -> dict[str, str]:
    return {
        **os.environ,
        "LD_PRELOAD": library,
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:"
        f"max_allocation_size_mb={MAX_MIB}:log_path={REPORT}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:log_path={REPORT}",
        "PYTHONMALLOC": "malloc",  # so that no array is a part of a larger piece of memory
        "PYTHONPATH": os.pathsep.join([str(MODULES), str(ROOT)]),
        "VKSCHED_NO_VULKAN": "1",
        "VKSCHED_TESTS": "quick",
    }


def find_planted(env: dict[str, str]) -> None:
    """Fail where a fault is not found."""
    library = str(MODULES / "vksched_native" / "libplanted.so")
    for word, program in PLANTED.items():
        command = [sys.executable, "-c", program, library]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        report = done.stderr + "".join(p.read_text(errors="replace") for p in WORK.glob("report.*"))
        if done.returncode == 0 or word not in report:
            raise SystemExit(f"[sanitize] expected {word!r} to be found, got: {report[-500:]}")
    say("planted faults are found")


def main(arguments: list[str]) -> int:
    try:
        cxx = compiler()
        env = environ(runtime(cxx))
    except Missing as error:
        say(str(error))
        return MISSING
    compile_loops(cxx)
    find_planted(env)
    wanted = arguments or [
        str(path) for name in TESTS for path in sorted((ROOT / "tests").glob(name))
    ]
    start = time.monotonic()
    where = "import vksched_native.cpu_kernels as l; assert l.__file__.startswith(%r), l.__file__"
    subprocess.run([sys.executable, "-c", where % str(MODULES)], env=env, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *wanted]
    for report in WORK.glob("report.*"):
        report.unlink()
    code = subprocess.run(command, env=env, cwd=ROOT).returncode
    for report in sorted(WORK.glob("report.*")):
        say("\n".join(report.read_text(errors="replace").splitlines()[:MAX_LINES]))
    say(f"tests ended with code {code} in {time.monotonic() - start:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
