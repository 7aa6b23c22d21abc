"""The companion to Kompute: overlapping submissions, harmless waits, errors with names."""

from __future__ import annotations

import gc
import json
import logging
import os
import platform
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pytest

from vksched.common.errors import (
    DeviceError,
    DeviceLost,
    DeviceTimeout,
    OutOfMemory,
    ShaderError,
)
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.buffers import HostBuffer
from vksched.runtime.vulkan.context import Context, Pipeline, Recording
from vksched.runtime.vulkan.driver_probe import manifests

pytestmark = pytest.mark.one_set

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT_S = 60.0
TRIES = 5

# to[to_offset + i] = from[from_offset + i] * FACTOR + add, for i < count
STEP = """
#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FACTOR = 1;
layout(std430, binding = 0) readonly buffer From { uint source[]; };
layout(std430, binding = 1) buffer To { uint target[]; };
layout(push_constant) uniform Push { uint from_offset, to_offset, count, add; };
void main() {
    for (uint i = gl_GlobalInvocationID.x; i < count; i += gl_NumWorkGroups.x * gl_WorkGroupSize.x)
        target[to_offset + i] = source[from_offset + i] * FACTOR + add;
}
"""
# A loop that no compiler takes away: as long as the test asks for.
SPIN = """
#version 450
layout(local_size_x_id = 0) in;
layout(std430, binding = 0) buffer To { uint target[]; };
layout(push_constant) uniform Push { uint turns; };
void main() {
    uint x = gl_GlobalInvocationID.x;
    for (uint i = 0; i < turns; i++) x = (x ^ (x << 13)) * 1664525u + (x >> 7) + i;
    if (gl_GlobalInvocationID.x < target.length()) target[gl_GlobalInvocationID.x] = x;
}
"""
LOCAL_SIZE = 64


def devices() -> list[dict[str, object]]:
    """The devices that can be opened, in loader order."""
    try:
        return [d for d in binding.describe_devices() if d["usable"]]
    except DeviceError:
        return []


DEVICES = devices()
needs_device = pytest.mark.skipif(
    not DEVICES, reason=f"no Vulkan device: {binding.available() or 'no driver lists one'}"
)
INDICES = [int(str(d["index"])) for d in DEVICES] or [
    pytest.param(0, marks=pytest.mark.skip(reason=f"no Vulkan: {binding.available()}"))
]


@pytest.fixture(scope="module")
def spirv(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bytes]:
    """Compile GLSL once per source."""
    folder = tmp_path_factory.mktemp("spirv")
    known: dict[str, bytes] = {}

    def compile_shader(source: str) -> bytes:
        if source not in known:
            path = folder / f"{len(known)}.comp"
            path.write_text(source)
            command = ["glslangValidator", "--target-env", "vulkan1.1", "-o", f"{path}.spv", path]
            subprocess.run(command, check=True, stdout=subprocess.PIPE)
            known[source] = Path(f"{path}.spv").read_bytes()
        return known[source]

    return compile_shader


@pytest.fixture(params=INDICES)
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """Each device in turn, opened."""
    opened = Context(request.param, f"vulkan:{request.param}")
    yield opened
    opened.close()


class Spinner:
    """A recording that keeps a device busy for about a given time."""

    def __init__(self, context: Context, code: bytes, target_s: float) -> None:
        self.buffer = context.host(LOCAL_SIZE * 4)
        self.pipeline = context.pipeline(code, [self.buffer], [LOCAL_SIZE], 4)
        self.recording = context.recording()
        turns, self.time_s = 1 << 10, 0.0
        while self.time_s < target_s and turns < 1 << 31:
            turns *= 2
            self.recording.begin()
            self.recording.dispatch(self.pipeline, (4, 1, 1), struct.pack("I", turns))
            self.recording.barrier("shader", "host")
            self.recording.end()
            self.time_s = min(self._timed_run() for _ in range(3))  # other load slows single runs

    def _timed_run(self) -> float:
        start = time.monotonic()
        run(self.recording)
        return time.monotonic() - start


def record_chain(
    recording: Recording,
    steps: list[tuple[Pipeline, tuple[int, int, int], tuple[int, int, int, int]]],
    barriers: bool = True,
) -> None:
    recording.begin()
    recording.barrier("host", "shader")
    for number, (pipeline, groups, push) in enumerate(steps):
        if number and barriers:
            recording.barrier("shader", "shader")
        recording.dispatch(pipeline, groups, struct.pack("4I", *push))
    recording.barrier("shader", "host")
    recording.end()


