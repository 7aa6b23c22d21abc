"""Constants: evaluate Tensors that depend on known arrays only."""

from __future__ import annotations

import numpy as np

from ....common.dtypes import NDArray
from ....ir.build_graph import build_graph
from ....ir.evaluate import compute
from ....ir.tensor import Tensor


def evaluate(tensor: Tensor) -> NDArray:
    """Return the elements of a Tensor that reads no input, computed with the reference ops."""
    graph, _ = build_graph(tensor)
    values = graph.arrays()
    with np.errstate(all="ignore"):
        for node in graph.ops:
            operands = tuple(values[i] for i in node.inputs)
            values[node.id] = np.asarray(compute(node.declaration, operands, node.attrs))
    ((_, result),) = graph.outputs
    return values[result]
