"""Constant folding: evaluate nodes with the same result in every run once, on the CPU.

The rule of a node is used if there is one, so that a weight equals the result of a device;
otherwise the reference evaluator is used. A result is folded if it is not much larger than its
operands and the memory budget of the model allows it (memory_budget.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ....common.errors import ModelFormatError, UnsupportedOp, VkschedError
from ....ir.tensor import constant, weight
from ..nodes.elements import from_storage, numpy_of, to_storage
from ..nodes.names import HANDED_ON, RANDOM, has_subgraphs
from ..nodes.node import NodeContext
from ..nodes.values import (
    Inferred,
    Value,
    arrays_of,
    has_maps,
    known,
    known_host,
    known_value,
)
from ..rules import find_rule
from .constants import evaluate
from .memory_budget import bytes_of
from .model_context import narrow_weight

FOLD_ELEMENTS = 1 << 18
"""Results up to this number of elements are always folded, larger ones only if their operands are
about as large.
"""
GROWING = frozenset(("ConstantOfShape", "Expand", "Range", "Tile"))
"""Shape ops whose results can be much larger than their operands."""
SHAPE_ARITHMETIC = frozenset(
    "Add And Cast Concat ConstantOfShape Div Equal Expand Flatten Gather GatherND Greater Less Max"
    " Min Mul Neg Not Or Range Reshape ScatterND Shape Size Slice Split Sqrt Squeeze Sub Tile"
    " Transpose Trilu Unsqueeze Where".split()
)
"""Ops that the evaluator folds with the same result as their rules, but faster. Since opset 13
only: it does not support all earlier versions.
"""
BY_PATTERN = frozenset(("RegexFullMatch", "Tokenizer"))
"""Ops with a regular expression, which can take any time: they are not evaluated while loading."""
NO_LARGER = (SHAPE_ARITHMETIC - GROWING) | frozenset(("Compress", "NonZero", "Unique"))
"""Ops whose results are at most about as large as their operands, even if shape inference cannot
determine their shapes. Results of unknown shape are not folded for other ops.
"""

Results = list[Value | None]
ByRule = Callable[[NodeContext], Results | None]


def is_fixed(n: NodeContext) -> bool:
    """Return True if a node has the same result in every run and may be folded.

    Dequantized weights are not folded: they would need four times the memory.
    """
    if not all(v is None or v.is_known for v in n.inputs):
        return False
    if n.op_type == "DequantizeLinear" and n.has(0):
        held = n.value(0).array
        if held is not None and narrow_weight(held) is not None:
            return False
    return n.op_type not in RANDOM and not has_subgraphs(n.node)


def fold(n: NodeContext, by_rule: ByRule) -> Results | None:
    """Return the results of a node as known values, or None if they vary between runs or are too
    large.

    Parameters
    ----------
    by_rule
        Function that applies the rule of the node.
    """
    if not is_fixed(n) or n.op_type in HANDED_ON | BY_PATTERN:
        return None
    arrays = [None if v is None else v.array for v in n.inputs]
    operand_elements = sum(a.size for a in arrays if a is not None)
    inferred = [i for i in n.inferred if i is not None and i.shape is not None]
    max_elements = max(FOLD_ELEMENTS, 2 * operand_elements)
    if sum(map(_size, inferred)) > max_elements:
        return None
    is_bounded = len(inferred) == len(n.outputs) or n.op_type in NO_LARGER
    needed_bytes = sum(_size(i) * numpy_of(i.elem_type).itemsize for i in inferred if i.elem_type)
    if not n.lowering.context.budget.has_room(needed_bytes):
        return None
    serialized = n.node.SerializeToString(deterministic=True)

    def make() -> Results | None:
        results = _by_rule(n, by_rule, max_elements)
        return results or (_by_evaluator(n, serialized) if is_bounded else None)

    return n.lowering.context.fold(serialized, n.inputs, make)


def _by_rule(n: NodeContext, by_rule: ByRule, max_elements: int) -> Results | None:
    if n.op_type in SHAPE_ARITHMETIC and n.version >= 13 and not n.node.domain:
        return None
    if find_rule(n.node.domain, n.op_type) is None:
        return None
    # of temporary Tensors
    inputs = tuple(v if v is None else _held(v) for v in n.inputs)
    once = NodeContext(n.lowering, n.node, inputs, n.schema, n.inferred, n.version)
    try:
        results = by_rule(once)
        return (
            None
            if results is None
            else [evaluated(n, v, max_elements) for v in results[: len(n.outputs)]]
        )
    except (VkschedError, ValueError, LookupError):
        return None  # the evaluator reports the error, if there is one


def _by_evaluator(n: NodeContext, serialized: bytes) -> Results | None:
    operands = [None if v is None else known_host(v) for v in n.inputs]
    context = n.lowering.context
    try:
        found = context.host_node(serialized)(operands)
        if any(map(has_maps, found)):
            return None
        results: Results = [known_value(v) for v in found]
    except ModelFormatError:
        return None
    # the length of strings is not known in advance
    return results if context.budget.has_room(sum(map(bytes_of, arrays_of(results)))) else None


def _size(inferred: Inferred) -> int:
    return math.prod(inferred.shape or ())


def _held(value: Value) -> Value:
    """Return a known value that owns its Tensor."""
    if value.array is None:
        return value
    try:
        stored = to_storage(value.array)
    except UnsupportedOp:
        return value
    return replace(value, tensor=weight(stored) if stored.size else constant(stored))


def evaluated(
    n: NodeContext, value: Value | None, max_elements: int = FOLD_ELEMENTS
) -> Value | None:
    """Return a result of known operands as a known value.

    The result stays a Tensor if it has more than `max_elements` elements or the budget is spent.
    Later nodes may need it as a shape.
    """
    if value is None or value.tensor is None or value.array is not None:
        return value
    budget, type_ = n.lowering.context.budget, value.tensor.type
    if type_.size > max_elements or not budget.has_room(type_.host_bytes):
        return value
    return known(from_storage(evaluate(value.tensor), value.elem_type))
