"""Draws of attention to the keys in use of a cache, and to new ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.testing.op_cases.linalg.attention import attributes
from vksched.testing.op_cases.linalg.attention_with_kvcache import (
    halved,
    in_q8_0,
    with_layout,
    with_pending,
)
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array


def _attention_with_kvcache(pick: Pick) -> OpSample:
    batch, shared, share = (pick(st.integers(1, 3)) for _ in range(3))
    queries, keys = pick(st.integers(0, 20)), pick(st.integers(0, 90))
    depth, columns = (pick(st.sampled_from((*range(21), 4, 8, 32))) for _ in range(2))
    counts = np.asarray([pick(st.integers(-2, keys + 2)) for _ in range(batch)], np.int32)
    held, pending = batch, 0
    used = counts if pick(st.booleans()) else counts[0]
    if pick(st.booleans()):
        held = pick(st.integers(1, 4))
        slots = [pick(st.integers(-1, held)) for _ in range(batch)]
        pending = pick(st.integers(0, 3))
        if pending:  # those of a slot must not overlap
            counts = np.arange(batch, dtype=np.int32) * pending + pick(st.integers(0, keys))
        used = np.stack([counts, np.asarray(slots, np.int32)], axis=1)
    has_positions = not pending and used.ndim > 0 and pick(st.booleans())
    if has_positions:
        positions = [pick(st.integers(-20, 20)) for _ in range(batch)]
        numbers = used if used.ndim == 2 else used[:, None]
        used = np.concatenate([numbers, np.asarray(positions, np.int32)[:, None]], axis=1)
    inputs = [
        array(pick, "float32", (batch, shared * share, queries, depth)),
        array(pick, "float32", (held, shared, keys, depth)),
        array(pick, "float32", (held, shared, keys, columns)),
        used,
    ]
    if pending or pick(st.booleans()):
        new = pick(st.integers(0, 20))
        inputs += [array(pick, "float32", (batch, shared, new, n)) for n in (depth, columns)]
    attrs = attributes(depth, softcap=pick(st.sampled_from((0.0, 2.0))))
    attrs |= {"past_len": pick(st.integers(-20, 20))}
    attrs |= {side: pick(st.integers(-1, 9)) for side in ("left", "right")}
    if pick(st.booleans()):
        attrs |= {"float32_sums": True}
    if has_positions:
        attrs |= {"has_positions": True}
    elif pick(st.booleans()):
        attrs |= {"chunk": pick(st.integers(1, 40))}
    case = OpSample("attention_with_kvcache", tuple(inputs), attrs)
    ways = (lambda case: case, halved, *([in_q8_0] if columns else []))
    case = pick(st.sampled_from(ways))(case)
    if pending:
        case = with_pending(case, pending)
    turns = [pick(st.integers(0, 1)) for _ in range(4)]
    if pending:
        turns[1:3] = 0, 0
    return with_layout(case, tuple(turns))


DRAWS: dict[str, Draw] = {"attention_with_kvcache": _attention_with_kvcache}
