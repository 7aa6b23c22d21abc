"""Rules: ONNX ops in terms of vksched's, one function per op.

    @rule("Relu")
    def relu_rule(n: NodeContext) -> Tensor:
        return relu(n.tensor(0))

A rule returns its results by position: tensors in the storage of their element types, or Values. It
raises UnsupportedOp with the reason where it cannot express a call; the node then runs on the host.
"""

from __future__ import annotations

from . import (  # noqa: F401 - each declares its rules
    activation,
    attention,
    basic,
    blocks,
    cast,
    control,
    delta,
    earlier,
    experts,
    features,
    gates,
    grouped_attention,
    image,
    index,
    integer,
    layout,
    math,
    matmul,
    microsoft,
    microsoft_attention,
    microsoft_image,
    nchwc,
    nn,
    norm,
    pool,
    qlinear,
    quantize,
    random,
    recurrent,
    reduce,
    regions,
    scan,
    sequence,
    signal,
    svm,
    trees,
    twins,
)
from .registry import Rule, find_rule, rule, rules

__all__ = ["Rule", "find_rule", "rule", "rules"]
