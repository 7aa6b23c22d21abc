"""Device kernel of the gated delta rule: some invocations share a column of the state of a head.

    column of S in registers --token--> o --token--> o ... --> column of the last S, in the result

The tokens are sequential, and the columns are independent. An invocation has up to 16 values of a
column in registers, because more would spill. The invocations of a column exchange their sums in
shared memory, once for each token. On a CPU driver an invocation has a whole column: barriers are
expensive there, and registers are memory. Many tokens need several dispatches; the next one goes on
from the state in the result.

The order of sums depends on the key size and the device only, so a result does not depend on the
other heads, sequences and tokens, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...common.errors import UnsupportedOp
from ...ir.op import OUTPUT, Call, Dispatch, Kernel
from ...topology.limits import Limits
from ..lowering.chunking import check_dispatches, check_serial
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, SERIAL_STEPS

SHADER = "gated_delta_rule"
MAX_SIZE = 256
"""Maximum values of a column: they are in registers."""
ROWS = 16
"""Maximum values of an invocation on a GPU."""
COLUMNS = 16
"""Columns of a workgroup if the device allows so many invocations: 64 bytes of a row of the state.
"""
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
    parts = 1 if limits.software else -(-size // ROWS)
    lanes = _columns_at_once(parts, limits)
    groups = min(-(-count // lanes), limits.max_groups[0])
    rounds = -(-count // (groups * lanes))  # columns of an invocation
    rows = -(-size // parts)
    of_token, other = 2 * rows + parts + 1, 2 * rows
    check_serial(SHADER, rounds * (of_token + other), limits)
    most = LOOP_STEPS if limits.software else SERIAL_STEPS
    step = (most // rounds - other) // of_token
    for first in range(0, max(1, tokens), step):
        push = (
            *(("count", count), ("first", first), ("end", min(first + step, tokens))),
            *(("tokens", tokens), ("key_heads", key_heads)),
            *(("heads", heads), ("columns", columns)),
        )
        operands = (*range(6), OUTPUT)
        constants = (("LOCAL_X", lanes * parts), ("SIZE", size), ("PARTS", parts))
        yield Dispatch(SHADER, operands, (groups, 1, 1), push, constants, barrier=first > 0)


def _columns_at_once(parts: int, limits: Limits) -> int:
    """Return the number of columns of a workgroup, with this many invocations each."""
    most = min(limits.max_invocations, limits.max_local_size[0])
    return min(max(LOCAL_SIZE // parts, COLUMNS), most // parts)


KERNEL = Kernel((SHADER,), _lower)
