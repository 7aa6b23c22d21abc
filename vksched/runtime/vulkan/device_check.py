"""Device check: compares kernels that depend on little-used features of a driver with exact
results, once per device and driver.

    product   calls by cooperative matrices         coopmat_check.py   Limits.coopmat_checked
    decode    parts combined by the last workgroup  decode_check.py    Limits.memory_model_checked

    device that has such kernels --> result on disk --> Limits: calls may use them without tuning
                                 --> none: they run in a child
    wrong, or twice crashed,     --> result on disk --> warning, the device is used without them
    hung or lost
    no child, no memory, once    --> nothing is known: the tuner measures and compares first
    crashed

    <cache>/checks/<hash of check, device, driver, limits, kernels>.json:
        {"failure": "" or reason, "certain": false after the first crash}

A child process runs the kernels, because a driver may crash. A crash marker covers the cases that
a child does not: the whole machine hangs, or no child can be started. A user, a busy machine or
another program may also end or delay a check, so that only a second failure blames the driver.
Examples: tests/runtime/test_device_check.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from ...common.errors import DECODE_ERRORS, DeviceLost, DeviceTimeout, VkschedError
from ...common.fork_guard import in_child
from ...common.user_warning import warn
from ...ir.op import Call, get_op
from ...ops.lowering.lower import lower
from ...storage.cache_folder import folder_of, optional_write
from ...storage.crash_marker import CrashMarker, crashed_variants, forget
from ...storage.disk_cache import DiskCache
from ...topology.device_spec import DeviceSpec
from ...topology.limits import Limits
from . import coopmat_check, decode_check, device_probe, driver_probe
from .shaders import load_manifest
from .vulkan_device import VulkanDevice

MAX_FILES = 32
"""Maximum number of results on disk; the oldest are removed."""
CRASHED = "a program ended, or the machine was restarted, during the check"
_MARK = "vksched-check:"


@dataclass(frozen=True)
class Check:
    """The check of the kernels that use one feature.

    Attributes
    ----------
    calls
        Yields the op and the call of each kernel.
    applies
        Returns True for a device that has such kernels.
    run
        Returns a description of the first wrong result, "" if there is none.
    passed, failed
        Return the limits of a device after the check.
    feature
        Name of the feature in messages.
    instead
        Clause that says what happens without the feature.
    switch
        Text on how to turn the feature off by hand.
    """

    name: str
    calls: Callable[[Limits], Iterable[tuple[str, Call]]]
    applies: Callable[[DeviceSpec, device_probe.DeviceInfo], bool]
    run: Callable[[VulkanDevice], str]
    passed: Callable[[Limits], Limits]
    failed: Callable[[Limits], Limits]
    feature: str
    instead: str
    switch: str = ""


PRODUCTS = Check(
    "product",
    coopmat_check.checked_calls,
    coopmat_check.is_checked,
    coopmat_check.check_products,
    lambda limits: replace(limits, coopmat_checked=True),
    lambda limits: replace(limits, matrices=()),
    "cooperative matrices",
    "products use other kernels",
    ", or VKSCHED_COOPMAT=0 to turn them off without this warning",
)
DECODE = Check(
    "decode",
    decode_check.checked_calls,
    decode_check.is_checked,
    decode_check.check_decode,
    lambda limits: replace(limits, memory_model_checked=True),
    lambda limits: replace(limits, memory_model=False),
    "attention in one dispatch",
    "attention of a token takes two dispatches",
)
CHECKS: Mapping[str, Check] = MappingProxyType({each.name: each for each in (PRODUCTS, DECODE)})

_lock = threading.Lock()
_known: dict[str, str | None] = {}
"""Results of this process by name, for users without a cache folder; None if a check had none."""
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a check.

    Parameters
    ----------
    failure
        The reason why the device is used without the feature; "" if all results were right.
    certain
        False if the failure may have another cause than the driver.
    """

    failure: str
    certain: bool = True


@in_child
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


def with_checked_kernels(
    spec: DeviceSpec, info: device_probe.DeviceInfo, runs: bool = True
) -> DeviceSpec:
    """Return the spec of a device with the results of its checks: features that calls may use
    without a measurement, or a device without them.

    Parameters
    ----------
    runs
        False to use only results that are known already.
    """
    failures = [(check, failure_of(check, spec, info, runs)) for check in CHECKS.values()]
    for check, failure in failures:
        if failure:
            _warn(check, _name_of(check, spec), info, failure)
    for check, failure in failures:
        if failure is not None:
            change = check.failed if failure else check.passed
            spec = replace(spec, limits=change(spec.limits))
    return spec


def failure_of(
    check: Check, spec: DeviceSpec, info: device_probe.DeviceInfo, runs: bool = True
) -> str | None:
    """Return the failure of a device's check, "" if all results were right. Return None if the
    check does not apply, or if the result is not known and the check may or can not run.

    Parameters
    ----------
    spec
        The description of the device as its driver gives it, without the results of checks.
    """
    if not check.applies(spec, info):
        return None
    name = _name_of(check, spec)
    with _lock:
        if name not in _known:
            failure = _result(check, name, info.index, runs)
            if failure is None and not runs:
                return None
            _known[name] = failure
        return _known[name]


