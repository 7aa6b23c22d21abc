"""The op set. Importing this package registers every op; each module is one family."""

from __future__ import annotations

from .attention import attention
from .channel_norm import (
    batch_norm,
    batch_norm_training,
    group_norm,
    instance_norm,
    local_response_norm,
    lp_normalize,
    mean_variance_normalize,
)
from .conv import (
    conv,
    conv_transpose,
)
from .depth import (
    depth_to_space,
    space_to_depth,
)
from .einsum import einsum
from .elementwise import (
    abs,
    add,
    cast,
    div,
    equal,
    erf,
    exp,
    gelu,
    greater,
    greater_equal,
    less,
    less_equal,
    log,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    maximum,
    minimum,
    mul,
    neg,
    not_equal,
    pow,
    relu,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    sub,
    tanh,
    where,
)
from .index import (
    gather,
)
from .layout import (
    concat,
    expand,
    expand_dims,
    reshape,
    squeeze,
    transpose,
)
from .layout import (
    slice_ as slice,
)
from .linear import dot, gemm, linear, outer, tensordot, vecdot
from .matmul import (
    matmul,
)
from .norm import (
    layer_norm,
    rms_norm,
)
from .pad import (
    pad,
)
from .pool import (
    adaptive_average_pool,
    adaptive_max_pool,
    average_pool,
    global_average_pool,
    global_lp_pool,
    global_max_pool,
    lp_pool,
    max_pool,
    max_pool_indices,
)
from .recurrent import gru, lstm, rnn
from .reduce import (
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_sum,
)
from .resize import (
    resize,
)
from .rotary import rotary_cache, rotary_embedding
from .sample import (
    affine_grid,
    grid_sample,
)
from .softmax import (
    log_softmax,
    softmax,
)

__all__ = [
    "abs",
    "adaptive_average_pool",
    "adaptive_max_pool",
    "add",
    "affine_grid",
    "attention",
    "average_pool",
    "batch_norm",
    "batch_norm_training",
    "cast",
    "concat",
    "conv",
    "conv_transpose",
    "depth_to_space",
    "div",
    "dot",
    "einsum",
    "equal",
    "erf",
    "exp",
    "expand",
    "expand_dims",
    "gather",
    "gelu",
    "gemm",
    "global_average_pool",
    "global_lp_pool",
    "global_max_pool",
    "greater",
    "greater_equal",
    "grid_sample",
    "group_norm",
    "gru",
    "instance_norm",
    "layer_norm",
    "less",
    "less_equal",
    "linear",
    "local_response_norm",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lp_normalize",
    "lp_pool",
    "lstm",
    "matmul",
    "max_pool",
    "max_pool_indices",
    "maximum",
    "mean_variance_normalize",
    "minimum",
    "mul",
    "neg",
    "not_equal",
    "outer",
    "pad",
    "pow",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_sum",
    "relu",
    "reshape",
    "resize",
    "rms_norm",
    "rnn",
    "rotary_cache",
    "rotary_embedding",
    "rsqrt",
    "sigmoid",
    "silu",
    "slice",
    "softmax",
    "space_to_depth",
    "sqrt",
    "squeeze",
    "sub",
    "tanh",
    "tensordot",
    "transpose",
    "vecdot",
    "where",
]
