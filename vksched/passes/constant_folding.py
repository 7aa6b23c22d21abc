"""Constant folding: compute ops of constants once, by their reference implementations.

Weights are not folded, because both the weight and the result would be stored. Importers fold the
weights of model files when they read them.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..common.dtypes import numpy_dtype
from ..common.errors import VkschedError
from ..ir.evaluate import compute
from ..ir.graph import Node
from .rewrite import Rewriter

MAX_ELEMENTS = 1 << 16
"""Maximum size of a folded result. Larger ones are computed in each run instead of uploaded."""
FEW_ELEMENTS = 1 << 12
"""Maximum size of a folded result that is larger than its operands."""


def fold_constants(r: Rewriter, node: Node) -> int | None:
    """Fold an op of unpinned constants into a constant if the result is small enough."""
    declared = node.declaration
    if not node.inputs or declared.opaque or declared.stateful or node.op.startswith("random"):
        return None
    if node.type.size > MAX_ELEMENTS or any(r[i].op != "constant" for i in node.inputs):
        return None
    operands = [r.array(i) for i in node.inputs]
    values = tuple(a for a in operands if a is not None)
    if len(values) < len(operands) or not all(r.is_free(i) for i in node.inputs):
        return None
    if not r.same_device(node.inputs[0]):
        return None
    if node.type.size > max(FEW_ELEMENTS, *(a.size for a in values)):
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.array(compute(declared, values, node.attrs), numpy_dtype(node.type.dtype))
    except VkschedError:  # the run raises it
        return None
    digest = hashlib.blake2b(result.tobytes(), digest_size=32).digest()
    return r.constant(result, ("fold", node.type, digest))
