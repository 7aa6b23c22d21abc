"""What onnxruntime has and vksched.onnxruntime has not: what is listed, and nothing else."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import pytest

import vksched.onnxruntime
from vksched.onnxruntime.unsupported import MISSING, MISSING_OF

theirs = pytest.importorskip("onnxruntime")
same_version = pytest.mark.skipif(
    theirs.__version__ != vksched.onnxruntime.__version__,
    reason=f"the interface is that of {vksched.onnxruntime.__version__}, not {theirs.__version__}",
)
INTERNAL = {"contextlib", "onnxruntime_validation", "import_capi_exception"}
"""Modules and variables that onnxruntime's own __init__ leaves behind."""


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@same_version
def test_the_module() -> None:
    other_tests = {n for n in ("quantization", "transformers", "tools") if hasattr(theirs, n)}
    missing = public(theirs) - public(vksched.onnxruntime) - INTERNAL - other_tests
    assert missing == set(MISSING)  # modules that other tests imported are there, too


@same_version
@pytest.mark.parametrize(
    "name",
    sorted(n for n in public(theirs) if inspect.isclass(getattr(theirs, n)) and n not in MISSING),
)
def test_a_class(name: str) -> None:
    known, ours = getattr(theirs, name), getattr(vksched.onnxruntime, name)
    if issubclass(ours, int):
        members = {m: int(v) for m, v in known.__members__.items()}
        assert members == {m: int(v) for m, v in ours.__members__.items()}
        return
    assert public(known) - public(ours) == set(MISSING_OF.get(name, ()))


@pytest.mark.parametrize("name", ["_pybind_state", "onnxruntime_pybind11_state"])
def test_errors_stand_where_programs_look_for_them(name: str) -> None:
    def errors(module: ModuleType) -> set[str]:
        found = {n for n in public(module) if inspect.isclass(getattr(module, n))}
        return {n for n in found if issubclass(getattr(module, n), Exception)}

    known = importlib.import_module(f"onnxruntime.capi.{name}")
    ours = importlib.import_module(f"vksched.onnxruntime.capi.{name}")
    assert errors(ours) >= errors(known) and "InvalidGraph" in errors(ours)


@same_version
def test_functions_take_the_same_arguments() -> None:
    for owner in ("InferenceSession", "IOBinding", "OrtValue", "OrtDevice"):
        known, ours = getattr(theirs, owner), getattr(vksched.onnxruntime, owner)
        for name in public(ours) & public(known):
            wanted, actual = getattr(known, name), getattr(ours, name)
            if not inspect.isfunction(actual) or not inspect.isfunction(wanted):
                continue
            names = inspect.signature(actual).parameters
            missing = [p for p in inspect.signature(wanted).parameters if p not in names]
            assert not missing, f"{owner}.{name} lacks {missing}"


@pytest.mark.parametrize("name", ["SparseTensor", "ModelCompiler"])
def test_what_is_left_out_says_why(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; {MISSING[name]}"):
        getattr(vksched.onnxruntime, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing_at_all'$"):
        vksched.onnxruntime.nothing_at_all  # noqa: B018


def test_it_says_what_it_is(ort: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert ort.get_version_string() == ort.__version__ == ort.version
    assert ort.package_name == "onnxruntime" and ort.cuda_version == ""
    assert ort.get_build_info().startswith("ORT Build Info: ")
    ort.print_debug_info()
    assert f"onnxruntime version: {ort.__version__}" in capsys.readouterr().out
    found = ort.capi.onnxruntime_validation.get_package_name_and_version_info()
    assert found == ("onnxruntime", ort.__version__, "")
    assert ort.capi.build_and_package_info.__version__ == ort.__version__


def test_what_has_no_effect_is_taken(ort: ModuleType) -> None:
    ort.disable_telemetry_events()
    ort.enable_telemetry_events()
    ort.set_default_logger_verbosity(1)
    ort.preload_dlls()
    assert ort.has_collective_ops() is False
    # the other keeps it for the whole process
    vksched.onnxruntime.set_global_thread_pool_sizes(1, 1)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
        ort.register_execution_provider_library("mine", "/none.so")


def test_devices_have_names_and_numbers(ort: ModuleType) -> None:
    for name, wanted in (
        ("cpu", (0, 0, 0, 0)),
        ("cuda", (0, 1, 0x10DE, 0)),
        ("npu", (0, 3, 0, 0)),
        ("dml", (0, 1, 0x1414, 0)),
    ):
        device = ort.OrtDevice.make(name, 0)
        found = (device.device_id(), device.device_type(), device.device_vendor_id())
        assert (*found, device.device_mem_type()) == wanted
    assert ort.OrtDevice.make("gpu", 1, ort.OrtDeviceVendorId.AMD).device_vendor_id() == 0x1002
    with pytest.raises(Exception, match="weird"):
        ort.OrtDevice.make("weird", 0)
    last = ort.get_ep_devices()[-1]
    assert last.ep_name == "CPUExecutionProvider" and int(last.device.type) == 0
