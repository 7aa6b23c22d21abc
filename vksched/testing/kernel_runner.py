"""Kernel runner: run samples on one device, without planner and executor.

All operands are in one page, each at its own offset with sentinels between: writes outside the
result are detected.
"""

from __future__ import annotations

import time

import numpy as np

from ..common.dtypes import NDArray, numpy_dtype
from ..common.errors import UnsupportedOp
from ..ir.op import COUNTERS, OUTPUT, SCRATCH, STATUS, view_offset
from ..ops.elementwise import BINARY, UNARY
from ..ops.lowering.lower import SCRATCH_ALIGN_WORDS, Lowering, lower
from ..runtime.vulkan.buffers import HostBuffer
from ..runtime.vulkan.single_call import wait_limit_s
from ..runtime.vulkan.single_dispatch import Place, SingleDispatcher
from ..runtime.vulkan.vulkan_device import VulkanDevice
from ..runtime.vulkan.word_view import read_words, write_words
from ..topology.limits import Limits
from .op_cases.op_sample import FunctionSample, Mismatch, OpSample

SENTINEL = 0xDEADBEEF
GAP = 12
TIMEOUT_S = 60.0
MIN_NORMAL = 1.2e-38
"""Drivers may flush smaller magnitudes to 0."""
HALF_NMSE, HALF_STEP, MIN_HALF = 2e-7, 2**-9.5, 2**-23
"""Tolerances of float16: an error of one step, because close float32 values may round apart."""
CANCELS = {"logaddexp", "hard_sigmoid", "gelu_backward", "gelu_tanh_backward"}
"""Ops whose results may be near 0 by cancellation."""
OF_THE_LARGEST = {"winograd_conv": 1e-5, "attention_backward": 1e-5}
"""Tolerances relative to the largest value, for ops with long sums; the default is 1e-6."""
VALUE_BY_VALUE = {op for op, _ in (*UNARY, *BINARY)} - CANCELS | {"cast", "where"}