def run(recording: Recording) -> None:
    recording.submit()
    recording.wait(LIMIT_S)


# -- work ------------------------------------------------------------------------------------------


def test_chained_dispatches_see_each_other(
    context: Context, spirv: Callable[[str], bytes], rng: np.random.Generator
) -> None:
    count, links = 5003, 21
    window, page = context.host(count + 2), context.storage(2 * count)
    into = context.pipeline(spirv(STEP), [window, page], [LOCAL_SIZE, 3], 16)
    along = context.pipeline(spirv(STEP), [page, page], [LOCAL_SIZE, 3], 16)
    out = context.pipeline(spirv(STEP), [page, window], [LOCAL_SIZE, 1], 16)
    steps = [(into, (79, 1, 1), (1, 0, count, 7))]
    for link in range(links):
        here, there = (0, count) if link % 2 == 0 else (count, 0)
        steps.append((along, (1 + link, 1, 1), (here, there, count, link)))
    steps.append((out, (3, 1, 1), (count, 1, count, 0)))
    recording = context.recording()
    record_chain(recording, steps)
    before = context.counters.pipelines, context.counters.buffers, context.counters.recordings
    for _ in range(3):
        values = rng.integers(0, 1 << 32, count, dtype=np.uint32)
        window.array[:] = 0xABCD
        window.array[1:-1] = values
        expected = values * np.uint32(3) + np.uint32(7)
        for link in range(links):
            expected = expected * np.uint32(3) + np.uint32(link)
        run(recording)
        np.testing.assert_array_equal(window.array[1:-1], expected)
        assert window.array[0] == window.array[-1] == 0xABCD
    after = context.counters.pipelines, context.counters.buffers, context.counters.recordings
    assert before == after == (3, 2, 1)
    assert (context.counters.submissions, context.counters.fence_waits) == (3, 3)


def test_one_pipeline_serves_many_recordings(
    context: Context, spirv: Callable[[str], bytes]
) -> None:
    source, target = context.host(8), context.host(8 * 16)
    source.array[:] = np.arange(8)
    pipeline = context.pipeline(spirv(STEP), [source, target], [LOCAL_SIZE, 2], 16)
    recordings = []
    for number in range(16):
        recordings.append(context.recording())
        record_chain(
            recordings[-1], [(pipeline, (1 + number % 3, 1, 1), (0, 8 * number, 8, number))]
        )
    for recording in recordings:
        recording.submit()
    for recording in reversed(recordings):
        recording.wait(LIMIT_S)
    expected = np.arange(8) * 2 + np.arange(16)[:, None]
    np.testing.assert_array_equal(target.array.reshape(16, 8), expected)


def test_a_recording_can_be_recorded_again(context: Context, spirv: Callable[[str], bytes]) -> None:
    source, target = context.host(4), context.host(4)
    pipeline = context.pipeline(spirv(STEP), [source, target], [LOCAL_SIZE, 1], 16)
    recording = context.recording()
    for add in (5, 6):
        record_chain(recording, [(pipeline, (1, 1, 1), (0, 0, 4, add))])
        assert not recording.done()
        run(recording)
        assert recording.done()
        np.testing.assert_array_equal(target.array, np.full(4, add))


def test_closing_order_does_not_matter(context: Context, spirv: Callable[[str], bytes]) -> None:
    source, target = context.host(4), context.host(4)
    pipeline = context.pipeline(spirv(STEP), [source, target], [LOCAL_SIZE, 1], 16)
    recording = context.recording()
    record_chain(recording, [(pipeline, (1, 1, 1), (0, 0, 4, 9))])
    view = target.array
    for closed in (source, target, pipeline):
        closed.close()
        closed.close()
    run(recording)
    np.testing.assert_array_equal(view, np.full(4, 9))
    with pytest.raises(DeviceError, match="open buffer"):
        _ = target.array
    with pytest.raises(DeviceError, match="open buffer"):
        context.pipeline(spirv(STEP), [source, target], [LOCAL_SIZE, 1], 16)
    recording.begin()
    with pytest.raises(DeviceError, match="open pipeline"):
        recording.dispatch(pipeline, (1, 1, 1), bytes(16))
    recording.close()
    recording.close()
    with pytest.raises(DeviceError, match="open recording"):
        recording.submit()


