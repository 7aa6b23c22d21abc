"""Chunking of kernels that loop per element, to respect time and loop limits of drivers."""

from __future__ import annotations

from ...common.errors import UnsupportedOp
from ...topology.limits import Limits
from .strides import (
    LOCAL_SIZE,
    LOOP_STEPS,
    MAX_DISPATCHES,
    MAX_ROUNDS,
    SERIAL_STEPS,
)

_ITEMS, _SOFTWARE_ITEMS = 4, 64
"""Elements per invocation for cheap elements, on GPUs and on CPU drivers."""


def check_serial(op: str, rounds: int, limits: Limits) -> None:
    """Raise UnsupportedOp if one item needs too many loop iterations of an invocation."""
    if limits.software and rounds > LOOP_STEPS:
        raise UnsupportedOp(
            f"[{op}] expected at most {LOOP_STEPS} steps in a row on a CPU driver, got {rounds}: "
            "such drivers end long loops early"
        )
    if not limits.software and rounds > SERIAL_STEPS:
        raise UnsupportedOp(
            f"[{op}] expected at most {SERIAL_STEPS} steps in a row, got {rounds}: one invocation "
            "would take so long that drivers end it"
        )


def check_dispatches(op: str, count: int) -> None:
    """Raise UnsupportedOp if a call needs too many dispatches."""
    if count > MAX_DISPATCHES:
        raise UnsupportedOp(f"[{op}] it needs {count} dispatches, over {MAX_DISPATCHES}")


def element_parts(
    op: str, count: int, rounds: int, limits: Limits
) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Return (start, end, groups) of dispatches that cover `count` elements.

    Parameters
    ----------
    rounds
        Loop iterations of an invocation per element, at least 1.

    Raises
    ------
    UnsupportedOp
        One element exceeds the loop limit of an invocation.
    """
    if count == 0:
        return []
    check_serial(op, rounds, limits)
    maximum = (LOOP_STEPS if limits.software else SERIAL_STEPS) // rounds
    per_lane = min(_SOFTWARE_ITEMS if limits.software else _ITEMS, maximum)
    groups = min(-(-count // (per_lane * LOCAL_SIZE)), limits.max_groups[0])
    step = groups * LOCAL_SIZE * maximum
    if not limits.software:
        step = min(step, max(1, MAX_ROUNDS // rounds))
    check_dispatches(op, -(-count // step))
    return [(at, min(at + step, count), (groups, 1, 1)) for at in range(0, count, step)]
