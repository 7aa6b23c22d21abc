"""The dispatches and barriers of a prompt on described GPUs, with and without matrix units."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmark_folders import add_benchmarks

from vksched.importers import load_gguf

UNITS = {
    "subgroup_sizes": (32, 64),
    "coopmat_checked": True,
    "matrices": ("float16*float16+float32 16x16x16",),
}
DISPATCHES, BARRIERS = 190, 165
"""The most for 512 tokens of the 1.1 B llama in Q4_K, in mixed with a float16 cache."""


@pytest.fixture
def dispatches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    add_benchmarks(monkeypatch)
    import dispatches

    return dispatches


@pytest.mark.parametrize(
    ("units", "kernel"),
    [(UNITS, "quant_gemm_coopmat_q4_k"), ({}, "quant_gemm_q4_k")],
    ids=["cooperative matrices", "without"],
)
def test_weights_of_a_prompt_are_never_stored_as_floats(
    units: dict[str, Any], kernel: str, dispatches: ModuleType, tmp_path: Path
) -> None:
    shape = dispatches.SHAPES["1.1B"]
    dispatches.write_outline(tmp_path / "m.gguf", shape)
    model = load_gguf(tmp_path / "m.gguf").meta()
    spec = dispatches.described("rx7900xtx", **units)
    plan, kernels = dispatches.count(model, spec, 512, "mixed", "f16")
    assert kernels.total() <= DISPATCHES, kernels
    assert plan.barriers + plan.inner_barriers <= BARRIERS
    # q, k and v; output; gate and up; down: the last layer's last token has other kernels
    assert kernels[kernel] == 4 * shape.layers - 3
    assert kernels["dequantize_weights_q4_k"] == 1, "the rows of the embedding"
    assert not any(name.startswith(("matmul_", "binary_mul")) for name in kernels)
