"""Gradients against PyTorch's autograd, where it is installed: attention, einsum, recurrent
networks, products.

An oracle beside central differences, which need no PyTorch. On numpy, one device and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional

Row = tuple[str, tuple[NDArray, ...], Callable[..., Any], Callable[..., Any]]
"""A name, operands, and a function of each library of them to one tensor or several."""
RNG = np.random.default_rng(13)


def values(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


# -- attention ---------------------------------------------------------------------------------

Q, K, V = values(2, 4, 9, 16), values(2, 2, 11, 16), values(2, 2, 11, 8)
SHORT = Q[:, :, :, :8]
SEEN = RNG.random((9, 11)) < 0.7
SEEN[:, 0] = True
BLIND = SEEN.copy()
BLIND[3] = False
AHEAD = np.arange(11) - np.arange(9)[:, None]


def by_hand(q: Any, k: Any, v: Any, seen: NDArray, softcap: float = 0.0) -> Any:
    """Attention in the words of its definition; rows that see no key are 0."""
    k, v = (t.repeat_interleave(2, 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) / 4
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    mask = torch.from_numpy(seen)
    weights = torch.softmax(scores.masked_fill(~mask, -1e30), -1) * mask
    return weights @ v


ATTENTION: list[Row] = [
    (
        "attention",
        (Q, K, V),
        vs.attention,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    ),
    (
        "attention causal",
        (SHORT, SHORT, SHORT),
        lambda q, k, v: vs.attention(q, k, v, causal=True, scale=0.3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
    ),
    (
        "attention by length",
        tuple(np.ascontiguousarray(t.swapaxes(1, 2)) for t in (Q, K, V)),
        lambda q, k, v: vs.attention(q, k, v, layout="BSHD"),
        lambda *t: F.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in t), enable_gqa=True
        ).transpose(1, 2),
    ),
    (
        "attention mask",
        (Q, K, V),
        lambda q, k, v: vs.attention(q, k, v, SEEN),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, torch.from_numpy(SEEN), enable_gqa=True
        ),
    ),
    *(
        (
            f"attention bias {shape}",
            (Q, K, V, values(*shape)),
            vs.attention,
            lambda q, k, v, m: F.scaled_dot_product_attention(
                q, k, v, m.broadcast_to(2, 4, 9, 11), enable_gqa=True
            ),
        )
        for shape in ((2, 4, 9, 11), (4, 9, 11), (2, 1, 1, 11), (9, 1))
    ),
    (
        "attention with a blind row",
        (Q, K, V),
        lambda q, k, v: vs.attention(q, k, v, BLIND),
        lambda q, k, v: by_hand(q, k, v, BLIND),
    ),
    (
        "attention softcap, window and past",
        (Q, K, V),
        lambda q, k, v: vs.attention(q, k, v, SEEN, softcap=0.8, window=(2, 1), past_len=1),
        lambda q, k, v: by_hand(q, k, v, SEEN & (AHEAD >= -1) & (AHEAD <= 2), 0.8),
    ),
]

# -- products ----------------------------------------------------------------------------------

EINSUM: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    *(("ij->ji", ((3, 4),)), ("ii->i", ((4, 4),)), ("...ii->...", ((2, 4, 4),))),
    *(("ij,jk->ki", ((3, 4), (4, 5))), ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5)))),
    *(("...ij,jk->...ik", ((2, 6, 3, 4), (4, 5))), ("bhqd,bhkd->bhqk", ((2, 3, 4, 5),) * 2)),
    *(("i,j->ij", ((3,), (4,))), ("ij,ij->", ((3, 4), (3, 4))), ("ij,kl->", ((3, 4), (2, 5)))),
    *(("bqd,bkd,bkv->bqv", ((2, 3, 4), (2, 5, 4), (2, 5, 6))), ("ij,ij->ij", ((3, 1), (1, 4)))),
    *(("abcd,cd->ab", ((2, 3, 4, 5), (4, 5))), ("aij,ajj->ai", ((2, 3, 4), (2, 4, 4)))),
]  # fmt: skip
PRODUCTS: list[Row] = [
    *(
        (
            f"einsum {equation}",
            tuple(values(*shape) for shape in shapes),
            lambda *t, e=equation: vs.einsum(e, *t),
            lambda *t, e=equation: torch.einsum(e, *t),
        )
        for equation, shapes in EINSUM
    ),
    *(
        (f"matmul {a} {b}", (values(*a), values(*b)), vs.matmul, torch.matmul)
        for a, b in (
            *(((5, 6, 7), (7, 3)), ((2, 1, 4, 3), (5, 3, 2)), ((6, 7), (4, 7, 3))),
            *(((7,), (7, 3)), ((2, 5, 7), (7,)), ((7,), (7,)), ((7,), (2, 7, 3))),
        )
    ),
    ("linear", (values(3, 5, 7), values(4, 7), values(4)), vs.linear, F.linear),
    (
        "tensordot",
        (values(3, 4, 5), values(5, 4, 2)),
        lambda a, b: vs.tensordot(a, b, ((1, 2), (1, 0))),
        lambda a, b: torch.tensordot(a, b, ((1, 2), (1, 0))),
    ),
    ("vecdot", (values(6, 5), values(3, 1, 5)), vs.vecdot, torch.linalg.vecdot),
    ("outer", (values(4), values(3)), vs.outer, torch.outer),
    (
        "gemm",
        (values(4, 5), values(4, 3), values(5, 1)),
        lambda a, b, c: vs.gemm(a, b, c, 0.5, 2.0, transpose_a=True),
        lambda a, b, c: 0.5 * a.T @ b + 2 * c,
    ),
]

# -- recurrent networks ------------------------------------------------------------------------

TIME, BATCH, SIZE, HIDDEN = 5, 3, 4, 6
ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""The gates of torch in the order of ONNX."""
NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def recurrent(kind: str, directions: int) -> Row:
    gates, order = len(ORDERS[kind]) * HIDDEN, ORDERS[kind]
    states = 2 if kind == "LSTM" else 1
    layer = getattr(torch.nn, kind)(SIZE, HIDDEN, bidirectional=directions == 2)
    names = [name + end for end in ("", "_reverse")[:directions] for name in NAMES]
    shapes = ((gates, SIZE), (gates, HIDDEN), (gates,), (gates,)) * directions
    arrays = (
        values(TIME, BATCH, SIZE),
        *(values(directions, BATCH, HIDDEN) for _ in range(states)),
        *(values(*shape) for shape in shapes),
    )

    def theirs(x: Any, *rest: Any) -> tuple[Any, ...]:
        start, weights = rest[:states], rest[states:]
        feeds = dict(zip(names, weights, strict=True))
        first = start if states == 2 else start[0]
        out, last = torch.func.functional_call(layer, feeds, (x, first))
        return (out, *(last if states == 2 else (last,)))

    def ours(x: vs.Tensor, *rest: vs.Tensor) -> tuple[vs.Tensor, ...]:
        start, weights = rest[:states], rest[states:]
        w, r, b_w, b_r = (
            vs.stack([_reordered(t, order) for t in weights[i::4]]) for i in range(len(NAMES))
        )
        keywords: dict[str, Any] = {"initial_h": start[0]}
        if kind == "LSTM":
            keywords["initial_c"] = start[1]
        if kind == "GRU":
            keywords["linear_before_reset"] = True
        keywords["direction"] = ("forward", "bidirectional")[directions - 1]
        out, *last = getattr(vs, kind.lower())(x, w, r, vs.concat([b_w, b_r], 1), **keywords)
        joined = vs.reshape(vs.transpose(out, (0, 2, 1, 3)), (TIME, BATCH, directions * HIDDEN))
        return (joined, *last)

    return f"{kind} {directions}", arrays, ours, theirs


