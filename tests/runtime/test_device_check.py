"""Kernels of little-used features without tuning: listed drivers, and checks per device."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import needs_linux, vulkan_names
from test_coopmat import CARD
from test_devices import raw

from vksched.common.dtypes import FLOAT32
from vksched.common.errors import DeviceError, DeviceLost, DeviceTimeout, OutOfMemory
from vksched.common.user_warning import VkschedWarning
from vksched.ir.op import COUNTERS, get_op
from vksched.ops.attention.attention_decode import DECODE_SHADERS
from vksched.ops.lowering.lower import lower
from vksched.runtime.vulkan import (
    coopmat_check,
    decode_check,
    device_check,
    device_probe,
    driver_probe,
)
from vksched.runtime.vulkan.device_check import PRODUCTS, Check, Outcome
from vksched.runtime.vulkan.device_probe import DeviceInfo, device_spec, survey
from vksched.runtime.vulkan.open_device import open_device
from vksched.runtime.vulkan.single_call import SingleCall
from vksched.runtime.vulkan.staging import upload
from vksched.runtime.vulkan.vulkan_device import VulkanDevice
from vksched.storage.crash_marker import CrashMarker
from vksched.topology.device_spec import DeviceSpec

NAVI31 = "AMD Radeon RX 7900 XTX (RADV NAVI31)"
RADV = {"driver_id": 3, "driver_info": "Mesa 25.2.1", "name": NAVI31}


@pytest.fixture(autouse=True)
def new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path))
    start_process(monkeypatch)
    yield


def start_process(patch: pytest.MonkeyPatch) -> None:
    """Forget what this process knows about the drivers."""
    patch.setattr(device_check, "_known", {})
    patch.setattr(device_check, "_warned", set())


def described(patch: pytest.MonkeyPatch, **changes: Any) -> DeviceInfo:
    """Return a device as its driver describes it."""
    answer = driver_probe.Answer((raw(0, **{**RADV, **changes}),))
    patch.setattr(driver_probe, "ask_drivers", lambda: answer)
    return survey().devices[0]


class Checks:
    """A check with a fixed result, and the number of its executions."""

    def __init__(self, patch: pytest.MonkeyPatch, failure: str) -> None:
        self.count = 0
        self.failure = failure
        patch.setattr(device_check, "_run", self.run)

    def run(self, check: Check, path: Path | None, index: int) -> Outcome:
        self.count += 1
        return Outcome(self.failure)


def checked(info: DeviceInfo, runs: bool = True) -> DeviceSpec:
    return device_check.with_checked_kernels(device_spec(info), info, runs)


def test_exact_results_are_remembered_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, info = Checks(monkeypatch, ""), described(monkeypatch)
    assert not checked(info, runs=False).limits.coopmat_checked, "nothing is known yet"
    for _ in range(2):
        spec = checked(info)
        assert spec.limits == replace(info.limits, coopmat_checked=True)
        start_process(monkeypatch)
    assert checked(info, runs=False) == spec
    assert checks.count == 1
    checked(described(monkeypatch, driver_info="Mesa 25.2.2"))
    checked(described(monkeypatch, uuid="0f" * 16))
    assert checks.count == 3, "another driver, and another device"


def test_wrong_results_leave_the_matrices_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks, info = Checks(monkeypatch, "7 of 9 results are wrong"), described(monkeypatch)
    for _ in range(2):
        with pytest.warns(
            VkschedWarning, match="7 of 9.*another version.*VKSCHED_COOPMAT"
        ) as warned:
            limits = checked(info).limits
        assert limits == replace(info.limits, matrices=())
        assert str(next(tmp_path.glob("checks/*.json"))) in str(warned[0].message)
        assert checked(info).limits == limits, "the same process warns once"
        start_process(monkeypatch)
    assert checks.count == 1


@pytest.mark.parametrize(
    ("changes", "variables"),
    [
        ({"driver_info": "Mesa 24.2.0"}, {}),
        ({"driver_id": 2, "driver_name": "AMD open-source driver"}, {}),
        ({"type": "cpu"}, {}),
        ({"features": {"float16": True}}, {}),
        ({"driver_id": 3, "driver_name": "Intel Corporation", "vendor_id": 0x8086}, {}),
        ({}, {"VKSCHED_COOPMAT": "0"}),
    ],
    ids=["old", "not listed", "software", "no matrices", "known fault", "turned off"],
)
def test_other_devices_are_not_checked(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    checks, info = Checks(monkeypatch, "wrong"), described(monkeypatch, **changes)
    assert checked(info) == device_spec(info)
    assert not info.limits.coopmat_checked and checks.count == 0
    if variables or "vendor_id" in changes:
        assert info.limits.matrices == ()


def test_a_build_without_the_shaders_checks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, info = Checks(monkeypatch, "wrong"), described(monkeypatch)
    monkeypatch.setattr(coopmat_check, "left_out", lambda: frozenset({"matmul_coopmat_float32"}))
    assert checked(info) == device_spec(info) and checks.count == 0


def test_a_check_that_ended_its_process_twice_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks, info = Checks(monkeypatch, ""), described(monkeypatch)
    file = tmp_path / "checks" / device_check._name_of(PRODUCTS, device_spec(info))

    def end_during_a_check() -> None:
        """Leave the file system as it looks after the end of the process."""
        marker = CrashMarker(file)
        marker.begin("check", PRODUCTS.name, "")
        marker.close(failed=True)
        start_process(monkeypatch)

    end_during_a_check()
    assert checked(info, runs=False) == device_spec(info), "a user may have ended it"
    end_during_a_check()
    with pytest.warns(VkschedWarning, match=device_check.CRASHED):
        assert checked(info).limits.matrices == ()
    stored = {"failure": device_check.CRASHED, "certain": True}
    assert json.loads(file.read_text("utf-8")) == stored
    assert [each.name for each in file.parent.iterdir() if ".trying" in each.name] == []
    assert checks.count == 0


def test_a_check_that_ended_once_is_repeated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checks, info = Checks(monkeypatch, ""), described(monkeypatch)
    marker = CrashMarker(tmp_path / "checks" / device_check._name_of(PRODUCTS, device_spec(info)))
    marker.begin("check", PRODUCTS.name, "")
    marker.close(failed=True)
    assert checked(info).limits.coopmat_checked and checks.count == 1
    start_process(monkeypatch)
    assert checked(info).limits.coopmat_checked and checks.count == 1


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import os; os.kill(os.getpid(), 11)", "crashed with SIGSEGV"),
        ("import threading; threading.Event().wait()", "gave no answer"),
        (
            f'print({device_check._MARK!r} + \'{{"failure": "the check failed: lost", \' '
            "'\"certain\": false}')",
            "the check failed: lost",
        ),
    ],
    ids=["crash", "hang", "lost"],
)
def test_failures_of_a_child_count_the_second_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, failure: str
) -> None:
    monkeypatch.setattr(driver_probe, "child_code", lambda *_: code)
    if "wait" in code:
        monkeypatch.setattr(driver_probe, "CHILD_LIMIT_S", 0.2)
    monkeypatch.delenv("VKSCHED_PROBE", raising=False)
    info = described(monkeypatch)
    for _ in range(2):
        assert checked(info) == device_spec(info), "another program may have delayed it"
    start_process(monkeypatch)
    with pytest.warns(VkschedWarning, match=failure):
        assert checked(info).limits.matrices == ()
    assert [each.suffix for each in (tmp_path / "checks").iterdir()] == [".json"]


def test_wrong_results_of_a_child_count_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = '{"failure": "2 are wrong", "certain": true}'
    code = f"print({device_check._MARK!r} + {result!r})"
    monkeypatch.setattr(driver_probe, "child_code", lambda *_: code)
    monkeypatch.delenv("VKSCHED_PROBE", raising=False)
    info = described(monkeypatch)
    with pytest.warns(VkschedWarning, match="2 are wrong"):
        assert checked(info).limits.matrices == ()


@needs_linux
@pytest.mark.parametrize("killed", ["parent", "child", "both"])
def test_a_user_who_ends_a_check_leaves_no_marker(tmp_path: Path, killed: str) -> None:
    """The child alone holds the marker, and removes it."""
    results, ready = tmp_path / "checks" / "device.json", tmp_path / "ready"
    fake = (
        "import pathlib, time\n"
        "from vksched.runtime.vulkan import device_check\n"
        "def check(_, index):\n"
        f"    pathlib.Path({str(ready)!r}).write_text(str(__import__('os').getpid()))\n"
        "    time.sleep(60 if index else 0.5)\n"
        "device_check.check_device = check\n"
    )
    (tmp_path / "faked.py").write_text(fake + "child = device_check.child\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from pathlib import Path\n"
        "from vksched.runtime.vulkan import device_check\n"
        "device_check.__name__ = 'faked'\n"
        "check = device_check.PRODUCTS\n"
        f"device_check._run(check, Path({str(results)!r}), {int(killed != 'parent')})\n"
    )
    environment = {name: v for name, v in os.environ.items() if name != "VKSCHED_PROBE"}
    parent = subprocess.Popen([sys.executable, "-c", code], env=environment)
    wait_for(lambda: ready.exists() and bool(ready.read_text()))
    assert len(list(results.parent.glob("*.trying"))) == 1, "of the child"
    child = int(ready.read_text())
    if killed != "child":
        parent.terminate()
        assert parent.wait(10) == -signal.SIGTERM
    if killed != "parent":
        os.kill(child, signal.SIGTERM)
    wait_for(lambda: not list(results.parent.glob("*.trying*")))
    assert killed != "child" or parent.wait(10) == 0


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    "code",
    [
        *("", "raise SystemExit(3)", f"print({device_check._MARK!r} + 'null')"),
        f"print({device_check._MARK!r} + '{{')",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    ],
)
def test_a_child_without_a_result_blames_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    started: list[str] = []
    monkeypatch.setattr(driver_probe, "child_code", lambda *_: started.append(code) or code)
    monkeypatch.delenv("VKSCHED_PROBE", raising=False)
    info = described(monkeypatch)
    for _ in range(2):
        assert checked(info) == device_spec(info)
    assert len(started) == 1, "once per process"
    assert not list(tmp_path.glob("checks/*"))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutOfMemory("no memory"), None),
        (DeviceError("in use"), None),
        (DeviceLost("gone"), Outcome("the check failed: gone", certain=False)),
        (DeviceTimeout("not ended"), Outcome("the check failed: not ended", certain=False)),
    ],
)
def test_errors_of_a_check(
    monkeypatch: pytest.MonkeyPatch, error: DeviceError, outcome: Outcome | None
) -> None:
    info = described(monkeypatch)

    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(device_check, "VulkanDevice", fail)
    assert device_check.check_device(PRODUCTS, info.index) == outcome


def test_other_tiles_and_shaders_are_checked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    product = coopmat_check.matrix_product(CARD, FLOAT32, False, True, (96, 72, 104))
    hashes = set()
    for variant in ("coopmat 16x16x16 64x64", "coopmat 16x16x16 128x128"):
        call = replace(product, variant=variant)
        check = replace(PRODUCTS, calls=lambda _, c=call: [("matmul", c)])
        hashes |= {device_check._kernels_hash.__wrapped__(check, CARD) for _ in range(2)}
    manifest = {**device_check.load_manifest(), "matmul_coopmat_float32": {"sha256": "another"}}
    monkeypatch.setattr(device_check, "load_manifest", lambda: manifest)
    hashes.add(device_check._kernels_hash.__wrapped__(check, CARD))
    assert len(hashes) == 3


WITH_MEMORY_MODEL = {
    "features": {"memory_model": True},
    "max_storage_buffers": 16,
    "driver_info": "Mesa 24.2.0",
}


def test_attention_in_one_dispatch_is_checked_for_any_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong result leaves the memory model out, and the matrices as they are."""
    checks, info = Checks(monkeypatch, ""), described(monkeypatch, **WITH_MEMORY_MODEL)
    assert checked(info, runs=False).limits == info.limits
    assert checked(info).limits == replace(info.limits, memory_model_checked=True)
    start_process(monkeypatch)
    checks.failure = "7 of 9 results are wrong"
    info = described(monkeypatch, **WITH_MEMORY_MODEL, uuid="0f" * 16)
    with pytest.warns(VkschedWarning, match="without attention in one dispatch: 7 of 9.*two"):
        limits = checked(info).limits
    assert limits == replace(info.limits, memory_model=False)
    assert checks.count == 2
    software = described(monkeypatch, **WITH_MEMORY_MODEL, type="cpu")
    assert checked(software) == device_spec(software)


