"""Runs one case of the case table on one device, without planner or executor.

All operands lie in one page, each at its own offset with sentinels between: a kernel that writes
outside its result, or into an input, is caught.
"""

from __future__ import annotations

import numpy as np
from op_cases import Case

from vksched.ops.elementwise import BINARY, UNARY
from vksched.ops.op import OUTPUT, STATUS, Dispatch, Limits, get_op, view_offset
from vksched.runtime.kompute import HostBuffer, Pipeline
from vksched.runtime.memory import read_words, write_words
from vksched.runtime.shaders import load_shader
from vksched.runtime.vulkan import VulkanDevice
from vksched.types import NDArray, numpy_dtype

SENTINEL = 0xDEADBEEF
GAP = 12
TIMEOUT_S = 60.0
LEAST_NORMAL = 1.2e-38
"""Below it a driver may give 0."""
VALUE_BY_VALUE = {op for op, _ in (*UNARY, *BINARY)} | {"cast", "where"}


class Runner:
    """One device with one page and the pipelines made so far, used for many cases."""

    def __init__(self, device: VulkanDevice, words: int = 9 << 19) -> None:
        self.device = device
        self._page: HostBuffer = device.context.host(words)
        self._recording = device.context.recording()
        self._pipelines: dict[tuple[object, ...], Pipeline] = {}

    def run(self, case: Case, limits: Limits) -> NDArray:
        """Returns the op's result; fails when a word outside it has changed."""
        call, op = case.call(limits), get_op(case.op)
        page = self._page.array
        at, offsets = GAP, []
        for type_ in (*case.types, call.output):
            offsets.append(at)
            at = -(-(at + type_.words + GAP) // 4) * 4
        status = at
        end = status + 4 + GAP
        assert end <= page.size, "a larger page is needed"
        page[:end] = SENTINEL
        page[status] = 0
        for array, offset in zip(case.inputs, offsets, strict=False):
            write_words(page[offset : offset + array.size], array)
        before = page[:end].copy()
        result = offsets[-1]
        view = view_offset(op, case.types, call.attrs)
        if view is not None:
            result = offsets[0] + view
        else:
            assert op.kernel is not None, f"{case.op} has no kernel and this call is no view"
            self._submit(op.kernel.lower(call), offsets, status)
        words = page[result : result + call.output.words].copy()
        after = page[:end].copy()
        assert after[status] == 0, "the kernel reported bad data"
        if view is None:
            after[result : result + call.output.words] = before[result : result + call.output.words]
        assert np.array_equal(after, before), (
            f"{case.id} wrote outside its result, at words "
            f"{np.flatnonzero(after != before)[:8] - result} from its start"
        )
        return read_words(words, numpy_dtype(call.output.dtype), call.output.shape)

    def _submit(self, dispatches: tuple[Dispatch, ...], offsets: list[int], status: int) -> None:
        recording = self._recording
        recording.begin()
        recording.barrier("host", "shader")
        for dispatch in dispatches:
            shader = load_shader(dispatch.shader)
            values = shader.specialize(dict(dispatch.constants))
            key = (shader.name, values)
            if key not in self._pipelines:
                self._pipelines[key] = self.device.context.pipeline(
                    shader.spirv, [self._page] * len(shader.bindings), values, shader.push_bytes
                )
            places = [
                status if o == STATUS else offsets[-1] if o == OUTPUT else offsets[o]
                for o in dispatch.operands
            ]
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


def check(case: Case, got: NDArray, expected: NDArray, what: str) -> None:
    """Fails unless got is expected: exactly, or for float32 within the case's error."""
    where = f"{case.id} on {what}"
    assert got.shape == expected.shape and got.dtype == expected.dtype, where
    if got.dtype != np.float32:
        assert np.array_equal(got, expected), where
        return
    for kind in (np.isnan, np.isposinf, np.isneginf):
        assert np.array_equal(kind(got), kind(expected)), f"{where}: {kind.__name__}"
    finite = np.isfinite(expected)
    a, b = got[finite].astype(np.float64), expected[finite].astype(np.float64)
    if a.size:
        scale = np.abs(b).max()
        nmse = ((a - b) ** 2).sum() / max((b**2).sum(), 1e-300) if scale else (a**2).sum()
        assert nmse <= case.nmse, f"{where}: normalised squared error {nmse:.2e}"
        # value by value; what is added up may cancel, so there the largest counts
        atol = LEAST_NORMAL if case.op in VALUE_BY_VALUE else 1e-6 * scale
        far = np.flatnonzero(np.abs(a - b) > 1e-4 * np.abs(b) + atol)
        assert not far.size, f"{where}: {a[far[0]]} where {b[far[0]]} was expected"
