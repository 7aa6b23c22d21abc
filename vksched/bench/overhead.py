"""Overhead of a run in addition to its kernels: an empty run, and the upload of weights."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from ..ir.tensor import input, weight
from ..ops import reduce_sum
from ..ops.lowering.vec4 import reading
from ..runtime.cpu.cpu_device import CpuDevice
from ..runtime.device import Device
from ..runtime.vulkan.shaders import load_shader
from ..runtime.vulkan.vulkan_device import VulkanDevice
from ..scheduler.scheduler import Scheduler
from .extra_metrics import ExtraMetric

UPLOAD_BYTES = 90 << 20
PARTS = 6
WINDOW_WORDS = 1 << 20
REPEATS = 5


def overhead_facts(device: str, size_bytes: int = UPLOAD_BYTES) -> Iterator[ExtraMetric]:
    """Yield the metrics of one device."""
    with Scheduler([device], on_device_failure="raise") as sched:
        yield _run_of_nothing(sched, device)
        yield _upload(sched, device, size_bytes)


def _run_of_nothing(sched: Scheduler, device: str) -> ExtraMetric:
    x = np.zeros(1, np.float32)
    run = sched.compile(input("x", (1,)) + 1.0)
    run(x=x)
    seconds = [_seconds(lambda: run(x=x)) for _ in range(20 * REPEATS)]
    run.close()
    note = "one number in, one op, one number out"
    return ExtraMetric(device, "a trivial run", statistics.median(seconds), "s", note=note)


def _upload(sched: Scheduler, device: str, size_bytes: int) -> ExtraMetric:
    rng = np.random.default_rng(0)
    shape = (PARTS, size_bytes // PARTS // 4)
    taken, plain = [], []
    for _ in range(REPEATS):  # interleaved, so that noise affects both equally
        arrays = rng.random(shape, dtype=np.float32)
        weights = [weight(array) for array in arrays]
        outputs = [reduce_sum(w[:1]) for w in weights]
        start = time.perf_counter()
        run = sched.compile(outputs)
        run()
        taken.append(time.perf_counter() - start)
        run.close()
        plain.append(_copy_s(sched.devices[0], arrays))
    value = arrays.nbytes / statistics.median(taken)
    copy_bytes_per_s = arrays.nbytes / statistics.median(plain)
    note = "weights at compile, with planning and a first run; beside plain copies of windows"
    return ExtraMetric(
        device, f"upload of {size_bytes >> 20} MB", value, "bytes/s", copy_bytes_per_s, note
    )


def _copy_s(device: Device, arrays: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    """Return the seconds of plain copies of arrays to device memory through staging buffers."""
    words = arrays.reshape(-1).view(np.uint32)
    if isinstance(device, CpuDevice):
        target = np.zeros_like(words)
        return _seconds(lambda: np.copyto(target, words))
    assert isinstance(device, VulkanDevice)
    context = device.context
    shader = load_shader(reading("ceiling_copy_uvec4", device.limits))
    window = min(WINDOW_WORDS, words.size // 4 * 4)
    pages = [context.host(window) for _ in range(2)]
    target_page = context.storage(window)
    values = shader.specialize({})
    recordings = []
    for page in pages:
        pipeline = context.pipeline(shader.spirv, [page, target_page], values, shader.push_bytes)
        recording = context.recording()
        recording.begin()
        recording.barrier("host", "shader")
        recording.barrier("shader", "shader")
        push = shader.pack_push((0, 0), {"count": window // 4})
        recording.dispatch(pipeline, (max(1, window // 4 // 64 // 8), 1, 1), push)
        recording.end()
        recordings.append(recording)

    def move() -> None:
        for number, start in enumerate(range(0, words.size - window + 1, window)):
            page, recording = pages[number % 2], recordings[number % 2]
            if recording.pending:
                recording.wait(60.0)
            page.array[:] = words[start : start + window]
            recording.submit()
        for recording in recordings:
            if recording.pending:
                recording.wait(60.0)

    seconds = _seconds(move)
    for recording in recordings:
        recording.close()
    for buffer in (*pages, target_page):
        buffer.close()
    return seconds


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
