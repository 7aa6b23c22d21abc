"""Folding: what is made of constants alone is computed once, on the host, by the ops' references.

Weights are left where they are, as a second copy of them would have to be kept; models of files are
folded when they are read.
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
"""Larger results are computed in each run: they would have to be kept and uploaded."""
FEW_ELEMENTS = 1 << 12
"""Results up to this size may be larger than what they are made of."""


def fold_constants(r: Rewriter, node: Node) -> int | None:
    """What only constants make is a constant; small as it is, where the user put nothing of it."""
    declared = node.declaration
    if not node.inputs or declared.opaque or declared.stateful or node.op.startswith("random"):
        return None
    if node.type.size > MAX_ELEMENTS or any(r[i].op != "constant" for i in node.inputs):
        return None
    operands = [r.array(i) for i in node.inputs]
    given = tuple(a for a in operands if a is not None)
    if len(given) < len(operands) or not all(r.is_free(i) for i in node.inputs):
        return None
    if not r.same_device(node.inputs[0]):
        return None
    if node.type.size > max(FEW_ELEMENTS, *(a.size for a in given)):
        return None
    try:
        with np.errstate(all="ignore"):
            result = np.array(compute(declared, given, node.attrs), numpy_dtype(node.type.dtype))
    except VkschedError:  # for the run to raise, which is where the caller looks for it
        return None
    digest = hashlib.blake2b(result.tobytes(), digest_size=32).digest()
    return r.constant(result, ("fold", node.type, digest))
