"""Which precision a scheduler, a compile, names and a config give, and what runs make of it."""

from __future__ import annotations

import numpy as np
import pytest
from test_executor import null_devices

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.precision import as_factor, as_half, precision_of
from vksched.runtime.cpu import split_program

RNG = np.random.default_rng(3)
WIDTH = 48
FEEDS = {"x": RNG.standard_normal((5, WIDTH)).astype(np.float32)}
FIRST, SECOND = (
    (RNG.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32) for _ in range(2)
)


def network() -> tuple[vs.Tensor, vs.Tensor]:
    """Two products in two signals."""
    x = vs.input("x", FEEDS["x"].shape)
    with vs.signal("one"):
        first = vs.matmul(x, vs.weight(FIRST), name="first")
    with vs.signal("two"):
        return first, vs.matmul(vs.relu(first), vs.weight(SECOND), name="second")


def words(plan: vs.Plan) -> dict[str, str]:
    nodes = plan.graph.nodes
    return {n.name: precision_of(n.attrs) for n in nodes if n.declaration.roundable_operands}


def rounded(x: NDArray) -> NDArray:
    return x.astype(np.float16).astype(np.float64)


def expected(first: bool, second: bool) -> NDArray:
    """The result with the operands of some products rounded."""

    def times(a: NDArray, b: NDArray, mixed: bool) -> NDArray:
        return rounded(a) @ rounded(b) if mixed else a.astype(np.float64) @ b

    return times(np.maximum(times(FEEDS["x"], FIRST, first), 0), SECOND, second)


def test_each_place_wins_over_the_one_before() -> None:
    config = {"two": {"precision": "float32"}}
    with vs.Scheduler(["cpu"], precision="mixed") as sched:
        first, out = network()
        assert set(words(sched.compile(out).plan).values()) == {"mixed"}
        assert set(words(sched.compile(out, precision="float16").plan).values()) == {"float16"}
        built = words(sched.compile(out, precision={"one.*": "float32"}).plan)
        assert built == {"one.first": "float32", "two.second": "mixed"}
        built = words(sched.compile(out, precision={first: "float16", "*": "float32"}).plan)
        assert built == {"one.first": "float16", "two.second": "float32"}
    with vs.Scheduler(["cpu"], precision="mixed", config=config) as sched:
        built = words(sched.compile(network()[1], precision="float16").plan)
        assert built == {"one.first": "float16", "two.second": "float32"}
        built = words(sched.compile(network()[1], precision={"*second": "float16"}).plan)
        assert built == {"one.first": "mixed", "two.second": "float16"}


def test_requests_of_two_words_are_two_graphs() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        _, out = network()
        plain, mixed = sched.compile(out), sched.compile(out, precision="mixed")
        assert plain.plan is not mixed.plan
        assert sched.compile(out, precision={"*": "mixed"}).plan is mixed.plan
        assert sched.compile(out, precision="float32").plan is plain.plan


def test_numpy_rounds_what_it_is_asked_to() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        _, out = network()
        for first, second in ((False, False), (True, False), (True, True)):
            asked = {"*first": "mixed" if first else "float32"}
            asked["*second"] = "mixed" if second else "float32"
            got = sched.compile(out, precision=asked)(**FEEDS)
            np.testing.assert_allclose(got, expected(first, second), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("word", ["mixed", "float16"])
def test_devices_stay_within_what_a_word_allows(devices: list[str], word: str) -> None:
    with vs.Scheduler(devices, precision=word) as sched:
        got = sched.compile(network()[1])(**FEEDS)
    np.testing.assert_allclose(got, expected(False, False), rtol=0, atol=1e-2)


def test_a_plan_tells_it_and_is_read_back_with_it() -> None:
    with vs.Scheduler(["cpu"], precision="mixed") as sched:
        plan = sched.compile(network()[1]).plan
    assert "precision='mixed'" in str(plan.graph)


def test_parts_on_several_devices_keep_it() -> None:
    names, cards = null_devices(2)
    config = {"one": {"devices": ["null:0", "null:1"], "shard": {"weights": "columns"}}}
    with vs.Scheduler(cards, config=config, precision="mixed") as sched:
        result = sched.compile(network()[1]).plan.graph
    found = [precision_of(n.attrs) for n in result.nodes if n.op == "matmul"]
    assert len(found) > 2 and set(found) == {"mixed"}


def test_gradients_are_computed_as_their_products() -> None:
    x, w = vs.input("x", (5, WIDTH)), vs.state(FIRST, "w")
    loss = vs.reduce_mean(vs.relu(x @ w) @ vs.weight(SECOND))
    with vs.Scheduler(["cpu"], precision="mixed") as sched:
        plan = sched.compile(loss, updates={w: w - vs.grad(loss, {"w": w})["w"]}).plan
    assert len(words(plan)) == 4 and set(words(plan).values()) == {"mixed"}


def test_functions_take_a_word() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        plain, mixed = (
            sched.function(lambda x: x @ vs.weight(FIRST), precision=word)(**FEEDS)
            for word in ("float32", "mixed")
        )
    np.testing.assert_allclose(mixed, rounded(FEEDS["x"]) @ rounded(FIRST), atol=1e-5)
    assert np.abs(plain - mixed).max() > 1e-5


def test_what_is_no_word_is_reported() -> None:
    with pytest.raises(vs.PlanError, match='"bfloat16", "int8", got \'half\''):
        vs.Scheduler(["cpu"], precision="half")
    with pytest.raises(
        vs.PlanError, match="one of float32, mixed, float16, bfloat16, int8 as one.precision"
    ):
        vs.Scheduler(["cpu"], config={"one": {"precision": "half"}})
    with vs.Scheduler(["cpu"]) as sched:
        _, out = network()
        for values, match in (
            ("half", "expected a precision"),
            (3, "a mode, or tensors or name patterns"),
            ({"one.*": "half"}, "expected a precision"),
            ({"three": "mixed"}, "expected a node that matches 'three'"),
            ({network()[1]: "mixed"}, "no part|not part"),
        ):
            with pytest.raises(vs.PlanError, match=match):
                sched.compile(out, precision=values)  # type: ignore[arg-type]


def test_numpy_rounds_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []

    def count(array: NDArray, word: str) -> NDArray:
        seen.append(array.shape)
        return as_factor(array, word)

    monkeypatch.setattr(split_program, "as_factor", count)
    rng = np.random.default_rng(0)
    w, inputs = (rng.standard_normal(shape).astype(np.float32) for shape in ((40, 7), (3, 40)))
    x = vs.input("x", inputs.shape)
    shared = vs.weight(w)
    outs = [vs.matmul(x, shared), vs.matmul(vs.relu(x), shared)]
    with vs.Scheduler(["cpu"], precision="mixed") as sched:
        run = sched.compile(outs)
        assert seen == [w.shape]
        first, second = run(x=inputs), run(x=inputs)
    assert seen == [w.shape, *[inputs.shape] * 4]
    for got, again, left in zip(first, second, (inputs, np.maximum(inputs, 0)), strict=True):
        wanted = as_half(left).astype(np.float64) @ as_half(w)
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
        np.testing.assert_array_equal(got, again)
