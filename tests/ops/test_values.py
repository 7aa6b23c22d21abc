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
RNN = ((2, 1, 3), (1, 4, 3), (1, 4, 4))
TOO_LARGE = r"constants of at most 2\^28 elements"


def x(dtype: str = "float32") -> vs.Tensor:
    return vs.input("x", (4, 6), dtype)


def attend(**options: Any) -> vs.Tensor:
    shape = (1, 4, 6) if "num_heads" in options else (1, 2, 4, 6)
    return vs.attention(*(vs.input(n, shape) for n in "qkv"), **options)


def recur(**options: Any) -> tuple[vs.Tensor, vs.Tensor]:
    return vs.rnn(*(vs.input(n, s) for n, s in zip("xwr", RNN, strict=True)), **options)


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
        (lambda: vs.weight(np.array([1], np.uint64)), vs.DTypeError, r"astype\(numpy.int32\)"),
        (lambda: x() + vs.weight(np.ones(6)), vs.DTypeError, "float32 and float64; try vs.cast"),
        (lambda: vs.weight([[1.0], [1.0, 2.0]]), vs.DTypeError, "numbers of one shape"),
        (lambda: vs.cast(x(), complex), vs.DTypeError, "one of float32, .*, got 'complex128'"),
        (lambda: vs.layer_norm(x(), eps=1e39), vs.DTypeError, "eps"),
        (lambda: vs.concat(x(), x()), vs.ShapeError, r"vs.concat\(\[a, b\]\)"),  # type: ignore[arg-type]
        (lambda: vs.flip(x(), 0.5), vs.ShapeError, "integer or integers as axes, got 0.5"),
        (lambda: vs.squeeze(x(), 0.0), vs.ShapeError, "integer or integers as axes"),
        (lambda: vs.unsqueeze(x(), 1.0), vs.ShapeError, "integer or integers as axes"),
        (lambda: vs.reduce_sum(x(), 1.0), vs.ShapeError, "integer or integers as axes"),
        (lambda: vs.local_response_norm(x(), 3, alpha="a"), vs.DTypeError, "number as alpha"),  # type: ignore[arg-type]
        (
            lambda: vs.batch_norm_training(x(), *(vs.input(n, 6) for n in "gbmv"), momentum=None),  # type: ignore[arg-type]
            vs.DTypeError,
            "number as momentum",
        ),
        (lambda: vs.roll(x(), 1.5, 0), vs.ShapeError, "integers as shift, got 1.5"),
        (lambda: vs.tile(x(), "2"), vs.ShapeError, "integers as repeats, got '2'"),
        (lambda: vs.repeat(x(), None), vs.ShapeError, "integers as repeats, got None"),
        (lambda: vs.split(x(), 1.5), vs.ShapeError, "integers as parts, got 1.5"),
        (lambda: vs.moveaxis(x(), 0.5, 1), vs.ShapeError, "integers as axes, got 0.5"),
        (lambda: vs.triu(x(), 1.5), vs.ShapeError, "triu. expected an integer as k, got 1.5"),
        (lambda: vs.tril(x(), None), vs.ShapeError, "tril. expected an integer as k"),
        (lambda: vs.eye(3, k=1.5), vs.ShapeError, "eye. expected an integer as k"),
        (lambda: vs.stack(x()), vs.ShapeError, r"vs.stack\(\[a, b\]\)"),
        (lambda: vs.one_hot([1], 3.0), vs.ShapeError, "integer as depth, got 3.0"),
        (lambda: vs.gather_nd(x(), [[0]], 0.5), vs.ShapeError, "integer as batch_dims"),
        (lambda: vs.linspace(0, 1, 5.0), vs.ShapeError, "integer as count, got 5.0"),
        (lambda: vs.linspace("0", 1), vs.DTypeError, "finite number as start, got '0'"),
        (lambda: vs.arange("a"), vs.DTypeError, "finite number as stop, got 'a'"),
        (lambda: vs.slice(x(), None, 1), vs.ShapeError, "integers as starts, got None"),
        (lambda: vs.slice(x(), 0, "a"), vs.ShapeError, "integer as stops, got 'a'"),
        (lambda: x()[::0], vs.ShapeError, "a step other than 0"),
        (lambda: x()[0.5:], vs.ShapeError, "integer as start, got 0.5"),
        (lambda: x()[x() > 0], vs.ShapeError, "try vs.where, or vs.nonzero"),
        (lambda: x()[np.ones((4, 6), bool)], vs.ShapeError, "try vs.where, or vs.nonzero"),
        (lambda: vs.pad(x(), 1, axes=1.5), vs.ShapeError, "integers as axes, got 1.5"),
        (lambda: vs.resize(x(), scales=2.0), vs.DTypeError, "numbers as scales, got 2.0"),
        (lambda: vs.resize(x(), sizes=[2], axes=0.5), vs.ShapeError, "integers as axes"),
        (lambda: vs.resize(x(), [4, 3], cubic_coeff_a="a"), vs.DTypeError, "as cubic_coeff_a"),
        (lambda: vs.tensordot(x(), x(), 1.0), vs.ShapeError, "two lists of them, got 1.0"),
        (lambda: vs.tensordot(x(), x(), (1.0, 0)), vs.ShapeError, "integers as axes, got 1.0"),
        (lambda: vs.rotary_cache(4, 4.0), vs.ShapeError, "integer as dim, got 4.0"),
        (lambda: vs.rotary_cache(4, 4, None), vs.DTypeError, "finite number as base"),
        (lambda: vs.elu(x(), 10**400), vs.DTypeError, "finite number as alpha"),
        (lambda: vs.relu(x(), name=5), vs.VkschedError, "relu. expected a name, got 5"),
        (lambda: vs.input("i", (2,), "int32", bounds=10), vs.DTypeError, "bounds .low, high."),
        (lambda: vs.input("i", (2,), None), vs.DTypeError, "got 'None'"),
        (lambda: vs.random_uniform((2,), 1, 0, seed=0), vs.ShapeError, "low <= high, got 1 and 0"),
        (lambda: vs.random_uniform((2,), "0", "1", seed=0), vs.DTypeError, "finite number as low"),
        (lambda: vs.bernoulli((2,), "a", seed=0), vs.DTypeError, "finite number as probability"),
        (lambda: attend(past_len=1.5), vs.ShapeError, "integer as past_len, got 1.5"),
        (lambda: attend(window=3), vs.ShapeError, r"window .left, right., got 3"),
        (lambda: attend(window=(1.5, 2)), vs.ShapeError, "integer as window, got 1.5"),
        (lambda: attend(scale="a"), vs.DTypeError, "finite number as scale"),
        (lambda: attend(softcap=None), vs.DTypeError, "finite number as softcap"),
        (lambda: attend(num_heads=2.0), vs.ShapeError, "integer as num_heads, got 2.0"),
        (lambda: recur(clip=-1), vs.DTypeError, "a clip above 0"),
        (lambda: recur(clip="a"), vs.DTypeError, "finite number as clip"),
        (lambda: recur(direction=["forward"]), vs.ShapeError, "expected one of forward"),
        (lambda: recur(activations=[None]), vs.ShapeError, "or a function, got None"),
        (lambda: vs.affine_grid(np.zeros((1, 2, 3), "f4"), (1, 1, -2, 2)), vs.ShapeError, "sizes"),
        (lambda: vs.resize(x(), [2**40, 6]), vs.ShapeError, TOO_LARGE),
        (lambda: vs.resize(x(), [2**40, 6], mode="linear"), vs.ShapeError, TOO_LARGE),
        (lambda: vs.pad(x(), 2**40, "edge"), vs.ShapeError, TOO_LARGE),
        (lambda: vs.repeat(x(), [2**40, 1, 1, 1], 0), vs.ShapeError, TOO_LARGE),
        (lambda: vs.rotary_cache(2**40, 4), vs.ShapeError, TOO_LARGE),
        (
            lambda: vs.affine_grid(np.zeros((1, 2, 3), "f4"), (1, 1, 2**20, 2**20)),
            vs.ShapeError,
            TOO_LARGE,
        ),
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


