"""The precision of nodes, before and behind the passes that make one product of another."""

from __future__ import annotations

import numpy as np

import vksched as vs
from vksched.ir.graph import Graph
from vksched.ir.precision import BYTES, MIXED, SINGLE, precision_of
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.set_precision import set_precision
from vksched.testing.op_cases.linalg.quantized_linear import blocks
from vksched.topology.limits import Limits

X = vs.input("x", (2, 16, 32))


def mixed(graph: Graph) -> Graph:
    return set_precision(graph, dict.fromkeys(range(len(graph.nodes)), MIXED))


def precisions_of(graph: Graph, constraints: RewriteConstraints | None = None) -> dict[str, str]:
    built = optimize(mixed(graph), constraints)
    return {
        node.op: precision_of(node.attrs)
        for node in built.ops
        if node.declaration.roundable_operands
    }


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_only_products_have_a_precision() -> None:
    graph, _ = vs.build_graph(vs.relu(X @ weights(32, 8)))
    words = {node.op: precision_of(node.attrs) for node in mixed(graph).ops}
    assert words == {"matmul": MIXED, "relu": SINGLE}


def test_integers_and_float16_have_none() -> None:
    for dtype in ("int32", "float16"):
        x = vs.input("x", (4, 4), dtype)
        graph, _ = vs.build_graph(x @ x)
        assert mixed(graph) is graph


def test_the_same_words_change_nothing() -> None:
    graph, _ = vs.build_graph(X @ weights(32, 8))
    once = mixed(graph)
    assert mixed(once) is once and once.key != graph.key
    assert set_precision(once, dict.fromkeys(range(len(graph.nodes)), SINGLE)).key == graph.key


def test_a_bias_keeps_it() -> None:
    graph, _ = vs.build_graph(X @ weights(32, 8) + weights(8))
    assert precisions_of(graph) == {"matmul": MIXED}


def test_an_epilogue_keeps_it() -> None:
    constraints = RewriteConstraints(limits=Limits(storage_buffers=8), memory_bytes=1 << 30)
    graph, _ = vs.build_graph(vs.relu(X @ weights(32, 8)))
    built = optimize(mixed(graph), constraints)
    assert [node.op for node in built.ops] == ["matmul"]
    assert precision_of(built.ops[0].attrs) == MIXED and "epilogue" in built.ops[0].attrs


def test_weights_of_few_bits_keep_it() -> None:
    packed = vs.quantized_weight(blocks("q4_K", 12, 512), "q4_K", (12, 512))
    graph, _ = vs.build_graph(vs.linear(vs.input("x", (3, 512)), packed))
    assert precisions_of(graph) == {"quantized_linear": MIXED}


def test_codes_of_8_bits_are_for_weights_of_few_bits() -> None:
    x = vs.input("x", (3, 512))
    products = {
        "codes": vs.linear(x, vs.quantized_weight(blocks("q4_K", 12, 512), "q4_K", (12, 512))),
        "floats": vs.linear(x, vs.quantized_weight(blocks("f16", 12, 512), "f16", (12, 512))),
        "plain": x @ weights(512, 12),
    }
    for name, product in products.items():
        graph, _ = vs.build_graph(product)
        bytes_of = set_precision(graph, dict.fromkeys(range(len(graph.nodes)), BYTES))
        (node,) = [
            node for node in optimize(bytes_of, None).ops if node.declaration.roundable_operands
        ]
        assert precision_of(node.attrs) == (BYTES if name == "codes" else SINGLE), name
        assert node.op == ("matmul" if name == "plain" else "quantized_linear")
    mixed_before = mixed(vs.build_graph(products["plain"])[0])
    none = set_precision(mixed_before, dict.fromkeys(range(len(mixed_before.nodes)), BYTES))
    assert {precision_of(node.attrs) for node in none.nodes} == {SINGLE}


def test_winograd_keeps_it() -> None:
    constraints = RewriteConstraints(limits=Limits(storage_buffers=8), memory_bytes=1 << 30)
    x = vs.input("x", (1, 64, 64, 64))
    graph, _ = vs.build_graph(vs.conv(x, vs.weight(weights(64, 64, 3, 3)), padding=1))
    assert precisions_of(graph, constraints) == {"winograd_conv": MIXED}


def scores_and_values() -> tuple[vs.Tensor, vs.Tensor]:
    q, k, v = (vs.input(name, (1, 2, 8, 16)) for name in "qkv")
    scores = vs.matmul(q, k, transpose_b=True)
    return scores, vs.softmax(scores, -1) @ v


def test_recognised_attention_keeps_it() -> None:
    graph, _ = vs.build_graph(scores_and_values()[1])
    assert precisions_of(graph) == {"attention": MIXED}


def test_products_of_two_words_are_no_attention() -> None:
    scores, out = scores_and_values()
    graph, ids = vs.build_graph(out)
    built = optimize(set_precision(graph, {ids[scores]: MIXED}))
    assert [precision_of(n.attrs) for n in built.ops if n.op == "matmul"] == [MIXED, SINGLE]


def test_equal_products_of_two_words_stay_two() -> None:
    x, w = vs.input("x", (4, 4)), vs.weight(weights(4, 4))
    one, other = x @ w, x @ w
    graph, ids = vs.build_graph([one, other])
    assert len(optimize(graph).ops) == 1
    assert len(optimize(set_precision(graph, {ids[one]: MIXED})).ops) == 2
