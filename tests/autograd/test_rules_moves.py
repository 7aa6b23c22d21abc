"""Gradients of what moves: wide and negative steps, rows taken twice, updates written over."""

from __future__ import annotations

import numpy as np
import pytest
from central_differences import Build, check, gradients

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.tensor import apply

RNG = np.random.default_rng(5)


def normal(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape))


def positions(*values: object) -> vs.Tensor:
    return vs.constant(np.asarray(values, np.int32))


LINEAR: dict[str, tuple[Build, tuple[int, ...]]] = {
    "wide steps": (lambda x: x[1::3, ::-2], (8, 7)),
    "one of a wide step": (lambda x: x[5::4, -1:0:-9], (8, 7)),
    "nothing": (lambda x: x[5:2, ::2], (8, 7)),
    "a wide step of the last of eight axes": (lambda x: x[..., ::2], (1, 2, 1, 2, 1, 2, 1, 5)),
    "crop and pad": (lambda x: vs.pad(x, ((-2, 3), (1, -1))), (5, 4)),
    "crop all, then pad": (lambda x: vs.pad(x, ((-7, 9),)), (5,)),
    "reflect": (lambda x: vs.pad(x, 3, "reflect"), (4, 5)),
    "wrap": (lambda x: vs.pad(x, ((5, 7), (0, 2)), "wrap"), (3, 4)),
    "edge": (lambda x: vs.pad(x, 2, "edge"), (3, 4)),
    "repeat": (lambda x: vs.repeat(x, (2, 0, 3), 1), (2, 3, 2)),
    "tile": (lambda x: vs.tile(x, (2, 3)), (2, 3)),
    "roll": (lambda x: vs.roll(x, (1, -2), (0, 1)), (3, 5)),
    "depth": (lambda x: vs.depth_to_space(x, 2), (1, 8, 2, 3)),
    "split and stack": (lambda x: vs.stack(vs.split(x, (1, 2), 1)[1:] * 2, 2), (4, 3)),
    "rows of a table": (lambda x: vs.embedding(x, positions((1, 1), (-1, 0))), (3, 4)),
    "columns": (lambda x: vs.gather(x, positions((2, 2), (0, -1)), -1), (2, 3, 4)),
    "a scalar's worth": (lambda x: vs.gather(x, vs.constant(np.int32(1)), 1), (2, 3)),
    "indices of eight axes": (
        lambda x: vs.gather(x, vs.constant(np.ones((1, 2, 1, 2, 1, 2, 1, 2), np.int32))),
        (3,),
    ),
    "elements": (lambda x: vs.gather_elements(x, positions((1, 1, 0)), 0), (2, 4)),
    "along an axis": (lambda x: vs.take_along_axis(x, positions((0, 0, -1)), 1), (3, 2)),
    "tuples": (lambda x: vs.gather_nd(x, positions((0, 1), (0, 1), (-1, 0))), (2, 3, 2)),
    "tuples of batches": (
        lambda x: vs.gather_nd(x, positions((((1,), (1,)),), (((0,), (-1,)),)), 2),
        (2, 1, 3, 2),
    ),
    "of a scalar": (lambda x: vs.expand(vs.reshape(x, (1, 1)), (2, 3)), ()),
    "of nothing": (lambda x: vs.gather(vs.pad(x, ((0, 0), (1, 0))), positions(0), 1), (0, 2)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_the_gradient_of_a_move_and_of_its_square(name: str) -> None:
    move, shape = LINEAR[name]
    check(lambda x: move(x * x), normal(*shape))


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatters_into_elements_that_several_updates_meet(reduction: str) -> None:
    at, rows = positions((0, 2, 0), (1, 1, 1)), positions((1,), (1,), (-1,))
    check(lambda d, u: vs.scatter_elements(d * d, at, u * d[:2], 1, reduction), *pair((2, 3)))
    check(lambda d, u: vs.scatter_nd(d, rows, u * u, reduction), *pair((3, 3)))


def pair(shape: tuple[int, ...]) -> tuple[NDArray, NDArray]:
    return normal(*shape), normal(*shape)


def test_of_updates_of_one_element_the_last_one_gets_the_gradient() -> None:
    at = positions(1, 1, 0)
    (of_data, of_updates), _ = gradients(
        lambda d, u: vs.scatter_elements(d, at, u), (normal(3), normal(3)), np.asarray([1.0, 2, 3])
    )
    np.testing.assert_array_equal(of_data, [0, 0, 3])
    np.testing.assert_array_equal(of_updates, [0, 2, 1])


def test_equal_largest_updates_share_the_gradient() -> None:
    at, data = positions(0, 0, 1, 1), np.asarray([5.0, 1.0])
    (of_data, of_updates), _ = gradients(
        lambda d, u: vs.scatter_elements(d, at, u, reduction="max"),
        (data, np.asarray([5.0, 5.0, 2.0, 0.0])),
        np.asarray([3.0, 7.0]),
    )
    np.testing.assert_allclose(of_data, [1, 0])
    np.testing.assert_allclose(of_updates, [1, 1, 7, 0])


def test_factors_of_0_have_the_product_of_the_others_as_gradient() -> None:
    at = positions(0, 0, 1, 1)
    (of_data, of_updates), _ = gradients(
        lambda d, u: vs.scatter_elements(d, at, u, reduction="mul"),
        (np.asarray([2.0, 3.0]), np.asarray([0.0, 5.0, 0.0, 0.0])),
        np.asarray([1.0, 1.0]),
    )
    np.testing.assert_array_equal(of_data, [0, 0])
    np.testing.assert_array_equal(of_updates, [10, 0, 0, 0])


def test_the_two_values_of_one_hot_get_what_each_fills() -> None:
    at = positions(1, 9)
    (got,), _ = gradients(
        lambda v: apply("one_hot", (at, v), {"axis": 1, "depth": 3}),
        (np.asarray([0.5, 2.0]),),
        np.arange(6.0).reshape(2, 3),
    )
    np.testing.assert_array_equal(got, [14, 1])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_gradients_keep_the_type_and_run_on_devices(dtype: str) -> None:
    x, ids = vs.input("x", (4, 3), dtype), vs.input("ids", (5,), "int32")
    taken = vs.gather(x[::-2], ids) * vs.pad(x, ((1, 0), (0, 0)))
    got = vs.grad(vs.reduce_sum(vs.scatter_nd(taken, positions((0,), (0,)), x[:2])), x)
    assert got.dtype == dtype
    values = np.arange(12).reshape(4, 3).astype(dtype)
    with vs.Scheduler(["cpu"]) as sched:
        result = sched.compile({"g": got})(x=values, ids=np.asarray([0, 1, 1, 0, 1], np.int32))["g"]
    a, b, c, d = values  # b * a + b * b + d * c + b * d, and b over the row before these
    np.testing.assert_allclose(result, [b, a + 2 * b + d + 1, d, c + b], rtol=1e-3)
