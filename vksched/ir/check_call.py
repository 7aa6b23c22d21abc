"""Validation of the operand count and the attributes of a call, before the op's type rule."""

from __future__ import annotations

from collections.abc import Mapping

from ..common.dtypes import TensorType
from ..common.errors import ShapeError
from .attr_domains import AttrCall, Domain, OneOf, Optional, shown
from .attrs import Attrs
from .op import Op
from .precision import PRECISION, PRECISIONS

UNIVERSAL: dict[str, Domain] = {PRECISION: Optional(OneOf(PRECISIONS))}
"""Attributes of all ops with roundable operands (`Op.roundable_operands`)."""


def domains_of(op: Op) -> Mapping[str, Domain]:
    """Return the domains of an op's attributes; empty for an opaque op."""
    own = op.attrs or {}
    return {**own, **UNIVERSAL} if op.roundable_operands else own


def check_call(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> None:
    """Raise ShapeError or DTypeError if the operand count or an attribute is invalid."""
    minimum, maximum = op.operands
    if not minimum <= len(inputs) <= maximum:
        number = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
        raise ShapeError(f"[{op.name}] expected {number} operands, got {len(inputs)}")
    if op.attrs is None:
        return
    known, call = domains_of(op), AttrCall(op.name, inputs, attrs)
    rest = dict(attrs.items())
    for name, domain in known.items():
        if name in rest:
            domain.check(name, rest.pop(name), call)
        elif not domain.is_optional:
            raise ShapeError(f"[{op.name}] expected an attribute {name}, got none")
    if rest:
        raise ShapeError(
            f"[{op.name}] expected attributes {', '.join(known) or 'none'}, got "
            f"{shown(', '.join(rest))}"
        )
