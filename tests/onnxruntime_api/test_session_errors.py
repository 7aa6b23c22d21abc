"""Errors and options of sessions: what a program catches from onnxruntime it catches here."""

from __future__ import annotations

import logging
import pickle
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import vksched as vs
import vksched.onnxruntime
from vksched.onnxruntime.capi import onnxruntime_pybind11_state as state
from vksched.onnxruntime.ort_errors import named, translated

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

CPU = ["CPUExecutionProvider"]
X = np.ones((2, 3), np.float32)


def model_bytes(text: str, **replaced: str) -> bytes:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + text)
    for name, value in replaced.items():
        setattr(model.graph.node[0], name, value)
    return bytes(model.SerializeToString())


RELU = "(float[n,3] x) => (float[n,3] y) { y = Relu(x) }"


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("none.onnx", "NoSuchFile"),
        (b"junk", "InvalidProtobuf"),
        (model_bytes(RELU, op_type="Reluu"), "InvalidGraph"),
    ],
)
def test_what_is_no_model(ort: ModuleType, source: Any, kind: str) -> None:
    wanted = getattr(ort.capi.onnxruntime_pybind11_state, kind)
    with pytest.raises(wanted) as caught:
        ort.InferenceSession(source, providers=CPU)
    if ort is vksched.onnxruntime:
        assert isinstance(caught.value, vs.ModelFormatError)
    with pytest.raises(TypeError):
        ort.InferenceSession(model_bytes(RELU), "options")


def test_what_does_not_fit_a_model(ort: ModuleType) -> None:
    errors = ort.capi.onnxruntime_pybind11_state
    session = ort.InferenceSession(model_bytes(RELU), providers=CPU)
    with pytest.raises(ValueError, match="x"):
        session.run(None, {})
    for names, feed in (
        (["nothing"], {"x": X}),
        (None, {"x": X, "more": X}),
        (None, {"x": X.astype(np.float64)}),
        (None, {"x": X[0]}),
        (None, {"x": X[:, :2]}),
    ):
        with pytest.raises(errors.InvalidArgument):
            session.run(names, feed)


def test_what_fails_in_a_run(ort: ModuleType) -> None:
    model = model_bytes("(float[n,3] x, float[k] z) => (float[n,3] y) { y = Add(x, z) }")
    session = ort.InferenceSession(model, providers=CPU)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
        session.run(None, {"x": X, "z": X[:, 0]})


def test_an_error_keeps_what_it_says() -> None:
    first = vs.OutOfMemory("[vulkan:0] full")
    first.device = "vulkan:0"
    with pytest.raises(vs.OutOfMemory, match="full") as caught, translated():
        raise first
    error = caught.value
    assert isinstance(error, state.RuntimeException) and error.device == "vulkan:0"
    assert type(error).__name__ == "OutOfMemory" and named(error, state.Fail) is error
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and (copy.args, copy.device) == (error.args, error.device)
    with pytest.raises(state.EPFail), translated():
        raise vs.DeviceLost("gone")
    with pytest.raises(state.NotImplemented), translated():
        raise vs.UnsupportedOp("none")
    with pytest.raises(KeyError), translated():
        raise KeyError("others pass")


def test_a_closed_session_fails() -> None:
    session = vs.InferenceSession(model_bytes(RELU), providers=CPU)
    session.close()
    with pytest.raises(state.Fail, match="closed"):
        session.run(None, {"x": X})


def test_the_severity_is_that_of_the_logger() -> None:
    logger = logging.getLogger("vksched")
    before = logger.level
    try:
        vksched.onnxruntime.set_default_logger_severity(3)
        assert logger.level == logging.ERROR
        vksched.onnxruntime.set_default_logger_severity(0)
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)


def test_a_severity_is_0_to_4(ort: ModuleType) -> None:
    with pytest.raises(TypeError):
        ort.set_default_logger_severity("3")
    with pytest.raises(Exception, match="severity"):
        ort.set_default_logger_severity(5)
