"""Errors and options of sessions: what a program catches from onnxruntime it catches here."""

from __future__ import annotations

import logging
import pickle
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import vksched as vs
import vksched.session
from vksched.session import said
from vksched.session.capi import onnxruntime_pybind11_state as state
from vksched.session.faults import named, translated

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

CPU = ["CPUExecutionProvider"]
X = np.ones((2, 3), np.float32)


def made(text: str, **replaced: str) -> bytes:
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
        (made(RELU, op_type="Reluu"), "InvalidGraph"),
    ],
)
def test_what_is_no_model(ort: ModuleType, source: Any, kind: str) -> None:
    wanted = getattr(ort.capi.onnxruntime_pybind11_state, kind)
    with pytest.raises(wanted) as caught:
        ort.InferenceSession(source, providers=CPU)
    if ort is vksched.session:
        assert isinstance(caught.value, vs.ModelFormatError)
    with pytest.raises(TypeError):
        ort.InferenceSession(made(RELU), "options")


def test_what_does_not_fit_a_model(ort: ModuleType) -> None:
    errors = ort.capi.onnxruntime_pybind11_state
    session = ort.InferenceSession(made(RELU), providers=CPU)
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
    model = made("(float[n,3] x, float[k] z) => (float[n,3] y) { y = Add(x, z) }")
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
    session = vs.InferenceSession(made(RELU), providers=CPU)
    session.close()
    with pytest.raises(state.Fail, match="closed"):
        session.run(None, {"x": X})


# -- options -------------------------------------------------------------------------------------


def test_options_are_strict(ort: ModuleType) -> None:
    for options in (ort.SessionOptions(), ort.RunOptions()):
        with pytest.raises(AttributeError, match="log_level"):
            options.log_level = 3
        for name, wrong in (("log_severity_level", "3"), ("log_severity_level", 2.5), ("logid", 3)):
            with pytest.raises(TypeError):
                setattr(options, name, wrong)
        options.log_severity_level = np.int64(3)
        options.logid = "mine"
        assert (options.log_severity_level, options.logid) == (3, "mine")
    given = ort.SessionOptions()
    given.enable_profiling = 1
    assert given.enable_profiling is True
    given.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    assert given.execution_mode == 1 and given.execution_mode.name == "ORT_PARALLEL"
    with pytest.raises(TypeError):
        given.execution_mode = "parallel"


def test_entries(ort: ModuleType) -> None:
    given = ort.SessionOptions()
    given.add_session_config_entry("a.b", "1")
    assert given.get_session_config_entry("a.b") == "1"
    with pytest.raises(RuntimeError, match="other"):
        given.get_session_config_entry("other")
    with pytest.raises(TypeError):
        given.add_session_config_entry("a.b", 1)
    once = ort.RunOptions()
    once.add_run_config_entry("a", "b")
    assert once.get_run_config_entry("a") == "b"
    with pytest.raises(RuntimeError, match="other"):
        once.get_run_config_entry("other")


def test_providers_of_options(ort: ModuleType) -> None:
    given = ort.SessionOptions()
    assert not given.has_providers()
    given.add_provider_for_devices(ort.get_ep_devices()[-1:], {})
    assert given.has_providers()
    session = ort.InferenceSession(made(RELU), given)
    assert session.get_providers() == CPU
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)
    named = ort.SessionOptions()
    named.add_provider("CPUExecutionProvider", {})
    assert ort.InferenceSession(made(RELU), named).get_providers() == CPU
    policy = ort.SessionOptions()
    policy.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    assert ort.InferenceSession(made(RELU), policy).get_providers() == CPU


def test_options_without_effect_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(said, "_told", set())
    given = vksched.session.SessionOptions()
    given.enable_mem_pattern = False
    with pytest.warns(vs.VkschedWarning, match="optimized_model_filepath has no effect"):
        given.optimized_model_filepath = "other.onnx"
    given.optimized_model_filepath = "another.onnx"
    with pytest.warns(vs.VkschedWarning, match="set_seed has no effect"):
        vksched.session.set_seed(3)
    with pytest.warns(vs.VkschedWarning, match="set_default_logger_callback has no effect"):
        vksched.session.set_default_logger_callback(print)
    for refused in (
        lambda: given.add_external_initializers(["w"], [1]),
        lambda: given.add_initializer("w", 1),
        lambda: given.register_custom_ops_library("none.so"),
    ):
        with pytest.raises(vs.UnsupportedOp) as caught:
            refused()
        assert isinstance(caught.value, state.NotImplemented)


def test_the_severity_is_that_of_the_logger() -> None:
    logger = logging.getLogger("vksched")
    before = logger.level
    try:
        vksched.session.set_default_logger_severity(3)
        assert logger.level == logging.ERROR
        vksched.session.set_default_logger_severity(0)
        assert logger.level == logging.DEBUG
    finally:
        logger.setLevel(before)


def test_a_severity_is_0_to_4(ort: ModuleType) -> None:
    with pytest.raises(TypeError):
        ort.set_default_logger_severity("3")
    with pytest.raises(Exception, match="severity"):
        ort.set_default_logger_severity(5)
