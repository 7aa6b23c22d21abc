"""Peak throughput of a device, measured in the same run as its results.

flops_per_s: maximum rate of a multiply-add loop, over vector widths and numbers of chains.
bytes_per_s: maximum rate of reads and writes of a copy of up to 16 M values, over widths and
groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..ops.lowering.vec4 import WORDS_64, reads_64
from ..runtime.cpu.cpu_device import CpuDevice
from ..runtime.device import Device
from ..runtime.vulkan.context import Context, Pipeline, Recording
from ..runtime.vulkan.shaders import load_shader
from ..runtime.vulkan.vulkan_device import VulkanDevice
from ..topology.limits import Limits

FMA = {
    "ceiling_fma_float": (1, 8),
    "ceiling_fma_vec4_2": (4, 2),
    "ceiling_fma_vec4_4": (4, 4),
    "ceiling_fma_vec4_8": (4, 8),
}
"""Vector width and number of chains."""
COPY = {"ceiling_copy_uint": 1, "ceiling_copy_uvec4": 4, "ceiling_copy_uvec4_64": 4}
"""Words per value; the last are moved as 64-bit integers if kernels support that."""
STEPS = 4
"""Multiply-adds of a chain per iteration."""
MAX_ROUNDS = 60_000
"""Mesa's llvmpipe exits all loops after 65,535 iterations."""
COPY_WORDS = 1 << 24
LOCAL_SIZES, PARTS = (8, 64), (1, 8, 64, 512)
"""Parameters of copies: workgroup sizes, and values per invocation."""
TRIAL_S, TIMEOUT_S = 0.03, 60.0
REPEATS = 3


@dataclass(frozen=True)
class PeakRates:
    """Measured peak rates, and the shader or call of each."""

    flops_per_s: float
    bytes_per_s: float
    arithmetic: str
    copy: str

    def share(self, flops: float, moved: float, seconds: float) -> float:
        """Return the share of its limiting peak rate that a kernel reaches."""
        return max(flops / self.flops_per_s, moved / self.bytes_per_s) / seconds

    def bound(self, flops: float, moved: float) -> str:
        """Return the limiting resource at full efficiency: "arithmetic" or "bytes"."""
        return "arithmetic" if flops / self.flops_per_s > moved / self.bytes_per_s else "bytes"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_ceiling(device: Device) -> PeakRates:
    """Return the peak rates of a device."""
    if isinstance(device, VulkanDevice):
        flops, arithmetic = max(_rates_of_fma(device.context, device.limits))
        moved, copy = max(
            _rates_of_copy(device.context, device.spec.max_buffer_bytes, device.limits)
        )
        return PeakRates(flops, moved, arithmetic, copy)
    assert isinstance(device, CpuDevice)
    a = np.random.default_rng(0).random((1024, 1024), dtype=np.float32)
    out, source = np.empty_like(a), np.ones(COPY_WORDS, np.float32)
    target = np.zeros_like(source)
    flops = 2 * 1024**3 / _fastest_s(lambda: np.matmul(a, a, out=out))
    moved = 2 * source.nbytes / _fastest_s(lambda: np.copyto(target, source))
    return PeakRates(flops, moved, "numpy.matmul of 1024 x 1024", "numpy.copyto")


def _rates_of_fma(context: Context, limits: Limits) -> Iterator[tuple[float, str]]:
    for name, (width, chains) in FMA.items():
        shader, groups, rounds = load_shader(name), 64, 1000
        local = shader.specialize({})[0]
        each = 2 * width * chains * STEPS * local
        while True:
            buffer = context.storage(groups * local)
            pipeline = context.pipeline(shader.spirv, [buffer], shader.specialize({}), 16)
            push = shader.pack_push((0,), {"rounds": rounds, "scale": 0.999, "shift": 1e-3})
            seconds = _submit_s(context, pipeline, groups, push, 1)
            enough = seconds >= TRIAL_S or groups * 16 > limits.max_groups[0]
            if enough:
                seconds = min(seconds, _submit_s(context, pipeline, groups, push))
            pipeline.close()
            buffer.close()
            if enough:
                break
            wanted = max(2.0, min(16.0, 1.2 * TRIAL_S / seconds))
            if rounds * wanted <= MAX_ROUNDS / 8:
                rounds = int(rounds * wanted)
            else:
                groups = int(groups * wanted)
        yield each * groups * rounds / seconds, f"{name}, {groups} groups"


def _rates_of_copy(
    context: Context, max_buffer_bytes: int, limits: Limits
) -> Iterator[tuple[float, str]]:
    words = min(COPY_WORDS, max_buffer_bytes // 4, context.free_bytes() // 12) // 4096 * 4096
    source, target = context.storage(words), context.storage(words)
    # untouched memory maps to one page of zeros, which stays in a cache
    with _recorded(context, lambda recording: recording.copy(target, source, 0, 0, words)) as write:
        write()
    for name, width in COPY.items():
        if name.endswith(WORDS_64) and not reads_64(limits):
            continue
        shader = load_shader(name)
        push = shader.pack_push((0, 0), {"count": words // width})
        for local in LOCAL_SIZES:
            constants = shader.specialize({"LOCAL_X": local})
            whole = words // width // local
            pipeline = context.pipeline(shader.spirv, [source, target], constants, len(push))
            wanted = (max(1, whole // part) for part in PARTS)
            for groups in sorted({min(groups, limits.max_groups[0]) for groups in wanted}):
                seconds = _submit_s(context, pipeline, groups, push)
                yield 8 * words / seconds, f"{name}, {groups} groups of {local}"
            pipeline.close()
    source.close()
    target.close()


def _submit_s(
    context: Context, pipeline: Pipeline, groups: int, push: bytes, repeats: int = REPEATS
) -> float:
    """Return the seconds of a dispatch: device time if available, else including submission
    overhead.
    """

    def record(recording: Recording) -> None:
        recording.dispatch(pipeline, (groups, 1, 1), push)

    with _recorded(context, record) as run:
        return min(_call_times(run, repeats))


@contextmanager
def _recorded(
    context: Context, record: Callable[[Recording], None]
) -> Iterator[Callable[[], float | None]]:
    """Yield a function that submits recorded commands and waits for them; it returns device
    seconds.
    """
    recording = context.recording()
    recording.begin()
    record(recording)
    recording.end()

    def run() -> float | None:
        recording.submit()
        recording.wait(TIMEOUT_S)
        return recording.duration_s()

    yield run
    recording.close()


def _fastest_s(call: Callable[[], object]) -> float:
    def timed() -> None:
        call()

    return min(_call_times(timed, REPEATS))


def _call_times(call: Callable[[], float | None], repeats: int) -> list[float]:
    """Return the seconds of calls, as returned by them or measured, without the first."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        measured_s = call()
        times.append(measured_s or time.perf_counter() - start)
    return times[1:]
