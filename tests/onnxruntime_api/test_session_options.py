"""Options of sessions and runs: each is honoured, or a warning names it."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import vksched as vs
import vksched.onnxruntime
from vksched.onnxruntime import warn_once
from vksched.onnxruntime.capi import onnxruntime_pybind11_state as state

onnx = pytest.importorskip("onnx")
from onnx import numpy_helper, parser  # noqa: E402

CPU = ["CPUExecutionProvider"]
X = np.ones((2, 3), np.float32)
RELU = "(float[n,3] x) => (float[n,3] y) { y = Relu(x) }"


def model_bytes(text: str) -> bytes:
    model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g ' + text)
    return bytes(model.SerializeToString())


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
    values = ort.SessionOptions()
    values.enable_profiling = 1
    assert values.enable_profiling is True
    values.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    assert values.execution_mode == 1 and values.execution_mode.name == "ORT_PARALLEL"
    with pytest.raises(TypeError):
        values.execution_mode = "parallel"


def test_entries(ort: ModuleType) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("mlas.a", "1")
    assert options.get_session_config_entry("mlas.a") == "1"
    with pytest.raises(RuntimeError, match="other"):
        options.get_session_config_entry("other")
    with pytest.raises(TypeError):
        options.add_session_config_entry("mlas.a", 1)
    once = ort.RunOptions()
    once.add_run_config_entry("qnn.a", "b")
    assert once.get_run_config_entry("qnn.a") == "b"
    with pytest.raises(RuntimeError, match="other"):
        once.get_run_config_entry("other")


def test_providers_of_options(ort: ModuleType) -> None:
    options = ort.SessionOptions()
    assert not options.has_providers()
    options.add_provider_for_devices(ort.get_ep_devices()[-1:], {})
    assert options.has_providers()
    session = ort.InferenceSession(model_bytes(RELU), options)
    assert session.get_providers() == CPU
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], X)
    named = ort.SessionOptions()
    named.add_provider("CPUExecutionProvider", {})
    assert ort.InferenceSession(model_bytes(RELU), named).get_providers() == CPU
    policy = ort.SessionOptions()
    policy.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_CPU)
    assert ort.InferenceSession(model_bytes(RELU), policy).get_providers() == CPU


ENTRIES = {  # entries, and whether they are told
    ("session.intra_op.allow_spinning", "0"): False,
    ("session.intra_op_thread_affinities", "1;2"): False,
    ("session.dynamic_block_base", "4"): False,
    ("mlas.use_lut_gemm", "1"): False,
    ("optimization.enable_gelu_approximation", "1"): False,
    ("session.load_model_format", "ONNX"): False,
    ("session.set_denormal_as_zero", "0"): False,
    ("session.set_denormal_as_zero", "1"): True,
    ("session.disable_cpu_ep_fallback", "1"): True,
    ("session.record_ep_graph_assignment_info", "1"): True,
    ("ep.context_enable", "1"): True,
    ("session.allow_released_opsets_only", "0"): True,
    ("session.misspelt", "1"): True,
}


@pytest.mark.parametrize(("entry", "is_reported"), ENTRIES.items(), ids=lambda value: str(value))
def test_an_entry_whose_effect_would_be_missed_is_reported_once(
    entry: tuple[str, str], is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warn_once, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            vksched.onnxruntime.SessionOptions().add_session_config_entry(*entry)
    texts = [
        f"the entry {entry[0]!r} of SessionOptions has no effect" in str(w.message) for w in caught
    ]
    assert texts == [True] * is_reported


def test_entries_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_warned", set())
    once = vksched.onnxruntime.RunOptions()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        once.add_run_config_entry("gpu_graph_id", "1")
        once.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        once.add_run_config_entry("disable_synchronize_execution_providers", "1")
        once.add_run_config_entry("qnn.htp_perf_mode", "burst")
    with pytest.warns(vs.VkschedWarning, match="'other' of RunOptions has no effect"):
        once.add_run_config_entry("other", "1")


@pytest.fixture
def apart(tmp_path: Path) -> tuple[bytes, Path]:
    """The bytes of a model, and the folder of its external data."""
    model = onnx.load_model_from_string(
        model_bytes(
            "(float[n,3] x) => (float[n,2] y) <float[3,2] w = {0,1,2,3,4,5}> { y = MatMul(x, w) }"
        )
    )
    (weight,) = model.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight), "w"))
    folder = tmp_path / "data"
    folder.mkdir()
    onnx.save_model(
        model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    return (folder / "m.onnx").read_bytes(), folder


FOLDER = "session.model_external_initializers_file_folder_path"


def test_the_folder_of_external_data_of_bytes(
    ort: ModuleType, apart: tuple[bytes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = apart
    monkeypatch.chdir(folder.parent)
    for name in (str(folder), "data"):
        options = ort.SessionOptions()
        options.add_session_config_entry(FOLDER, name)
        session = ort.InferenceSession(data, options, providers=CPU)
        assert session.run(None, {"x": X})[0].tolist() == [[6, 9], [6, 9]]
    wrong = ort.SessionOptions()
    wrong.add_session_config_entry(FOLDER, str(folder.parent))
    with pytest.raises(Exception, match=r"w\.bin"):
        ort.InferenceSession(data, wrong, providers=CPU)


def test_external_data_of_bytes_without_a_folder(
    apart: tuple[bytes, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, folder = apart
    monkeypatch.chdir(folder)  # the current folder is no place that a model may name
    with pytest.raises(vs.ModelFormatError, match=f"'w.bin'.*{FOLDER} of SessionOptions"):
        vs.InferenceSession(data, providers=CPU)
    model = vs.load(data, folder=folder)
    assert list(vs.load(onnx.load_model_from_string(data), folder=folder).inputs) == list(
        model.inputs
    )
    with pytest.raises(vs.ModelFormatError, match="in its own folder"):
        vs.load(folder / "m.onnx", folder=folder)
    with pytest.raises(vs.VkschedError, match="no folder of external data for a GGUF"):
        vs.load(b"GGUF", folder=folder)
    monkeypatch.setattr(warn_once, "_warned", set())
    options = vksched.onnxruntime.SessionOptions()
    options.add_session_config_entry(FOLDER, "nowhere")
    with pytest.warns(vs.VkschedWarning, match="given by its path has no effect"):
        vs.InferenceSession(folder / "m.onnx", options, providers=CPU)


def test_a_run_is_terminated(ort: ModuleType) -> None:
    session = ort.InferenceSession(model_bytes(RELU), providers=CPU)
    once = ort.RunOptions()
    np.testing.assert_array_equal(session.run(None, {"x": X}, once)[0], X)
    once.terminate = True
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    fail = ort.capi.onnxruntime_pybind11_state.Fail
    with pytest.raises(fail, match="terminate"):
        session.run(None, {"x": X}, once)
    with pytest.raises(Exception, match="terminate"):
        session.run_with_iobinding(binding, once)
    once.terminate = False
    np.testing.assert_array_equal(session.run(None, {"x": X}, once)[0], X)
    with pytest.raises(TypeError):
        session.run(None, {"x": X}, "options")


def test_a_load_is_cancelled(ort: ModuleType) -> None:
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.ModelLoadCanceled):
        ort.InferenceSession(model_bytes(RELU), options, providers=CPU)
    options.set_load_cancellation_flag(False)
    ort.InferenceSession(model_bytes(RELU), options, providers=CPU)


def test_what_a_session_would_ignore_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vs.InferenceSession(
            model_bytes(RELU), providers=CPU, disabled_optimizers=["a"], enable_fallback=0
        )
    with pytest.warns(vs.VkschedWarning, match="argument 'provider' of InferenceSession has no"):
        vs.InferenceSession(model_bytes(RELU), providers=CPU, provider=CPU)
    with pytest.warns(vs.VkschedWarning, match="'arena' of CPUExecutionProvider has no effect"):
        vs.InferenceSession(model_bytes(RELU), providers=[(CPU[0], {"arena": "1"})])
    options = vksched.onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("m", 2)
    with pytest.warns(vs.VkschedWarning, match="the dimension 'm', which no input has, has no"):
        vs.InferenceSession(model_bytes(RELU), options, providers=CPU)
    for provider in (
        ("VulkanExecutionProvider", {"objectiv": "memory"}),
        ("cpu", {"policy": "auto"}),
    ):
        with pytest.raises(
            state.InvalidArgument, match="expected options of .*, got 'objectiv|got 'policy'"
        ):
            vs.InferenceSession(model_bytes(RELU), providers=[provider])


def test_types_of_devices_are_known_ones(ort: ModuleType) -> None:
    session = ort.InferenceSession(model_bytes(RELU), providers=CPU)
    for wrong in (
        lambda: ort.OrtValue.ortvalue_from_numpy(X, "weird"),
        lambda: ort.OrtValue.ortvalue_from_shape_and_type([2], np.float32, "weird"),
        lambda: session.io_binding().bind_output("y", "weird"),
    ):
        with pytest.raises(Exception, match="device type.* weird|device type.*'weird'"):
            wrong()


def test_pickling_says_what_to_send(ort: ModuleType) -> None:
    session = ort.InferenceSession(model_bytes(RELU), providers=CPU)
    with pytest.raises(TypeError, match="InferenceSession"):
        pickle.dumps(session)
    with pytest.raises(TypeError, match="InferenceSession"):
        copy.deepcopy(session)


def test_what_holds_devices_is_not_pickled() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        model = sched.compile(vs.load(model_bytes(RELU)))
        x = vs.input("x", (2, 3))
        function = sched.function(lambda x: vs.relu(x))
        with vs.InferenceSession(model_bytes(RELU), providers=CPU) as session:
            for thing, hint in (
                (sched, "make one in each process"),
                (sched.compile(vs.relu(x)), "compile it in each process"),
                (function, "the Python function"),
                (model, "send the path of the model"),
                (session, "functools.partial"),
            ):
                with pytest.raises(vs.NotPicklable, match=f"got {type(thing).__name__}.*{hint}"):
                    pickle.dumps(thing)


def test_options_without_effect_are_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warn_once, "_warned", set())
    options = vksched.onnxruntime.SessionOptions()
    options.enable_mem_pattern = False
    with pytest.warns(vs.VkschedWarning, match="optimized_model_filepath has no effect"):
        options.optimized_model_filepath = "other.onnx"
    options.optimized_model_filepath = "another.onnx"
    with pytest.warns(vs.VkschedWarning, match="set_seed has no effect"):
        vksched.onnxruntime.set_seed(3)
    with pytest.warns(vs.VkschedWarning, match="set_default_logger_callback has no effect"):
        vksched.onnxruntime.set_default_logger_callback(print)
    for refused in (
        lambda: options.add_external_initializers(["w"], [1]),
        lambda: options.add_initializer("w", 1),
        lambda: options.register_custom_ops_library("none.so"),
    ):
        with pytest.raises(vs.UnsupportedOp) as caught:
            refused()
        assert isinstance(caught.value, state.NotImplemented)
