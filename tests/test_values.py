"""What users hand in: scalars, sequences, odd attributes, names; and what they get back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vksched as vs


def evaluate(y: Any, **feeds: Any) -> Any:
    with vs.Scheduler(["cpu"]) as sched:
        return sched.compile(y)(**feeds)


X = np.arange(24, dtype=np.float32).reshape(4, 6)


def x(dtype: str = "float32") -> vs.Tensor:
    return vs.input("x", (4, 6), dtype)


@pytest.mark.parametrize("one", [np.int64, np.int32, np.uint8], ids=["int64", "int32", "uint8"])
def test_numpy_integers_are_integers(one: Callable[[int], Any]) -> None:
    whole = x()
    pairs = [
        (x()[one(1) :, : one(3)], X[1:, :3]),
        (x()[one(2)], X[2]),
        (vs.slice(x(), one(1), one(3)), X[1:3]),
        (vs.slice(x(), [one(1)], [one(3)], [one(1)], [one(1)]), X[:, 1:3]),
        (vs.gather(x(), [1, 0], axis=one(1)), X[:, [1, 0]]),
        (vs.concat([whole, whole * 1], axis=one(1)), np.concatenate([X, X], 1)),
        (vs.reduce_sum(x(), one(1)), X.sum(1)),
        (vs.transpose(x(), np.array([1, 0])), X.T),
        (x().transpose(np.array([1, 0])), X.T),
        (vs.reshape(x(), (one(6), 4)), X.reshape(6, 4)),
        (vs.reduce_max(vs.softmax(x(), axis=one(0)), one(1)) * 0, np.zeros(4)),
    ]
    for tensor, expected in pairs:
        assert np.array_equal(evaluate(tensor, x=X), expected)


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: vs.softmax(x(), axis=1.0), vs.ShapeError, "integer as axis, got 1.0"),
        (lambda: vs.softmax(x(), axis=None), vs.ShapeError, "integer as axis"),  # type: ignore[arg-type]
        (lambda: vs.reduce_sum(x(), [1.5]), vs.ShapeError, "integer as axis, got 1.5"),  # type: ignore[list-item]
        (lambda: vs.transpose(x(), [1.9, 0.2]), vs.ShapeError, "integers as axes"),  # type: ignore[list-item]
        (lambda: vs.slice(x(), [1.7], [3]), vs.ShapeError, "integers as starts"),  # type: ignore[list-item]
        (lambda: x()[9], vs.IndexOutOfRange, r"index in -4\.\.3 of axis 0, got 9"),
        (lambda: x()[vs.input("i", (2,), "int32")], vs.ShapeError, "vs.gather"),
        (lambda: vs.where(x() == 0, 1.0, x()), vs.DTypeError, "vs.equal"),
        (lambda: x("int32") + float("nan"), vs.DTypeError, "values of int32, got nan"),
        (lambda: x("int32") + 2**40, vs.DTypeError, "values of int32"),
        (lambda: x("int32") + 1.5, vs.DTypeError, "values of int32, got 1.5"),
        (lambda: x() + [[1.0], [1.0, 2.0]], vs.DTypeError, "numbers of one shape"),
        (lambda: x() + "one", vs.DTypeError, "values of float32, got 'one'"),  # type: ignore[operator]
        (lambda: vs.equal(vs.input("b", (2,), "bool"), 0.5), vs.DTypeError, "values of bool"),
        (lambda: vs.weight(np.array([1j])), vs.DTypeError, r"astype\(numpy.float32\)"),
        (lambda: vs.weight(np.array([1], np.int8)), vs.DTypeError, r"astype\(numpy.int32\)"),
        (lambda: x() + vs.weight(np.ones(6)), vs.DTypeError, "float32 and float64; try vs.cast"),
        (lambda: vs.weight([[1.0], [1.0, 2.0]]), vs.DTypeError, "numbers of one shape"),
        (lambda: vs.cast(x(), complex), vs.DTypeError, "one of float32, .*, got 'complex128'"),
        (lambda: vs.layer_norm(x(), eps=1e39), vs.DTypeError, "eps"),
        (lambda: vs.concat(x(), x()), vs.ShapeError, r"vs.concat\(\[a, b\]\)"),  # type: ignore[arg-type]
        (lambda: np.asarray(x()), vs.VkschedError, "no value before it runs"),
        (lambda: vs.weight([1.0], name=5), vs.VkschedError, "expected a name, got 5"),  # type: ignore[arg-type]
        (lambda: vs.build_graph(None), vs.GraphError, "a Tensor, a sequence or a dict"),  # type: ignore[arg-type]
    ],
)
def test_odd_values_are_clear_errors(
    build: Callable[[], object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        build()


def test_scalars_and_sequences_take_the_type_beside_them() -> None:
    row = [1, 2, 3, 4, 5, 6]
    assert np.array_equal(evaluate(x() + row, x=X), X + np.array(row, np.float32))
    assert np.array_equal(evaluate(x() * np.int64(3), x=X), X * 3)
    assert np.array_equal(evaluate(np.float64(0.5) + x(), x=X), X + np.float32(0.5))
    whole = X.astype(np.int32)
    assert np.array_equal(evaluate(x("int32") + 2.0, x=whole), whole + 2)
    assert evaluate(vs.layer_norm(x(), eps=np.float32(1e-5)), x=X).shape == (4, 6)


def test_constants_are_copies() -> None:
    mine = np.ones(6, np.float32)
    y = x() + mine
    mine[:] = 100
    assert np.array_equal(evaluate(y, x=X), X + 1)


@pytest.mark.parametrize(
    ("dtype", "value", "error"),
    [
        ("int32", [[2**40] * 6] * 4, vs.DTypeError),
        ("int32", [[1.5] * 6] * 4, vs.DTypeError),
        ("float32", None, vs.DTypeError),
        ("float32", [["1"] * 6] * 4, vs.DTypeError),
        ("float32", [[1j] * 6] * 4, vs.DTypeError),
        ("float32", [[1.0], [1.0, 2.0]], vs.DTypeError),
        ("bool", [[1] * 6] * 4, vs.DTypeError),
        ("float32", [1.0] * 6, vs.ShapeError),
    ],
)
def test_odd_feeds_are_clear_errors(dtype: str, value: Any, error: type[Exception]) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.reshape(x(dtype), (24,)))
        with pytest.raises(error, match="input 'x'"):
            run(x=value)


def test_lists_are_fed_where_nothing_is_lost() -> None:
    assert np.array_equal(evaluate(x() * 2, x=X.astype(int).tolist()), X * 2)


def test_an_input_may_have_any_name() -> None:
    y = vs.input("self", (2,)) + vs.input("inputs", (2,))
    two = np.ones(2, np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(y)
        assert run(self=two, inputs=two).tolist() == [2.0, 2.0]
        assert run.submit(self=two, inputs=two).result().tolist() == [2.0, 2.0]


def test_views_may_be_chained_without_end() -> None:
    y = x()
    for i in range(3000):
        y = vs.reshape(y, (6, 4) if i % 2 == 0 else (4, 6))
    out, used = evaluate([y, vs.neg(y)], x=X)
    assert np.array_equal(out, X) and np.array_equal(used, -X)


def test_results_are_contiguous(devices: list[str]) -> None:
    with vs.Scheduler(devices) as sched:
        y = sched.compile(vs.transpose(x()))(x=X)
        assert y.flags.c_contiguous and np.array_equal(y, X.T)


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: vs.Scheduler([None]), vs.DeviceError, "names or devices, got None"),  # type: ignore[list-item]
        (lambda: vs.Scheduler("cpu"), vs.DeviceError, "a sequence of devices"),
        (lambda: vs.Scheduler(0), vs.DeviceError, "a sequence of devices"),  # type: ignore[arg-type]
        (lambda: vs.Scheduler([], trace=vs.Recorder()), vs.PlanError, r"vs.Trace\(sinks"),  # type: ignore[arg-type]
        (lambda: vs.Scheduler(["cpu"], policy="best"), vs.PlanError, "policy of auto, priority"),
        (lambda: vs.Scheduler(["cpu"], timeout_s="5"), vs.PlanError, "timeout_s"),  # type: ignore[arg-type]
        (lambda: vs.Scheduler(["cpu"], copies=0), vs.PlanError, "copies"),
    ],
)
def test_odd_schedulers_are_clear_errors(
    call: Callable[[], object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        call()


def test_what_vs_devices_lists_can_be_handed_on() -> None:
    with vs.Scheduler([vs.devices()[-1]]) as sched:
        assert [d.name for d in sched.devices] == ["cpu"]
        run = sched.compile(x() + 1)
        for call in (run, run.submit):
            with pytest.raises(vs.GraphError, match=r"by name, got 1 without; try run\(x=\.\.\.\)"):
                call(X)


def test_odd_placements_are_clear_errors() -> None:
    with vs.Scheduler(["cpu"], timeout_s=float("inf")) as sched:
        for placement in ({"*": ["cpu"]}, {3: "cpu"}, ["cpu"]):
            with pytest.raises(vs.PlanError, match="placement"):
                sched.compile(x() + 1, placement=placement)  # type: ignore[arg-type]
        with pytest.raises(
            vs.PlanError, match="matches 'nope', got none; there is: x, constant, add"
        ):
            sched.compile(x() + 1, placement={"nope": "cpu"})
        assert np.array_equal(sched.compile(x() + 1)(x=X), X + 1)
