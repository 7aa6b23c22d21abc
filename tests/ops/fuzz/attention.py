"""Draws of attention and of the rotary position embedding."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.linalg.attention import attributes, of_gradient, rotary, with_layout
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array


def _attention(pick: Pick) -> OpSample:
    turns = tuple(pick(st.integers(0, 1)) for _ in range(4))
    return with_layout(_by_heads(pick), turns)


def _gradient(pick: Pick) -> OpSample:
    return of_gradient(_by_heads(pick))


def _by_heads(pick: Pick) -> OpSample:
    batch, shared, share = (pick(st.integers(1, 3)) for _ in range(3))
    queries, keys = pick(st.integers(0, 20)), pick(st.integers(0, 90))
    depth, columns = (pick(st.sampled_from((*range(21), 4, 8, 32))) for _ in range(2))
    scores = (batch, shared * share, queries, keys)
    inputs = [
        array(pick, "float32", (*scores[:3], depth)),
        array(pick, "float32", (batch, shared, keys, depth)),
        array(pick, "float32", (batch, shared, keys, columns)),
    ]
    masked = pick(st.sampled_from(("", "bool", "float32")))
    if masked:
        shape = tuple(1 if pick(st.booleans()) else side for side in scores)
        inputs.append(array(pick, masked, shape[pick(st.integers(0, 4)) :]))
    attrs = attributes(depth, softcap=pick(st.sampled_from((0.0, 2.0))))
    attrs |= {"past_len": pick(st.integers(-5, 50))}
    attrs |= {side: pick(st.integers(-1, 9)) for side in ("left", "right")}
    if pick(st.booleans()):
        attrs |= {"float32_sums": True}
    return OpSample("attention", tuple(inputs), attrs)


def _rotary(pick: Pick) -> OpSample:
    batch, heads, length, depth = (pick(st.integers(0, 5)) for _ in range(4))
    rotary_size = 2 * pick(st.integers(0, depth // 2))
    batched = (pick(st.booleans()), pick(st.booleans()))
    return rotary((batch, heads, length, depth), rotary_size, batched, pick(st.booleans()))


DRAWS: dict[str, Draw] = {
    "attention": _attention,
    "attention_backward": _gradient,
    "rotary_embedding": _rotary,
}