def _reordered(x: vs.Tensor, order: tuple[int, ...]) -> vs.Tensor:
    parts = vs.split(x, len(order))
    return vs.concat([parts[i] for i in order])


RECURRENT = [recurrent(kind, directions) for kind in ORDERS for directions in (1, 2)]
ROWS = [*ATTENTION, *PRODUCTS, *RECURRENT]


@pytest.fixture(scope="module")
def sched(devices: list[str]) -> Iterator[vs.Scheduler]:
    with vs.Scheduler(devices) as opened:
        yield opened


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_gradients_equal_those_of_pytorch(row: Row, sched: vs.Scheduler) -> None:
    _, arrays, ours, theirs = row
    inputs = [vs.input(f"x{i}", a.shape) for i, a in enumerate(arrays)]
    built = ours(*inputs)
    outputs = [built] if isinstance(built, vs.Tensor) else list(built)
    rng = np.random.default_rng(3)
    weights = [np.asarray(rng.standard_normal(o.shape), np.float32) for o in outputs]
    pulled = vs.vjp(outputs, weights, {f"x{i}": x for i, x in enumerate(inputs)})
    run = sched.compile(pulled | {f"y{i}": o for i, o in enumerate(outputs)})
    got = run(**{f"x{i}": a for i, a in enumerate(arrays)})
    run.close()
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    results = theirs(*tensors)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    assert [tuple(r.shape) for r in results] == [o.shape for o in outputs]
    loss = sum((r * torch.from_numpy(w)).sum() for r, w in zip(results, weights, strict=True))
    for i, expected in enumerate(torch.autograd.grad(loss, tensors)):
        largest = max(1.0, float(expected.abs().max()))
        np.testing.assert_allclose(
            got[f"x{i}"], expected.numpy(), rtol=1e-4, atol=2e-5 * largest, err_msg=f"x{i}"
        )
