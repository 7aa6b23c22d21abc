"""Benchmarker of a Vulkan device: device timestamps of calls, and the two steps of each transfer.

    into   host: array -> staging       device: staging -> memory
    out    device: memory -> staging    host: staging -> new array

Examples: tests/tuning/test_calibrate.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from ..common.dtypes import WORD_BYTES, TensorType
from ..common.errors import UnsupportedOp
from ..ir.op import Call, Op
from ..ops.lowering.lower import choice_of
from ..plan.types.offsets import aligned
from ..runtime.device import Device
from ..runtime.vulkan.buffers import Buffer
from ..runtime.vulkan.context import Context, Recording
from ..runtime.vulkan.vulkan_device import VulkanDevice
from ..trace import Clock
from .benchmarker import (
    COLD_BYTES,
    ROUNDS,
    SHARE,
    TIMEOUT_S,
    DeviceBenchmarker,
    Transfer,
    lower_quartile,
)
from .kernel_benchmark import CallBench

ROUND_S = 0.004
"""Duration of one submission, in which short calls are repeated."""
MAX_REPEATS = 40
MAX_BUFFER_SETS = 128
"""Maximum number of weight sets, which equals the number of calls: more sets would not be read."""
QUICK_SETS = 4
"""Number of weight sets in a quick measurement of a software device, which fills them slowly."""


class VulkanBenchmarker(DeviceBenchmarker):
    """Measures one Vulkan device."""

    def __init__(self, device: Device, host: Device, clock: Clock, quick: bool = False) -> None:
        assert isinstance(device, VulkanDevice)
        super().__init__(device, host, clock, quick)
        self._vulkan = device

    def seconds(self, op: Op, call: Call, weights: Collection[int] = ()) -> float:
        variant = choice_of(op, call).variant
        sets = self._sets([call.inputs[position] for position in weights])
        with CallBench(self._vulkan, op, call, weights, sets) as bench:
            start_s = time.perf_counter()
            bench.run(variant, 1)
            if self.quick and self.spec.limits.software:
                self.readied_s += time.perf_counter() - start_s
            once_s = bench.run(variant, 1)
            repeat = max(1, min(MAX_REPEATS, math.ceil(ROUND_S / max(once_s, 1e-9))))
            if repeat == 1 and once_s > ROUNDS * ROUND_S:
                return once_s
            return lower_quartile([bench.run(variant, repeat) for _ in range(4)]) / repeat

    def _sets(self, weights: Sequence[TensorType]) -> int:
        """Return the number of weight sets of a call."""
        each = [WORD_BYTES * aligned(type_.words) for type_ in weights]
        in_all = sum(each)
        if not in_all:
            return 1
        room = min(
            self._vulkan.context.free_bytes() // SHARE // in_all,
            self.spec.max_buffer_bytes // max(each),
        )
        max_sets = QUICK_SETS if self.quick and self.spec.limits.software else MAX_BUFFER_SETS
        return max(1, min(math.ceil(COLD_BYTES / in_all), max_sets, room))

    def transfers(self, size_bytes: int) -> tuple[Transfer, Transfer | None]:
        words = max(1, size_bytes // 4)
        if 12 * words > self._vulkan.context.free_bytes() or 4 * words > self.spec.max_buffer_bytes:
            raise UnsupportedOp(f"[calibrate] {self.name} has no memory for {size_bytes} bytes")
        copies = _TransferBench(self._vulkan.context, words)
        try:
            into = [copies.into() for _ in range(1 + ROUNDS)][1:]
            out = [copies.out() for _ in range(1 + ROUNDS)][1:]
        finally:
            copies.close()
        return _median_transfer(into), _median_transfer(out)


class _TransferBench:
    """Memory of a device, both staging buffers and the recordings that copy between them."""

    def __init__(self, context: Context, words: int) -> None:
        self._array = np.ones(words, np.uint32)
        self._buffers: list[Buffer] = []
        self._recordings: list[Recording] = []
        try:
            self._inbox = context.host(words)
            self._buffers.append(self._inbox)
            self._outbox = context.host(words, read=True)
            self._buffers.append(self._outbox)
            memory = context.storage(words)
            self._buffers.append(memory)
            self._into = self._record(context, lambda r: r.copy(self._inbox, memory, 0, 0, words))
            self._out = self._record(context, lambda r: r.copy(memory, self._outbox, 0, 0, words))
        except BaseException:
            self.close()
            raise

    def into(self) -> Transfer:
        start = time.perf_counter()
        self._inbox.array[:] = self._array
        host_s = time.perf_counter() - start
        return Transfer(host_s, _device_seconds(self._into))

    def out(self) -> Transfer:
        device_s = _device_seconds(self._out)
        start = time.perf_counter()
        np.array(self._outbox.array, copy=True)
        return Transfer(time.perf_counter() - start, device_s)

    def close(self) -> None:
        for recording in self._recordings:
            recording.close()
        for buffer in self._buffers:
            buffer.close()

    def _record(self, context: Context, command: Callable[[Recording], None]) -> Recording:
        recording = context.recording()
        self._recordings.append(recording)
        recording.begin()
        recording.barrier("device", "device")
        command(recording)
        recording.barrier("device", "host")
        recording.end()
        return recording


def _device_seconds(recording: Recording) -> float:
    """Submit and wait; return the seconds by the device's clock, or the host's if it has none."""
    start = time.perf_counter()
    recording.submit()
    recording.wait(TIMEOUT_S)
    on_host_s = time.perf_counter() - start
    return recording.duration_s() or on_host_s


def _median_transfer(found: list[Transfer]) -> Transfer:
    return Transfer(
        lower_quartile([each.host_s for each in found]),
        lower_quartile([each.device_s or 0.0 for each in found]),
    )
