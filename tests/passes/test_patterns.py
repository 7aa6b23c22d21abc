"""Patterns: what files write out in small ops becomes one op of the same results, and only that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from fused import assert_names_survive
from graphs import numpy_outputs

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, fuse_patterns, simplify
from vksched.topology.limits import Limits

ROWS = (3, 5, 8)
Built = Callable[[vs.Tensor], vs.Tensor]


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.ops if node.op != "reshape"]


def values(*shape: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def both(
    outputs: vs.Tensor | list[vs.Tensor], feeds: Mapping[str, NDArray], **constraints: object
) -> Graph:
    """The graph that the passes make, which gives what the graph as it is written gives."""
    before, _ = vs.build_graph(outputs)
    wanted = RewriteConstraints(**constraints).propagate_pins(before)  # type: ignore[arg-type]
    after = fuse_patterns(
        simplify(before, wanted), wanted
    ).verify()  # what later passes fuse is theirs
    assert_names_survive(before, after)
    for got, wanted in zip(numpy_outputs(after, feeds), numpy_outputs(before, feeds), strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
    return after


# -- activations and norms ---------------------------------------------------------------------

ROOT = float(np.sqrt(2.0))
RATE = float(np.sqrt(2.0 / np.pi))


def variance(d: vs.Tensor) -> vs.Tensor:
    return vs.reduce_mean(d * d, -1, keepdims=True)


def centred(x: vs.Tensor) -> vs.Tensor:
    return x - vs.reduce_mean(x, -1, keepdims=True)


def layer_norm(x: vs.Tensor) -> vs.Tensor:
    d = centred(x)
    return d / vs.sqrt(variance(d) + 1e-5)


def layer_norm_by_product(x: vs.Tensor) -> vs.Tensor:
    d = centred(x)
    return vs.rsqrt(1e-5 + vs.reduce_mean(d**2.0, -1, keepdims=True)) * d


ROW = values(8, seed=3)
ONE: Mapping[str, tuple[str, Built]] = {
    "erf, halved last": ("gelu", lambda x: x * (vs.erf(x / ROOT) + 1.0) * 0.5),
    "erf, halved first": ("gelu", lambda x: (0.5 * x) * (1.0 + vs.erf(x * (1 / ROOT)))),
    "erf, gate halved": ("gelu", lambda x: x * (0.5 * (1.0 + vs.erf(x / ROOT)))),
    "tanh": ("gelu_tanh", lambda x: 0.5 * x * (1.0 + vs.tanh(RATE * (x + 0.044715 * x**3.0)))),
    "tanh, x taken out": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1.0 + vs.tanh(x * RATE * (1.0 + 0.044715 * x * x))),
    ),
    "tanh, x x x": (
        "gelu_tanh",
        lambda x: 0.5 * x * (1.0 + vs.tanh(RATE * (x + 0.044715 * (x * x * x)))),
    ),
    "silu": ("silu", lambda x: x * vs.sigmoid(x)),
    "hard swish": ("hard_swish", lambda x: x * vs.clip(x + 3.0, 0, 6) / 6.0),
    "hard swish by a product": ("hard_swish", lambda x: x * (vs.clip(3.0 + x, 0, 6) * (1 / 6))),
    "hard swish, gate divided": ("hard_swish", lambda x: vs.clip(x + 3.0, 0, 6) / 6.0 * x),
    "hard swish by hard sigmoid": ("hard_swish", lambda x: x * vs.hard_sigmoid(x, 1 / 6, 0.5)),
    "layer norm": ("layer_norm", layer_norm),
    "layer norm by a product": ("layer_norm", layer_norm_by_product),
    "layer norm, scaled and shifted": ("layer_norm", lambda x: layer_norm(x) * ROW + ROW),
    "rms norm": ("rms_norm", lambda x: x / vs.sqrt(variance(x) + 1e-6)),
    "rms norm by a product": ("rms_norm", lambda x: ROW * (x * vs.rsqrt(variance(x) + 1e-6))),
    "rms norm by an inverse": ("rms_norm", lambda x: x * (1.0 / vs.sqrt(variance(x) + 1e-6))),
    "bias": ("matmul", lambda x: vs.matmul(x, values(8, 4, seed=1)) + values(4, seed=2)),
    "scale behind a norm": ("rms_norm", lambda x: vs.rms_norm(x) * ROW),
    "shift behind a norm": ("layer_norm", lambda x: ROW + vs.layer_norm(x, ROW)),
}


@pytest.mark.parametrize("name", list(ONE))
def test_small_ops_are_one(name: str) -> None:
    op, make = ONE[name]
    assert ops_of(both(make(vs.input("x", ROWS)), {"x": 3 * values(*ROWS)})) == [op]


MANY: Mapping[str, Built] = {
    "gelu with another root": lambda x: x * (vs.erf(x / 1.4) + 1.0) * 0.5,
    "gelu not halved": lambda x: x * (vs.erf(x / ROOT) + 1.0) * 0.6,
    "gelu of something else": lambda x: (x + 1.0) * (vs.erf(x / ROOT) + 1.0) * 0.5,
    "tanh with another cube": lambda x: 0.5 * x * (1.0 + vs.tanh(RATE * (x + 0.05 * x**3.0))),
    "silu of something else": lambda x: (x + 1.0) * vs.sigmoid(x),
    "hard swish of something else": lambda x: (x + 1.0) * vs.clip(x + 3.0, 0, 6) / 6.0,
    "hard swish of another width": lambda x: x * vs.clip(x + 3.0, 0, 5) / 6.0,
    "hard swish not divided": lambda x: x * vs.clip(x + 3.0, 0, 6) / 5.0,
    "norm over another axis": lambda x: x / vs.sqrt(vs.reduce_mean(x * x, 1, keepdims=True) + 1e-6),
    "norm of something else": lambda x: (x + 1.0) / vs.sqrt(variance(x) + 1e-6),
    "variance of something else": lambda x: centred(x) / vs.sqrt(variance(x) + 1e-5),
    "negative eps": lambda x: x / vs.sqrt(variance(x) - 1e-6),
    "scale of a whole tensor": lambda x: vs.rms_norm(x) * values(*ROWS, seed=4),
    "scale behind a shift": lambda x: vs.layer_norm(x, ROW, ROW) * ROW,
    "bias of a whole matrix": lambda x: vs.matmul(x, values(8, 4)) + values(5, 4),
}


@pytest.mark.parametrize("name", list(MANY))
def test_what_only_looks_like_it_stays(name: str) -> None:
    x = vs.input("x", ROWS)
    before, _ = vs.build_graph(MANY[name](x))
    after = both(MANY[name](x), {"x": values(*ROWS)})
    assert not {"gelu", "gelu_tanh", "silu", "hard_swish"} & set(ops_of(after))
    norms = {"layer_norm", "rms_norm", "matmul", "add", "mul", "div"}
    found, were = (sorted(set(ops_of(g)) & norms) for g in (after, before))
    assert found == were


# -- attention -----------------------------------------------------------------------------------

B, H, M, N, D = 2, 3, 4, 6, 8
SHAPES = {"q": (B, M, H, D), "k": (B, N, H, D), "v": (B, N, H, D)}
FEEDS = {name: values(*shape, seed=i) for i, (name, shape) in enumerate(SHAPES.items())}
HIDES = np.random.default_rng(9).random((B, 1, 1, N)) < 0.4
LOWEST = float(np.finfo(np.float32).min)


def heads() -> list[vs.Tensor]:
    return [vs.transpose(vs.input(name, shape), (0, 2, 1, 3)) for name, shape in SHAPES.items()]


def attend(
    change: Built = lambda scores: scores, transposed: bool = False, axis: int = -1
) -> vs.Tensor:
    q, k, v = heads()
    if transposed:
        k = vs.transpose(vs.input("k", SHAPES["k"]), (0, 2, 3, 1))
    else:
        k = vs.transpose(k, (0, 1, 3, 2))
    out = vs.matmul(vs.softmax(change(vs.matmul(q, k)), axis), v)
    return vs.transpose(out, (0, 2, 1, 3))


def masked(lowest: float) -> vs.Tensor:
    return vs.where(vs.input("hide", HIDES.shape, "bool"), lowest, 0.0)


ATTENTION: Mapping[str, Callable[[], vs.Tensor]] = {
    "plain": attend,
    "k transposed at once": lambda: attend(transposed=True),
    "scaled": lambda: attend(lambda s: s * 0.3),
    "divided": lambda: attend(lambda s: s / 2.83),
    "masked": lambda: attend(lambda s: s / 2.83 + masked(LOWEST)),
    "mask first": lambda: attend(lambda s: masked(LOWEST) + s),
    "a constant that hides": lambda: attend(
        lambda s: s + np.triu(np.full((M, N), -np.inf, np.float32), 1)
    ),
    "a mask that may hide all": lambda: attend(lambda s: s + masked(-np.inf)),
    "a constant that hides all": lambda: attend(lambda s: s + np.full((M, 1), -np.inf, np.float32)),
    "a mask from outside": lambda: attend(lambda s: s + vs.input("mask", (M, N))),
    "scores replaced": lambda: attend(
        lambda s: vs.where(vs.input("hide", HIDES.shape, "bool"), -np.inf, s)
    ),
    "scores kept": lambda: attend(
        lambda s: vs.where(vs.input("hide", HIDES.shape, "bool"), s, -np.inf)
    ),
    "two masks": lambda: attend(lambda s: (s + values(1, H, M, N)) + masked(LOWEST)),
}


@pytest.mark.parametrize("name", list(ATTENTION))
def test_products_around_a_softmax_are_attention(name: str) -> None:
    with np.errstate(invalid="ignore"):
        after = both(ATTENTION[name](), FEEDS | {"hide": HIDES, "mask": values(M, N)})
    others = ("where", "add", "logical_not")
    assert [op for op in ops_of(after) if op not in others] == ["attention"]
    node = next(n for n in after.ops if n.op == "attention")
    assert node.attrs["is_bshd"] == (1, 1, 1, 1)


def test_attention_of_operands_scaled_before() -> None:
    q, k, v = heads()
    scores = vs.matmul(q * 0.5, vs.transpose(k * 0.7, (0, 1, 3, 2)))
    after = both(vs.matmul(vs.softmax(scores), v), FEEDS)
    assert ops_of(after)[-1] == "attention" and "softmax" not in ops_of(after)


def test_attention_of_three_axes() -> None:
    q, k, v = (vs.input(name, (4, length, 8)) for name, length in (("q", 3), ("k", 5), ("v", 5)))
    output = vs.matmul(vs.softmax(vs.matmul(q, k, transpose_b=True) * 0.2), v)
    feeds = {n: values(4, length, 8, seed=length) for n, length in (("q", 3), ("k", 5), ("v", 5))}
    assert ops_of(both(output, feeds)) == ["attention"]


APART: Mapping[str, Callable[[], vs.Tensor]] = {
    "masks that may cancel": lambda: attend(
        lambda s: (s + vs.input("mask", (M, N))) + values(1, H, M, N)
    ),
    "a curve on the scores": lambda: attend(vs.sigmoid),
    "softmax over the queries": lambda: attend(axis=-2),
}


@pytest.mark.parametrize("name", list(APART))
def test_what_is_not_attention_stays(name: str) -> None:
    feeds = FEEDS | {"hide": HIDES, "mask": values(M, N)}
    with np.errstate(invalid="ignore"):
        assert "attention" not in ops_of(both(APART[name](), feeds))


def test_values_that_are_read_or_wanted_stay() -> None:
    q, k, v = heads()
    weights = vs.softmax(vs.matmul(q, vs.transpose(k, (0, 1, 3, 2))), name="weights")
    out = vs.matmul(weights, v)
    assert "attention" not in ops_of(both([out, weights], FEEDS))
    assert "attention" not in ops_of(both([out, vs.exp(weights)], FEEDS))
    assert "attention" not in ops_of(both(out, FEEDS, observed=frozenset(["weights"])))
    assert "attention" not in ops_of(both(out, FEEDS, pinned_devices={"weights": "vulkan:0"}))
    assert "attention" in ops_of(both(out, FEEDS))
    x = vs.input("x", ROWS)
    gate = vs.sigmoid(x)
    assert "silu" not in ops_of(both([x * gate, gate], {"x": values(*ROWS)}))
    d = centred(x)
    stored = both([d / vs.sqrt(variance(d) + 1e-5), d], {"x": values(*ROWS)})
    assert "layer_norm" not in ops_of(stored)


def test_a_mask_needs_a_device_that_binds_five_buffers() -> None:
    built, feeds = ATTENTION["masked"](), FEEDS | {"hide": HIDES}
    few, many = Limits(storage_buffers=4), Limits(storage_buffers=5)
    assert "attention" not in ops_of(both(built, feeds, limits=few))
    assert "attention" in ops_of(both(built, feeds, limits=many))
    assert "attention" in ops_of(both(attend(), FEEDS, limits=few))


def test_attention_takes_transposes_up() -> None:
    q, k, v = heads()
    out = vs.transpose(vs.attention(q, k, v, causal=True), (0, 2, 1, 3))
    after = both(out, FEEDS)
    assert ops_of(after) == ["attention"]
    joined = [vs.input(name, (2, 4, 24)) for name in "qkv"]
    feeds = {name: values(2, 4, 24, seed=i) for i, name in enumerate("qkv")}
    assert ops_of(both(vs.attention(*joined, num_heads=3), feeds)) == ["attention"]


def test_masks_whose_sum_overflows_are_not_attentions() -> None:
    """Each is finite; a row that both hide is NaN after softmax, and 0 after attention."""
    hidden = np.zeros((M, N), np.float32)
    hidden[0] = np.finfo(np.float32).min
    built = attend(lambda s: s + vs.constant(hidden) + vs.constant(hidden.copy()))
    with np.errstate(all="ignore"):
        assert "attention" not in ops_of(both(built, FEEDS))
    few = (hidden / 4).astype(np.float32)
    built = attend(lambda s: s + vs.constant(few) + vs.constant(few.copy()))
    assert "attention" in ops_of(both(built, FEEDS))


def test_long_products_and_shared_masks_are_looked_at_once() -> None:
    x, y = vs.input("x", ROWS), vs.input("y", ROWS)
    product = x
    for _ in range(1500):  # more than Python's stack has room for
        product = product * y
    before, _ = vs.build_graph(product)
    assert ops_of(fuse_patterns(before, RewriteConstraints())) == ["mul"] * 1500
    hidden = vs.input("hide", (M, N), "bool")
    mask = vs.constant(np.zeros((M, N), np.float32))
    for _ in range(40):  # 2 ** 40 ways to the constant
        mask = vs.where(hidden, mask, mask)
    feeds = FEEDS | {"hide": np.ones((M, N), bool)}
    assert "attention" in ops_of(both(attend(lambda s: s + mask), feeds))
