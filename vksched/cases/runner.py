"""Runs cases of the case table on one device, without planner or executor.

All operands lie in one page, each at its own offset with sentinels between: a kernel that writes
outside its result, or into an input, is caught.
"""

from __future__ import annotations

import numpy as np

from ..errors import UnsupportedOp
from ..ops.elementwise import BINARY, UNARY
from ..ops.lower import SCRATCH_ALIGN_WORDS, Lowering, lower
from ..ops.op import OUTPUT, SCRATCH, STATUS, Limits, view_offset
from ..runtime.kompute import HostBuffer, Pipeline
from ..runtime.memory import read_words, write_words
from ..runtime.shaders import load_shader
from ..runtime.vulkan import VulkanDevice
from ..types import NDArray, numpy_dtype
from .case import Case, FunctionCase

SENTINEL = 0xDEADBEEF
GAP = 12
TIMEOUT_S = 60.0
LEAST_NORMAL = 1.2e-38
"""Below it a driver may give 0."""
HALF_NMSE, HALF_STEP, HALF_LEAST = 2e-7, 2**-9.5, 2**-23
"""Of float16: an error of one step, as two float32 that differ little may round apart."""
VALUE_BY_VALUE = {op for op, _ in (*UNARY, *BINARY)} | {"cast", "where"}


class Runner:
    """One device with one page and the pipelines made so far, used for many cases."""

    def __init__(self, device: VulkanDevice, words: int = 9 << 19) -> None:
        self.device = device
        self._page: HostBuffer = device.context.host(words)
        self._recording = device.context.recording()
        self._pipelines: dict[tuple[object, ...], Pipeline] = {}

    def run(self, case: Case, limits: Limits) -> NDArray:
        """Returns the op's result.

        Raises:
            UnsupportedOp: a device with these limits does not run this call.
            AssertionError: a word outside the result has changed.
        """
        call, op = case.call(limits), case.declaration
        view = view_offset(op, case.types, call.attrs)
        lowering = Lowering(()) if view is not None else lower(op, call)
        page = self._page.array
        at, offsets = GAP, []
        for words in (*(t.words for t in case.types), call.output.words, lowering.scratch_words, 4):
            offsets.append(at)
            at = -(-(at + words + GAP) // SCRATCH_ALIGN_WORDS) * SCRATCH_ALIGN_WORDS
        *_, result, scratch, status = offsets
        end = at
        assert end <= page.size, "a larger page is needed"
        page[:end] = SENTINEL
        page[status] = 0
        for array, type_, offset in zip(case.inputs, case.types, offsets, strict=False):
            write_words(page[offset : offset + type_.words], array)
        before = page[:end].copy()
        if view is not None:
            result = offsets[0] + view
        else:
            self._submit(lowering, offsets)
        words = page[result : result + call.output.words].copy()
        after = page[:end].copy()
        assert after[status] == 0, "the kernel reported bad data"
        own = [(scratch, lowering.scratch_words)]
        if view is None:
            own.append((result, call.output.words))
        for start, length in own:
            after[start : start + length] = before[start : start + length]
        assert np.array_equal(after, before), (
            f"{case.id} wrote outside its result, at words "
            f"{np.flatnonzero(after != before)[:8] - result} from its start"
        )
        return read_words(words, numpy_dtype(call.output.dtype), call.output.shape)

    def run_function(self, case: FunctionCase, limits: Limits) -> tuple[NDArray, ...]:
        """Returns the results; a node that the device cannot run is computed by numpy."""

        def run_node(node: Case) -> NDArray:
            try:
                return self.run(node, limits)
            except UnsupportedOp:
                return node.expected()

        return case.run(run_node)

    def _submit(self, lowering: Lowering, offsets: list[int]) -> None:
        *_, output, scratch, status = offsets
        recording = self._recording
        recording.begin()
        recording.barrier("host", "shader")
        for dispatch in lowering.dispatches:
            shader = load_shader(dispatch.shader)
            values = shader.specialize(dict(dispatch.constants))
            key = (shader.name, values)
            if key not in self._pipelines:
                self._pipelines[key] = self.device.context.pipeline(
                    shader.spirv, [self._page] * len(shader.bindings), values, shader.push_bytes
                )
            places = []
            for operand in dispatch.operands:
                if operand <= SCRATCH:
                    places.append(scratch + lowering.scratch_offset(SCRATCH - operand))
                else:
                    named = {OUTPUT: output, STATUS: status}
                    places.append(named[operand] if operand < 0 else offsets[operand])
            shifts = dispatch.shifts or (0,) * len(places)
            push = shader.pack_push(
                [p + s for p, s in zip(places, shifts, strict=True)], dict(dispatch.push)
            )
            recording.dispatch(self._pipelines[key], dispatch.groups, push)
            recording.barrier("shader", "shader")
        recording.barrier("shader", "host")
        recording.end()
        recording.submit()
        recording.wait(TIMEOUT_S)


def check_function(
    case: FunctionCase, got: tuple[NDArray, ...], expected: tuple[NDArray, ...], what: str
) -> None:
    """As `check`, for each of several results."""
    assert len(got) == len(expected), f"{case.id} on {what}: {len(got)} results"
    for one, other in zip(got, expected, strict=True):
        check(case, one, other, what)


def check(case: Case | FunctionCase, got: NDArray, expected: NDArray, what: str) -> None:
    """Fails unless got is expected: exactly, or for floats within the case's error."""
    where = f"{case.id} on {what}"
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), (
        f"{where}: {got.dtype} {got.shape} where {expected.dtype} {expected.shape} was expected"
    )
    if got.dtype.kind != "f":
        assert np.array_equal(got, expected), where
        return
    half = got.dtype == np.float16
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(kind(got), kind(expected)), f"{where}: {kind.__name__}"
    finite = np.isfinite(expected)
    a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    if a.size:
        scale = np.abs(b).max()
        nmse = ((a - b) ** 2).sum() / max((b**2).sum(), 1e-300) if scale else (a**2).sum()
        assert nmse <= max(case.nmse, HALF_NMSE * half), (
            f"{where}: normalised squared error {nmse:.2e}"
        )
        # value by value; what is added up may cancel, so there the largest counts
        atol = (
            LEAST_NORMAL if isinstance(case, Case) and case.op in VALUE_BY_VALUE else 1e-6 * scale
        )
        far = np.flatnonzero(np.abs(a - b) > (HALF_STEP if half else 1e-4) * np.abs(b) + atol)
        assert not far.size, f"{where}: {a[far[0]]} where {b[far[0]]} was expected"