# -- submitting and waiting ------------------------------------------------------------------------


def test_submit_returns_before_the_end(context: Context, spirv: Callable[[str], bytes]) -> None:
    spinner = Spinner(context, spirv(SPIN), 0.1)
    recording = spinner.recording
    seen = []
    for _ in range(TRIES):
        recording.submit()
        seen.append(recording.done())
        recording.wait(LIMIT_S)
        assert recording.done() and not recording.pending
    assert False in seen
    duration_s = recording.duration_s()
    assert duration_s is None or duration_s > 0


def test_a_timeout_harms_nothing(context: Context, spirv: Callable[[str], bytes]) -> None:
    spinner = Spinner(context, spirv(SPIN), 0.1)
    recording = spinner.recording
    expected = spinner.buffer.array.copy()
    timeouts = 0
    for _ in range(TRIES):
        spinner.buffer.array[:] = 0
        recording.submit()
        for _ in range(3):
            try:
                recording.wait(0.0)
            except DeviceTimeout as error:
                assert "VK_TIMEOUT" in str(error)
                timeouts += 1
        if recording.pending:
            assert recording.duration_s() is None
        recording.wait(LIMIT_S)
        np.testing.assert_array_equal(spinner.buffer.array, expected)
    assert timeouts


def test_misuse_is_an_error(context: Context, spirv: Callable[[str], bytes]) -> None:
    spinner = Spinner(context, spirv(SPIN), 0.1)
    recording, pipeline = spinner.recording, spinner.pipeline
    recording.submit()
    if recording.pending and not recording.done():
        with pytest.raises(DeviceError, match="pending one"):
            recording.begin()
    recording.wait(LIMIT_S)
    with pytest.raises(DeviceError, match=r"call begin\(\)"):
        recording.dispatch(pipeline, (1, 1, 1), bytes(4))
    recording.begin()
    with pytest.raises(DeviceError, match=r"call end\(\)"):
        recording.submit()
    for groups in ((0, 1, 1), (1, 1, 1 << 32), (1, -1, 1)):
        with pytest.raises(ValueError, match="groups in dimension"):
            recording.dispatch(pipeline, groups, bytes(4))
    for push in (b"", bytes(3), bytes(8)):
        with pytest.raises(ValueError, match="expected 4 bytes of push constants"):
            recording.dispatch(pipeline, (1, 1, 1), push)
    with pytest.raises(ValueError, match='"shader" or "host", got "queue"'):
        recording.barrier("queue", "shader")
    for time_s in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="0 s or more"):
            recording.wait(time_s)
    with pytest.raises(ShaderError, match="32-bit words"):
        context.pipeline(b"abc", [spinner.buffer], [], 4)
    with pytest.raises(ShaderError, match="at least one buffer"):
        context.pipeline(spirv(SPIN), [], [], 4)
    with pytest.raises(DeviceError, match="at least one word"):
        context.storage(0)


def test_python_threads_go_on_during_a_wait(
    context: Context, spirv: Callable[[str], bytes]
) -> None:
    spinner = Spinner(context, spirv(SPIN), 0.3)
    recording = spinner.recording
    late_steps = 0
    for _ in range(TRIES):
        entered = threading.Event()

        def wait(entered: threading.Event = entered) -> None:
            entered.set()
            recording.wait(LIMIT_S)

        recording.submit()
        waiter = threading.Thread(target=wait)
        start = time.monotonic()
        waiter.start()
        entered.wait()
        # With the interpreter's lock held in the wait, no step could come so late.
        while not recording.done():
            late_steps += time.monotonic() - start > spinner.time_s / 2
        waiter.join()
        if late_steps:
            break
    assert late_steps


