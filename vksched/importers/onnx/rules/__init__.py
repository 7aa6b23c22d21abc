"""Rules: lower ONNX ops to vksched ops, one function per op.

    @rule("Relu")
    def relu_rule(n: NodeContext) -> Tensor:
        return relu(n.tensor(0))

A rule returns its results by position: Tensors in the storage of their element types, or Values. It
raises UnsupportedOp with a reason if it cannot express a call; the node then runs on the CPU.
"""

from __future__ import annotations

from . import (  # noqa: F401 - each declares its rules
    activation,
    attention,
    basic,
    cast,
    image,
    index,
    integer,
    layout,
    legacy,
    math,
    matmul,
    nn,
    norm,
    pool,
    quantize,
    random,
    recurrent,
    reduce,
    roi_deform,
    signal,
)
from .contrib import attention as _contrib_attention  # noqa: F401
from .contrib import (  # noqa: F401 - each declares its rules
    equivalents,
    fused,
    gated_delta_net,
    gates,
    group_query_attention,
    matmul_nbits,
    moe,
    nchwc,
    qlinear,
)
from .contrib import image as _contrib_image  # noqa: F401
from .control_flow import if_loop, scan, sequence  # noqa: F401 - each declares its rules
from .ml import features, svm, tree_ensemble  # noqa: F401 - each declares its rules
from .registry import Rule, find_rule, rule, rules

__all__ = ["Rule", "find_rule", "rule", "rules"]
