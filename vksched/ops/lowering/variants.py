"""Kernel variants: the choice among the algorithms of a kernel for a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...common.errors import UnsupportedOp
from ...ir.op import Call

ASKED, TUNED, LIKE, STATIC = "asked for", "tuned", "tuned at like sizes", "static guess"
SMALLER = "tuned at smaller sizes"
"""Reason for a variant."""
COOPMAT = "coopmat "
"""Prefix of variants for cooperative matrices. If they are faster, they are much faster, and for
larger calls too.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen variant.

    Attributes
    ----------
    variant
        Name of the variant; "" for a kernel without a choice.
    of
        All variants that support the call, the best guess first.
    why
        ASKED, TUNED, LIKE, SMALLER or STATIC.
    """

    variant: str = ""
    of: tuple[str, ...] = ()
    why: str = STATIC


def call_key(op: str, call: Call) -> str:
    """Return the tuning key of a call.

    Calls with equal keys use one variant on a device. The epilogue is not part of the key.
    """
    call = call.without_epilogue
    types = " ".join(map(str, call.inputs))
    return f"{op} {types} -> {call.output} {call.attrs}".rstrip()


def choose(op: str, variants: Callable[[Call], tuple[str, ...]], call: Call) -> Choice:
    """Return the variant of a call: the caller's, else the tuned one, else the best guess.

    Raises
    ------
    UnsupportedOp
        The caller's variant does not support the call.
    """
    names = variants(call)
    if call.variant:
        if call.variant not in names:
            known = ", ".join(names) or "none"
            raise UnsupportedOp(f"[{op}] expected a variant of {known}, got {call.variant!r}")
        return Choice(call.variant, names, ASKED)
    if not names:
        return Choice()
    tuned = call.limits.tuned
    if tuned and len(names) > 1:
        key = call_key(op, call)
        for result, why in ((tuned.get(key), TUNED), (tuned.of_like(key), LIKE)):
            if result in names:
                return Choice(result, names, why)
        if any(COOPMAT in name for name in names):
            smaller = tuned.of_smaller(key)
            if smaller in names and COOPMAT in smaller:
                return Choice(smaller, names, SMALLER)
    return Choice(names[0], names)


def chosen(op: str, variants: Callable[[Call], tuple[str, ...]], call: Call) -> Call:
    """Return a call with its variant set."""
    variant = choose(op, variants, call).variant
    return call if variant == call.variant else replace(call, variant=variant)
