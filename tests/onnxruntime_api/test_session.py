"""InferenceSession: the same lines do the same with onnxruntime and with vksched."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
import vksched.onnxruntime
from vksched.onnxruntime.providers import choose_devices
from vksched.runtime.vulkan import device_probe, driver_probe

onnx = pytest.importorskip("onnx")
from onnx import helper, parser  # noqa: E402

TEXT = """
<ir_version: 8, opset_import: ["" : 17], producer_name: "maker", domain: "a.b", model_version: 7,
 doc_string: "a model", metadata_props: ["key": "value"]>
tower (float[n,3] x, int64[n] ids, float[?,2] z) => (float[n,3] y, float16[n] h, int64 count)
<float[1] w = {1.5}> {
  s = Add(x, w)
  y = Relu(s)
  h = Cast<to=10>(ids)
  q = ReduceSum<keepdims=0>(z)
  count = Cast<to=7>(q)
}"""


@pytest.fixture(scope="module")
def model() -> bytes:
    parsed = parser.parse_model(TEXT)
    parsed.graph.input.add().CopyFrom(helper.make_tensor_value_info("w", 1, [1]))
    return bytes(parsed.SerializeToString())


@pytest.fixture(scope="module")
def session(ort: ModuleType, model: bytes) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 2
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


FEED = {
    "x": np.array([[-1, 2, -3], [0.5, -2.5, 0]], np.float32),
    "ids": np.array([7, -9]),
    "z": np.ones((5, 2), np.float32),
}


def test_arguments_and_metadata(session: Any) -> None:
    got = [(arg.name, arg.shape, arg.type) for arg in session.get_inputs()]
    assert got == [
        ("x", ["n", 3], "tensor(float)"),
        ("ids", ["n"], "tensor(int64)"),
        ("z", [None, 2], "tensor(float)"),
    ]
    assert [(a.name, a.shape, a.type) for a in session.get_outputs()] == [
        ("y", ["n", 3], "tensor(float)"),
        ("h", ["n"], "tensor(float16)"),
        ("count", [], "tensor(int64)"),
    ]
    (weight,) = session.get_overridable_initializers()
    assert (weight.name, weight.shape, weight.type) == ("w", [1], "tensor(float)")
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.domain) == ("maker", "tower", "a.b")
    assert (meta.version, meta.description, meta.graph_description) == (7, "a model", "")
    assert meta.custom_metadata_map == {"key": "value"}
    assert session.get_providers() == ["CPUExecutionProvider"]


def test_runs_give_outputs_in_the_order_asked(session: Any) -> None:
    y, h, count = session.run(None, FEED)
    np.testing.assert_array_equal(y, np.maximum(FEED["x"] + 1.5, 0))
    np.testing.assert_array_equal(h, FEED["ids"].astype(np.float16))
    assert h.dtype == np.float16 and count.shape == () and int(count) == 10
    got = session.run(["count", "y", "count"], FEED)
    assert [a.shape for a in got] == [(), (2, 3), ()] and len(session.run([], FEED)) == 3
    other = session.run(["y"], {**FEED, "w": np.array([4], np.float32)})[0]
    np.testing.assert_array_equal(other, np.maximum(FEED["x"] + 4, 0))
    assert session.run(["y"], {**FEED, "x": FEED["x"].tolist()})[0].shape == (2, 3)


def test_bad_feeds_are_refused(session: Any) -> None:
    with pytest.raises(ValueError, match="ids"):
        session.run(None, {"x": FEED["x"]})
    for names, feed, text in (
        (["nothing"], FEED, "nothing"),
        (None, {**FEED, "more": FEED["x"]}, "more"),
        (None, {**FEED, "x": FEED["x"].astype(np.float64)}, "float"),
        (None, {**FEED, "x": FEED["x"][:, :2]}, "3"),
    ):
        with pytest.raises(Exception, match=text):
            session.run(names, feed)


def test_bindings(ort: ModuleType, session: Any) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", FEED["x"])
    binding.bind_ortvalue_input("ids", ort.OrtValue.ortvalue_from_numpy(FEED["ids"]))
    z = FEED["z"]
    binding.bind_input("z", "cpu", 0, np.float32, z.shape, z.ctypes.data)
    mine = np.zeros((2, 3), np.float32)
    binding.bind_output("y", "cpu", 0, np.float32, mine.shape, mine.ctypes.data)
    binding.bind_output("count")
    held = ort.OrtValue.ortvalue_from_shape_and_type([2], np.float16)
    binding.bind_ortvalue_output("h", held)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(mine, np.maximum(FEED["x"] + 1.5, 0))
    y, count, h = binding.copy_outputs_to_cpu()
    np.testing.assert_array_equal(y, mine)
    np.testing.assert_array_equal(held.numpy(), FEED["ids"].astype(np.float16))
    values = binding.get_outputs()
    assert [v.shape() for v in values] == [[2, 3], [], [2]]
    assert [v.data_type() for v in values] == ["tensor(float)", "tensor(int64)", "tensor(float16)"]
    assert values[0].device_name() == "cpu" and values[0].is_tensor() and int(count) == 10
    held.update_inplace(np.array([1, 2], np.float16))
    assert held.numpy().tolist() == [1, 2]
    binding.clear_binding_outputs()
    binding.clear_binding_inputs()
    for bind in (lambda: binding.bind_cpu_input("nothing", z), lambda: binding.bind_output("no")):
        with pytest.raises(Exception, match="no"):
            bind()
            session.run_with_iobinding(binding)


def test_a_run_in_the_background_calls_back(session: Any) -> None:
    reported, done = [], threading.Event()

    def callback(results: Any, data: Any, error: str) -> None:
        reported.append((results, data, error))
        done.set()

    session.run_async(["y"], FEED, callback, "mine")
    assert done.wait(60)
    ((results, data, error),) = reported
    np.testing.assert_array_equal(results[0], np.maximum(FEED["x"] + 1.5, 0))
    assert (data, error) == ("mine", "")


def test_a_file_and_what_is_none(ort: ModuleType, model: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert len(session.run(None, FEED)) == 3
    for wrong in (b"junk", str(tmp_path / "none.onnx")):
        with pytest.raises(Exception, match="onnx|protobuf"):
            ort.InferenceSession(wrong, providers=["CPUExecutionProvider"])
    with pytest.raises(TypeError):
        ort.InferenceSession(3)


def test_profiling_writes_a_trace(ort: ModuleType, model: bytes, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, FEED)
    path = session.end_profiling()
    assert path.startswith(str(tmp_path / "profile"))
    data = json.loads(Path(path).read_text("utf-8"))
    events = data["traceEvents"] if isinstance(data, dict) else data
    assert any("dur" in event for event in events)


# -- what is vksched's own -----------------------------------------------------------------------


def test_providers_are_devices() -> None:
    both = ("vulkan:1", "cpu")
    for providers, wanted in (
        (None, None),
        ([], None),
        (["CPUExecutionProvider"], ("cpu",)),
        (["VulkanExecutionProvider"], None),
        (["vulkan:1"], both),
        ([("VulkanExecutionProvider", {"device_id": 1}), "CPUExecutionProvider"], both),
        ([("vulkan:1", {}), "cpu", "vulkan:1"], both),
        (["TensorrtExecutionProvider", ("CUDAExecutionProvider", {"device_id": 0})], None),
    ):
        assert choose_devices(providers).devices == wanted, providers
    assert choose_devices(["VulkanExecutionProvider"], [{"device_id": 1}]).devices == both
    assert choose_devices(["ROCMExecutionProvider"]).stands_for == ("ROCMExecutionProvider",)
    assert choose_devices("cpu").devices == ("cpu",)
    with pytest.raises(vs.DeviceError):
        choose_devices([3])  # type: ignore[list-item]
    with pytest.raises(vs.DeviceError, match="for 1 providers, got 2"):
        choose_devices(["cpu"], [{}, {}])


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Vulkan device that is used by default."""
    if not vulkan_names():
        pytest.skip("no Vulkan device here")
    monkeypatch.setenv("VKSCHED_SOFTWARE", "1")
    yield vulkan_names()[0]


