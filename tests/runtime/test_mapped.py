"""A driver that maps memory to nowhere and says that all is well, planted before the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_companion import DEVICES, ROOT, needs_device

COMPILER = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
# vkMapMemory as the loader has it, until `answer` is set to an address to give instead.
PLANTED = """
#include <dlfcn.h>
#include <stdint.h>
long answer = 1;
int vkMapMemory(void *device, uint64_t memory, uint64_t offset, uint64_t size, uint32_t flags,
                void **data)
{
    if (answer != 1) {
        *data = (void *)answer;
        return 0;
    }
    int (*real)(void *, uint64_t, uint64_t, uint64_t, uint32_t, void **) =
        (int (*)(void *, uint64_t, uint64_t, uint64_t, uint32_t, void **))
            dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkMapMemory");
    return real(device, memory, offset, size, flags, data);
}
"""
MAP = """
import ctypes, sys
import numpy as np
from vksched.common.errors import OutOfMemory
from vksched.runtime.vulkan.context import Context
answer = ctypes.c_long.in_dll(ctypes.CDLL(None), "answer")
context = Context(int(sys.argv[1]), "it")
storage = context.storage(1 << 10)
with storage.mapped() as words:
    seen = words is not None
answer.value = int(sys.argv[2])
try:
    context.host(1 << 20)
except OutOfMemory as error:
    print(error)
try:
    with storage.mapped() as words:
        print("nothing was mapped" if words is None else words.size)
except OutOfMemory as error:
    print(error if seen else "not seen")
answer.value = 1
storage.close()
again = context.host(1 << 20)
again.array[:] = 7
print(int(again.array.sum()) == 7 << 20)
context.close()
"""


def to_plant(code: str, folder: Path) -> Path:
    """Return a library of C to load before the others."""
    if COMPILER is None or sys.platform != "linux":
        pytest.skip("no compiler of C, or no LD_PRELOAD")
    source, built = folder / "planted.c", folder / "planted.so"
    source.write_text(code)
    command = [COMPILER, "-shared", "-fPIC", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return built


def run_with(planted: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process that loads a library before the others."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "LD_PRELOAD": str(planted)}
    # a layer takes the planted answer for the program's fault
    environ.pop("VK_INSTANCE_LAYERS", None)
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return to_plant(PLANTED, tmp_path_factory.mktemp("planted"))


@needs_device
@pytest.mark.parametrize("answer", [-1, 0])
@pytest.mark.parametrize("index", [d["index"] for d in DEVICES if d["type"] == "cpu"])
def test_memory_that_is_mapped_to_nowhere_is_no_memory(
    index: int, answer: int, planted: Path
) -> None:
    done = run_with(planted, MAP, str(index), str(answer))
    assert done.returncode == 0, done
    host, storage, *after = done.stdout.splitlines()
    # on CPU devices the library maps once when it binds, and says it there
    message = "MAP_FAILED" in host or "VK_ERROR_OUT_OF_DEVICE_MEMORY" in host
    assert host.startswith("[") and "expected" in host and message, host
    assert storage in ("nothing was mapped",) or "MAP_FAILED" in storage, storage
    assert after == ["True"]
