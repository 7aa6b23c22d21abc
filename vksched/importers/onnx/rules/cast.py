"""Rules for casts between element types."""

from __future__ import annotations

from onnx import TensorProto

from ....ops import bitcast
from ..nodes.elements import ANY, INTS, STORAGE, element_name, storage
from ..nodes.node import NodeContext
from ..nodes.values import Value
from .narrow_types import convert
from .registry import rule

T = TensorProto
WORDS = {T.FLOAT, T.INT32, T.UINT32}


@rule("Cast", "CastLike", types=ANY)
def cast(n: NodeContext) -> Value:
    target = n.attr("to") if n.op_type == "Cast" else n.elem_type(1)
    n.require(target in STORAGE, f"{element_name(target)}, which only the CPU can hold,")
    saturate = bool(n.attr("saturate", 1))
    return Value(target, tensor=convert(n.tensor(0), n.elem_type(0), target, saturate))


@rule("BitCast", types=ANY)
def bit_cast(n: NodeContext) -> Value:
    """For integers of equal width the cast keeps the bits."""
    source, target = n.elem_type(0), n.attr("to")
    if {source, target} <= INTS or (source, target) == (T.BOOL, T.UINT8) or source == target:
        return Value(target, tensor=convert(n.tensor(0), source, target))
    n.require({source, target} <= WORDS, f"{element_name(source)} as {element_name(target)}")
    return Value(target, tensor=bitcast(n.tensor(0), storage(target)))