def test_a_gpu_provider_stands_for_the_vulkan_devices(software: str, model: bytes) -> None:
    with vs.InferenceSession(model, providers=["CUDAExecutionProvider"]) as session:
        assert session.get_providers() == ["VulkanExecutionProvider", "CPUExecutionProvider"]
        text = session.get_provider_options()["VulkanExecutionProvider"]
        assert software in text["devices"] and text["stands_for"] == "CUDAExecutionProvider"
        y = session.run(["y"], FEED)[0]
    np.testing.assert_array_equal(y, np.maximum(FEED["x"] + 1.5, 0))
    assert vksched.onnxruntime.get_device() == "GPU"


def test_a_session_that_is_garbage_frees_its_devices(model: bytes) -> None:
    session = vs.InferenceSession(model, providers=["cpu"])
    session.run(None, FEED)
    run = session.model_run
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None
    with pytest.raises(vs.PlanError, match="closed"):
        run(**FEED)


def test_a_closed_session_says_so(model: bytes) -> None:
    with vs.InferenceSession(model, providers=["cpu"]) as session:
        session.run(None, FEED)
    session.close()
    with pytest.raises(vs.PlanError, match="closed"):
        session.run(None, FEED)


def test_free_dimensions_that_get_a_size_are_compiled_at_once() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,3] x) => (float[n,3] y) '
        "{ y = Relu(x) }"
    )
    options = vksched.onnxruntime.SessionOptions()
    options.add_free_dimension_override_by_name("n", 4)
    with vs.InferenceSession(model.SerializeToString(), options, ["cpu"]) as session:
        assert session.get_inputs()[0].shape == [4, 3]
        assert len(session.model_run.plans) == 1


def test_a_missing_device_is_reported_at_the_line_of_the_caller(
    model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VKSCHED_NO_VULKAN", raising=False)
    monkeypatch.setattr(device_probe, "_warned", False)
    monkeypatch.setattr(driver_probe, "ask_drivers", lambda: driver_probe.Answer(()))
    with pytest.warns(vs.VkschedWarning, match="everything runs on numpy") as caught:
        vs.InferenceSession(model).close()
    assert caught[0].filename == __file__
