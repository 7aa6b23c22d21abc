"""The check of a new call before its op's rule: its operands' number and its attributes' domains.

`infer` asks once for each call. Examples: tests/ir/test_attr_domains.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..common.dtypes import TensorType
from ..common.errors import ShapeError
from .attr_domains import Asked, Domain, OneOf, Optional, shown
from .attrs import Attrs
from .op import Op
from .precision import PRECISION, PRECISIONS

UNIVERSAL: dict[str, Domain] = {PRECISION: Optional(OneOf(PRECISIONS))}
"""Of all ops whose operands meet in products (`Op.roundable_operands`)."""


def domains_of(op: Op) -> Mapping[str, Domain]:
    """Return the attributes that calls of an op may have; of an opaque op none are known."""
    own = op.attrs or {}
    return {**own, **UNIVERSAL} if op.roundable_operands else own


def check_call(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> None:
    """Raise ShapeError or DTypeError unless a call has as many operands as its op takes, and the
    attributes that its op declares, each within its domain.
    """
    least, most = op.operands
    if not least <= len(inputs) <= most:
        number = str(least) if least == most else f"{least} to {most}"
        raise ShapeError(f"[{op.name}] expected {number} operands, got {len(inputs)}")
    if op.attrs is None:
        return
    known, call = domains_of(op), Asked(op.name, inputs, attrs)
    given = dict(attrs.items())
    for name, domain in known.items():
        if name in given:
            domain.check(name, given.pop(name), call)
        elif not domain.is_optional:
            raise ShapeError(f"[{op.name}] expected an attribute {name}, got none")
    if given:
        raise ShapeError(
            f"[{op.name}] expected attributes {', '.join(known) or 'none'}, got "
            f"{shown(', '.join(given))}"
        )
