"""Weights of few bits: products and look-ups read the bits, other readers get the floats."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.ir.graph import Graph
from vksched.ops.quantized.gguf_formats import FORMATS, repack, unpacked
from vksched.passes import optimize
from vksched.testing.op_cases.linalg.quantized_linear import blocks

N, K = 12, 512


def weight(name: str = "q4_K") -> vs.Tensor:
    return vs.quantized_weight(blocks(name, N, K), name, (N, K), name="w")


def floats_of(name: str = "q4_K") -> np.ndarray:
    return unpacked(name, repack(name, blocks(name, N, K), (N, K)), K)


def ops_of(*outputs: vs.Tensor) -> list[str]:
    graph: Graph = optimize(vs.build_graph(list(outputs))[0])
    return [node.op for node in graph.ops]


X = vs.input("x", (2, 3, K))
IDS = vs.input("ids", (4,), "int32")


def test_products_read_the_bits() -> None:
    assert ops_of(vs.linear(X, weight(), np.ones(N, np.float32))) == ["quantized_linear"]
    assert ops_of(X @ vs.transpose(weight(), (1, 0))) == ["quantized_linear"]
    assert ops_of(vs.linear(vs.input("x", (K,)), weight()))[1] == "quantized_linear"


def test_rows_are_picked_before_they_are_unpacked() -> None:
    assert ops_of(vs.embedding(weight(), IDS)) == ["gather", "dequantize"]


def test_values_are_picked_of_one_row(devices: list[str]) -> None:
    row = vs.gather(weight("q8_0"), np.array(5, np.int32))
    ids = np.array([3, 300, -1, 0], np.int32)
    with vs.Scheduler(devices) as sched:
        got = sched.compile(vs.gather(row, IDS))(ids=ids)
    np.testing.assert_array_equal(got, floats_of("q8_0")[5][ids])


def test_a_weight_may_have_no_rows(devices: list[str]) -> None:
    for name in ("q8_0", "q4_K", "f16"):
        none = vs.quantized_weight(b"", name, (0, K))
        with vs.Scheduler(devices) as sched:
            got = sched.compile([vs.linear(X, none), vs.relu(none)])(x=np.ones(X.shape, np.float32))
        assert [each.shape for each in got] == [(2, 3, 0), (0, K)]


def test_matrices_are_picked_before_they_are_unpacked(devices: list[str]) -> None:
    several = vs.quantized_weight(blocks("q8_0", 2 * N, K), "q8_0", (6, 4, K))
    assert ops_of(vs.gather(several, IDS)) == ["gather", "dequantize"]
    assert ops_of(vs.matmul(X, several[:2], transpose_b=True))[-1] == "matmul"
    ids = np.array([5, 0, 0, 3], np.int32)
    with vs.Scheduler(devices) as sched:
        got = sched.compile(vs.gather(several, IDS))(ids=ids)
    wanted = unpacked("q8_0", repack("q8_0", blocks("q8_0", 2 * N, K), (2 * N, K)), K)
    np.testing.assert_array_equal(got, wanted.reshape(6, 4, K)[ids])


def test_chosen_matrices_are_read_as_they_are(devices: list[str]) -> None:
    several = vs.quantized_weight(blocks("q8_0", 2 * N, K), "q8_0", (6, 4, K))
    x, chosen = vs.input("x", (5, K)), vs.input("ids", (5, 2), "int32")
    output = vs.moe_linear(x, several, chosen)
    assert ops_of(output) == ["quantized_moe_linear"]
    assert "dequantize" in ops_of(output, vs.relu(several))
    rng = np.random.default_rng(0)
    values = rng.standard_normal((5, K)).astype(np.float32)
    ids = np.array([[5, 0], [0, 1], [-1, 3], [0, 0], [2, 5]], np.int32)
    with vs.Scheduler(devices) as sched:
        run = sched.compile(output)
        got = run(x=values, ids=ids)
        with pytest.raises(vs.IndexOutOfRange):
            run(x=values, ids=ids + 1)
        np.testing.assert_array_equal(run(x=values, ids=ids), got)
    held = unpacked("q8_0", repack("q8_0", blocks("q8_0", 2 * N, K), (2 * N, K)), K)
    wanted = np.einsum("rk,runk->run", values, held.reshape(6, 4, K)[ids])
    np.testing.assert_allclose(got, wanted, 1e-4, 1e-4)


def test_other_readers_get_the_floats() -> None:
    assert ops_of(vs.matmul(vs.input("x", (2, N)), weight())) == ["dequantize", "matmul"]
    assert ops_of(vs.gather(weight(), IDS, 1)) == ["dequantize", "gather"]
    assert ops_of(vs.relu(weight())) == ["dequantize", "relu"]


def test_attention_reads_words_of_a_cache() -> None:
    q, used = vs.input("q", (1, 2, 3, 64)), vs.input("used", (), "int32")
    words = [vs.input(name, (1, 2, 9, 17), "uint32") for name in "kv"]
    stored = [vs.dequantize_q8_0(each, 64) for each in words]
    assert ops_of(vs.attention(q, *stored, kv_len=used)) == ["attention_with_kvcache"]
    assert ops_of(vs.attention(q, *stored)) == ["dequantize_q8_0", "dequantize_q8_0", "attention"]
    some = [vs.gather(each, IDS, axis=2) for each in stored]
    assert ops_of(vs.attention(q, *some, kv_len=used)) == [
        "gather",
        "gather",
        "attention_with_kvcache",
    ]
    floats = vs.input("f", (1, 2, 9, 64))
    assert ops_of(vs.attention(q, floats, stored[1], kv_len=used))[0] == "dequantize_q8_0"


def test_a_table_may_be_tied() -> None:
    w = weight()
    found = ops_of(vs.linear(vs.embedding(w, IDS), w))
    assert found == ["gather", "dequantize", "quantized_linear"]


@pytest.mark.parametrize("pinned_device", ("look_up", "product", "w"))
def test_each_device_reads_the_bits_of_a_tied_table(devices: list[str], pinned_device: str) -> None:
    w, ids = weight("q8_0"), np.array([3, -1, 0, 11], np.int32)
    with vs.name_scope("look_up"):
        rows = vs.embedding(w, IDS)
    with vs.name_scope("product"):
        output = vs.linear(rows, w)
    with vs.Scheduler(devices) as sched:
        placement = {"*": sched.devices[0].spec.name, f"{pinned_device}*": "cpu"}
        run = sched.compile(output, placement=placement)
        assert [node.op for node in run.plan.graph.ops] == [
            "gather",
            "dequantize",
            "quantized_linear",
        ]
        got = run(ids=ids)
    values = floats_of("q8_0")
    np.testing.assert_allclose(got, values[ids] @ values.T, 1e-4, 1e-4)


@pytest.mark.parametrize("name", ("q8_0", "q4_0", "q4_K", "q6_K"))
@pytest.mark.parametrize("rows", (1, 11))
def test_results_are_those_of_the_floats(devices: list[str], name: str, rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal((rows, K)).astype(np.float32)
    ids, w = np.array([3, -1, 0, 11], np.int32), weight(name)
    built = vs.relu(vs.linear(vs.input("x", x.shape), w)), vs.embedding(w, IDS)
    with vs.Scheduler(devices) as sched:
        product, picked = sched.compile(list(built))(x=x, ids=ids)
    values = floats_of(name)
    np.testing.assert_allclose(product, np.maximum(x @ values.T, 0), 1e-4, 1e-4)
    np.testing.assert_array_equal(picked, values[ids])


def test_gradients_go_through_to_x(devices: list[str]) -> None:
    x, array = vs.input("x", (3, K)), np.full((3, K), 0.01, np.float32)
    grad = vs.grad(vs.reduce_sum(vs.square(vs.linear(x, weight())), None), x)
    with vs.Scheduler(devices) as sched:
        got = sched.compile(grad)(x=array)
    values = floats_of()
    np.testing.assert_allclose(got, 2 * (array @ values.T) @ values, 1e-3, 1e-3)


def test_every_format_is_held_in_its_own_size() -> None:
    for name in FORMATS:
        graph = optimize(vs.build_graph(vs.linear(X, weight(name)))[0])
        (held,) = graph.weights
        assert held.type.device_bytes <= 1.05 * blocks(name, N, K).nbytes