@pytest.fixture(params=vulkan_names())
def like_a_gpu(request: pytest.FixtureRequest) -> Iterator[VulkanDevice]:
    """A software device that is taken for a GPU."""
    info = device_probe.resolve(request.param)
    spec = device_spec(info)
    if not spec.limits.memory_model:
        pytest.skip(f"{request.param} does not have the Vulkan memory model")
    device = VulkanDevice(replace(spec, limits=replace(spec.limits, software=False)), info.index)
    yield device
    device.close()


def test_the_decode_check_has_several_parts(like_a_gpu: VulkanDevice) -> None:
    assert decode_check.check_decode(like_a_gpu) == ""
    for _, call in decode_check.checked_calls(replace(like_a_gpu.limits, cores=2)):
        (dispatch,) = lower(get_op(decode_check.NAME), call).dispatches
        assert dispatch.groups[1] > 16 and min(decode_check.COUNTS) > 256
        assert dispatch.shader in DECODE_SHADERS


def test_the_decode_check_finds_a_last_workgroup_too_early(
    like_a_gpu: VulkanDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters above 0 have this effect, as stores that become visible too late."""
    init = SingleCall.__init__

    def dirty(self: SingleCall, context: Any, *args: Any) -> None:
        init(self, context, *args)
        counters = self._named[COUNTERS]
        upload(context, counters, [np.full(counters.words, 3, np.uint32)])

    monkeypatch.setattr(SingleCall, "__init__", dirty)
    assert re.match(r"\d+ of 2048 results of run \d of", decode_check.check_decode(like_a_gpu))


@pytest.mark.parametrize("name", vulkan_names())
def test_the_devices_here_are_opened_without_a_check(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    checks = Checks(monkeypatch, "wrong")
    device = open_device(device_probe.resolve(name), name)
    device.close()
    assert checks.count == int(device_probe.resolve(name).type != "cpu")


@needs_linux
def test_a_fork_during_a_check_does_not_block_the_child() -> None:
    with device_check._lock:
        pid = os.fork()
        if not pid:
            os._exit(0 if device_check._lock.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
