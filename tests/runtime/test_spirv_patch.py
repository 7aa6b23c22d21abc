"""Modules are valid, by rules that older validators do not know, too; those with steps written in
above all.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from fused import assert_valid
from selection import spread
from shader_stats import used_pipelines

from vksched.ir.op import REGISTERS, ShaderProgram
from vksched.runtime.vulkan.shaders import Shader, load_manifest, load_shader
from vksched.runtime.vulkan.spirv_patch import (
    EPILOGUE,
    FUSED,
    HEADER_WORDS,
    OP_DECORATE,
    OP_FUNCTION,
    VECTOR,
    take_apart,
)

OP_TYPE_POINTER, SHARED, ARRAY_STRIDE = 32, 4, 6


def functions_of(shader: Shader) -> list[str]:
    """Names of the functions that a step of the shader may call."""
    ids, end = take_apart(shader.spirv).ids, f"({3 * VECTOR}"
    return [name.removesuffix(end) for name in ids if name.endswith(end)]


def accepts_steps(shader: Shader) -> bool:
    if FUSED.encode() not in shader.spirv and EPILOGUE.encode() not in shader.spirv:
        return False  # without being taken apart
    ids = take_apart(shader.spirv).ids
    return FUSED in ids or EPILOGUE in ids


STEPPED = [name for name in load_manifest() if accepts_steps(load_shader(name))]


@lru_cache(maxsize=1)
def steps_of_cases() -> dict[str, set[ShaderProgram]]:
    """The steps of the case table's calls, by shader."""
    found: dict[str, set[ShaderProgram]] = {name: set() for name in STEPPED}
    for pipeline in used_pipelines(STEPPED):
        found[pipeline.variant].add(ShaderProgram(pipeline.calls, pipeline.words))
    return found


def steps_of_all(shader: Shader) -> ShaderProgram:
    """Every function once: each takes the result before it, an input and a word."""
    names = functions_of(shader)
    first = REGISTERS + 1
    calls = ((n, (0 if i == 0 else first + i - 1, 1, REGISTERS)) for i, n in enumerate(names))
    return ShaderProgram(tuple(calls), (0x3F000000,))


def declared(spirv: bytes, *wanted: int) -> list[tuple[int, ...]]:
    """The operands of these instructions, of those before the functions."""
    words = np.frombuffer(spirv, "<u4").tolist()
    found, at = [], HEADER_WORDS
    while at < len(words) and (op := words[at] & 0xFFFF) != OP_FUNCTION:
        end = at + (words[at] >> 16)
        if op in wanted:
            found.append(tuple(words[at + 1 : end]))
        at = end
    return found


# spirv-val knows no mixed dot products of float16, which the dot2 kernels use
@pytest.mark.parametrize("name", spread([n for n in STEPPED if "_dot2" not in n], 12, 100))
def test_every_linked_module_is_valid(name: str, tmp_path: Path) -> None:
    shader = load_shader(name)
    for steps in {ShaderProgram(), steps_of_all(shader)} | steps_of_cases()[name]:
        built = shader.module(steps)
        assert max(Counter(declared(built, OP_DECORATE)).values()) == 1
        assert_valid(built, tmp_path)


def test_the_case_table_has_steps_for_kernels_of_both_kinds() -> None:
    with_steps = {name for name, found in steps_of_cases().items() if any(s.calls for s in found)}
    assert {"fused_2", "conv_float32", "matmul_tiled_float32"} <= with_steps
    assert all(functions_of(load_shader(name)) for name in with_steps)


def test_arrays_in_shared_memory_have_no_stride() -> None:
    assert [name for name in load_manifest() if has_shared_stride(load_shader(name).spirv)] == []


def has_shared_stride(spirv: bytes) -> bool:
    pointers = declared(spirv, OP_TYPE_POINTER)
    shared = {kind for _, storage, kind in pointers if storage == SHARED}
    strided = {more[0] for more in declared(spirv, OP_DECORATE) if more[1] == ARRAY_STRIDE}
    return not shared.isdisjoint(strided)
