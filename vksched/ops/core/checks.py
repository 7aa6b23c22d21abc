"""The check of a new call before its op's rule: its operands' number and its attributes' domains.

`infer` asks once for each call. Examples: tests/ops/test_domains.py.
"""

from __future__ import annotations

from ...errors import ShapeError
from ...types import TensorType
from .attrs import Attrs
from .domains import Asked, Domain, OneOf, Optional
from .op import Op
from .precision import PRECISION, PRECISIONS

UNIVERSAL: dict[str, Domain] = {PRECISION: Optional(OneOf(PRECISIONS))}
"""Of all ops whose operands meet in products (`Op.factors`)."""


def domains_of(op: Op) -> dict[str, Domain]:
    """Returns the attributes that calls of an op may have; of a foreign op none are known."""
    own = dict(op.attrs or {})
    return {**own, **UNIVERSAL} if op.factors else own


def check_call(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> None:
    """Raises ShapeError or DTypeError unless a call has as many operands as its op takes, and the
    attributes that its op declares, each within its domain.
    """
    least, most = op.operands
    if not least <= len(inputs) <= most:
        number = str(least) if least == most else f"{least} to {most}"
        raise ShapeError(f"[{op.name}] expected {number} operands, got {len(inputs)}")
    if op.attrs is None:
        return
    known = domains_of(op)
    for name in attrs:
        if name not in known:
            raise ShapeError(
                f"[{op.name}] expected attributes {', '.join(known) or 'none'}, got {name!r}"
            )
    call = Asked(op.name, inputs, attrs)
    for name, domain in known.items():
        if name in attrs:
            domain.check(name, attrs[name], call)
        elif not domain.is_optional:
            raise ShapeError(f"[{op.name}] expected an attribute {name}, got none")
