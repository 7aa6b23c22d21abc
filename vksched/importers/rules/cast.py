"""Rules for conversions between element types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..elements import ANY, STORAGE, element_name
from ..values import Value
from .narrow import convert
from .registry import rule

if TYPE_CHECKING:
    from ..node import NodeContext


@rule("Cast", "CastLike", types=ANY)
def cast(n: NodeContext) -> Value:
    target = n.attr("to") if n.op_type == "Cast" else n.elem_type(1)
    n.require(target in STORAGE, f"{element_name(target)}, which is held by the host only,")
    return Value(target, tensor=convert(n.tensor(0), n.elem_type(0), target))


@rule("BitCast", types=ANY)
def bit_cast(n: NodeContext) -> Value:
    source, target = n.elem_type(0), n.attr("to")
    n.require(source == target, f"{element_name(source)} as {element_name(target)}")
    return n.value(0)
