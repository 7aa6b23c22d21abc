"""Products of one row that read the same: what becomes one on GPUs and what does not, results as
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import Tiny, logits_of, write

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.graph import Graph
from vksched.ir.op import EPILOGUE
from vksched.ir.precision import BYTES, with_word
from vksched.ops.quantized.gguf_formats import format_of
from vksched.passes import RewriteConstraints, fuse_linears, optimize
from vksched.passes.set_precision import set_precision
from vksched.runtime.vulkan import device_probe
from vksched.testing.numeric_gradient import evaluate
from vksched.testing.op_cases.linalg.quantized_linear import blocks
from vksched.topology.limits import Limits
from vksched.topology.tuned_variants import TunedVariants

GPU = Limits(storage_buffers=8)
COOPMAT_GPU = replace(
    GPU,
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=65536,
    subgroup_sizes=(32,),
    float16=True,
    matrices=("float16*float16+float32 16x16x16",),
    coopmat_checked=True,
)
K = 256


def values(*shape: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def weight(n: int, seed: int = 0, kind: str = "q4_K") -> vs.Tensor:
    return vs.quantized_weight(blocks(kind, n, K, seed), kind, (n, K))


def graph_of(*outputs: vs.Tensor, limits: Limits = GPU, **constraints: frozenset[str]) -> Graph:
    return optimize(
        vs.build_graph(list(outputs))[0], RewriteConstraints(limits=limits, **constraints)
    )


def ops_of(*outputs: vs.Tensor, limits: Limits = GPU, **constraints: frozenset[str]) -> list[str]:
    graph = graph_of(*outputs, limits=limits, **constraints)
    return [node.op for node in graph.ops if node.id not in graph.views]


X = vs.input("x", (1, 1, K))
NORMED = vs.rms_norm(X, values(K), name="normed")


def both(x: vs.Tensor = NORMED) -> list[vs.Tensor]:
    """Two products that are no outputs themselves."""
    return [vs.exp(vs.linear(x, weight(n, n))) for n in (32, 16)]


def test_products_of_one_row_are_one_with_their_norm() -> None:
    assert ops_of(*both()) == ["merged_linear", "exp", "exp"]
    graph = graph_of(*both())
    (built,) = (node for node in graph.nodes if node.op == "merged_linear")
    assert built.type.shape == (1, 1, 48) and built.attrs["normed"]


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_products_of_few_rows_are_matrices_one_after_another(rows: int) -> None:
    normed = vs.rms_norm(vs.input("rows", (rows, 1, K)), values(K))
    assert ops_of(*both(normed)) == ["merged_linear", "exp", "exp"], "no slice is a copy"
    (built,) = (node for node in graph_of(*both(normed)).nodes if node.op == "merged_linear")
    assert built.type.shape == (rows * 48,) and built.attrs["normed"] and built.attrs["stacked"]
    gate, up = (vs.linear(normed, weight(32, seed)) for seed in range(2))
    assert ops_of(vs.exp(vs.silu(gate) * up)) == ["merged_linear", "exp"]


def test_a_product_alone_is_one_with_its_norm() -> None:
    assert ops_of(vs.exp(vs.linear(NORMED, weight(16)))) == ["merged_linear", "exp"]
    assert ops_of(vs.linear(NORMED, weight(16))) == ["merged_linear"]
    assert "merged_linear" not in ops_of(vs.exp(vs.linear(X, weight(16))))


@pytest.mark.parametrize("activation", [vs.silu, vs.gelu])
def test_a_gate_is_one_with_both_products(activation: Callable[[vs.Tensor], vs.Tensor]) -> None:
    for x in (NORMED, X):
        gate, up = (vs.linear(x, weight(32, seed)) for seed in range(2))
        for product in (activation(gate) * up, up * activation(gate)):
            assert ops_of(vs.exp(product)) == ["merged_linear", "exp"]
    # where something else reads one of them both are values, beside each other
    graph = graph_of(vs.exp(activation(gate) * up), vs.tanh(up))
    (built,) = (node for node in graph.nodes if node.op == "merged_linear")
    assert built.type.shape == (1, 1, 64) and not built.attrs["gate"]


def test_four_products_are_three_and_one() -> None:
    built = [vs.exp(vs.linear(NORMED, weight(16, seed))) for seed in range(4)]
    assert ops_of(*built).count("merged_linear") == 2


def rows_of(m: int, *sizes: int, word: str = "mixed", limits: Limits) -> Graph:
    """Products of a normalized value of many rows."""
    normed = vs.rms_norm(vs.input("rows", (1, m, K)), values(K))
    built = [vs.exp(vs.linear(normed, weight(n, n))) for n in sizes]
    graph, _ = vs.build_graph(built)
    graph = set_precision(graph, {node.id: word for node in graph.nodes})
    return optimize(graph, RewriteConstraints(limits=limits))


@pytest.mark.parametrize("change", [{}, {"coopmat_checked": False}, {"matrices": ()}])
def test_products_of_many_rows_are_one_in_tiles(change: dict[str, Any]) -> None:
    """With and without cooperative matrices."""
    graph = rows_of(100, 128, 64, 64, limits=replace(COOPMAT_GPU, **change))
    ops = [node.op for node in graph.ops if node.id not in graph.views]
    assert ops == ["rms_norm", "merged_linear", "exp", "exp", "exp"], "no slice is a copy"
    (built,) = (node for node in graph.nodes if node.op == "merged_linear")
    assert built.type.shape == (100 * 256,) and built.attrs["stacked"]
    assert built.attrs["precision"] == "mixed" and not built.attrs["normed"]


def test_other_products_of_many_rows_are_apart() -> None:
    for change in (
        {"word": "float32"},
        {"limits": replace(COOPMAT_GPU, float16=False)},
        {"m": 16},  # most of a tile would be padding
        {"m": 32, "limits": replace(COOPMAT_GPU, matrices=())},
    ):
        arguments: dict[str, Any] = {"m": 100, "limits": COOPMAT_GPU} | change
        m = arguments.pop("m")
        graph = rows_of(m, 128, 64, 64, **arguments)
        assert "merged_linear" not in [node.op for node in graph.nodes], change


def test_a_gate_of_many_rows_is_one_with_both_products() -> None:
    normed = vs.rms_norm(vs.input("rows", (100, K)), values(K))
    gate, up = (vs.linear(normed, weight(128, seed)) for seed in range(2))
    graph, _ = vs.build_graph([vs.exp(vs.silu(gate) * up)])
    graph = set_precision(graph, {node.id: "mixed" for node in graph.nodes})
    graph = optimize(graph, RewriteConstraints(limits=COOPMAT_GPU))
    assert [node.op for node in graph.ops] == ["rms_norm", "merged_linear", "exp"]
    (built,) = (node for node in graph.nodes if node.op == "merged_linear")
    assert built.type.shape == (100, 128) and built.attrs["gate"] == "silu"
    assert not built.attrs.get("stacked")


def test_a_measured_variant_does_not_change_the_graph() -> None:
    """Measurements come and go, and graphs are cached without them."""
    tuned = TunedVariants(dict.fromkeys(("a", "b"), "gemv 4"))
    graph = rows_of(100, 128, 64, limits=replace(COOPMAT_GPU, tuned=tuned))
    assert "merged_linear" in [node.op for node in graph.nodes]


def test_what_stays_apart() -> None:
    rows = vs.rms_norm(vs.input("rows", (9, K)), values(K))
    assert "merged_linear" not in ops_of(*both(rows))  # of nine rows
    assert "merged_linear" not in ops_of(*both(), limits=replace(GPU, storage_buffers=6))
    assert "merged_linear" not in ops_of(*both(), limits=replace(GPU, software=True))
    assert "merged_linear" not in ops_of(vs.exp(vs.linear(NORMED, weight(24))))
    assert "merged_linear" not in ops_of(
        vs.exp(vs.linear(NORMED, weight(16), values(16)))  # a bias
    )
    others = vs.exp(vs.linear(NORMED, weight(16))), vs.exp(vs.linear(NORMED, weight(16, 1, "q8_0")))
    graph = graph_of(*others)  # of two formats, each with the norm
    assert [node.op for node in graph.nodes].count("merged_linear") == 2


def test_nodes_of_several_homes_stay_apart() -> None:
    built = [vs.linear(X, weight(16, seed), name=f"y{seed}") for seed in range(3)]
    for pinned_devices, count in (
        ({"y0": "gpu:0", "y1": "gpu:1", "y2": "gpu:1"}, 1),
        ({"y0": "cpu", "y1": "cpu", "y2": "box/cpu"}, 0),
        ({"y0": "gpu:0 0", "y1": "gpu:0 1", "y2": "gpu:0 0"}, 1),
    ):
        graph = optimize(
            vs.build_graph(built)[0], RewriteConstraints(limits=GPU, pinned_devices=pinned_devices)
        )
        assert [node.op for node in graph.nodes].count("merged_linear") == count


ROPE = replace(GPU, storage_buffers=9)


def rotated(*sizes: int, x: vs.Tensor = NORMED, dims: int = 32, after: bool = False) -> vs.Tensor:
    """Products of these sizes of one row; all but the last one with a rotary embedding."""
    place = vs.input("place", (1,), "int32")
    cos, sin = (vs.gather(vs.weight(values(8, dims // 2, seed=s)), place) for s in range(2))
    parts = [vs.reshape(vs.linear(x, weight(n, n)), (1, n // 32, 1, 32)) for n in sizes]
    built = [vs.rotary_embedding(part, cos, sin, rotary_dim=dims) for part in parts[:-1]]
    both = [vs.exp(part) for part in (*built, parts[-1])]
    return vs.concat([*both, vs.exp(parts[0])] if after else both, axis=1)


def test_products_rotate_their_results() -> None:
    ops = ops_of(rotated(64, 32, 96), limits=ROPE)
    assert "merged_linear_rope" in ops and "rotary_embedding" not in ops
    graph = graph_of(rotated(64, 32, 96), limits=ROPE)
    (one,) = [node for node in graph.nodes if node.op == "merged_linear_rope"]
    assert one.attrs["heads"] == 3 and one.attrs["head_size"] == 32 and one.attrs["normed"]


def rotated_rows(rows: int) -> list[vs.Tensor]:
    """Products of a token of each of several sequences, at positions of their own."""
    place = vs.input("places", (rows, 1), "int32")
    cos, sin = (vs.gather(vs.weight(values(8, 16, seed=s)), place) for s in range(2))
    normed = vs.rms_norm(vs.input("rows", (rows, 1, K)), values(K))
    parts = [vs.reshape(vs.linear(normed, weight(n, n)), (rows, n // 32, 1, 32)) for n in (64, 32)]
    return [vs.exp(vs.rotary_embedding(part, cos, sin, rotary_dim=32)) for part in parts]


def test_products_of_several_sequences_rotate_their_results() -> None:
    graph = graph_of(*rotated_rows(4), limits=ROPE)
    (one,) = [node for node in graph.nodes if node.op == "merged_linear_rope"]
    assert one.attrs["stacked"] and one.type.shape == (4 * 96,)
    assert "rotary_embedding" not in ops_of(*rotated_rows(4), limits=ROPE)
    apart = ops_of(*rotated_rows(4), limits=GPU)  # rows of both are not adjacent
    assert apart.count("rotary_embedding") == 2 and "merged_linear" in apart
    inputs = {"rows": values(4, 1, K, seed=5), "places": np.array([[3], [0], [7], [1]], np.int32)}
    plain = evaluate(vs.build_graph(rotated_rows(4))[0], inputs)
    for (name, expected), got in zip(plain.items(), evaluate(graph, inputs).values(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, err_msg=name)


def test_products_that_others_read_do_not_rotate_them() -> None:
    for built, limits in (
        (rotated(64, 32, 96, after=True), ROPE),
        (rotated(64, 32, 96), GPU),
        (rotated(64, 32, 96, dims=12), ROPE),
    ):
        ops = ops_of(built, limits=limits)
        assert "merged_linear_rope" not in ops
        assert "merged_linear" in ops and "rotary_embedding" in ops


def test_words_that_are_computed_have_products_of_their_own() -> None:
    """They are not there yet where the first product is."""
    kind = format_of("q4_K")
    stored = [vs.input(f"kept{i}", (2, 16, kind.row_words(K)), "uint32") for i in range(2)]
    words = [vs.reshape(each[1:], (16, kind.row_words(K))) for each in stored]
    built = [vs.exp(vs.linear(X, vs.dequantize(each, "q4_K", K))) for each in words]
    ops = ops_of(*built)
    assert ops.count("quantized_linear") == 2 and "merged_linear" not in ops


def test_what_is_transposed_at_several_homes_stays_apart() -> None:
    cos, sin = (vs.input(name, (1, 8)) for name in ("cos", "sin"))
    transposed = [
        vs.rotary_embedding(
            vs.reshape(vs.linear(X, weight(32, seed), name=f"y{seed}"), (1, 2, 1, 16)),
            *(cos, sin),
            name=f"turned{seed}",
        )
        for seed in range(2)
    ]
    products = {"y0": "gpu:0", "y1": "gpu:0"}
    for pinned_devices, names in (
        ({"turned0": "gpu:0", "turned1": "gpu:1"}, ["turned0", "turned1"]),
        ({"turned0": "gpu:1", "turned1": "gpu:1"}, ["turned0.rotary_embedding"]),
    ):
        graph = optimize(
            vs.build_graph(transposed)[0],
            RewriteConstraints(limits=GPU, pinned_devices=products | pinned_devices),
        )
        assert [n.op for n in graph.nodes].count("merged_linear") == 1
        assert [n.name for n in graph.nodes if n.op == "rotary_embedding"] == names
    seen = frozenset(("turned0",))
    graph = optimize(vs.build_graph(transposed)[0], RewriteConstraints(limits=GPU, observed=seen))
    rotary = [n.name for n in graph.nodes if n.op == "rotary_embedding"]
    assert rotary == ["turned0", "turned1"]  # both by one would turn the first one again


def test_a_norm_that_others_read_stays_a_value() -> None:
    for built in ([*both(), vs.exp(NORMED)], [*both(), NORMED]):
        ops = ops_of(*built)
        assert "rms_norm" in ops and ops.count("merged_linear") == 1
    seen = ops_of(*both(), observed=frozenset(("normed",)))
    assert "rms_norm" in seen and "merged_linear" in seen


def test_products_that_round_to_bytes_have_kernels_of_their_own() -> None:
    graph = vs.build_graph(both())[0]
    nodes = tuple(
        replace(node, attrs=with_word(node.attrs, BYTES)) if node.op == "matmul" else node
        for node in graph.nodes
    )
    built = optimize(replace(graph, nodes=nodes), RewriteConstraints(limits=GPU))
    assert "merged_linear" not in [node.op for node in built.nodes]


def test_products_that_round_to_bytes_round_in_the_kernel_where_dot_products_are_fast() -> None:
    graph = vs.build_graph([*both(), vs.linear(X, weight(16)) + vs.input("r", (1, 1, 16))])[0]
    nodes = tuple(
        replace(node, attrs=with_word(node.attrs, BYTES)) if node.op == "matmul" else node
        for node in graph.nodes
    )
    limits = replace(GPU, integer_dot=True, integer_dot_fast=True)
    built = optimize(replace(graph, nodes=nodes), RewriteConstraints(limits=limits))
    merged = [node for node in built.nodes if node.op == "merged_linear"]
    assert len(merged) == 2 and "quantized_linear" not in [node.op for node in built.nodes]
    assert all(node.attrs["precision"] == BYTES for node in merged)
    assert [EPILOGUE in node.attrs for node in merged] == [False, True]  # the residual


@pytest.mark.parametrize("word", ["mixed", "float16"])
def test_merged_products_have_the_precision_of_the_products(word: str) -> None:
    graph = vs.build_graph(both())[0]
    nodes = tuple(
        replace(node, attrs=with_word(node.attrs, word)) if node.op == "matmul" else node
        for node in graph.nodes
    )
    built = optimize(replace(graph, nodes=nodes), RewriteConstraints(limits=GPU))
    (merged,) = (node for node in built.nodes if node.op == "merged_linear")
    assert merged.attrs["precision"] == word


# -- on devices ------------------------------------------------------------------------------------

LLAMA = Tiny(kind="Q4_K", layers=2)
MODELS = {
    "llama Q4_K": LLAMA,
    "llama Q8_0": replace(LLAMA, kind="Q8_0"),
    "exaone Q4_K": replace(LLAMA, architecture="exaone"),
    "qwen3 Q4_0": Tiny("qwen3", kind="Q4_0", head_norms=True, head_size=64, rotary_size=64),
    "qwen2 Q5_0": Tiny("qwen2", kind="Q5_0", biases=True),
}


@pytest.fixture(scope="module")
def sched() -> Iterator[vs.Scheduler]:
    """A device that takes seconds over no barrier, as SwiftShader does, if there is one."""
    found = [each for each in device_probe.list_devices() if each.name != "cpu" and each.usable]
    if not found:
        pytest.skip("no Vulkan device here")
    names = sorted(each.name for each in found if "SwiftShader" not in str(each))
    with vs.Scheduler([names[0] if names else found[0].name]) as sched:
        yield sched


@pytest.mark.parametrize("name", MODELS)
def test_tokens_have_the_logits_of_numpy(
    name: str, sched: vs.Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: software devices have the kernel, too."""
    monkeypatch.setattr(fuse_linears, "is_supported", lambda limits: limits is not None)
    tiny, path = MODELS[name], tmp_path / "tiny.gguf"
    weights = write(tiny, path, np.random.default_rng(5))
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    ids = np.arange(3, 9, dtype=np.int32)
    wanted = logits_of(tiny, weights, ids)
    step = model.step(model.cache(16), 1)
    run = sched.compile(step.logits, updates=step.updates)
    ops = [node.op for node in run.plan.graph.nodes]
    biased, rotated = name.startswith("qwen2"), name.startswith(("llama", "exaone"))
    assert ops.count("merged_linear_rope") == (tiny.layers if rotated else 0)
    merged = ops.count("merged_linear") + ops.count("merged_linear_rope")
    assert merged == tiny.layers * (1 if biased else 2)
    assert ops.count("rotary_embedding") == (0 if rotated else 2 * tiny.layers)
    for at, token in enumerate(ids):
        got = run(ids=np.array([[token]], np.int32), start=np.int32(at), count=np.int32(1))
        np.testing.assert_allclose(got[0], wanted[at], rtol=1e-4, atol=1e-4)
    run.close()