def test_many_threads_wait_for_one_submission(
    context: Context, spirv: Callable[[str], bytes]
) -> None:
    source, target = context.host(1), context.host(1)
    pipeline = context.pipeline(spirv(STEP), [source, target], [LOCAL_SIZE, 1], 16)
    recording = context.recording()
    record_chain(recording, [(pipeline, (1, 1, 1), (0, 0, 1, 1))])
    start, done = threading.Barrier(5), threading.Barrier(5)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            for _ in range(50):
                start.wait(LIMIT_S)
                recording.wait(LIMIT_S)
                done.wait(LIMIT_S)
        except BaseException as error:
            failures.append(error)
            start.abort()
            done.abort()

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(50):
        source.array[0] = number
        recording.submit()
        start.wait(LIMIT_S)
        recording.wait(LIMIT_S)
        assert target.array[0] == number + 1
        if number % 2:  # submitted again while others may still be leaving their wait
            recording.submit()
        done.wait(LIMIT_S)
        recording.wait(LIMIT_S)
    for thread in threads:
        thread.join()
    assert not failures


def test_threads_submit_on_one_queue(context: Context, spirv: Callable[[str], bytes]) -> None:
    source, target = context.host(1), context.host(4)
    pipeline = context.pipeline(spirv(STEP), [source, target], [LOCAL_SIZE, 1], 16)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            recording = context.recording()
            record_chain(recording, [(pipeline, (1, 1, 1), (0, number, 1, number + 1))])
            for _ in range(50):
                run(recording)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    np.testing.assert_array_equal(target.array, [1, 2, 3, 4])
    assert context.counters.submissions == 200


PAIRS = [
    (a["index"], b["index"])
    for a, b in combinations_with_replacement(DEVICES, 2)
    if a is not b or a["type"] == "cpu"  # one GPU opened twice may well take turns
]


@pytest.mark.parametrize(
    "pair", PAIRS or [pytest.param(None, marks=pytest.mark.skip(reason="needs two devices"))]
)
def test_two_devices_run_at_the_same_time(
    pair: tuple[int, int], spirv: Callable[[str], bytes]
) -> None:
    contexts = [Context(index, f"vulkan:{index}") for index in pair]
    try:
        spinners = [Spinner(context, spirv(SPIN), 0.2) for context in contexts]
        if any(spinner.recording.duration_s() is None for spinner in spinners):
            pytest.skip("a device without timestamps")
        overlaps = []
        for _ in range(TRIES):
            start = time.monotonic()
            for spinner in spinners:
                spinner.recording.submit()
            for spinner in spinners:
                spinner.recording.wait(LIMIT_S)
            wall_s = time.monotonic() - start
            device_s = sum(spinner.recording.duration_s() or 0.0 for spinner in spinners)
            overlaps.append(device_s - wall_s)
            if overlaps[-1] > 0:
                break
        # One after the other, their times could not add up to more than the time that passed.
        assert max(overlaps) > 0, overlaps
    finally:
        for context in contexts:
            context.close()


# -- memory ----------------------------------------------------------------------------------------


def test_host_memory_is_one_persistent_view(context: Context) -> None:
    buffer = context.host(10)
    assert isinstance(buffer, HostBuffer)
    assert buffer.array is buffer.array
    assert buffer.array.dtype == np.uint32 and buffer.array.shape == (10,)
    assert buffer.array.flags.writeable and not buffer.array.any()
    assert buffer.size_bytes == 40


