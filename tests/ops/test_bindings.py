"""Modules use the buffers that dispatches bind, no others: a driver may read each binding that a
module declares, whatever the specialization constants are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from conftest import NUMPY_ONLY
from op_runs import runs_of
from test_coopmat import CARD

from vksched.ir.op import Dispatch, computing_ops
from vksched.runtime.vulkan.shaders import left_out, load_shader
from vksched.runtime.vulkan.spirv_patch import HEADER_WORDS, OP_DECORATE, OP_FUNCTION

GPU = replace(CARD, memory_model=True, integer_dot=True, cores=60)
"""A GPU with all that kernels use."""
BINDING = 33
"""The decoration of a variable with its binding."""


def bindings_of(spirv: bytes) -> set[int]:
    """Return the bindings that a module declares."""
    words = np.frombuffer(spirv, "<u4").tolist()
    at, found = HEADER_WORDS, set()
    while words[at] & 0xFFFF != OP_FUNCTION:
        if words[at] & 0xFFFF == OP_DECORATE and words[at + 2] == BINDING:
            found.add(words[at + 3])
        at += words[at] >> 16
    return found


def dispatches_of(op: str) -> Iterator[tuple[str, Dispatch]]:
    """Yield the dispatches of all cases, one of each module and number of operands."""
    seen = set()
    for run in runs_of(op, GPU):
        for dispatch in run.lowering.dispatches:
            key = dispatch.shader, dispatch.steps, len(dispatch.operands)
            if key not in seen and dispatch.shader not in left_out():
                seen.add(key)
                yield run.id, dispatch


@pytest.mark.parametrize("op", computing_ops())
def test_modules_use_the_buffers_that_dispatches_bind(op: str) -> None:
    found = list(dispatches_of(op))
    assert found or op in NUMPY_ONLY or all(not r.lowering.dispatches for r in runs_of(op, GPU))
    for where, dispatch in found:
        used = bindings_of(load_shader(dispatch.shader).module(dispatch.steps))
        assert used == set(range(len(dispatch.operands))), f"{dispatch.shader}, {where}"


def test_tiled_products_run_with_and_without_a_residual() -> None:
    """The binding of the residual is that of the sines of a rotary embedding."""
    seen = [d for _, d in dispatches_of("quantized_linear") if d.shader.startswith("quant_gemm_")]
    assert {d.operands[-1] == 0 for d in seen} == {False, True}