def test_python_operators_of_tensors_are_numpys() -> None:
    whole = np.arange(-12, 12, dtype=np.int32).reshape(4, 6)
    n, real = x("int32"), x()
    pairs = [
        (n // 5, whole // 5),
        (100 // (n * 2 + 1), 100 // (whole * 2 + 1)),
        (n % 5, whole % 5),
        (100 % (n * 2 + 1), 100 % (whole * 2 + 1)),
        (n & 6, whole & 6),
        (6 & n, 6 & whole),
        (n | 6, whole | 6),
        (6 | n, 6 | whole),
        (n ^ 6, whole ^ 6),
        (np.int32(6) ^ n, 6 ^ whole),
        (n << 2, whole << 2),
        (2 << (n & 3), 2 << (whole & 3)),
        (n >> 1, whole >> 1),
        (200 >> (n & 3), 200 >> (whole & 3)),
        (~n, ~whole),
        (+n, whole),
        ((n > 0) & (n < 5), (whole > 0) & (whole < 5)),
        ((n > 0) | (n < -5), (whole > 0) | (whole < -5)),
        ((n > 0) ^ True, (whole > 0) ^ True),
        (~(n > 0), ~(whole > 0)),
        (n.T, whole.T),
        (n.astype("float32"), whole.astype(np.float32)),
        (n.astype(np.float32), whole.astype(np.float32)),
    ]
    for tensor, expected in pairs:
        got = evaluate(tensor, x=whole)
        assert got.dtype == expected.dtype and np.array_equal(got, expected), tensor
    assert np.array_equal(evaluate(real // 5.0 + real % 5.0, x=X), X // 5 + X % 5)
    assert (len(n), n.ndim, len(n.T)) == (4, 2, 6)
    with pytest.raises(vs.ShapeError, match="got a scalar"):
        len(vs.input("s", ()))
    with pytest.raises(vs.DTypeError, match="int32 or uint32 or bool, got float32"):
        ~x()


@pytest.mark.parametrize(
    "build",
    [
        lambda: x() * (x() == 0),
        lambda: (x() == 0) * x(),
        lambda: x("int32") + (x() != 0),
        lambda: x() + np.bool_(True),
        lambda: x() + [True] * 6,
        lambda: x() + [1.0, True, 1.0, 1.0, 1.0, 1.0],
        lambda: vs.where(x() > 0, x(), True),
        lambda: vs.cast(x() == 0, "float32"),
        lambda: vs.reduce_any(True),
        lambda: vs.equal(True, False),
        lambda: vs.clip(x(), x() == 0),
        lambda: vs.pad(x(), 1, value=True),
    ],
)
def test_a_bool_is_no_number_as_it_comes_from_identity(build: Callable[[], object]) -> None:
    with pytest.raises(vs.DTypeError, match="compare identity; try vs.equal, or vs.cast"):
        build()


def test_bools_are_fine_next_to_bools() -> None:
    positive = x() > 2
    assert np.array_equal(evaluate(vs.equal(positive, False), x=X), X <= 2)
    assert np.array_equal(evaluate(vs.where(positive, positive, True), x=X), np.ones_like(X, bool))
    assert np.array_equal(evaluate(positive & [True, False] * 3, x=X), (X > 2) & [True, False] * 3)
    assert evaluate(vs.constant(True)) and evaluate(vs.reduce_any([True, False]))
    hot = evaluate(vs.one_hot([1, 0], 3, dtype=bool))
    assert np.array_equal(hot, [[False, True, False], [True, False, False]])
    assert evaluate(vs.full((2,), 1, bool)).tolist() == [True, True]


def test_big_endian_arrays_are_converted() -> None:
    row = np.arange(6).astype(">f4")
    for make in (vs.weight, vs.constant):
        assert np.array_equal(evaluate(x() + make(row), x=X), X + row.astype(np.float32))


def test_more_integers_and_axes_are_as_numpys() -> None:
    two, real = np.int64(2), x()
    assert np.array_equal(evaluate(vs.roll(x(), (1, two), 1), x=X), np.roll(X, (1, 2), 1))
    assert np.array_equal(evaluate(vs.tensordot(real, real.T, np.int64(1)), x=X), X @ X.T)
    assert vs.depth_to_space(vs.input("q", (1, 4, 3, 3)), two).shape == (1, 1, 6, 6)
    assert vs.transpose(vs.input("v", (3,)), 0).shape == (3,)
    assert vs.resize(x(), scales=[1e-8, 1], mode="linear", antialias=True).shape == (0, 6)


def test_scalars_and_sequences_take_the_type_next_to_them() -> None:
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
        (lambda: vs.Scheduler([], trace=3), vs.PlanError, "expected a vs.Trace"),  # type: ignore[arg-type]
        (lambda: vs.Scheduler(["cpu"], policy="best"), vs.PlanError, "policy of priority, auto"),
        (lambda: vs.Scheduler(["cpu"], timeout_s="5"), vs.PlanError, "timeout_s"),  # type: ignore[arg-type]
        (lambda: vs.Scheduler(["cpu"], timeout_s=0), vs.PlanError, "timeout_s above 0, got 0"),
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
