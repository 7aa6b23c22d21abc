"""The walk back: sums over users, what stops a gradient, forms of wrt, errors."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.testing.numeric_gradient import evaluate

X = np.asarray([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)


def run(value: vs.Tensor | tuple[vs.Tensor, ...], **feeds: NDArray) -> list[NDArray]:
    values = [value] if isinstance(value, vs.Tensor) else list(value)
    with vs.Scheduler(["cpu"]) as sched:
        result = sched.compile({f"y{i}": v for i, v in enumerate(values)})(**feeds)
    return [result[f"y{i}"] for i in range(len(values))]


def test_a_value_with_several_users_gets_the_sum() -> None:
    x = vs.input("x", X.shape)
    loss = vs.reduce_sum(x * x + vs.exp(x) * 3.0 - x)
    (got,) = run(vs.grad(loss, x), x=X)
    np.testing.assert_allclose(got, 2 * X + 3 * np.exp(X) - 1, rtol=1e-6)


def test_a_product_and_its_bias() -> None:
    x, w, b = vs.input("x", (2, 3)), vs.input("w", (3, 4)), vs.input("b", (4,))
    wv, bv = np.ones((3, 4), np.float32), np.zeros(4, np.float32)
    loss, grads = vs.value_and_grad(vs.reduce_sum(vs.exp(vs.matmul(x, w, b))), {"w": w, "b": b})
    assert list(grads) == ["w", "b"]
    value, of_w, of_b = run((loss, grads["w"], grads["b"]), x=X, w=wv, b=bv)
    y = np.exp(X @ wv + bv)
    np.testing.assert_allclose(value, y.sum(), rtol=1e-6)
    np.testing.assert_allclose(of_w, X.T @ y, rtol=1e-5)
    np.testing.assert_allclose(of_b, y.sum(0), rtol=1e-5)


def test_gradients_of_gradients() -> None:
    x = vs.input("x", X.shape)
    first = vs.grad(vs.reduce_sum(vs.exp(x * 2.0)), x)
    second = vs.grad(vs.reduce_sum(first * x), x)
    (got,) = run(second, x=X)
    e = np.exp(2 * X)
    np.testing.assert_allclose(got, 2 * e + 4 * X * e, rtol=1e-5)


def test_vjp_weighs_several_outputs() -> None:
    x = vs.input("x", X.shape)
    c = np.arange(6, dtype=np.float32).reshape(2, 3)
    (pulled,) = run(vs.vjp([vs.exp(x), x * 5.0], [c, 2 * c], x), x=X)
    np.testing.assert_allclose(pulled, c * np.exp(X) + 10 * c, rtol=1e-5)


def test_intermediate_values_and_weights_are_wanted_too() -> None:
    x = vs.weight(X, "x")
    h = x * x
    loss = vs.reduce_sum(h * h)
    of_h, of_x = run(vs.grad(loss, [h, x]))
    np.testing.assert_allclose(of_h, 2 * X**2, rtol=1e-6)
    np.testing.assert_allclose(of_x, 4 * X**3, rtol=1e-6)


def test_a_gradient_stops_where_it_is_asked_to() -> None:
    x = vs.input("x", X.shape)
    (got,) = run(vs.grad(vs.reduce_sum(x * vs.stop_gradient(x)), x), x=X)
    np.testing.assert_allclose(got, X)
    with pytest.raises(vs.GradientError, match=r"through stop_gradient, which is there to stop"):
        vs.grad(vs.reduce_sum(vs.stop_gradient(x)), x)
    (zeros,) = run(vs.grad(vs.reduce_sum(vs.stop_gradient(x)), x, missing="zeros"))
    np.testing.assert_array_equal(zeros, np.zeros_like(X))


def test_names_of_the_backward_pass_can_be_placed() -> None:
    with vs.name_scope("layer.0"):
        h = vs.exp(vs.matmul(vs.input("x", X.shape), vs.weight(np.ones((3, 3), np.float32), "w")))
    with vs.name_scope("elsewhere"):
        gradient = vs.grad(vs.reduce_sum(h), h.inputs[0].inputs[0])
    graph, _ = vs.build_graph(gradient)
    products = [n.name for n in graph.nodes if n.op == "matmul"]
    assert products == ["layer.0.matmul", "layer.0.backward.matmul"]


def refused(match: str, make: object) -> None:
    assert callable(make)
    with pytest.raises(vs.VkschedError, match=match):
        make()


def test_errors_name_the_tensor_and_a_way_out() -> None:
    x, other = vs.input("x", (3,)), vs.input("other", (3,))
    whole = vs.input("n", (3,), "int32")
    loss = vs.reduce_sum(x)
    refused("other, which does not go into it", lambda: vs.grad(loss, other))
    refused("a loss of one element", lambda: vs.grad(x, x))
    refused("a loss of floats", lambda: vs.grad(vs.reduce_sum(whole), x))
    refused("floats as wrt, got n", lambda: vs.grad(loss, whole))
    refused("expected a Tensor as loss", lambda: vs.grad(1.0, x))  # type: ignore[call-overload]
    refused("expected Tensors as wrt", lambda: vs.grad(loss, [1.0]))  # type: ignore[list-item]
    refused("missing as one of", lambda: vs.grad(loss, x, missing="none"))
    refused("a cotangent for each of 2", lambda: vs.vjp([x, x], [1.0], x))
    refused("a cotangent of", lambda: vs.vjp(x, np.ones(4, np.float32), x))
    refused("outputs of floats", lambda: vs.vjp(whole, np.ones(3, np.int32), x))
    cast = vs.reduce_sum(vs.cast(vs.cast(x, "int32"), "float32"))
    refused("gives int32", lambda: vs.grad(cast, x))


def test_a_deep_graph_needs_no_stack() -> None:
    x = vs.input("x", (2,))
    h = x
    for _ in range(3000):
        h = -h
    graph, _ = vs.build_graph(vs.grad(vs.reduce_sum(h), x))
    assert sum(n.op == "neg" for n in graph.nodes) == 3000


def test_gradients_of_slices_side_by_side_become_one_concat() -> None:
    x = vs.input("x", (2, 9))
    parts = vs.split(x, 3, 1)
    loss = vs.reduce_sum(vs.exp(parts[0]) * parts[1] + vs.square(parts[2]))
    of_x = vs.grad(loss, x)
    ops = [node.op for node in vs.build_graph(of_x)[0].nodes]
    assert ops.count("concat") == 1 and not {"pad", "add"} & {*ops}
    value = np.random.default_rng(4).standard_normal((2, 9))
    a, b, c = np.split(value, 3, 1)
    got = evaluate(vs.build_graph({"g": of_x})[0], {"x": value})["g"]
    np.testing.assert_allclose(got, np.concatenate([np.exp(a) * b, np.exp(a), 2 * c], 1))


def test_gradients_of_slices_that_overlap_or_lie_apart_are_added() -> None:
    x, value = vs.input("x", (7,)), np.arange(7.0)
    for slices in ([(0, 4), (3, 7)], [(0, 2), (4, 7)], [(1, 3), (3, 5)], [(0, 3), (3, 7), (0, 7)]):
        loss = vs.reduce_sum(vs.square(x[slices[0][0] : slices[0][1]]))
        wanted = np.zeros(7)
        wanted[slice(*slices[0])] += 2 * value[slice(*slices[0])]
        for start, end in slices[1:]:
            loss = loss + vs.reduce_sum(vs.square(x[start:end]))
            wanted[start:end] += 2 * value[start:end]
        got = evaluate(vs.build_graph({"g": vs.grad(loss, x)})[0], {"x": value})["g"]
        np.testing.assert_allclose(got, wanted, err_msg=str(slices))
