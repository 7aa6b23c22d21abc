"""Rules that move elements: old forms of ops, empty tensors, narrow types, huge positions.

The cases of onnx.backend.test are in tests/onnxruntime_api/test_onnx_backend.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import DEVICE_SETS

import vksched as vs

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture(scope="module", params=list(DEVICE_SETS)[:2])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    with vs.Scheduler(DEVICE_SETS[request.param]) as sched:
        yield sched


def result(sched: vs.Scheduler, text: str, opset: int, **feeds: Any) -> Any:
    """Return the one result of a model none of whose nodes is left to the host."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')
    run = sched.compile(vs.load(model))
    (found,) = run(**feeds).values()
    ops = [node.op for plan in run.plans for node in plan.graph.ops]
    assert not [op for op in ops if op.startswith("onnx.")]
    assert not [s for s in run.segments if s.lowered.step is not None]
    run.close()
    return found


FORMS: dict[str, tuple[int, str, Any]] = {
    "slice 9": (9, "Slice<starts=[-3, 1], ends=[9999, -1], axes=[-2, 2]>(x)", X[:, -3:, 1:-1]),
    "split 7": (7, "Concat<axis=1>(b, a)\n a, b = Split<axis=1, split=[1, 2]>(x)", None),
    "squeeze 11": (11, "Squeeze<axes=[-3]>(u)\n u = Unsqueeze<axes=[1, -1]>(x)", None),
    "flatten 11": (11, "Flatten<axis=-1>(x)", X.reshape(6, 4)),
    "flatten 0": (13, "Flatten<axis=0>(x)", X.reshape(1, 24)),
    "pad 10": (
        10,
        "Pad<pads=[0, -1, 1, 0, 0, 2], value=2.5>(x)",
        np.pad(X[:, 1:], ((0, 0), (0, 0), (1, 2)), constant_values=2.5),
    ),
    "pad reflect 10": (
        10,
        'Pad<mode="reflect", pads=[0, 2, 0, 0, 1, 3]>(x)',
        np.pad(X, ((0, 0), (2, 1), (0, 3)), mode="reflect"),
    ),
    "transpose": (7, "Transpose(x)", X.transpose()),
}


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_old_opsets(sched: vs.Scheduler, name: str) -> None:
    opset, call, expected = FORMS[name]
    lines = call.split("\n")
    body = "\n".join([*lines[1:], f"y = {lines[0]}"])
    if name == "split 7":
        expected = np.concatenate([X[:, 1:], X[:, :1]], 1)
    if name == "squeeze 11":
        expected = X[:, None, :, :, None].reshape(2, 3, 4, 1)
        body = body.replace("axes=[-3]", "axes=[1]")
    found = result(sched, f"g (float[2,3,4] x) => (float[?,?,?] y) {{ {body} }}", opset, x=X)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "start, end, step",
    [(3, -9999, -2), (9999, 0, -1), (-1, -(2**63), -1), (0, 2**63 - 1, 3), (3, 1, 1), (1, -9, -1)],
)
def test_slices_as_python_takes_them(sched: vs.Scheduler, start: int, end: int, step: int) -> None:
    text = f"""g (float[2,3,4] x) => (float[2,3,p] y) {{
      s = Constant<value = int64[1] {{{start}}}>()
      e = Constant<value = int64[1] {{{end}}}>()
      a = Constant<value = int64[1] {{-1}}>()
      t = Constant<value = int64[1] {{{step}}}>()
      y = Slice(x, s, e, a, t) }}"""
    np.testing.assert_array_equal(result(sched, text, 13, x=X), X[..., start:end:step])


def test_split_into_parts_of_which_the_last_is_smaller(sched: vs.Scheduler) -> None:
    text = """g (float[7] x) => (float[?] y) { a, b, c = Split<num_outputs=3>(x)
                                              y = Concat<axis=0>(c, b, a) }"""
    x = np.arange(7, dtype=np.float32)
    np.testing.assert_array_equal(result(sched, text, 18, x=x), [6, 3, 4, 5, 0, 1, 2])


@pytest.mark.parametrize(
    "shape, values, wanted",
    [
        ((0, 3, 4), (0, -1), (0, 12)),
        ((2, 0, 4), (0, 0, 2, -1), (2, 0, 2, 2)),
        ((0, 4), (-1, 2), (0, 2)),
        ((0,), (0, 5), (0, 5)),
    ],
)
def test_reshape_of_nothing(
    sched: vs.Scheduler, shape: tuple[int, ...], values: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    sizes = ", ".join(map(str, values))
    dims, out = (",".join("?" * len(s)) for s in (shape, wanted))
    text = f"""g (float[{dims}] x) => (float[{out}] y) {{
      s = Constant<value = int64[{len(values)}] {{{sizes}}}>()
      y = Reshape(x, s) }}"""
    assert result(sched, text, 14, x=np.zeros(shape, np.float32)).shape == wanted


@pytest.mark.filterwarnings("ignore::vksched.VkschedWarning")  # no device holds 64 bits
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "bfloat16", "bool", "double"])
def test_elements_of_any_type_are_moved(sched: vs.Scheduler, dtype: str) -> None:
    from onnx import TensorProto
    from onnx.helper import tensor_dtype_to_np_dtype

    held = tensor_dtype_to_np_dtype(getattr(TensorProto, dtype.upper()))
    x = (np.arange(12) % 7).reshape(3, 4).astype(held)
    text = f"""g ({dtype}[3,4] x, int64[2] i) => ({dtype}[?,?] y) {{
      t = Transpose(x)
      r = Constant<value = int64[2] {{1, 2}}>()
      u = Tile(t, r)
      v = Gather(u, i)
      p = Constant<value = int64[4] {{0, 1, 1, 0}}>()
      y = Pad(v, p) }}"""
    expected = np.pad(np.tile(x.T, (1, 2))[[-1, 0]].astype(np.float64), ((0, 1), (1, 0)))
    found = result(sched, text, 18, x=x, i=np.array([-1, 0]))
    assert found.dtype == held
    np.testing.assert_array_equal(found.astype(np.float64), expected)


def test_reverse_sequence_of_both_layouts(sched: vs.Scheduler) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    for batch, time in ((1, 0), (0, 1)):
        text = f"""g (float[4,3,2] x, int64[{x.shape[batch]}] n) => (float[4,3,2] y) {{
          y = ReverseSequence<batch_axis={batch}, time_axis={time}>(x, n) }}"""
        lengths = np.array([1, 2, 3, 0][: x.shape[batch]])
        expected = x.copy()
        for b, length in enumerate(lengths):
            at = (slice(length), b) if time == 0 else (b, slice(length))
            expected[at] = x[at][::-1]
        np.testing.assert_array_equal(result(sched, text, 17, x=x, n=lengths), expected)


def test_large_results_of_numbers_alone_are_built_on_the_device(sched: vs.Scheduler) -> None:
    text = """g (int64[2] s) => (float[?,?] y) {
      y = ConstantOfShape<value = float[1] {1.5}>(s) }"""
    found = result(sched, text, 17, s=np.array([300, 301]))
    assert found.shape == (300, 301) and (found == 1.5).all()
    text = """g (float a, float b, float c) => (float[?] y) { y = Range(a, b, c) }"""
    feeds = {k: np.array(v, np.float32) for k, v in (("a", 1), ("b", 70001), ("c", 1))}
    np.testing.assert_array_equal(
        result(sched, text, 17, **feeds), np.arange(1, 70001, dtype=np.float32)
    )
