"""Programs: what is kept between runs, what a run gives back, and what a failed one leaves."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import DEVICE_SETS
from test_reuse import created_objects

import vksched as vs
from vksched.engine.graph_registry import GraphRegistry
from vksched.planner import planner

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper, parser  # noqa: E402

X = np.array([1, -2, 3], np.float32)
STAGES = """g (float[n] x, int64[m] k) => (float[m] y, int64[?] u) {
  u = Unique(k)
  t = Gather(x, u)
  y = Neg(t) }"""
"""Its second segment depends on how many different numbers there are in k."""


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


@pytest.fixture(scope="module")
def sched() -> Iterator[vs.Scheduler]:
    with vs.Scheduler(["cpu"]) as sched:
        yield sched


def ids(count: int) -> np.ndarray[Any, Any]:
    return np.arange(count, dtype=np.int64)


# -- what is kept --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(DEVICE_SETS)[:2])
def test_a_second_call_lowers_plans_and_allocates_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = """g (float[3] x, int64[m] k, int64 n) => (float[3] y, int64[?] u, float[3] z) {
      u = Unique(k)
      y = Relu(x)
      z = Loop(n, , x) <body = b (int64 i, bool c, float[3] s) => (bool c2, float[3] s2) {
        c2 = Identity(c)
        s2 = Add(s, y) }> }"""
    with vs.Scheduler(DEVICE_SETS[name]) as sched:
        run = sched.compile(vs.load(parse(loop)))
        first = run(x=X, k=ids(2), n=np.array(3))
        before, segments = created_objects(sched), run.segments
        monkeypatch.setattr("vksched.models.program.FrameLowering.run", None)
        monkeypatch.setattr("vksched.planner.planner.plan_graph", None)
        again = run(x=X * 2, k=ids(2) + 5, n=np.array(4))
        assert created_objects(sched) == before and set(run.segments) == set(segments)
        np.testing.assert_array_equal(first["z"], X + 3 * np.maximum(X, 0))
        np.testing.assert_array_equal(again["z"], 2 * (X + 4 * np.maximum(X, 0)))
        np.testing.assert_array_equal(again["u"], ids(2) + 5)


def test_what_was_not_used_for_longest_is_dropped(sched: vs.Scheduler) -> None:
    run = sched.compile(vs.load(parse(STAGES)), limit=2)
    x = np.arange(8, dtype=np.float32)
    for count in (1, 2, 3, 1):
        np.testing.assert_array_equal(run(x=x, k=ids(count))["y"], -x[:count])
        assert sum(segment.run is not None for segment in run.segments) <= 2
    run.close()
    assert not run.segments


@pytest.mark.parametrize("kind", ["segments", "turns"])
def test_all_that_one_run_uses_is_retained_for_the_next(
    kind: str, sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "segments":
        steps = "".join(
            f"a{i} = Unique(t{i})\n b{i} = Cast<to=1>(a{i})\n t{i + 1} = Neg(b{i})\n"
            for i in range(5)
        )
        text = f"g (float[n] t0) => (float[?] t5) {{ {steps} }}"
    else:
        text = """g (float[n] t0, int64 m) => (float[?] t5) {
          t5 = Loop(m, , t0) <body = b (int64 i, bool c, float[?] s) => (bool c2, float[?] s2) {
            c2 = Identity(c)
            s2 = Concat<axis=0>(s, s) }> }"""
    more = {"m": np.array(5)} if kind == "turns" else {}
    run = sched.compile(vs.load(parse(text)), limit=1)
    first = run(t0=X, **more)["t5"]
    monkeypatch.setattr("vksched.models.program.FrameLowering.run", None)
    np.testing.assert_array_equal(run(t0=X, **more)["t5"], first)
    monkeypatch.undo()
    stored = len(run.plans)
    for count in range(4, 8):
        run(t0=np.arange(count, dtype=np.float32), **more)
    assert 5 <= len(run.plans) == stored  # but no more than one run needs
    run.close()


def test_shapes_leave_nothing_in_the_model(sched: vs.Scheduler) -> None:
    text = """g (float[n] x) => (float[n] y) {
      size = Size(x)
      zero = Constant<value_int=0>()
      one = Constant<value_int=1>()
      steps = Range(zero, size, one)
      table = Cast<to=1>(steps)
      half = Mul(table, w)
      y = Add(x, half) }"""
    model = parse(text)
    model.graph.initializer.append(numpy_helper.from_array(np.full(1, 0.5, np.float32), "w"))
    loaded = vs.load(model)
    run = sched.compile(loaded, limit=1)
    stored = []
    for count in (300, 301, 302):
        x = np.zeros(count, np.float32)
        np.testing.assert_array_equal(run(x=x)["y"], np.arange(count) / 2)
        context = loaded.context
        stored.append((len(context._tensors), len(context._folded), len(context._shared)))
    assert stored[0] == stored[1] == stored[2]
    run.close()


def test_stages_without_a_graph_are_bounded_too(sched: vs.Scheduler) -> None:
    run = sched.compile(vs.load(parse("g (int64[n] x) => (int64[?] y) { y = Unique(x) }")), limit=1)
    for count in range(1, 40):
        assert len(run(x=ids(count))["y"]) == count
    assert len(run.segments) <= 16
    run.close()


def test_a_guard_may_be_an_item_of_a_sequence(sched: vs.Scheduler) -> None:
    text = """g (seq(int64[n]) s, float[6] x) => (float[?] y, seq(int64[n]) s2) {
      first = Constant<value_int=0>()
      shape = SequenceAt(s, first)
      y = Reshape(x, shape)
      s2 = Identity(s) }"""
    run = sched.compile(vs.load(parse(text)))
    x = np.arange(6, dtype=np.float32)
    shape = np.array([2, 3])
    assert run(s=[shape], x=x)["y"].shape == (2, 3)
    shape[:] = 3, 2  # the guard is a copy of what the caller may change
    found = run(s=[shape], x=x)
    assert found["y"].shape == (3, 2) and len(run.segments) == 2
    np.testing.assert_array_equal(found["s2"][0], [3, 2])
    run.close()


def test_what_guards_a_stage_does_not_keep_others_from_being_prepared(sched: vs.Scheduler) -> None:
    run = sched.compile(
        vs.load(parse("g (float[n] x, int64[2] s) => (float[?,?] y) { y = Reshape(x, s) }"))
    )
    assert run(x=X, s=[1, 3])["y"].shape == (1, 3)
    run.prepare(x=(3,))
    assert run(x=X, s=[3, 1])["y"].shape == (3, 1)
    run.close()


def test_elements_that_were_of_no_use_are_no_guard(sched: vs.Scheduler) -> None:
    text = """g (float[n] x, int64[1] first, int64[1] half) => (float[?] y) {
      last = Add(half, half)
      y = Slice(x, first, last) }"""
    run = sched.compile(vs.load(parse(text)))
    for first in (0, 1):
        np.testing.assert_array_equal(run(x=X, first=[first], half=[1])["y"], X[first:2])
    assert [len(segment.lowered.guards) for segment in run.segments] == [2, 0, 2]
    run.close()


# -- what comes back -----------------------------------------------------------------------------


def test_results_may_be_inputs_constants_and_each_other(sched: vs.Scheduler) -> None:
    text = """g (float[3] x) => (float[3] x, float[2] c, float[3] a, float[3] b) {
      c = Constant<value_floats=[1.0, 2.0]>()
      a = Relu(x)
      b = Identity(a) }"""
    run = sched.compile(vs.load(parse(text)))
    x = X.copy()
    for _ in range(2):
        found = run(x=x)
        np.testing.assert_array_equal(found["x"], X)
        np.testing.assert_array_equal(found["c"], [1, 2])
        np.testing.assert_array_equal(found["a"], np.maximum(X, 0))
        np.testing.assert_array_equal(found["b"], np.maximum(X, 0))
        for array in found.values():
            array[:] = 7  # nobody else's memory
    np.testing.assert_array_equal(x, X)
    run.close()


def test_results_may_be_written_to(sched: vs.Scheduler) -> None:
    text = """g (float[n] x) => (float[3] c, int64[1] s, seq(int64[1]) q) {
      k = Constant<value_ints=[3]>()
      c = ConstantOfShape<value = float[1] {2.0}>(k)
      s = Shape(x)
      d = Add(s, s)
      q = SequenceConstruct(s, d) }"""
    run = sched.compile(vs.load(parse(text)))
    for _ in range(2):
        found = run(x=X)
        assert found["c"].tolist() == [2, 2, 2] and found["s"].tolist() == [3]
        assert [v.tolist() for v in found["q"]] == [[3], [6]]
        for array in (found["c"], found["s"], *found["q"]):
            array[...] = 7  # what the model keeps is its own
    run.close()


def test_what_is_built_of_an_input_follows_it(sched: vs.Scheduler) -> None:
    blocks = np.full((2, 1, 8), 0x11, np.uint8)
    scales = np.ones(2, np.float32)
    values = [("a", 1, [1, 16]), ("b", 2, [2, 1, 8]), ("s", 1, [2])]
    node = helper.make_node(
        "MatMulNBits", ["a", "b", "s"], ["y"], domain="com.microsoft", K=16, N=2, block_size=16
    )
    infos = [helper.make_tensor_value_info(*v) for v in [*values, ("y", 1, [1, 2])]]
    graph = helper.make_graph([node], "g", infos[:3], infos[3:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    run = sched.compile(vs.load(helper.make_model(graph, opset_imports=opsets)))
    a = np.ones((1, 16), np.float32)
    assert run(a=a, b=blocks, s=scales)["y"].tolist() == [[-112, -112]]
    blocks[:] = 0x99  # the same array with other elements
    assert run(a=a, b=blocks, s=scales)["y"].tolist() == [[16, 16]]
    run.close()


def test_what_was_submitted_is_a_copy(sched: vs.Scheduler) -> None:
    text = "g (seq(float[n]) s) => (float[m] y) { y = ConcatFromSequence<axis=0>(s) }"
    run = sched.compile(vs.load(parse(text)))
    x = X.copy()
    futures = [run.submit(s=[x, x]) for _ in range(3)]
    x[:] = 7
    for future in futures:
        np.testing.assert_array_equal(future.result()["y"], [*X, *X])
    run.close()


@pytest.mark.parametrize(
    "wrong",
    [{"n": [1.5]}, {"n": ["1"]}, {"n": [None]}, {"u": [-1]}, {"u": [[1], [1, 2]]}, {"f": None}]
    + [{"s": np.ones((2, 2), np.float32)}, {"s": None}],
)
def test_what_would_change_numbers_is_refused(sched: vs.Scheduler, wrong: dict[str, Any]) -> None:
    text = """g (int64[k] n, uint8[l] u, float f, seq(float[m]) s, optional(seq(float[m])) o)
        => (int64[k] a, uint8[l] b, float c, int64 d, bool e) {
      a = Identity(n)
      b = Identity(u)
      c = Identity(f)
      d = SequenceLength(s)
      e = OptionalHasElement(o) }"""
    run = sched.compile(vs.load(parse(text, 18)))
    right: dict[str, Any] = {"n": [1, True], "u": [255], "f": 2, "s": [], "o": None}
    found = run(**right)
    assert [found[key].tolist() for key in "abcde"] == [[1, 1], [255], 2, 0, False]
    with pytest.raises(vs.DTypeError, match=next(iter(wrong))):
        run(**{**right, **wrong})
    run.close()


def test_one_tensor_may_hold_two_element_types(sched: vs.Scheduler) -> None:
    text = """g (uint8[3] x) => (int32[3] y, uint8[3] z, uint8[3] w, int64[?] u) {
      y = Cast<to=6>(x)
      z = Identity(x)
      w = Cast<to=2>(y)
      u = NonZero(y) }"""
    run = sched.compile(vs.load(parse(text)))
    x = np.array([1, 0, 200], np.uint8)
    found = run(x=x)
    assert [found[k].dtype for k in "yzw"] == [np.int32, np.uint8, np.uint8]
    for key in "yzw":
        np.testing.assert_array_equal(found[key], x)
    run.close()


def test_initializers_that_are_inputs_are_defaults(sched: vs.Scheduler) -> None:
    model = parse("g (float[3] x, float[3] w) => (float[3] y) { y = Add(x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "w"))
    run = sched.compile(vs.load(model))
    assert [v.name for v in run.inputs] == ["x"]
    np.testing.assert_array_equal(run(x=X)["y"], X + 1)
    np.testing.assert_array_equal(run(x=X, w=X)["y"], 2 * X)
    np.testing.assert_array_equal(run(x=X)["y"], X + 1)
    run.close()


def test_text_goes_round_the_graph(sched: vs.Scheduler) -> None:
    text = """g (string[n] s, float[3] x) => (string[n] a, string[m] b, float[3] y) {
      a = Identity(s)
      b = Concat<axis=0>(s, a)
      y = Relu(x) }"""
    run = sched.compile(vs.load(parse(text)))
    found = run(s=np.array(["p", "q"]), x=X)
    assert found["a"].tolist() == ["p", "q"] and found["b"].tolist() == ["p", "q", "p", "q"]
    np.testing.assert_array_equal(found["y"], np.maximum(X, 0))
    run.close()


def test_optional_results(sched: vs.Scheduler) -> None:
    text = """g (float[3] x, optional(float[3]) o)
        => (optional(float[3]) y, optional(float[3]) z, bool h) {
      y = Optional(x)
      z = Optional<type: type_proto = float[3]>()
      h = OptionalHasElement(o) }"""
    run = sched.compile(vs.load(parse(text, 18)))
    found = run(x=X, o=None)
    np.testing.assert_array_equal(found["y"], X)
    assert found["z"] is None and not found["h"]
    assert run(x=X, o=X)["h"]
    run.close()


def test_names_of_the_model_and_those_that_lowering_makes_never_meet(sched: vs.Scheduler) -> None:
    text = """g (float[n] x, bool c) => (float[n] z) {
      ya = Mul(x, x)
      y = If(c) <then_branch = t () => (float[n] a) { a = Neg(x) },
                 else_branch = e () => (float[n] b) { b = Abs(x) }>
      z = Add(y, ya) }"""
    model = parse(text)
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = ["y%a" if name == "ya" else name for name in names]
    run = sched.compile(vs.load(model))
    np.testing.assert_array_equal(run(x=X, c=True)["z"], X * X - X)
    run.close()
    infos = [helper.make_tensor_sequence_value_info("s", 1, [None])]
    infos += [helper.make_tensor_value_info(name, 1, [None]) for name in ("s[0]", "y", "z")]
    nodes = [helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)]
    nodes.append(helper.make_node("Neg", ["s[0]"], ["z"]))
    graph = helper.make_graph(nodes, "g", infos[:2], infos[2:])
    run = sched.compile(
        vs.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    )
    np.testing.assert_array_equal(run(**{"s": [X, X], "s[0]": X[:1]})["y"], [*X, *X])
    run.close()


# -- several at once, and failures ---------------------------------------------------------------


def test_threads_share_a_model_that_keeps_little(sched: vs.Scheduler) -> None:
    run = sched.compile(vs.load(parse(STAGES)), limit=1)
    x = np.arange(8, dtype=np.float32)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for turn in range(6):
                count = 1 + (first + turn) % 3
                np.testing.assert_array_equal(run(x=x, k=ids(count))["y"], -x[:count])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(segment.run is not None for segment in run.segments) <= 1
    run.close()


def test_known_shapes_run_while_another_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, go_on = threading.Event(), threading.Event()
    found: list[Any] = []
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse("g (float[n] x) => (float[n] y) { y = Neg(x) }")))
        np.testing.assert_array_equal(run(x=X)["y"], -X)
        plan_graph = planner.plan_graph

        def slowly(*args: Any, **kwargs: Any) -> Any:
            compiling.set()
            assert go_on.wait(60)
            return plan_graph(*args, **kwargs)

        monkeypatch.setattr(planner, "plan_graph", slowly)
        other = threading.Thread(target=lambda: found.append(run(x=np.ones(7, np.float32))["y"]))
        other.start()
        assert compiling.wait(60)
        known = threading.Thread(target=lambda: found.append(run(x=X)["y"]))
        known.start()
        known.join(60)
        assert len(found) == 1  # the shape that was there, while the other waits
        go_on.set()
        other.join()
        np.testing.assert_array_equal(found[0], -X)
        np.testing.assert_array_equal(found[1], -np.ones(7))


def test_close_waits_for_a_run_of_several_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    between, go_on = threading.Event(), threading.Event()
    found: list[Any] = []
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(STAGES)))
        evaluate = run.model.context.host_node

        def slowly(node: bytes) -> Any:
            between.set()
            assert go_on.wait(60)
            return evaluate(node)

        monkeypatch.setattr(run.model.context, "host_node", slowly)
        runner = threading.Thread(target=lambda: found.append(run(x=X, k=ids(2))["y"]))
        runner.start()
        assert between.wait(60)
        closer = threading.Thread(target=run.close)
        closer.start()
        go_on.set()
        runner.join()
        closer.join()
        np.testing.assert_array_equal(found[0], -X[:2])
        assert not run.segments
        with pytest.raises(vs.PlanError, match="closed"):
            run(x=X, k=ids(2))


def test_a_model_that_nobody_holds_is_freed(sched: vs.Scheduler) -> None:
    run = sched.compile(vs.load(parse(STAGES)))
    future = run.submit(x=X, k=ids(2))
    future.result()
    run.synchronize()
    gone = weakref.ref(run)
    del run, future
    gc.collect()
    assert gone() is None


def test_a_scheduler_waits_for_what_was_submitted_to_a_model() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(parse(STAGES)))
        futures = [run.submit(x=X, k=ids(count)) for count in (1, 2, 3)]
        sched.synchronize()
        assert all(future.done() for future in futures)
        futures += [run.submit(x=X, k=ids(count)) for count in (3, 2, 1)]
    assert [len(future.result()["y"]) for future in futures] == [1, 2, 3, 3, 2, 1]
    with pytest.raises(vs.PlanError, match="closed"):
        run.submit(x=X, k=ids(1))


def test_close_waits_for_what_was_submitted_and_may_be_called_by_it(sched: vs.Scheduler) -> None:
    model = vs.load(parse(STAGES))
    run = sched.compile(model)
    futures = [run.submit(x=X, k=ids(count)) for count in (1, 2, 3)]
    run.close()
    assert [len(future.result()["y"]) for future in futures] == [1, 2, 3]
    run = sched.compile(model)
    closed = threading.Event()

    def done(future: Any) -> None:
        run.close()
        closed.set()

    run.submit(x=X, k=ids(2)).add_done_callback(done)
    assert closed.wait(60) and not run.segments


def test_what_is_retained_makes_room(sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    run = sched.compile(vs.load(parse("g (float[n] x) => (float[n] y) { y = Neg(x) }")))
    run(x=X)
    compile_it = GraphRegistry.compile

    def short(graphs: GraphRegistry, *args: Any, **named: Any) -> Any:
        if run.segments:
            raise vs.OutOfMemory("no room beside another graph")
        return compile_it(graphs, *args, **named)

    monkeypatch.setattr(GraphRegistry, "compile", short)
    np.testing.assert_array_equal(run(x=X[:2])["y"], -X[:2])
    assert len(run.segments) == 1
    run.close()


def test_a_run_that_fails_leaves_nothing_in_use(sched: vs.Scheduler) -> None:
    run = sched.compile(vs.load(parse(STAGES)), limit=1)
    x = np.arange(3, dtype=np.float32)
    with pytest.raises(vs.IndexOutOfRange):
        run(x=x, k=np.array([7]))
    np.testing.assert_array_equal(run(x=x, k=np.array([2]))["y"], [-2])
    run(x=x, k=ids(3))  # another shape: the one that failed makes room
    assert sum(segment.run is not None for segment in run.segments) <= 1
    run.close()


def test_a_host_node_that_fails_is_named(sched: vs.Scheduler) -> None:
    text = """g (float[n,m] q) => (float[n,m] y) { i = Det(q)
      y = Add(q, i) }"""
    run = sched.compile(vs.load(parse(text)))
    for _ in range(2):
        with pytest.raises(vs.ModelFormatError, match="Det"):
            run(q=np.ones((2, 3), np.float32))
    q = np.eye(2, dtype=np.float32)
    np.testing.assert_allclose(run(q=q)["y"], q + 1)
    run.close()


@pytest.mark.parametrize(
    ("body", "ours", "theirs"),
    [
        ("Conv(x, w)", r"\[conv\] expected w \(9, 2, 3, 3\) in 1 groups", "X.shape="),
        ("Add(x, w)", r"\[add\] expected shapes that broadcast", "Issues with types"),
    ],
    ids=["a node of the graph", "between segments"],
)
def test_operands_that_do_not_fit_are_reported_by_the_rule_first(
    sched: vs.Scheduler, body: str, ours: str, theirs: str
) -> None:
    text = f"g (float[n,c,8,8] x, float[9,2,k,k] w) => (float[?,?,?,?] y) {{ y = {body} }}"
    run = sched.compile(vs.load(parse(text)))
    inputs = np.ones((4, 8, 8, 8), np.float32), np.ones((9, 2, 3, 3), np.float32)
    with pytest.raises(vs.ModelFormatError, match=rf"node 'y': .*{ours}.*evaluator: .*{theirs}"):
        run(x=inputs[0], w=inputs[1])
    run.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("y = Reshape(x, k)", r"Reshape.*\[reshape\] "),
        ("c = ConstantOfShape(k)\n y = Add(x, c)", "ConstantOfShape.*negative"),
        ("r = Range(zero, one, zero)\n y = Add(x, r)", "Range.*step"),
    ],
)
def test_elements_that_do_not_fit_are_reported_with_the_node(
    sched: vs.Scheduler, text: str, message: str
) -> None:
    model = parse(f"g (float[n] x, int64[m] k) => (float[?] y) {{ {text} }}")
    feeds = {"zero": np.float32(0), "one": np.float32(1)}
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in feeds.items()]
    model.graph.initializer.extend(arrays)
    run = sched.compile(vs.load(model))
    with pytest.raises(vs.ModelFormatError, match=message) as caught:
        run(x=X, k=np.array([-2, 2]))
    assert "\n" not in str(caught.value)
    run.close()


def test_what_inference_says_wrongly_is_found_out_once(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vksched.importers.onnx.lower.model_context import ModelContext
    from vksched.importers.onnx.nodes.values import Inferred

    original = ModelContext.infer

    def wrong(self: ModelContext, node: Any, *more: Any) -> list[Inferred | None]:
        if node.op_type == "Det":
            return [Inferred(onnx.TensorProto.FLOAT, (5,))]
        return original(self, node, *more)

    monkeypatch.setattr(ModelContext, "infer", wrong)
    text = "g (float[2,2] q) => (float[2,2] y) { i = Det(q)\n y = Add(q, i) }"
    q = 2 * np.eye(2, dtype=np.float32)
    run = sched.compile(vs.load(parse(text)))
    np.testing.assert_allclose(run(q=q)["y"], q + 4)
    segments = run.segments
    np.testing.assert_allclose(run(q=q)["y"], q + 4)
    assert set(run.segments) == set(segments)
    run.close()


def test_what_inference_says_wrongly_is_found_out_in_stages_retained_from_before(
    sched: vs.Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vksched.importers.onnx.lower.model_context import ModelContext
    from vksched.importers.onnx.nodes.values import Inferred

    original = ModelContext.infer

    def wrong(self: ModelContext, node: Any, inputs: Any, schema: Any) -> list[Inferred | None]:
        if node.op_type == "Unique":
            return [Inferred(onnx.TensorProto.FLOAT, inputs[0].shape)]
        return original(self, node, inputs, schema)

    monkeypatch.setattr(ModelContext, "infer", wrong)
    run = sched.compile(
        vs.load(parse("g (float[n] x) => (float[?] y) { u = Unique(x)\n y = Neg(u) }"))
    )
    for x in ([1, 2], [1, 2, 3], [1, 1], [1, 1, 2]):  # the first two are as inference says
        found = run(x=np.array(x, np.float32))["y"]
        np.testing.assert_array_equal(found, -np.unique(x))
    run.close()


def test_a_deep_chain_needs_no_recursion(sched: vs.Scheduler) -> None:
    count = 5000
    nodes = [helper.make_node("Neg", [f"t{i}"], [f"t{i + 1}"]) for i in range(count)]
    values = [helper.make_tensor_value_info(f"t{i}", 1, [2]) for i in (0, count)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    run = sched.compile(vs.load(model))
    np.testing.assert_array_equal(run(t0=X[:2])[f"t{count}"], X[:2])
    run.close()
