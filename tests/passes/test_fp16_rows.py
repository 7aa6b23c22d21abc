"""Rows that norms and gates store as float16: for which products, with the same bits as before, and
with overflows at the same places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import Tiny, logits_of, write
from test_fuse_linears import COOPMAT_GPU, K, values, weight
from test_fuse_rope import GPU, prompt

import vksched as vs
from vksched.common.dtypes import FLOAT16, FLOAT32, NDArray
from vksched.engine.fp16_overflow import find_overflow
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, fp16_rows, optimize
from vksched.passes.fp16_rows import keep_rows_in_float32
from vksched.passes.set_precision import set_precision
from vksched.runtime.cpu.evaluate import evaluate_node
from vksched.runtime.vulkan import device_probe

ROWS = 100
X = vs.input("x", (ROWS, K))


def graph_of(
    *outputs: vs.Tensor, word: str = "mixed", limits: Any = COOPMAT_GPU, **constraints: Any
) -> Graph:
    graph, _ = vs.build_graph(list(outputs))
    graph = set_precision(graph, {node.id: word for node in graph.nodes})
    return optimize(graph, RewriteConstraints(limits=limits, **constraints))


def fp16_nodes(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.type.dtype == FLOAT16]


def norm(scale: float = 1.0) -> vs.Tensor:
    return vs.rms_norm(X, values(K) * np.float32(scale), name="normed")


def feed_forward(x: vs.Tensor) -> vs.Tensor:
    """A gate, and a product of it."""
    gate, up = (vs.linear(x, weight(K, seed)) for seed in (1, 2))
    return vs.linear(vs.silu(gate) * up, weight(64, 3), name="down")


def test_norms_and_gates_store_float16_for_products() -> None:
    graph = graph_of(feed_forward(norm()))
    assert fp16_nodes(graph) == ["rms_norm", "merged_linear"]
    assert [node.op for node in graph.ops] == ["rms_norm", "merged_linear", "quantized_linear"]
    layer = vs.layer_norm(X, values(K), values(K))
    assert fp16_nodes(graph_of(vs.exp(vs.linear(layer, weight(64))))) == ["layer_norm"]
    normed = norm()
    both = [vs.exp(vs.linear(normed, weight(n, n))) for n in (64, 128)]
    assert fp16_nodes(graph_of(*both)) == ["rms_norm"], "the readers are one merged linear"


def test_views_of_rows_are_float16() -> None:
    rows = vs.reshape(norm(), (2, ROWS // 2, K))
    graph = graph_of(vs.exp(vs.linear(rows, weight(64))))
    assert fp16_nodes(graph) == ["rms_norm", "reshape"]
    last = vs.exp(vs.linear(norm()[ROWS - 64 :], weight(64)))
    assert fp16_nodes(graph_of(last)) == ["rms_norm", "slice"]


@pytest.mark.parametrize(
    "change",
    [
        {"word": "float32"},
        {"word": "bfloat16"},
        {"word": "int8"},
        {"limits": None},
        {"limits": replace(COOPMAT_GPU, coopmat_checked=False)},
        {"limits": replace(COOPMAT_GPU, matrices=())},
        {"observed": frozenset(("normed",))},
        {"pinned_devices": {"product": "cpu"}},
    ],
)
def test_other_rows_stay_float32(change: dict[str, Any]) -> None:
    graph = graph_of(vs.exp(vs.linear(norm(), weight(64), name="product")), **change)
    assert (
        fp16_nodes(graph) == []
        and next(n for n in graph.nodes if n.name == "normed").type.dtype == FLOAT32
    )


def test_rows_with_other_readers_stay_float32() -> None:
    normed = norm()
    product = vs.exp(vs.linear(normed, weight(64)))
    for others in (
        (normed,),
        (vs.tanh(normed),),
        (vs.exp(normed @ values(K, 64)),),
        (vs.bitcast(normed, "int32"),),
    ):
        assert fp16_nodes(graph_of(product, *others)) == []
    residual = vs.linear(normed, weight(K)) + normed
    assert fp16_nodes(graph_of(vs.exp(residual))) == [], "the residual is added in float32"


def results_of(graph: Graph, x: NDArray, start: int = 0) -> list[NDArray]:
    """The outputs by numpy; start: the position of a prompt."""
    found = dict(graph.arrays())
    for node in graph.nodes:
        if node.op == "input":
            found[node.id] = x if node.type.shape else np.asarray(start, np.int32)
        elif node.id not in found:
            found[node.id] = evaluate_node(graph, node.id, tuple(found[i] for i in node.inputs))
    return [found[i] for _, i in graph.outputs]


@pytest.mark.parametrize("scale", [0.01, 3e4])
def test_results_have_the_bits_of_float32_rows(scale: float) -> None:
    """Values beyond the range are infinite in the same rows: 3e4 times a norm is up to 1e5."""
    x = values(ROWS, K, seed=4)
    graph = graph_of(feed_forward(norm(scale)))
    before = keep_rows_in_float32(graph)
    assert fp16_nodes(graph) and not fp16_nodes(before)
    (got,), (wanted,) = results_of(graph, x), results_of(before, x)
    np.testing.assert_array_equal(got, wanted)
    assert np.isfinite(got).all() == (scale == 0.01)


def test_heads_of_a_prompt_are_products_of_float16_rows() -> None:
    """Products that rotate their results (fuse_rope.py) convert rows to float16, too."""
    x = vs.input("x", (1, ROWS, 256))
    normed = vs.rms_norm(x, values(256))
    graph = graph_of(*prompt(x=normed).values(), limits=GPU)
    assert fp16_nodes(graph) == ["rms_norm"]
    assert [node.op for node in graph.ops].count("merged_linear_rope") == 1
    rows = values(1, ROWS, 256, seed=4)
    before = keep_rows_in_float32(graph)
    assert not fp16_nodes(before)
    both = zip(results_of(graph, rows, 3), results_of(before, rows, 3), strict=True)
    for got, wanted in both:
        np.testing.assert_array_equal(got, wanted)


def test_an_overflow_is_found_where_it_is_written_or_read() -> None:
    x = values(ROWS, K, seed=4)
    for scale, name in ((1.0, ""), (3e4, "normed")):
        graph = graph_of(vs.exp(vs.linear(norm(scale), weight(64), name="product")))
        assert fp16_nodes(graph)
        (node,) = (node.id for node in graph.nodes if node.op == "input")
        found = find_overflow(graph, {node: x}, {})
        assert (found is None) == (not name)
        if found is not None:
            assert (found.node, found.op) == ("product", "quantized_linear")
            assert f"its operand {name} holds" in found.what


# -- on devices ------------------------------------------------------------------------------------

LLAMA = Tiny(kind="Q4_K", layers=2)
MODELS = {
    "llama Q4_K": LLAMA,
    "qwen2 Q5_0": Tiny("qwen2", kind="Q5_0", biases=True),
}


@pytest.fixture(scope="module", params=["vulkan:0", "vulkan:1"])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    names = {each.name for each in device_probe.list_devices() if each.usable}
    if request.param not in names:
        pytest.skip(f"no {request.param} here")
    with vs.Scheduler([request.param], tune=False) as sched:
        yield sched


@pytest.mark.parametrize("name", MODELS)
def test_prompts_have_the_logits_of_numpy(
    name: str, sched: vs.Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: devices without cooperative matrices convert the rows."""
    monkeypatch.setattr(fp16_rows, "is_supported", lambda limits: limits is not None)
    monkeypatch.setattr(fp16_rows, "is_by_coopmats", lambda *_: True)
    tiny, path = MODELS[name], tmp_path / "tiny.gguf"
    weights = write(tiny, path, np.random.default_rng(5))
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    ids = np.arange(3, 9, dtype=np.int32)
    step = model.step(model.cache(16), len(ids))
    run = sched.compile(step.logits, updates=step.updates, precision="mixed")
    found = fp16_nodes(run.plan.graph)
    assert "rms_norm" in found
    got = run(ids=ids[None], start=np.int32(0), count=np.int32(len(ids)))
    wanted = logits_of(tiny, weights, ids)[-1]
    np.testing.assert_allclose(got.reshape(-1), wanted, rtol=2e-2, atol=2e-2)
    run.close()