def test_too_much_memory_is_an_error_and_the_context_stays(
    context: Context, spirv: Callable[[str], bytes]
) -> None:
    for words in (context.max_buffer_bytes // 4 + 1, 1 << 40):
        with pytest.raises(OutOfMemory, match="expected at most"):
            context.storage(words)
        with pytest.raises(OutOfMemory, match="expected at most"):
            context.host(words)
    test_one_pipeline_serves_many_recordings(context, spirv)


def test_free_bytes_follow_what_is_allocated(context: Context) -> None:
    before = context.free_bytes()
    buffer = context.storage(1 << 18)
    during = context.free_bytes()
    buffer.close()
    assert 0 < during <= before
    assert context.counters.buffer_bytes == 1 << 20


EXHAUST = """
import resource, sys
from pathlib import Path
from vksched.common.errors import OutOfMemory
from vksched.runtime.vulkan.context import Context
context = Context(int(sys.argv[1]), "it")
warm = [context.storage(1 << 20), context.host(1 << 20)]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), used + (300 << 20)))
kept = []
kind = getattr(context, sys.argv[2])
try:
    for _ in range(64):
        kept.append(kind(8 << 20))
    print("never full")
except OutOfMemory as error:
    print("full:", error)
kept.clear()
again = context.host(1 << 20)
again.array[:] = 7
print(int(again.array.sum()) == 7 << 20, len(kept))
context.close()
"""


@needs_device
@pytest.mark.parametrize("kind", ["storage", "host"])
@pytest.mark.parametrize("index", [d["index"] for d in DEVICES if d["type"] == "cpu"])
def test_a_full_heap_is_an_error_and_the_context_stays(index: int, kind: str) -> None:
    done = python(EXHAUST, str(index), kind)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert lines[0].startswith("full: [") and "expected" in lines[0], done
    assert lines[-1] == "True 0"


NO_THREADS = """
import ctypes, sys
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.context import Context
from vksched.runtime.vulkan.shaders import load_shader
shader = load_shader("copy")
def wanted(size):
    values = shader.specialize({"LOCAL_X": size})
    return shader.spirv, values, len(shader.bindings), shader.push_bytes, 0
context = Context(int(sys.argv[1]), "it")
context.make_pipelines([wanted(64)])
libc, attributes = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_attr_init(attributes)
libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(1 << 46))
libc.pthread_setattr_default_np(attributes)
context.make_pipelines([wanted(size) for size in (32, 16, 8, 4)])
print(binding.companion.count_pipelines(context._device.manager)[0])
context.close()
"""


@needs_device
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how threads are refused is glibc's")
@pytest.mark.parametrize("index", [d["index"] for d in DEVICES if d["type"] == "cpu"])
def test_pipelines_are_created_where_no_thread_can_be_started(index: int) -> None:
    done = python(NO_THREADS, str(index))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["5"]


# -- devices ---------------------------------------------------------------------------------------


@needs_device
def test_devices_are_described_in_full() -> None:
    described = binding.describe_devices()
    assert [d["index"] for d in described] == list(range(len(described)))
    for device in described:
        assert device["type"] in ("discrete", "integrated", "virtual", "cpu", "other")
        assert device["name"] and int(device["uuid"], 16) and len(device["uuid"]) == 32
        assert tuple(map(int, device["api_version"].split("."))) >= (1, 1)
        assert device["driver_name"] or device["driver_version"]
        assert sum(heap["size_bytes"] for heap in device["heaps"] if heap["device_local"]) > 0
        for heap in device["heaps"]:
            assert (heap["budget_bytes"] is None) == (heap["usage_bytes"] is None)
        limits = device["limits"]
        assert limits["maxComputeWorkGroupInvocations"] >= 128
        assert len(limits["maxComputeWorkGroupSize"]) == 3
        assert min(limits["maxComputeWorkGroupCount"]) >= 65535
        assert limits["maxComputeSharedMemorySize"] >= 16384
        assert limits["maxPushConstantsSize"] >= 128
        assert limits["maxStorageBufferRange"] >= 1 << 27
        assert limits["maxMemoryAllocationSize"] >= 1 << 30
        assert device["subgroup_size"] >= 1 and "basic" in device["subgroup_operations"]
        assert device["features"]["int64"] or "llvmpipe" not in device["name"]
        assert device["timestamp_period_ns"] > 0 or not device["timestamp_valid_bits"]
        family = device["queue_families"][device["compute_queue_family"]]
        assert "compute" in family["flags"]
        assert family["timestamp_valid_bits"] == device["timestamp_valid_bits"]
        json.dumps(device)


@needs_device
@pytest.mark.parametrize("index", [-1, len(DEVICES), 1000])
def test_an_absent_device_is_an_error(index: int) -> None:
    with pytest.raises(DeviceError, match="expected an index below"):
        Context(index, "vulkan:absent")


@needs_device
def test_an_unusable_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    described = [dict(d, usable=False, why="too old") for d in binding.describe_devices()]
    monkeypatch.setattr("vksched.runtime.vulkan.context.describe_devices", lambda known: described)
    with pytest.raises(DeviceError, match="too old"):
        Context(0, "vulkan:0")


def test_native_errors_become_ours(context: Context) -> None:
    from vksched_native import companion

    class Broken:
        pending = False

        def submit(self) -> None:
            raise self.error

        def __init__(self, error: RuntimeError) -> None:
            self.error = error

    assert issubclass(companion.VulkanError, RuntimeError)
    for native, ours in (
        (companion.DeviceLost, DeviceLost),
        (companion.OutOfMemory, OutOfMemory),
        (companion.Timeout, DeviceTimeout),
        (companion.VulkanError, DeviceError),
    ):
        assert issubclass(native, companion.VulkanError)
        recording = context.recording()
        saved, recording._native = recording._native, Broken(native("vkQueueSubmit: it"))
        with pytest.raises(ours, match=r"\[submit\] vulkan:.*vkQueueSubmit: it"):
            recording.submit()
        recording._native = saved


# -- closing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", INDICES)
def test_closing_waits_and_may_be_repeated(index: int, spirv: Callable[[str], bytes]) -> None:
    context = Context(index, f"vulkan:{index}")
    spinner = Spinner(context, spirv(SPIN), 0.1)
    expected = spinner.buffer.array.copy()
    view = spinner.buffer.array
    view[:] = 0
    spinner.recording.submit()
    context.close()
    context.close()
    np.testing.assert_array_equal(view, expected)  # a view outlives its context
    for use in (lambda: context.storage(1), context.recording, context.free_bytes):
        with pytest.raises(DeviceError, match="closed one"):
            use()
    with pytest.raises(DeviceError, match="closed one"):
        spinner.recording.wait(0.0)


@pytest.mark.parametrize("index", INDICES)
def test_a_dropped_context_closes_itself(index: int, spirv: Callable[[str], bytes]) -> None:
    context = Context(index, f"vulkan:{index}")
    Spinner(context, spirv(SPIN), 0.01).recording.submit()
    device = context._device
    del context
    gc.collect()
    assert device.closed and device.manager is None


@needs_device
@pytest.mark.parametrize("limit_s", [0.05, 60.0])
def test_a_device_does_not_end_below_a_call_that_an_interrupt_left(
    limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vksched.runtime.vulkan.device_handle.CLOSE_LIMIT_S", limit_s)
    context = Context(INDICES[0], "it")
    begun, go_on = threading.Event(), threading.Event()

    def compile_long() -> None:
        with context.keep_open():
            begun.set()
            go_on.wait(LIMIT_S)

    threads = [threading.Thread(target=work) for work in (compile_long, context.close)]
    threads[0].start()
    assert begun.wait(LIMIT_S)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive() == (limit_s > 1), "closing waits, within its limit"
    assert context._device.closed and context._device.manager is not None
    go_on.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert context._device.manager is None, "the last one ends it"


OPEN_AT_EXIT = """
import struct, sys
from pathlib import Path
from vksched.runtime.vulkan.context import Context
code = Path(sys.argv[1]).read_bytes()
contexts = [Context(int(i), f"vulkan:{i}") for i in sys.argv[2:] for _ in range(2)]
kept = []
for context in contexts:
    buffer = context.host(64)
    pipeline = context.pipeline(code, [buffer], [64], 4)
    recording = context.recording()
    recording.begin()
    recording.dispatch(pipeline, (1, 1, 1), struct.pack("I", 1 << 18))
    recording.end()
    recording.submit()
    kept.append((buffer, buffer.array[3:], pipeline, recording, context.storage(1 << 16)))
print(len(kept))
"""


def python(code: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs code in another Python; warnings there are errors too."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **changes}
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)


@needs_device
@pytest.mark.parametrize("index", INDICES)
def test_the_interpreter_ends_while_a_device_still_works(
    index: int, spirv: Callable[[str], bytes], tmp_path: Path
) -> None:
    (tmp_path / "spin.spv").write_bytes(spirv(SPIN))
    code = OPEN_AT_EXIT.replace("(1, 1, 1)", "(4096, 1, 1)")
    code = f"import vksched.runtime.vulkan.device_handle as k\nk.CLOSE_LIMIT_S = 0.05\n{code}"
    command = [sys.executable, "-c", code, str(tmp_path / "spin.spv"), str(index)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "2\n"), done
    assert "their memory is not freed" in done.stderr


@needs_device
def test_the_interpreter_ends_with_open_contexts(
    spirv: Callable[[str], bytes], tmp_path: Path
) -> None:
    (tmp_path / "spin.spv").write_bytes(spirv(SPIN))
    done = python(OPEN_AT_EXIT, str(tmp_path / "spin.spv"), *map(str, INDICES))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{2 * len(INDICES)}\n", "")


# -- drivers and loading ---------------------------------------------------------------------------

LIST = """
from vksched.common.errors import DeviceError
from vksched.runtime.vulkan import binding
from vksched.runtime.vulkan.context import Context
try:
    print([d["name"] for d in binding.describe_devices()])
except DeviceError as error:
    print("DeviceError:", error)
try:
    Context(0, "vulkan:0").close()
except DeviceError as error:
    print("DeviceError:", error)
"""
native_only = pytest.mark.skipif(
    binding.available() is not None, reason=f"no Vulkan: {binding.available()}"
)


def manifest(folder: Path, library: str) -> str:
    path = folder / "broken_icd.json"
    content = {"library_path": library, "api_version": "1.1.0"}
    path.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": content}))
    return str(path)


LOADED = """
import sys
from vksched.runtime.vulkan import binding

def loaded():
    maps = open("/proc/self/maps").read()
    return any(name in maps for name in sys.argv[1:])

binding.describe_devices()
out = [loaded()]
with binding.keep_drivers_loaded():
    binding.describe_devices()
    with binding.keep_drivers_loaded():
        binding.describe_devices()
    out.append(loaded())
out.append(loaded())
print(out)
"""


@needs_device
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system tells no mappings")
@pytest.mark.skipif(
    not hasattr(binding.companion, "release_drivers"), reason="native modules of before"
)
def test_drivers_stay_loaded_as_long_as_they_are_retained() -> None:
    named = [json.loads(Path(path).read_text())["ICD"]["library_path"] for path in manifests()]
    done = python(LOADED, *map(os.path.basename, named))
    assert done.returncode == 0, done.stderr
    before, inside, after = json.loads(done.stdout.lower())
    if before:
        pytest.skip("these drivers never leave memory")
    assert inside and not after


@native_only
@pytest.mark.parametrize("library", ["./absent.so", "./broken.so", None])
def test_a_driver_that_does_not_load_is_one_clear_error(
    library: str | None, tmp_path: Path
) -> None:
    (tmp_path / "broken.so").write_text("not a library")
    files = manifest(tmp_path, library) if library else str(tmp_path / "absent.json")
    done = python(LIST, VK_DRIVER_FILES=files, VK_ICD_FILENAMES=files)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 2 and "Traceback" not in done.stderr
    for line in lines:
        assert line.startswith("DeviceError: [devices] expected a Vulkan driver, got none")
        assert "VK_ERROR_INCOMPATIBLE_DRIVER" in line and "try `make setup`" in line


@needs_device
def test_a_broken_driver_does_not_hide_the_others(tmp_path: Path) -> None:
    files = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    system = sorted(map(str, Path("/usr/share/vulkan/icd.d").glob("*.json")))
    files = os.pathsep.join([manifest(tmp_path, "./absent.so"), files or os.pathsep.join(system)])
    done = python(LIST, VK_DRIVER_FILES=files, VK_ICD_FILENAMES=files)
    assert done.returncode == 0 and "DeviceError" not in done.stdout, done


@native_only
def test_loading_leaves_the_process_as_it_was() -> None:
    code = (
        "import logging, sys\n"
        "from vksched.runtime.vulkan import binding\n"
        "print(binding.available(), logging.getLogger().handlers, 'kp' in sys.modules)"
    )
    done = python(code)
    assert (done.stdout, done.stderr) == ("None [] False\n", "")
    assert logging.getLogger("kp").handlers == []


def test_own_drivers_are_added_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for name in (*binding.DRIVER_SELECTORS, "XDG_DATA_DIRS"):
        monkeypatch.setenv(name, "before")
    folder = tmp_path / "share" / "vksched" / "vulkan" / "icd.d"
    folder.mkdir(parents=True)
    for name in binding.DRIVER_SELECTORS:
        monkeypatch.delenv(name)
    binding._add_own_drivers()
    assert os.environ["XDG_DATA_DIRS"] == "before"  # there is none
    (folder / "own.json").write_text("{}")
    monkeypatch.setenv("VK_DRIVER_FILES", "chosen")
    binding._add_own_drivers()
    assert os.environ["XDG_DATA_DIRS"] == "before"  # the user has chosen
    monkeypatch.delenv("VK_DRIVER_FILES")
    for _ in range(2):
        binding._add_own_drivers()
        assert os.environ["XDG_DATA_DIRS"] == f"before:{tmp_path}/share/vksched"
    monkeypatch.delenv("XDG_DATA_DIRS")
    binding._add_own_drivers()
    assert os.environ["XDG_DATA_DIRS"] == f"/usr/local/share:/usr/share:{tmp_path}/share/vksched"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ModuleNotFoundError("No module named 'vksched_native'"), "not built for this Python"),
        (ImportError("libvulkan.so.1: cannot open shared object file"), "no Vulkan loader"),
        (ImportError("undefined symbol"), "native/build.py --force"),
    ],
)
def test_missing_modules_are_explained(
    error: ImportError, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(binding, "load", fail)
    reason = binding.available()
    assert reason is not None and message in reason and "try " in reason
    with pytest.raises(DeviceError, match="expected the native modules, got none"):
        binding.describe_devices()


# -- validation ------------------------------------------------------------------------------------

LAYERS = [Path(f"{f}/vulkan/explicit_layer.d") for f in ("/usr/share", "/usr/local/share", "/etc")]
LAYER = next((p for f in LAYERS if (p := f / "VkLayer_khronos_validation.json").exists()), None)


def validated(barriers: str, code: bytes, index: int, folder: Path) -> str:
    """Run the chain below under the layer with synchronization validation; returns its words."""
    assert LAYER is not None
    manifest = LAYER.read_text()
    version = json.loads(manifest)["layer"]["api_version"]
    old = tuple(map(int, version.split("."))) < (1, 3, 275)
    feature = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT"
    settings = [
        "debug_action = VK_DBG_LAYER_ACTION_LOG_MSG",
        "report_flags = error,warn",
        "log_filename = stdout",
        f"enables = {feature}" if old else "validate_sync = true",
    ]
    shaders = "syncval_shader_accesses_heuristic"  # newer layers look at storage buffers only then
    settings += [f"{shaders} = true"] if json.dumps(shaders) in manifest else []
    text = "".join(f"khronos_validation.{line}\n" for line in settings)
    (folder / "vk_layer_settings.txt").write_text(text)
    (folder / "step.spv").write_bytes(code)
    chain = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from test_companion import run_validated_chain\n"
        "run_validated_chain(Path(sys.argv[2]).read_bytes(), int(sys.argv[3]), sys.argv[4])"
    )
    done = python(
        chain,
        *(str(Path(__file__).parent), str(folder / "step.spv"), str(index), barriers),
        VK_INSTANCE_LAYERS="VK_LAYER_KHRONOS_validation",
        VK_LAYER_SETTINGS_PATH=str(folder / "vk_layer_settings.txt"),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_validated_chain(code: bytes, index: int, barriers: str) -> None:
    """Run in the child: everything a split does, twice, and an allocation that fails."""
    context = Context(index, f"vulkan:{index}")
    window, first, second = context.host(64), context.storage(64), context.storage(64)
    into = context.pipeline(code, [window, first], [LOCAL_SIZE, 3], 16)
    along = context.pipeline(code, [first, second], [LOCAL_SIZE, 3], 16)
    out = context.pipeline(code, [second, window], [LOCAL_SIZE, 3], 16)
    recording = context.recording()
    steps = [(p, (1, 1, 1), (0, 0, 64, 1)) for p in (into, along, out)]
    for _ in range(2):
        record_chain(recording, steps, barriers == "with")
        for _ in range(2):
            window.array[:] = 1
            run(recording)
            assert barriers != "with" or (window.array == 40).all()
            recording.duration_s()
    context.free_bytes()
    for closed in (along, recording, second):
        closed.close()
    context.recording().begin()
    recording = context.recording()
    record_chain(recording, steps[:1])
    recording.submit()
    context.close()


@needs_device
@pytest.mark.skipif(LAYER is None, reason="no validation layer; `make validate` installs it")
@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="no glslangValidator")
@pytest.mark.parametrize("index", INDICES)
def test_validation_is_silent(index: int, spirv: Callable[[str], bytes], tmp_path: Path) -> None:
    planted = validated("without", spirv(STEP), index, tmp_path)
    assert "SYNC-HAZARD-READ-AFTER-WRITE" in planted  # else its silence would mean nothing
    assert validated("with", spirv(STEP), index, tmp_path) == ""
