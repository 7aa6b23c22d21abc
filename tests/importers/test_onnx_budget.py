"""What is made of a small file while it is lowered stays within a budget; the rest runs later."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

import vksched as vs
from vksched.common.user_warning import VkschedWarning

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

from vksched.importers.onnx.lower.memory_budget import Budget  # noqa: E402
from vksched.importers.onnx.nodes import limits  # noqa: E402

MIB = 1 << 20
LIMIT_BYTES = 4 * MIB


@pytest.fixture(autouse=True)
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MATERIALIZED_BYTES", LIMIT_BYTES)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def parse(text: str, opset: int = 17) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def lowered(model: onnx.ModelProto, **options: np.ndarray) -> object:
    return vs.load(model).lower(options)


def text_of(first: str, following: str, count: int, kind: str = "int64[?]") -> onnx.ModelProto:
    """A chain: k0 is made by a first node, k1 and so on each by one more of the one before."""
    constants = "n = Constant <value = int64[1] {200000}> ()\n two = Constant <value_ints = [2]> ()"
    nodes = [f"k{at + 1} = {following.format(f'k{at}')}" for at in range(count)]
    lines = "\n".join([constants, f"k0 = {first}", *nodes])
    return parse(f"g (float[1] x) => (float[1] y, {kind} k{count}) {{ {lines}\n y = Relu(x) }}")


DOUBLED = "ConstantOfShape <value = int64[1] {7}> (n)"
GROWING = {
    "each twice the one before": text_of(DOUBLED, "Tile({}, two)", 6),
    "halves that are joined": text_of(DOUBLED, "Concat <axis = 0> ({0}, {0})", 6),
    "many of a size each": text_of(DOUBLED, "Neg({})", 40),
    "texts": text_of('Constant <value_strings = ["abcdefgh"]> ()', "StringConcat({0}, {0})", 25)
    if hasattr(onnx, "defs") and onnx.defs.onnx_opset_version() >= 20
    else None,
}


@pytest.mark.parametrize("name", [name for name, model in GROWING.items() if model is not None])
def test_what_a_chain_of_nodes_makes_is_bounded(name: str, traced: None) -> None:
    model = GROWING[name]
    assert model is not None
    if name == "texts":
        model.opset_import[0].version = 20
        model.graph.output[1].type.tensor_type.elem_type = onnx.TensorProto.STRING
    before = tracemalloc.get_traced_memory()[0]
    with pytest.warns(VkschedWarning, match="VKSCHED_FOLD_MIB=8"):
        built = lowered(model, x=np.ones(1, np.float32))
    held, most = (each - before for each in tracemalloc.get_traced_memory())
    assert built is not None and held < 3 * LIMIT_BYTES and most < 12 * LIMIT_BYTES


def test_what_is_not_built_before_is_computed_in_each_run() -> None:
    text = """g (int64[1] x) => (int64[?] y) { n = Constant <value = int64[1] {200000}> ()
      a = ConstantOfShape <value = int64[1] {7}> (n)
      b = Neg(a)
      c = Neg(b)
      d = Neg(c)
      s = Shape(d)
      e = ConstantOfShape <value = int64[1] {3}> (s)
      f = Add(d, e)
      y = Add(f, x) }"""
    with vs.Scheduler(["cpu"]) as sched, pytest.warns(VkschedWarning, match="each run"):
        found = sched.compile(vs.load(parse(text)))(x=np.array([1]))["y"]
    np.testing.assert_array_equal(found, np.full(200000, -7 + 3 + 1))


UNKNOWN = {
    "a window": ("HannWindow(m)", "float[?]", 17),
    "weights of mels": ("MelWeightMatrix(bins, m, rate, low, high)", "float[?,?]", 17),
    "a grid": ("AffineGrid(theta, size)", "float[?,?,?,?]", 20),
    "a crop": ("CenterCropPad(one, far)", "float[?]", 18),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_one_node_makes_no_more_than_its_operands_allow(name: str, traced: None) -> None:
    """Also where shape inference does not tell how large its result is."""
    call, kind, opset = UNKNOWN[name]
    text = f"""g (float[1] x) => (float[1] y, {kind} k) {{
      m = Constant <value = int64 {{8000000}}> ()
      bins = Constant <value = int64 {{4}}> ()
      rate = Constant <value = int64 {{16000}}> ()
      low = Constant <value = float {{0}}> ()
      high = Constant <value = float {{8000}}> ()
      one = Constant <value = float[1] {{1}}> ()
      far = Constant <value = int64[1] {{8000000}}> ()
      size = Constant <value = int64[4] {{1, 1, 2000, 2000}}> ()
      theta = Constant <value = float[1,2,3] {{1, 0, 0, 0, 1, 0}}> ()
      k = {call}
      y = Relu(x) }}"""
    model, before = vs.load(parse(text, opset)), tracemalloc.get_traced_memory()[0]
    model.lower({"x": np.ones(1, np.float32)})
    assert tracemalloc.get_traced_memory()[1] - before < 8 * LIMIT_BYTES


def test_shapes_are_computed_though_nothing_is_left() -> None:
    """A model is one graph still: what decides on shapes is small."""
    text = """g (float[2,3] x) => (float[?,?] y, int64[?] b) {
      n = Constant <value = int64[1] {200000}> ()
      a = ConstantOfShape <value = int64[1] {7}> (n)
      b0 = Neg(a)
      b1 = Neg(b0)
      b = Neg(b1)
      s = Shape(x)
      two = Constant <value = int64[2] {1, 0}> ()
      t = Gather(s, two)
      y = Reshape(x, t) }"""
    with pytest.warns(VkschedWarning, match="MiB"):
        model = vs.load(parse(text)).lower({"x": np.ones((2, 3), np.float32)})
    assert model.then is None and model.step is None  # type: ignore[attr-defined]


def test_a_model_that_is_lowered_for_many_shapes_keeps_its_budget() -> None:
    text = """g (float[n] x) => (float[n] y, int64[?] k) { s = Shape(x)
      k = ConstantOfShape <value = int64[1] {7}> (s)
      y = Relu(x) }"""
    model = vs.load(parse(text))
    for size in range(100_000, 100_020):  # 800 KB each
        model.lower({"x": np.ones(size, np.float32)})
    assert model.context.budget.has_room(LIMIT_BYTES - 2 * MIB)


def test_a_larger_file_may_make_more_and_a_variable_says_how_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert Budget(MIB).has_room(LIMIT_BYTES + 16 * MIB)
    monkeypatch.setenv("VKSCHED_FOLD_MIB", "64")
    assert Budget(0).has_room(64 * MIB)
    with pytest.warns(VkschedWarning, match="VKSCHED_FOLD_MIB=128"):
        assert not Budget(0).has_room(64 * MIB + 1)
    monkeypatch.setenv("VKSCHED_FOLD_MIB", "much")
    with pytest.raises(vs.VkschedError, match="VKSCHED_FOLD_MIB to be a whole number"):
        Budget(0)


def test_arrays_count_as_long_as_they_are_held_and_once() -> None:
    budget, array, values = Budget(0), np.zeros(3 * MIB, np.uint8), np.zeros(8 * MIB, np.uint8)
    budget.leave_out([values[1:]])
    for each in (array, array[5:], values, values.reshape(2, -1)):
        budget.hold(each)
    assert budget.has_room(MIB)
    with pytest.warns(VkschedWarning):
        assert not budget.has_room(MIB + 1)
    del array, each
    assert budget.has_room(4 * MIB)


def test_a_pattern_of_a_file_is_not_matched_while_it_is_loaded() -> None:
    """It would take hours, of a file of 180 bytes."""
    letters = "a" * 60
    model = parse(
        f'g (float[1] x) => (float[1] y, bool[1] z) {{ t = Constant <value_strings = ["{letters}"]>'
        f' ()\n z = RegexFullMatch <pattern = "(a+)+b"> (t)\n y = Relu(x) }}',
        20,
    )
    assert lowered(model, x=np.ones(1, np.float32))
