"""The shaders of matrix products."""

from __future__ import annotations

from ...common.dtypes import FLOAT16, FLOAT32, INT32
from ...topology.limits import Limits
from .coopmat import COOPMAT_SHADERS
from .matmul_subgroup import LAYOUTS, TILES, subgroup_tiles
from .operands import BF16_B, FP16_B
from .split_k import SPLIT_K_SHADERS

FP16_WEIGHT_SHADERS = (
    *(f"matmul_{kind}_{FP16_B}{FLOAT32}" for kind in ("vec4_mixed", "vec4_fp16acc")),
    *(f"matmul_vec4_{format}{FLOAT32}" for format in (FP16_B, BF16_B)),
)
"""The shaders of `matmul_kernels.fp16_weight_variants`."""
SHADERS = (
    "matmul_pack",
    *{
        variant.shader(dtype, layout, whole): None
        for lanes in TILES
        for variant in subgroup_tiles(
            Limits(software=True, subgroup_size=lanes, subgroup_shuffle=True, int64=True)
        ).values()
        for layout in LAYOUTS[: 2 if variant.gemv else 4]
        for dtype in (FLOAT32, FLOAT16)
        for whole in (False, True)
    },
    *(f"matmul_{k}_{t}" for k in ("tiled", "gemv", "register") for t in (FLOAT32, INT32)),
    *(f"matmul_{kind}_{FLOAT16}" for kind in ("tiled", "vec4", "gemv")),
    *(f"matmul_vec4_{kind}{FLOAT32}" for kind in ("", "mixed_", "fp16acc_", "unaligned_")),
    *FP16_WEIGHT_SHADERS,
    *COOPMAT_SHADERS,
    *SPLIT_K_SHADERS,
)
