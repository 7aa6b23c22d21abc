"""Variants: which of the algorithms of a kernel runs a call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...common.errors import UnsupportedOp
from ...ir.op import Call

ASKED, TUNED, LIKE, STATIC = "asked for", "tuned", "tuned at like sizes", "static guess"
SMALLER = "tuned at smaller sizes"
"""Why a variant was chosen."""
COOPMAT = "coopmat "
"""In the names of variants for cooperative matrices: none is a guess. What is faster by them stays
so when it is larger, and by far.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """variant: the name, "" of a kernel with nothing to choose. of: all that can run the call, the
    best guess first. why: ASKED, TUNED, LIKE, SMALLER or STATIC.
    """

    variant: str = ""
    of: tuple[str, ...] = ()
    why: str = STATIC


def call_key(op: str, call: Call) -> str:
    """Return a call as text: what has the same text runs the same way on the same device. What
    follows it in its kernel changes nothing of that.
    """
    call = call.without_epilogue
    types = " ".join(map(str, call.inputs))
    return f"{op} {types} -> {call.output} {call.attrs}".rstrip()


def choose(op: str, variants: Callable[[Call], tuple[str, ...]], call: Call) -> Choice:
    """Return the variant of a call: the caller's, else the tuned one, else the best guess.

    Raises:
        UnsupportedOp: the caller's cannot run it.
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
        for found, why in ((tuned.get(key), TUNED), (tuned.of_like(key), LIKE)):
            if found in names:
                return Choice(found, names, why)
        if any(COOPMAT in name for name in names):
            smaller = tuned.of_smaller(key)
            if smaller in names and COOPMAT in smaller:
                return Choice(smaller, names, SMALLER)
    return Choice(names[0], names)


def chosen(op: str, variants: Callable[[Call], tuple[str, ...]], call: Call) -> Call:
    """Return a call with its variant set."""
    variant = choose(op, variants, call).variant
    return call if variant == call.variant else replace(call, variant=variant)
