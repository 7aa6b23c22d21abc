"""Declared inputs: which arrays fit, as in onnxruntime, which is asked for the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vksched as vs

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, parser  # noqa: E402

from vksched.importers.onnx.example_inputs import choose_shapes  # noqa: E402

UNKNOWN = (-1, 3, "?", "?")
"""As a text detector of PaddleOCR declares its images."""


def model(*dims: int | str | None, op: str = "Relu") -> Any:
    """One node whose input is declared with some dimensions, negative ones too."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def onnxruntime_accepts(built: Any, shape: tuple[int, ...], sizes: dict[str, int]) -> bool | None:
    """Return whether the real onnxruntime runs a model with such an input; None without it."""
    try:
        import onnxruntime as ort
    except ImportError:
        return None
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for name, size in sizes.items():
        options.add_free_dimension_override_by_name(name, size)
    session = ort.InferenceSession(
        built.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    try:
        return session.run(None, {"x": np.ones(shape, np.float32)})[0].shape == shape
    except Exception as error:
        assert "Invalid rank" in str(error) or "invalid dimensions" in str(error)
        return False


CASES: list[tuple[tuple[Any, ...], tuple[int, ...], dict[str, int], bool]] = [
    # below 0: unknown
    (UNKNOWN, (2, 3, 4, 5), {}, True),
    (UNKNOWN, (2, 4, 4, 5), {}, False),
    (UNKNOWN, (2, 3, 4), {}, False),
    ((-5, 3), (0, 3), {}, True),
    # 0: a size
    ((-1, 0), (2, 0), {}, True),
    ((-1, 0), (2, 7), {}, False),
    # a scalar: any shape
    ((), (), {}, True),
    ((), (1,), {}, True),
    ((), (1, 1), {}, True),
    ((), (2, 3), {}, True),
    ((1,), (), {}, False),
    ((1,), (1, 1), {}, False),
    # names: any size, each by itself, unless they are given one
    (("n", "n"), (2, 3), {}, True),
    (("n", "?", "?"), (1, 3, 5), {}, True),
    (("n", "n", 3), (2, 2, 3), {"n": 2}, True),
    (("n", "n", 3), (2, 4, 3), {"n": 2}, False),
    (("n", "m", 3), (2, 4, 3), {"n": 2, "k": 9}, True),
]


@pytest.mark.parametrize(("dims", "shape", "sizes", "fits"), CASES, ids=str)
def test_shapes_fit_as_in_onnxruntime(
    dims: tuple[Any, ...], shape: tuple[int, ...], sizes: dict[str, int], fits: bool
) -> None:
    built = model(*dims)
    assert onnxruntime_accepts(built, shape, sizes) in (fits, None)
    loaded = vs.load(built).with_sizes(sizes)
    x = np.ones(shape, np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(loaded)
        if fits:
            assert run(x=x)["y"].shape == shape
            return
        with pytest.raises(vs.ShapeError, match=r"got shape \("):
            run(x=x)


def test_a_session_shows_and_keeps_the_sizes_that_it_was_passed() -> None:
    options = vs.onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    data = model("n", "m", -1).SerializeToString()
    with vs.InferenceSession(data, options, ["cpu"]) as session:
        assert session.get_inputs()[0].shape == [2, "m", None]
        assert session.get_outputs()[0].shape == [2, "m", None]
        assert session.run(None, {"x": np.ones((2, 3, 4), np.float32)})[0].shape == (2, 3, 4)
        with pytest.raises(ValueError, match="axis 0 is 3, not 2"):
            session.run(None, {"x": np.ones((3, 3, 4), np.float32)})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_condition_and_a_count_may_have_dimensions_of_1(shape: tuple[int, ...]) -> None:
    text = """g (bool c, int64 n, float[2] x) => (float[2] y, float[2] z) {
      y = If (c) <then_branch = a () => (float[2] p) { p = Neg(x) },
                  else_branch = b () => (float[2] q) { q = Abs(x) }>
      go = Constant<value = bool {1}>()
      z = Loop (n, go, x) <body = t (int64 i, bool k, float[2] s) => (bool l, float[2] d)
        { l = Identity(k)
          d = Add(s, s) }>
    }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    feeds = {"c": np.ones(shape, bool), "n": np.full(shape, 2), "x": np.array([1, -2], "f")}
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.load(model))(**feeds)
    np.testing.assert_array_equal(found["y"], [-1, 2])
    np.testing.assert_array_equal(found["z"], [4, -8])
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for name, wanted in zip(("y", "z"), session.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found[name], wanted)


def test_a_name_of_two_sizes_says_nothing_of_other_inputs() -> None:
    text = "g (float[n,m] a, float[n,m] b, float[m,m] c) => (float[n,m] y) { y = Relu(a) }"
    loaded = vs.load(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))
    feeds = {"a": np.ones((2, 3), np.float32), "c": np.ones((3, 4), np.float32)}
    found = choose_shapes(loaded, feeds, {}, {})
    assert found.shapes["b"] == (2, 1) and found.assumed == ["m"]