class Runner:
    """One device with one page and its cached pipelines, for many samples."""

    def __init__(self, device: VulkanDevice, words: int = 9 << 19) -> None:
        self.device = device
        self._page: HostBuffer = device.context.host(words)
        self._recording = device.context.recording()
        self._singles = SingleDispatcher(device.context, device.disable_aliasing)

    def run(self, case: OpSample, limits: Limits, variant: str = "") -> NDArray:
        """Return the op's result, computed by a variant of its kernel.

        Raise UnsupportedOp if a device with these limits does not support the call, Mismatch if a
        word outside the result has changed or the kernel reports invalid data.
        """
        return self.run_lowered(case, lowering_of(case, limits, variant))

    def run_lowered(self, case: OpSample, lowering: Lowering) -> NDArray:
        """Run a sample with a lowered call, like `run`."""
        call = case.call(Limits())
        view = view_offset(case.declaration, case.types, call.attrs)
        page = self._page.array
        places = self._load(case, call.output.words, lowering)
        end = places[-1] + 4 + GAP
        before = page[:end].copy()
        *_, result, scratch, _, status = places
        if view is not None:
            result = places[0] + view
        else:
            self._record(lowering, places)
            self._submit()
        words = page[result : result + call.output.words].copy()
        after = page[:end].copy()
        if after[status] != 0:
            raise Mismatch(f"{case.id} on {self.device.name}: the kernel reported bad data")
        own = [(scratch, lowering.scratch_words)]
        if view is None:
            own.append((result, call.output.words))
        for write in case.declaration.early_writes(case.types):
            own.append((places[write.state], case.types[write.state].words))
        for start, length in own:
            after[start : start + length] = before[start : start + length]
        if not np.array_equal(after, before):
            raise Mismatch(
                f"{case.id} on {self.device.name} wrote outside its result, at words "
                f"{np.flatnonzero(after != before)[:8] - result} from its start"
            )
        return read_words(words, numpy_dtype(call.output.dtype), call.output.shape)

    def time(self, case: OpSample, limits: Limits, repeat: int) -> list[float]:
        """Return the seconds of `repeat` submissions of one call, in device time if available.
        Raises like `run`.
        """
        call = case.call(limits)
        lowering = lower(case.declaration, call)
        self._record(lowering, self._load(case, call.output.words, lowering))
        times = []
        for _ in range(repeat + 1):
            start = time.perf_counter()
            self._submit()
            on_host_s = time.perf_counter() - start
            on_device_s = self._recording.duration_s()
            times.append(on_host_s if on_device_s is None else on_device_s)
        return times[1:]

    def _load(self, case: OpSample, result_words: int, lowering: Lowering) -> list[int]:
        """Fill the page; return the word offsets of operands, result, scratch, counters and status.

        Counters are 0, so the comparison with the page before the call finds one that is not reset.
        """
        page, at, places = self._page.array, GAP, []
        own_words = (result_words, lowering.scratch_words, lowering.counters, 4)
        for words in (*(t.words for t in case.types), *own_words):
            places.append(at)
            at = -(-(at + words + GAP) // SCRATCH_ALIGN_WORDS) * SCRATCH_ALIGN_WORDS
        if at > page.size:
            raise UnsupportedOp(f"the case needs {at} words, the page has {page.size}")
        page[:at] = SENTINEL
        page[places[-1]] = 0
        page[places[-2] : places[-2] + lowering.counters] = 0
        for array, type_, place in zip(case.inputs, case.types, places, strict=False):
            write_words(page[place : place + type_.words], array)
        return places

    def release_pipelines(self) -> None:
        """Release all pipelines except idle ones that the device caches; software drivers use 0.3
        to 2 MiB for each.
        """
        self._singles.close()

    def run_function(
        self, case: FunctionSample, limits: Limits
    ) -> tuple[tuple[NDArray, ...], tuple[str, ...]]:
        """Return the results, and the reasons for nodes that fall back to the CPU."""
        reasons: dict[str, None] = {}

        def run_node(node: OpSample) -> NDArray:
            try:
                return self.run(node, limits)
            except UnsupportedOp as reason:
                reasons[str(reason)] = None
                return node.expected()

        return case.run(run_node), tuple(reasons)

    def _record(self, lowering: Lowering, offsets: list[int]) -> None:
        *_, output, scratch, counters, status = offsets
        recording = self._recording
        recording.begin()
        recording.barrier("host", "shader")
        named = {OUTPUT: output, STATUS: status, SCRATCH: scratch, COUNTERS: counters}
        self._singles.record(
            recording,
            lowering,
            lambda operand: Place(self._page, named[operand] if operand < 0 else offsets[operand]),
        )
        recording.barrier("shader", "host")
        recording.end()

    def _submit(self) -> None:
        self._recording.submit()
        self._recording.wait(max(TIMEOUT_S, wait_limit_s(self.device.context)))


def lowering_of(case: OpSample, limits: Limits, variant: str = "") -> Lowering:
    """Return the dispatches of a sample on a device with these limits; a view has none.

    Raise UnsupportedOp if a device with these limits does not support the call.
    """
    call, op = case.call(limits, variant), case.declaration
    if view_offset(op, case.types, call.attrs) is not None:
        return Lowering(())
    return lower(op, call)


def check_device(
    case: OpSample, got: NDArray, expected: NDArray, what: str, lost: NDArray | float = 0.0
) -> None:
    """Check a device's result like `check`, and bit for bit if the sample is exact."""
    check(case, got, expected, what, lost)
    if case.exact and got.tobytes() != expected.tobytes():
        raise Mismatch(f"{case.id} on {what}: not the same bits")


def nmse_of(got: NDArray, expected: NDArray, terms: NDArray | float = 0.0) -> float | None:
    """Return the normalized squared error of the finite values, or None if there are none. terms:
    as in `OpSample`.
    """
    finite = np.isfinite(expected)
    if got.dtype.kind != "f" or not finite.any():
        return None
    a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    norm = (b**2).sum() + (np.broadcast_to(terms, expected.shape)[finite] ** 2).sum()
    return float(((a - b) ** 2).sum() / norm if norm else (a**2).sum())


def check_function(
    case: FunctionSample, got: tuple[NDArray, ...], expected: tuple[NDArray, ...], what: str
) -> None:
    """Check several results like `check`."""
    if len(got) != len(expected):
        raise Mismatch(f"{case.id} on {what}: {len(got)} results, not {len(expected)}")
    for one, other in zip(got, expected, strict=True):
        check(case, one, other, what)


def check(
    case: OpSample | FunctionSample,
    got: NDArray,
    expected: NDArray,
    what: str,
    lost: NDArray | float = 0.0,
) -> None:
    """Raise Mismatch unless `got` equals `expected`: exactly, or for floats within the sample's
    tolerance. lost: additional tolerance of each value.
    """
    where = f"{case.id} on {what}"
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        raise Mismatch(
            f"{where}: {got.dtype} {got.shape} where {expected.dtype} {expected.shape} was expected"
        )
    if got.dtype.kind != "f":
        wrong = np.flatnonzero(got != expected)
        if wrong.size:
            one, other = got.flat[wrong[0]], expected.flat[wrong[0]]
            raise Mismatch(
                f"{where}: {one} where {other} was expected, and {wrong.size - 1} others"
            )
        return
    for kind in (np.isnan, np.isposinf, np.isneginf):
        if not np.array_equal(kind(got), kind(expected)):
            raise Mismatch(f"{where}: {kind.__name__} differs")
    terms = case.terms if isinstance(case, OpSample) and case.terms is not None else 0.0
    error, half = nmse_of(got, expected, terms), got.dtype == np.float16
    if error is None:
        return
    if error > max(case.nmse, HALF_NMSE * half):
        raise Mismatch(f"{where}: normalized squared error {error:.2e}")
    finite = np.isfinite(expected)
    a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    # elementwise; sums may cancel, so their largest term counts
    apart = isinstance(case, OpSample) and case.op in VALUE_BY_VALUE
    share = case.of_largest if isinstance(case, OpSample) else None
    if share is None:
        share = OF_THE_LARGEST.get(case.op, 1e-6) if isinstance(case, OpSample) else 1e-6
    atol = (MIN_HALF if half else MIN_NORMAL) if apart else share * np.abs(b).max()
    atol = atol + np.broadcast_to(lost + 1e-6 * terms, expected.shape)[finite]
    far = np.flatnonzero(np.abs(a - b) > (HALF_STEP if half else 1e-4) * np.abs(b) + atol)
    if far.size:
        raise Mismatch(f"{where}: {a[far[0]]} where {b[far[0]]} was expected")
