"""Launches of kernels that loop for every element, cut where a CPU driver would end long loops."""

from __future__ import annotations

from ..errors import UnsupportedOp
from .op import Limits
from .strides import LOCAL_SIZE, LOOP_STEPS


def element_parts(
    op: str, count: int, rounds: int, limits: Limits
) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Returns (start, end, groups) of dispatches that cover `count` elements.

    rounds: how often an invocation goes round its loops for one element, that of the elements
    counted in.

    Raises:
        UnsupportedOp: one element alone is too much for a CPU driver.
    """
    if count == 0:
        return []
    if not limits.software:
        groups = min(-(-count // (4 * LOCAL_SIZE)), limits.max_groups[0])
        return [(0, count, (groups, 1, 1))]
    most = LOOP_STEPS // rounds
    if most == 0:
        raise UnsupportedOp(
            f"[{op}] expected at most {LOOP_STEPS} rounds for an element on a CPU driver, got "
            f"{rounds}: such drivers end long loops early"
        )
    groups = min(-(-count // (min(64, most) * LOCAL_SIZE)), limits.max_groups[0])
    step = groups * LOCAL_SIZE * most
    return [(at, min(at + step, count), (groups, 1, 1)) for at in range(0, count, step)]
