"""Waits that poll the fence around its expected end: on GPUs, or where a test asks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import needs_linux
from test_companion import (
    INDICES,
    LIMIT_S,
    LOCAL_SIZE,
    SPIN,
    STEP,
    TRIES,
    Spinner,
    context,
    record_chain,
    run,
    spirv,
)

from vksched.common.errors import DeviceTimeout
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.context import Context, Recording

__all__ = ["context", "spirv"]  # fixtures
pytestmark = [
    pytest.mark.one_set,
    pytest.mark.skipif(
        not hasattr(binding.companion, "polled_waits"), reason="the native module is an older build"
    ),
]
RUNS = 200
CHILD = """
import sys
from pathlib import Path
from test_companion import LOCAL_SIZE, record_chain
from vksched.common.errors import DeviceLost
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.context import Context

context = Context(int(sys.argv[1]), "vulkan")
binding.companion.poll_software_fences(True)
buffer = context.host(4)
pipeline = context.pipeline(Path(sys.argv[2]).read_bytes(), [buffer, buffer], [LOCAL_SIZE, 1], 16)
recording = context.recording()
record_chain(recording, [(pipeline, (1, 1, 1), (0, 1, 1, 1))])
"""
LOSES = """
recording.submit()
for call in (lambda: recording.wait(10.0), lambda: recording.wait(10.0), recording.done):
    try:
        call()
    except DeviceLost:
        print("lost", flush=True)
"""
COUNTS = """
for number in range(20):
    buffer.array[:] = number, 0, 0, 0
    recording.submit()
    recording.wait(10.0)
    assert buffer.array[1] == number + 1
print(binding.companion.polled_waits() > 0)
"""
LOST = "int vkGetFenceStatus(void *device, void *fence) { return -4; }"
THIRD = """
#include <dlfcn.h>
int vkGetFenceStatus(void *device, void *fence)
{
    static int calls;
    int (*wait)(void *, unsigned, void **, unsigned, unsigned long long) =
        dlsym(dlopen("libvulkan.so.1", RTLD_LAZY), "vkWaitForFences");
    return ++calls % 3 ? 1 : wait(device, 1, &fence, 1, ~0ull);
}
"""
"""A fence that two calls find unsignalled: other threads may take the core from a CPU driver."""


@pytest.fixture
def polling() -> Iterator[None]:
    binding.companion.poll_software_fences(True)
    yield
    binding.companion.poll_software_fences(False)


def short(context: Context, code: bytes) -> tuple[Recording, Callable[[int], int]]:
    """Return a recording of some microseconds, and a function that runs it: n -> n + 1."""
    source, target = context.host(1), context.host(1)
    pipeline = context.pipeline(code, [source, target], [LOCAL_SIZE, 1], 16)
    recording = context.recording()
    record_chain(recording, [(pipeline, (1, 1, 1), (0, 0, 1, 1))])

    def step(number: int) -> int:
        source.array[0] = number
        run(recording)
        return int(target.array[0])

    return recording, step


def polled(work: Callable[[], object]) -> int:
    """Return the number of waits of some work that polling ended."""
    before = binding.companion.polled_waits()
    work()
    return int(binding.companion.polled_waits()) - before


def test_cpu_drivers_keep_their_cores(context: Context, spirv: Callable[[str], bytes]) -> None:
    if not context.is_host:
        pytest.skip("this device is no CPU driver")
    _, step = short(context, spirv(STEP))
    assert polled(lambda: [step(number) for number in range(RUNS)]) == 0


@pytest.mark.usefixtures("polling")
def test_results_are_there_after_the_wait(context: Context, spirv: Callable[[str], bytes]) -> None:
    recording, step = short(context, spirv(STEP))
    assert [step(number) for number in range(RUNS)] == [*range(1, RUNS + 1)]
    assert recording.done() and not recording.pending
    recording.wait(0.0)  # nothing is pending


@pytest.mark.usefixtures("polling")
def test_long_waits_sleep(context: Context, spirv: Callable[[str], bytes]) -> None:
    """The duration of the spinner is known from the search for its number of turns.

    A thread that loses its core between two polls for all of 0.1 s finds the fence signalled.
    """
    recording = Spinner(context, spirv(SPIN), 0.1).recording
    assert any(polled(lambda: [run(recording) for _ in range(TRIES)]) == 0 for _ in range(3))


@pytest.mark.usefixtures("polling")
def test_a_timeout_harms_nothing(context: Context, spirv: Callable[[str], bytes]) -> None:
    spinner = Spinner(context, spirv(SPIN), 0.02)
    expected, timeouts = spinner.buffer.array.copy(), 0
    for limit_s in (0.0, 1e-6, 5e-5, 1e-3):
        for _ in range(TRIES):
            spinner.buffer.array[:] = 0
            spinner.recording.submit()
            try:
                spinner.recording.wait(limit_s)
            except DeviceTimeout as error:
                assert "VK_TIMEOUT" in str(error)
                assert spinner.recording.pending
                timeouts += 1
            spinner.recording.wait(LIMIT_S)
            np.testing.assert_array_equal(spinner.buffer.array, expected)
    assert timeouts


@pytest.mark.usefixtures("polling")
def test_threads_poll_one_fence(context: Context, spirv: Callable[[str], bytes]) -> None:
    recording, step = short(context, spirv(STEP))
    ended, failures = threading.Event(), list[BaseException]()

    def wait() -> None:
        try:
            while not ended.is_set():
                recording.wait(LIMIT_S)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(RUNS):
        assert step(number) == number + 1
    ended.set()
    for thread in threads:
        thread.join()
    assert not failures


@needs_linux
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(
    ("status", "code", "printed"),
    [(LOST, LOSES, ["lost"] * 3), (THIRD, COUNTS, ["True"])],
    ids=["lost", "signalled"],
)
def test_the_status_of_the_fence_ends_a_wait(
    index: int,
    status: str,
    code: str,
    printed: list[str],
    spirv: Callable[[str], bytes],
    tmp_path: Path,
) -> None:
    """vkGetFenceStatus is replaced in a process of its own."""
    (tmp_path / "status.c").write_text(status)
    (tmp_path / "step.spv").write_bytes(spirv(STEP))
    library = str(tmp_path / "status.so")
    compiler = ["cc", "-shared", "-fPIC", "-o", library, str(tmp_path / "status.c"), "-ldl"]
    if shutil.which("cc") is None or subprocess.run(compiler, capture_output=True).returncode:
        pytest.skip("no C compiler here")
    done = subprocess.run(
        [sys.executable, "-c", CHILD + code, str(index), str(tmp_path / "step.spv")],
        env={**os.environ, "LD_PRELOAD": library, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.stdout.split() == printed, done.stderr