def _warn(check: Check, name: str, info: device_probe.DeviceInfo, failure: str) -> None:
    """Warn once per process."""
    if name in _warned:
        return
    _warned.add(name)
    file = _files().path(name)
    warn(
        f"[devices] {info.name} ({info.label}, {info.driver}) is used without {check.feature}: "
        f"{failure}; {check.instead}; try another version of the driver{check.switch}"
        f"{f'; delete {file} to repeat the check' if file else ''}"
    )


def _name_of(check: Check, spec: DeviceSpec) -> str:
    """Return the file name of the result of a check, a device, its driver and the kernels."""
    kernels = _kernels_hash(check, spec.limits)
    identity = (spec.memory_node, spec.label, spec.driver, spec.limits.kernel_text(), kernels)
    text = json.dumps((check.name, *identity))
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


@lru_cache(maxsize=16)
def _kernels_hash(check: Check, limits: Limits) -> str:
    """Return a hash of all shaders of the calls of a check, with their tiles."""
    manifest = load_manifest()
    kernels = [
        (each.shader, manifest[each.shader]["sha256"], each.constants, each.subgroup)
        for op, call in check.calls(limits)
        for each in lower(get_op(op), call).dispatches
    ]
    return hashlib.sha256(json.dumps(kernels).encode()).hexdigest()


def _files() -> DiskCache:
    return DiskCache(folder_of("checks"), "devices", max_files=MAX_FILES)


def _result(check: Check, name: str, index: int, runs: bool) -> str | None:
    """Return the failure of a check, "" if there was none; None if it is not known. The lock is
    held.
    """
    files = _files()
    path = files.path(name)
    known = files.get(name, _parsed)
    certain = known is not None and known.certain
    if not certain and crashed_variants(path):
        known = _record(files, name, Outcome(CRASHED, certain=False), known)
    if known is not None and known.certain:
        return known.failure
    found = _run(check, path, index) if runs else None
    if found is not None:
        found = _record(files, name, found, known)
    return found.failure if found is not None and found.certain else None


def _record(files: DiskCache, name: str, found: Outcome, before: Outcome | None) -> Outcome:
    """Store an outcome and return it. A second failure is certain."""
    if before is not None:
        found = replace(found, certain=True)
    if files.folder is not None:
        with optional_write(files.folder):
            files.put(name, json.dumps(asdict(found)).encode())
            forget(files.path(name))
    return found


def _parsed(text: bytes | str) -> Outcome | None:
    data = json.loads(text)
    return None if data is None else Outcome(str(data["failure"]), bool(data["certain"]))


def _run(check: Check, path: Path | None, index: int) -> Outcome | None:
    """Return the outcome of a check that runs now, in a child process if possible; None if it had
    no result.
    """
    if not driver_probe.child_possible():
        return _marked_check(check, index, path)
    arguments = f"{index}, {check.name!r}, {path and str(path)!r}"
    code = driver_probe.child_code(__name__, arguments)
    changes = {"VKSCHED_PROBE": "inprocess", "VKSCHED_TRACE": "", "VKSCHED_MONITOR": ""}
    try:
        died, out, _ = driver_probe.run_child(code, changes)
    finally:
        forget(path)  # this process knows how the child ended
    for line in out.splitlines():
        if line.startswith(_MARK):
            with suppress(*DECODE_ERRORS):  # the child ended within the line
                return _parsed(line[len(_MARK) :])
    blames_driver = died is not None and died.startswith(driver_probe.DRIVER_ENDINGS)
    return Outcome(f"the check {died}", certain=False) if blames_driver else None


def child(index: int, name: str, path: str | None) -> None:
    """Run in the child: print the outcome as one marked line."""
    driver_probe.without_core_file()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # a user's end removes the marker
    outcome = _marked_check(CHECKS[name], index, None if path is None else Path(path))
    print(_MARK + json.dumps(None if outcome is None else asdict(outcome)), flush=True)
    os._exit(0)  # some drivers crash at process exit, after the result


def _marked_check(check: Check, index: int, path: Path | None) -> Outcome | None:
    """Check a device while a crash marker exists."""
    marker = CrashMarker(path)
    marker.begin("check", check.name, "")
    try:
        return check_device(check, index)
    finally:
        marker.close(failed=False)


def check_device(check: Check, index: int) -> Outcome | None:
    """Return the outcome of a check on a device; None without a result, for example if other
    programs use the device's memory.

    Parameters
    ----------
    index
        Its index in loader order.
    """
    info = next(each for each in device_probe.list_devices() if each.index == index)
    try:
        device = VulkanDevice(device_probe.device_spec(info), index)
        failure = check.run(device)
        device.close()
    except (DeviceLost, DeviceTimeout) as error:
        return Outcome(f"the check failed: {error}", certain=False)
    except VkschedError:
        return None
    return Outcome(failure)
