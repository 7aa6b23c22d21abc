"""Hints of errors are Python that runs: each is taken from its error and executed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vksched as vs

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

X = np.ones((2, 3), np.float32)
NAMES = ("x", "onnx::Flatten_0", "class", 'a "b"')


@pytest.fixture(scope="module")
def odd_names() -> bytes:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[3] i0, float[3] i1, float[3] i2, '
        "float[3] i3) => (float[3] y) { y = Sum(i0, i1, i2, i3) }"
    )
    for number, name in enumerate(NAMES):
        model.graph.input[number].name = model.graph.node[0].input[number] = name
    return bytes(model.SerializeToString())


class _Takes:
    """Calls something with arrays where a hint has `...`."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __call__(self, **options: Any) -> Any:
        return self._call(**dict.fromkeys(options, X[0]))

    def run(self, names: None, values: dict[str, Any]) -> Any:
        return self._call(names, dict.fromkeys(values, X[0]))


def hint_of(error: BaseException) -> str:
    return str(error).partition("; try ")[2]


def test_the_hint_of_a_session_runs(odd_names: bytes) -> None:
    with vs.InferenceSession(odd_names, providers=["cpu"]) as session:
        for feed in ({}, dict.fromkeys((*NAMES, "more"), X[0])):
            with pytest.raises(vs.GraphError) as caught:
                session.run(None, feed)
            (y,) = eval(hint_of(caught.value), {"session": _Takes(session.run)})
            np.testing.assert_array_equal(y, 4 * X[0])


def test_the_hint_of_a_model_runs(odd_names: bytes) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(odd_names))
        for call in (lambda: run(), lambda: run(X)):
            with pytest.raises(vs.GraphError) as caught:
                call()
            y = eval(hint_of(caught.value), {"run": _Takes(run)})["y"]
            np.testing.assert_array_equal(y, 4 * X[0])
        with pytest.raises(vs.DTypeError) as wrong:
            run(**{**dict.fromkeys(NAMES, X[0]), "onnx::Flatten_0": X[0].astype(np.float64)})
        assert eval(hint_of(wrong.value), {"array": X}).dtype == np.float32
        text = "g (float[n,3] x, float[n,3] z) => (float[n,3] y) { y = Add(x, z) }"
        plain = vs.load(parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text))
        with pytest.raises(vs.GraphError, match=r"try run\(x=\.\.\., z=\.\.\.\)$"):
            sched.compile(plain)()


def test_the_hint_of_a_graph_runs() -> None:
    x = vs.input("a.b", (2, 3))
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.relu(x))
        with pytest.raises(vs.GraphError) as caught:
            run(X)
        np.testing.assert_array_equal(
            eval(
                hint_of(caught.value), {"run": lambda **options: run(**dict.fromkeys(options, X))}
            ),
            X,
        )
        with pytest.raises(vs.DTypeError) as wrong:
            run(**{"a.b": X.astype(np.float64)})
        assert eval(hint_of(wrong.value), {"array": X}).dtype == np.float32
