"""Device kernel of the gated delta rule: an invocation has one column of the state of a head.

    column of S in registers --token--> o --token--> o ... --> column of the last S, in the result

The tokens are sequential, and the columns are independent. Many tokens need several dispatches; the
next one goes on from the state in the result.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.errors import UnsupportedOp
from ...ir.op import OUTPUT, Call, Dispatch, Kernel
from ..lowering.chunking import check_dispatches, check_serial
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, SERIAL_STEPS

SHADER = "gated_delta_rule"
MAX_SIZE = 256
"""Maximum values of a column: they are in registers."""
BUFFERS = 7


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if not call.output.size:
        return ()
    size = call.inputs[0].shape[3]
    if size > MAX_SIZE:
        raise UnsupportedOp(
            f"[{SHADER}] expected keys of at most {MAX_SIZE} values, got {size}: a column of the "
            "state must fit into registers"
        )
    if call.limits.storage_buffers < BUFFERS:
        raise UnsupportedOp(
            f"[{SHADER}] it needs {BUFFERS} buffers, the device allows "
            f"{call.limits.storage_buffers}"
        )
    dispatches = tuple(_dispatches(call))
    check_dispatches(SHADER, len(dispatches))
    return dispatches


def _dispatches(call: Call) -> Iterator[Dispatch]:
    batch, tokens, key_heads, size = call.inputs[0].shape
    heads, columns = call.inputs[2].shape[2:]
    count, limits = batch * heads * columns, call.limits
    groups = min(-(-count // LOCAL_SIZE), limits.max_groups[0])
    rounds = -(-count // (groups * LOCAL_SIZE))  # columns of an invocation
    check_serial(SHADER, rounds * (4 * size + 1), limits)
    most = LOOP_STEPS if limits.software else SERIAL_STEPS
    step = (most // rounds - 2 * size) // (2 * size + 1)
    for first in range(0, max(1, tokens), step):
        push = (
            *(("count", count), ("first", first), ("end", min(first + step, tokens))),
            *(("tokens", tokens), ("key_heads", key_heads)),
            *(("heads", heads), ("columns", columns)),
        )
        operands = (*range(6), OUTPUT)
        constants = (("SIZE", size),)
        yield Dispatch(SHADER, operands, (groups, 1, 1), push, constants, barrier=first > 0)


KERNEL = Kernel((SHADER,), _lower)
