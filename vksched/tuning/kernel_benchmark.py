"""Kernel benchmark: one call on a Vulkan device, run with each variant on synthetic operands in
device memory.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from types import TracebackType

import numpy as np

from ..common.dtypes import BOOL, FLOAT16, FLOAT32, NDArray
from ..common.errors import DeviceError, DeviceTimeout
from ..ir.op import COUNTERS, OUTPUT, SCRATCH, STATUS, Call, Count, Op
from ..ops.lowering.lower import Lowering, lower
from ..plan.types.offsets import aligned
from ..runtime.vulkan.buffers import Buffer
from ..runtime.vulkan.single_dispatch import Place, SingleDispatcher
from ..runtime.vulkan.vulkan_device import VulkanDevice
from .search import MeasurementSkipped

BLOCK_WORDS = 1 << 18
"""Operands repeat this block; at most this much of a result is compared."""
POISON = 0xDEADBEEF
TIMEOUT_S = 60.0
SEED = 7


class CallBench:
    """The `search.Bench` of one call, with its memory until it is closed.

    Parameters
    ----------
    sets
        Number of copies of each operand in `weights`. Calls rotate over them, because calls of a
        model find their weights in memory and not in a cache.

    Raises
    ------
    OutOfMemory
        There is not enough memory.
    MeasurementSkipped
        On closing after a timeout, if the device was busy with other work.
    """

    def __init__(
        self,
        device: VulkanDevice,
        op: Op,
        call: Call,
        weights: Collection[int] = (),
        sets: int = 1,
    ) -> None:
        self._device, self._op, self._call = device, op, call
        self._weights, self._sets, self._turn = frozenset(weights), sets, 0
        self._counts = op.typical_counts(call.inputs, call.attrs)
        self._variant = ""
        self._context = device.context
        self._singles = SingleDispatcher(self._context, device.disable_aliasing)
        self._buffers: list[Buffer] = []
        self._lowerings: dict[str, Lowering] = {}
        self._recording = self._context.recording()
        try:
            self._block = self._context.host(BLOCK_WORDS)
            self._buffers.append(self._block)
            self._inputs = [self._storage(self._words(i)) for i in range(len(call.inputs))]
            self._result = self._storage(call.output.words)
            self._status = self._storage(4)
            self._scratch = self._storage(1)
            self._counters = self._storage(0)
            self._fill()
        except BaseException as error:
            self._end(error)
            raise

    def run(self, variant: str, repeat: int) -> float:
        self._variant = variant
        lowering = self._lowerings.get(variant)
        if lowering is None:
            lowering = lower(self._op, replace(self._call, variant=variant))
            if lowering.scratch_words > self._scratch.words:
                self._scratch = self._storage(lowering.scratch_words)
                self._fill_scratch()
            if lowering.counters > self._counters.words:
                self._counters = self._storage(lowering.counters)
                self._spread(np.zeros(BLOCK_WORDS, np.uint32), self._counters, lowering.counters)
            self._lowerings[variant] = lowering
            self._overwrite_result()
        recording = self._recording
        recording.begin()
        recording.barrier("device", "device")
        for _ in range(repeat):
            self._singles.record(recording, lowering, self._place)
            recording.barrier("shader", "shader")
            self._turn = (self._turn + 1) % self._sets
        recording.end()
        start = time.perf_counter()
        self._submit()
        on_host_s = time.perf_counter() - start
        return recording.duration_s() or on_host_s

    def result(self) -> NDArray:
        """Return elements of the last result, and of the results with other counts of elements in
        use.
        """
        results = [self._read_result()]
        for operand, (typical, *others) in self._counts.items():
            for count in others:
                self._fill_count(operand, count)
                self._overwrite_result()
                self.run(self._variant, 1)
                results.append(self._read_result())
            self._fill_count(operand, typical)
        return np.concatenate(results)

    def _read_result(self) -> NDArray:
        type_ = self._call.output
        for source, target, words in self._parts():
            self._copy(self._result, source, self._block, target, words)
        words = self._block.array[: min(type_.words, BLOCK_WORDS)].copy()
        if type_.dtype == FLOAT16:
            return np.asarray(words.view(np.float16)[: type_.size - type_.size % 2])
        return np.asarray(words.view(np.float32 if type_.dtype == FLOAT32 else np.int32))

    def close(self) -> None:
        """Release the memory."""
        self._recording.close()
        self._singles.close()
        for buffer in self._buffers:
            buffer.close()

    def __enter__(self) -> CallBench:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Close it after an error, if the device still answers: the first error is more
        informative.
        """
        if not isinstance(error, DeviceError):
            self.close()
            return
        answers = True
        try:
            self.close()
        except DeviceError:
            answers = False
            self._context.keep(self)
        # Another graph's run may delay this; the thread that waits for that run will see whether
        # the device has failed.
        if isinstance(error, DeviceTimeout) and (answers or self._context.pending(self._recording)):
            raise MeasurementSkipped(f"[tune] {self._device.name} is busy: {error}") from error

    def _storage(self, words: int) -> Buffer:
        self._buffers.append(self._context.storage(max(words, 1)))
        return self._buffers[-1]

    def _place(self, operand: int) -> Place:
        named = {
            OUTPUT: self._result,
            STATUS: self._status,
            SCRATCH: self._scratch,
            COUNTERS: self._counters,
        }
        if operand < 0:
            return Place(named[operand], 0)
        turn = self._turn if operand in self._weights else 0
        return Place(self._inputs[operand], turn * self._stride(operand))

    def _stride(self, operand: int) -> int:
        """Return the distance between two sets of an operand, in words."""
        return aligned(self._call.inputs[operand].words)

    def _words(self, operand: int) -> int:
        return (self._sets if operand in self._weights else 1) * self._stride(operand)

    def _fill(self) -> None:
        """Fill operands with values of typical size; indices are 0, which is valid on every
        axis.
        """
        rng = np.random.default_rng(SEED)
        for index, (type_, buffer) in enumerate(zip(self._call.inputs, self._inputs, strict=True)):
            if index in self._counts:
                self._fill_count(index, self._counts[index][0])
                continue
            if index in self._op.indices:
                block = np.zeros(BLOCK_WORDS, np.uint32)
            elif type_.dtype == FLOAT16:
                block = rng.standard_normal(2 * BLOCK_WORDS).astype(np.float16).view(np.uint32)
            elif type_.dtype == FLOAT32:
                block = rng.standard_normal(BLOCK_WORDS, np.float32).view(np.uint32)
            else:
                bound = 2 if type_.dtype == BOOL else 8
                block = rng.integers(0, bound, BLOCK_WORDS).astype(np.uint32)
            self._spread(block, buffer, self._words(index))

    def _fill_count(self, operand: int, count: Count) -> None:
        """Fill an operand with a number of elements in use."""
        block = np.resize(np.array(count, np.uint32), BLOCK_WORDS)
        self._spread(block, self._inputs[operand], self._words(operand))

    def _fill_scratch(self) -> None:
        """Initialize scratch memory, because kernels read unwritten rests of scratch tiles. Fresh
        driver memory has arbitrary content, and llvmpipe takes 20 times as long on subnormal
        numbers. The scratch memory of a plan has held values before.
        """
        block = np.random.default_rng(SEED).standard_normal(BLOCK_WORDS, np.float32)
        self._spread(block.view(np.uint32), self._scratch, self._scratch.words)

    def _spread(self, block: NDArray, buffer: Buffer, words: int) -> None:
        """Fill a buffer with repetitions of a block."""
        self._block.array[:] = block
        for start in range(0, words, BLOCK_WORDS):
            self._copy(self._block, 0, buffer, start, min(BLOCK_WORDS, words - start))

    def _overwrite_result(self) -> None:
        """Overwrite the result, so that a variant that writes nothing is found to be wrong."""
        self._block.array[:] = POISON
        for source, _, words in self._parts():
            self._copy(self._block, 0, self._result, source, words)

    def _parts(self) -> list[tuple[int, int, int]]:
        """Return the compared ranges of the result: source word, word in the block, number of
        words.
        """
        words, half = self._call.output.words, BLOCK_WORDS // 2
        if words <= BLOCK_WORDS:
            return [(0, 0, words)] if words else []
        return [(0, 0, half), (words - half, half, half)]

    def _copy(self, source: Buffer, at: int, target: Buffer, to: int, words: int) -> None:
        self._recording.begin()
        self._recording.barrier("device", "device")
        self._recording.copy(source, target, at, to, words)
        self._recording.barrier("device", "host")
        self._recording.barrier("device", "device")
        self._recording.end()
        self._submit()

    def _submit(self) -> None:
        self._recording.submit()
        self._recording.wait(TIMEOUT_S)
