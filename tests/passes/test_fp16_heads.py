"""Heads of a prompt that stay float16 from their product to the KV cache: where they do, and that
logits and caches have the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import Tiny, write
from test_fuse_rope import GPU

import vksched as vs
from vksched.common.dtypes import FLOAT16, FLOAT32, NDArray
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.fp16_rows import ATTENTION, ROPE, keep_rows_in_float32
from vksched.passes.set_precision import set_precision
from vksched.runtime.cpu.evaluate import evaluate_node
from vksched.topology.limits import Limits

TINY = Tiny(kind="Q4_K", layers=2, context=128)
TOKENS, START = 40, 5
CARD = replace(GPU, storage_buffers=16, subgroup_size=32, subgroup_shuffle=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write(TINY, path, np.random.default_rng(5))
    loaded = vs.load(Path(path))
    assert isinstance(loaded, LanguageModel)
    return loaded


def graph_of(
    model: LanguageModel,
    kv: str = "f16",
    word: str = "mixed",
    limits: Limits = CARD,
    tokens: int = TOKENS,
    **constraints: Any,
) -> Graph:
    step = model.step(model.cache(TINY.context, kv), tokens)
    graph, _ = vs.build_graph(step.logits, step.updates)
    graph = set_precision(graph, {node.id: word for node in graph.nodes})
    return optimize(graph, RewriteConstraints(limits=limits, **constraints))


def dtypes_of(graph: Graph, op: str) -> list[str]:
    return [node.type.dtype for node in graph.nodes if node.op == op]


def test_heads_are_float16_from_their_product_to_the_cache(model: LanguageModel) -> None:
    """Except in the last layer, where the product of the last token reads float32."""
    graph = graph_of(model)
    assert dtypes_of(graph, ROPE) == dtypes_of(graph, ATTENTION) == [FLOAT16, FLOAT32]
    (cast,) = [node for node in graph.nodes if node.op == "cast" and node.type.dtype == FLOAT16]
    (layer,) = [n for n in graph.nodes if n.op == ROPE and n.type.dtype == FLOAT32]
    assert graph.nodes[cast.inputs[0]].inputs == (layer.id,)
    (first,) = [n for n in graph.nodes if n.op == ATTENTION and n.type.dtype == FLOAT16]
    assert {graph.nodes[first.inputs[i]].type.dtype for i in (0, 1, 2, 4, 5)} == {FLOAT16}
    before = keep_rows_in_float32(graph)
    assert set(dtypes_of(before, ROPE) + dtypes_of(before, ATTENTION)) == {FLOAT32}


@pytest.mark.parametrize(
    "change",
    [
        {"kv": "f32"},
        {"kv": "q8_0"},
        {"word": "float32"},
        {"word": "bfloat16"},
        {"tokens": 8},
        {"limits": replace(CARD, coopmat_checked=False)},
        {"limits": replace(CARD, coopmat_attention_slow=True)},
        {"limits": replace(CARD, registers=128)},
    ],
)
def test_other_heads_stay_float32(change: dict[str, Any], model: LanguageModel) -> None:
    graph = graph_of(model, **change)
    assert FLOAT16 not in dtypes_of(graph, ROPE) + dtypes_of(graph, ATTENTION)


def test_a_value_that_is_observed_stays_float32(model: LanguageModel) -> None:
    graph = graph_of(model)
    for op in (ROPE, ATTENTION):
        name = next(node.name for node in graph.nodes if node.op == op)
        other = graph_of(model, observed=frozenset((name,)))
        assert FLOAT16 not in dtypes_of(other, ATTENTION)


def results_of(graph: Graph, feeds: Mapping[str, NDArray]) -> list[NDArray]:
    """The logits, and the values that the cache gets."""
    found = {**graph.arrays(), **graph.initial}
    for node in graph.nodes:
        if node.op == "input":
            found[node.id] = feeds[node.name]
        elif node.id not in found:
            found[node.id] = evaluate_node(graph, node.id, tuple(found[i] for i in node.inputs))
    written = [node.id for node in graph.nodes if node.op == "dynamic_update_slice"]
    assert len(written) == 2 * TINY.layers
    return [found[i] for i in (*(i for _, i in graph.outputs), *written)]


def test_results_have_the_bits_of_float32_heads(model: LanguageModel) -> None:
    graph = graph_of(model)
    before = keep_rows_in_float32(graph)
    feeds = {
        "ids": np.arange(3, 3 + TOKENS, dtype=np.int32)[None],
        "start": np.int32(START),
        "count": np.int32(TOKENS),
    }
    for got, wanted in zip(results_of(graph, feeds), results_of(before, feeds), strict=True):
        assert got.dtype == wanted.dtype and np.isfinite(got).all()
        np.testing.assert_array_equal(got, wanted)
