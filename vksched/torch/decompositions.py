"""The decompositions of ATen ops that have no rule into ops that have one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from .rules import find_rule

MORE = (
    *("native_batch_norm", "native_batch_norm_backward"),
    *("native_layer_norm_backward", "native_group_norm_backward"),
    *("native_dropout_backward", "nll_loss_forward", "nll_loss_backward", "mse_loss"),
    *("mse_loss_backward", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss"),
    *("huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward"),
    *("gelu_backward", "leaky_relu_backward", "elu_backward", "hardtanh_backward", "softplus"),
    *("softplus_backward", "threshold_backward", "hardsigmoid", "hardsigmoid_backward"),
    *("hardswish", "hardswish_backward", "select_backward", "slice_backward", "addcmul"),
    *("addcdiv", "lerp", "im2col", "index_copy", "masked_fill", "std", "std_mean", "norm"),
    *("linalg_vector_norm", "embedding_dense_backward", "_native_batch_norm_legit"),
    *(
        "reflection_pad2d_backward",
        "upsample_bicubic2d",
        "pixel_shuffle",
    ),
    *("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "baddbmm", "dist"),
)
"""Ops beyond core ATen whose decompositions PyTorch has."""


@lru_cache(1)
def decompositions() -> dict[Any, Any]:
    """Return the table for AOTAutograd. Ops with a rule are not decomposed."""
    packets = [getattr(torch.ops.aten, name) for name in MORE if hasattr(torch.ops.aten, name)]
    table = {**core_aten_decompositions(), **get_decompositions(packets)}
    return {op: body for op, body in table.items() if not _has_rule(op)}


def _has_rule(op: Any) -> bool:
    parts = [str(getattr(op, key, "")) for key in ("namespace", "_opname", "_overloadname")]
    return find_rule(f"{parts[0]}::{parts[1]}.{parts[2]}") is not None
