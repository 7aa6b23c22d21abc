"""Providers of sessions: which devices they stand for, and how a user sends more to Vulkan."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from conftest import vulkan_names

import vksched as vs
import vksched.onnxruntime
from vksched.onnxruntime.providers import SWITCH, choose_devices, offered

onnx = pytest.importorskip("onnx")
from onnx import parser  # noqa: E402

CPU, VULKAN, CUDA = (f"{name}ExecutionProvider" for name in ("CPU", "Vulkan", "CUDA"))
X = np.array([[-1, 2, -3]], np.float32)
DEFAULT = None


@pytest.fixture(scope="module")
def relu() -> bytes:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[n,3] x) => (float[n,3] y) '
    return bytes(parser.parse_model(text + "{ y = Relu(x) }").SerializeToString())


@pytest.fixture
def software(monkeypatch: pytest.MonkeyPatch) -> str:
    """A Vulkan device that is used by default."""
    if not vulkan_names():
        pytest.skip("no Vulkan device here")
    monkeypatch.setenv("VKSCHED_SOFTWARE", "1")
    return vulkan_names()[0]


def test_an_unknown_provider_is_skipped_with_a_warning(ort: ModuleType, relu: bytes) -> None:
    with pytest.warns(UserWarning, match="NoSuchThing"):
        session = ort.InferenceSession(relu, providers=["NoSuchThing", CPU])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))
    assert session.get_providers() == [CPU]
    with pytest.warns(UserWarning, match="NoSuchThing"):
        alone = ort.InferenceSession(relu, providers=["NoSuchThing"])
    assert alone.get_providers() == [CPU]


def test_an_objective_is_an_option_of_vulkan(software: str, relu: bytes) -> None:
    ort = vksched.onnxruntime
    mixed = {"objective": "latency=1,energy=0.5"}
    assert choose_devices([(VULKAN, mixed)]).objective == mixed["objective"]
    assert choose_devices([VULKAN, CPU], [{"objective": "memory"}, {}]).objective == "memory"
    assert choose_devices([("CUDAExecutionProvider", {"objective": "x"})]).objective == "latency"
    session = ort.InferenceSession(relu, providers=[(software, {"objective": "throughput"}), CPU])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))
    assert "for throughput" in str(session.model_run.explain())
    with pytest.raises(Exception, match="known objective, got 'speed'"):
        ort.InferenceSession(relu, providers=[(VULKAN, {"objective": "speed"})])


def test_a_precision_is_an_option_of_vulkan_and_the_cpu(relu: bytes) -> None:
    ort = vksched.onnxruntime
    for name in (VULKAN, "vulkan:0", CPU, "cpu"):
        assert choose_devices([(name, {"precision": "mixed"})]).precision == "mixed"
    both = [("vulkan:0", {"precision": "float32"}), (CPU, {"precision": "float16"})]
    assert choose_devices(both).precision == "float32"
    assert choose_devices(both[::-1]).precision == "float16"
    other = ("OpenVINOExecutionProvider", {"precision": "FP16"})  # its own words
    assert choose_devices([other, CPU]).precision == "float32"
    product = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>'
        "g (float[2, 3] x, float[3, 2] w) => (float[2, 2] y) { y = MatMul(x, w) }"
    ).SerializeToString()
    w = np.full((3, 2), 1 + 2**-12, np.float32)
    session = ort.InferenceSession(product, providers=[(CPU, {"precision": "mixed"})])
    (rounded,) = session.run(None, {"x": np.ones((2, 3), np.float32), "w": w})
    np.testing.assert_array_equal(rounded, np.full((2, 2), 3, np.float32))
    assert "precision: 1 mixed" in str(session.model_run.explain())
    with pytest.raises(Exception, match="expected a precision of .*, got 'half'"):
        ort.InferenceSession(relu, providers=[(CPU, {"precision": "half"})])


def test_a_policy_is_an_option_of_vulkan(software: str, relu: bytes) -> None:
    ort = vksched.onnxruntime
    assert choose_devices([(software, {"policy": "priority"}), CPU]).policy == "priority"
    assert choose_devices([("CUDAExecutionProvider", {"policy": "x"})]).policy == "auto"
    for policy in ("priority", "earliest-finish"):
        session = ort.InferenceSession(relu, providers=[(VULKAN, {"policy": policy})])
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))
        assert {plan.policy for plan in session.model_run.plans} == {policy}
    with pytest.raises(Exception, match="expected a policy of .*, got 'best'"):
        ort.InferenceSession(relu, providers=[(VULKAN, {"policy": "best"})])
    both = {"policy": "priority", "objective": "energy"}
    with pytest.raises(
        Exception, match="the policy priority, which ignores objectives, got energy"
    ):
        ort.InferenceSession(relu, providers=[(VULKAN, both)])


def test_providers_can_be_changed(ort: ModuleType, relu: bytes) -> None:
    session = ort.InferenceSession(relu, providers=[CPU])
    session.set_providers([CPU])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))
    assert session.get_providers() == [CPU]


@pytest.mark.filterwarnings("ignore:.*only software:UserWarning")
def test_a_session_stays_what_it_is_where_it_cannot_move(
    relu: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **more: object) -> None:
        raise vs.OutOfMemory("[compile] no room")

    with vs.InferenceSession(relu, providers=[CPU]) as session:
        before = session.get_provider_options()
        with monkeypatch.context() as filled:
            filled.setattr(vs.Scheduler, "compile", full)
            with pytest.raises(vs.OutOfMemory):
                session.set_providers([CUDA, CPU])
        assert session.get_provider_options() == before
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))


def test_a_session_moves_to_another_device(software: str, relu: bytes) -> None:
    with vs.InferenceSession(relu, providers=[CPU]) as session:
        before = session.model_run
        session.set_providers([software])
        assert session.get_provider_options()[VULKAN]["devices"] == software
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))
        with pytest.raises(vs.PlanError, match="closed"):
            before(x=X)
        with pytest.raises(vs.DeviceError):
            session.set_providers(["vulkan:99"])
        assert session.get_providers() == [VULKAN, CPU]
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))


@pytest.mark.parametrize(
    ("message", "providers", "devices", "shown"),
    [
        ("", [CPU], ("cpu",), ()),
        ("", [CUDA, CPU], DEFAULT, ()),
        ("cuda", [CUDA, CPU], DEFAULT, (CUDA,)),
        ("cuda", [CPU], ("cpu",), ()),
        ("cuda,cpu", [CPU], DEFAULT, ()),
        (f" {CUDA}, CPU ", [CUDA, CPU], DEFAULT, (CUDA,)),
        ("cpu", ["vulkan:1", CPU], ("vulkan:1", "cpu"), ()),
        ("cpu", ["cpu"], ("cpu",), ()),
    ],
)
def test_what_the_user_sends_to_vulkan(
    message: str,
    providers: list[str],
    devices: tuple[str, ...] | None,
    shown: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, message)
    chosen = choose_devices(providers)
    assert (chosen.devices, chosen.shown) == (devices, shown)


def test_a_program_that_asks_for_cuda_gets_vulkan(
    software: str, relu: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CUDA not in vksched.onnxruntime.get_available_providers()
    monkeypatch.setenv(SWITCH, "cuda,cpu")
    assert vksched.onnxruntime.get_available_providers() == [CUDA, VULKAN, CPU]
    with vs.InferenceSession(relu, providers=[CUDA, CPU]) as session:
        assert session.get_providers() == [CUDA, CPU]
        assert software in session.get_provider_options()[CUDA]["devices"]
    with vs.InferenceSession(relu, providers=[CPU]) as session:
        assert session.get_providers() == [VULKAN, CPU]
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], np.maximum(X, 0))


def test_nothing_is_offered_where_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKSCHED_NO_VULKAN", "1")
    monkeypatch.setenv(SWITCH, "cuda")
    assert vksched.onnxruntime.get_available_providers() == [CPU]
    assert vksched.onnxruntime.get_device() == "CPU"


def test_a_name_that_is_no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "cuda,gpu9")
    with pytest.raises(vs.VkschedError, match=f"{SWITCH}, got 'gpu9'; try"):
        offered()
