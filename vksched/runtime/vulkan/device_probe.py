"""Device discovery: the available devices, their limits, and the default selection.

    drivers -> DeviceInfo in loader order -> mark duplicates -> default, or why not -> cpu last

A GPU with two drivers is listed twice; the second entry is marked as a duplicate. Examples:
tests/runtime/test_devices.py.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.env import is_on
from ...common.errors import DeviceError
from ...common.user_warning import warn_user
from ...ops.lowering import native_kernels
from ...topology.coopmat_drivers import has_slow_attention
from ...topology.device_spec import GIB, DeviceSpec
from ...topology.driver_faults import faults_of, without_faults
from ...topology.limits import FEATURES, Limits
from ..cpu.host_memory import host_memory_bytes
from . import driver_probe
from .core_count import core_count
from .driver_probe import RawDevice

PAGE_LIMIT_BYTES = GIB
PAGE_ALIGN_BYTES = 4096

PLANNED_SHARE = 7 / 8
"""Share of the free memory that plans may use: pipelines and recordings use memory, too."""

ROUGH_SPEEDS: dict[str, tuple[float, float, float, float]] = {
    "discrete": (8e12, 4e11, 30e-6, 3e-6),
    "virtual": (4e12, 2e11, 50e-6, 3e-6),
    "integrated": (8e11, 4e10, 30e-6, 3e-6),
    "other": (8e11, 4e10, 50e-6, 3e-6),
    "cpu": (3e10, 2e9, 100e-6, 20e-6),
    "swiftshader": (6e9, 1.2e9, 80e-6, 15e-6),
    "numpy": (1.2e11, 1.2e10, 10e-6, 2e-7),
}
"""(flops_per_s, bytes_per_s, submit_s, launch_s) by device type, until costs are measured. "cpu" is
a software Vulkan device such as llvmpipe, "swiftshader" the slower one, "numpy" the CPU. These
three are between those of two hosts with two cores, one twice as fast as the other, and are right
to a factor of three on both; the others are right to a factor of ten or so.
"""

VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x1414: "Microsoft",
    0x13B5: "Arm",
    0x14E4: "Broadcom",
    0x1AE0: "Google",
    0x1AF4: "Red Hat",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10001: "VeriSilicon",
    0x10005: "Mesa",
    0x10006: "PoCL",
}
"""PCI vendor ids, and Khronos ones above 0xFFFF."""
REGISTERS = {0x8086: 128}
"""Limits.registers by PCI vendor id, which no driver reports: a thread of an Intel GPU has 128
vector registers of 8 lanes, from Xe2 on of 16. AMD's and NVIDIA's have 255 and more.
"""

_PREFERENCE = ("discrete", "virtual", "other", "integrated", "cpu")
_SOFTWARE_WHY = "software, slower than numpy; name it or set VKSCHED_SOFTWARE=1"
_HIDDEN = "VKSCHED_NO_VULKAN is set"

_warned = False


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of this host, open or not.

    Parameters
    ----------
    name
        "vulkan:N" in loader order, or "cpu".
    label
        The driver's name of the device.
    type
        discrete, integrated, virtual, cpu or other.
    memory_free_bytes
        The driver's budget minus its usage; the total if there is no budget.
    max_buffer_bytes
        The size of the largest single buffer.
    why_not
        Why it is not used by default; "" if it is.
    duplicate_of
        The name under which this device is used.
    problem
        Why it cannot be opened.
    faults
        The names of its driver's known faults, whose features the limits lack.
    driver_id
        The VkDriverId of the driver; 0 if it reports none.
    """

    name: str
    index: int
    label: str
    type: str
    vendor: str
    driver: str
    uuid: str
    memory_total_bytes: int
    memory_free_bytes: int
    limits: Limits
    max_buffer_bytes: int
    default: bool
    why_not: str
    duplicate_of: str | None = None
    api_version: str = ""
    subgroup_size: int = 1
    timestamps: bool = False
    problem: str = ""
    faults: tuple[str, ...] = ()
    driver_id: int = 0

    @property
    def usable(self) -> bool:
        """Return True if it can be opened."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class Survey:
    """The devices of this host at one moment.

    Parameters
    ----------
    devices
        Vulkan devices in loader order, then "cpu".
    reason
        Why no Vulkan device is used by default and what to do; None if one is.
    notes
        Drivers that the loader skipped, and why.
    """

    devices: tuple[DeviceInfo, ...]
    reason: str | None = None
    notes: tuple[str, ...] = ()


def survey() -> Survey:
    """Query all drivers without opening a device."""
    if is_on("VKSCHED_NO_VULKAN"):
        return Survey((cpu_device(),), _HIDDEN)
    answer = driver_probe.ask_drivers()
    infos = _mark_duplicates(answer.devices, [_describe(raw) for raw in answer.devices])
    found = [_with_default_use(info) for info in infos]
    return Survey((*found, cpu_device()), _why_cpu_only(found, answer), answer.notes)


def list_devices() -> tuple[DeviceInfo, ...]:
    """Return all Vulkan devices in loader order, then "cpu"; only "cpu" without Vulkan."""
    return survey().devices


def default_devices() -> tuple[DeviceInfo, ...]:
    """Return the default devices: discrete devices first, "cpu" last.

    Warn once per process, with the reason, if there is only the CPU and the user did not select it.
    """
    global _warned
    all_ = survey()
    *found, cpu = all_.devices
    chosen = sorted((d for d in found if d.default), key=lambda d: _PREFERENCE.index(d.type))
    if not chosen and all_.reason != _HIDDEN and not _warned:
        _warned = True
        warn_user(f"[devices] {all_.reason}; everything runs on numpy")
    return (*chosen, cpu)


def resolve(name: str) -> DeviceInfo:
    """Return the device with a name: "cpu", "vulkan:N" or "vulkan:<4 or more digits of its UUID>".

    Raises
    ------
    DeviceError
        No device or several ones match, or the device cannot be used.
    """
    if name == "cpu":
        return cpu_device()
    kind, _, which = name.partition(":")
    if kind != "vulkan" or not which:
        raise DeviceError(
            f"[device] expected vulkan:N, vulkan:<uuid prefix> or cpu, got {name!r}; try a name "
            "that `vksched devices` lists"
        )
    all_ = survey()
    found = all_.devices[:-1]
    if not found:
        raise DeviceError(
            f"[device] expected a Vulkan device for {name!r}, got none: {all_.reason}"
        )
    info = _match(name, which, found)
    if info.problem:
        raise DeviceError(f"[device] {info.name} ({info.label}) cannot be used: {info.problem}")
    return info


def device_spec(info: DeviceInfo, name: str | None = None) -> DeviceSpec:
    """Return the planner's spec of a device, with its own name or another."""
    is_numpy = info.name == "cpu"
    flops_per_s, bytes_per_s, submit_s, launch_s = ROUGH_SPEEDS[_kind(info)]
    return DeviceSpec(
        name=name or info.name,
        kind="cpu" if is_numpy else "vulkan",
        label=info.label,
        driver=info.driver,
        limits=info.limits,
        memory_bytes=int(info.memory_free_bytes * PLANNED_SHARE),
        max_buffer_bytes=info.max_buffer_bytes,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        submit_s=submit_s,
        memory_node=info.uuid,
        disable_aliasing=is_on("VKSCHED_DISABLE_ALIASING"),
        unified_memory=info.type != "discrete",
        launch_s=launch_s,
    )


def _kind(info: DeviceInfo) -> str:
    """Return the key of a device's rough speeds."""
    if info.name == "cpu":
        return "numpy"
    return "swiftshader" if "swiftshader" in info.driver.lower() else info.type


def cpu_device() -> DeviceInfo:
    """Return the CPU, on which numpy runs; it is always available and always last."""
    total, free = host_memory_bytes()
    return DeviceInfo(
        name="cpu",
        index=-1,
        label="numpy",
        type="cpu",
        vendor="",
        driver=", ".join(filter(None, (f"numpy {_numpy_version()}", native_kernels.about()))),
        uuid="",
        memory_total_bytes=total,
        memory_free_bytes=free,
        limits=Limits(max_buffer_bytes=total, software=True),
        max_buffer_bytes=total,
        default=True,
        why_not="",
    )


def _why_cpu_only(found: Sequence[DeviceInfo], answer: driver_probe.Answer) -> str | None:
    if any(info.default for info in found):
        return None
    if answer.problem is not None:
        return "; ".join([f"no Vulkan devices: {answer.problem}", *answer.notes])
    if not found:
        notes = f" ({'; '.join(answer.notes)})" if answer.notes else ""
        return (
            f"no Vulkan devices: no driver lists one{notes}; try `make setup` or your GPU's driver "
            "package"
        )
    if all(info.type == "cpu" for info in found):
        labels = ", ".join(dict.fromkeys(info.label for info in found))
        return (
            f"only software Vulkan devices ({labels}), which are slower than numpy; try your GPU's "
            "driver package, or use them by name or with VKSCHED_SOFTWARE=1"
        )
    whys = "; ".join(f"{info.name}: {info.why_not}" for info in found if info.type != "cpu")
    return f"no Vulkan device can be used: {whys}; try another driver version"


def _describe(raw: RawDevice) -> DeviceInfo:
    type_ = raw["type"] if raw["type"] in _PREFERENCE else "other"
    limits, max_bytes = _limits(raw, type_)
    total, free = _memory(raw, type_)
    vendor = VENDORS.get(int(raw["vendor_id"]), f"0x{int(raw['vendor_id']):04x}")
    label, driver = str(raw["name"]), _driver(raw)
    ignored = is_on("VKSCHED_IGNORE_DRIVER_FAULTS")
    faults = () if ignored else faults_of(label, vendor, driver)
    page = min(max_bytes, PAGE_LIMIT_BYTES)
    return DeviceInfo(
        name=f"vulkan:{raw['index']}",
        index=int(raw["index"]),
        label=label,
        type=type_,
        vendor=vendor,
        driver=driver,
        uuid=uuid_of(raw),
        memory_total_bytes=total,
        memory_free_bytes=free,
        limits=without_faults(limits, faults),
        max_buffer_bytes=page // PAGE_ALIGN_BYTES * PAGE_ALIGN_BYTES,
        default=False,
        why_not="",
        api_version=str(raw.get("api_version", "")),
        subgroup_size=limits.subgroup_size,
        timestamps=bool(raw.get("timestamp_valid_bits"))
        and float(raw.get("timestamp_period_ns") or 0) > 0,
        problem=""
        if raw.get("usable", True)
        else str(raw.get("why") or "the driver gives no reason"),
        faults=tuple(fault.name for fault in faults),
        driver_id=int(raw.get("driver_id") or 0),
    )


def _limits(raw: RawDevice, type_: str) -> tuple[Limits, int]:
    """Return the kernel limits and the size of the largest buffer."""
    reported, defaults = raw.get("limits") or {}, Limits()

    def smallest(default: int, *names: str) -> int:
        return min((int(reported[n]) for n in names if reported.get(n)), default=default)

    def triple(name: str, default: tuple[int, int, int]) -> tuple[int, int, int]:
        x, y, z = reported.get(name) or default
        return int(x), int(y), int(z)

    max_bytes = smallest(
        defaults.max_buffer_bytes, "maxStorageBufferRange", "maxMemoryAllocationSize"
    )
    limits = Limits(
        max_invocations=smallest(defaults.max_invocations, "maxComputeWorkGroupInvocations"),
        max_local_size=triple("maxComputeWorkGroupSize", defaults.max_local_size),
        max_groups=triple("maxComputeWorkGroupCount", defaults.max_groups),
        shared_bytes=smallest(defaults.shared_bytes, "maxComputeSharedMemorySize"),
        push_bytes=smallest(defaults.push_bytes, "maxPushConstantsSize"),
        storage_buffers=smallest(
            defaults.storage_buffers,
            "maxPerStageDescriptorStorageBuffers",
            "maxDescriptorSetStorageBuffers",
            "maxPerStageResources",
        ),
        max_buffer_bytes=max_bytes,
        subgroup_size=max(1, int(raw.get("subgroup_size") or 1)),
        subgroup_shuffle=bool(raw.get("subgroup_in_compute"))
        and {"basic", "ballot", "shuffle"} <= set(raw.get("subgroup_operations") or ()),
        subgroup_arithmetic=bool(raw.get("subgroup_in_compute"))
        and {"basic", "arithmetic"} <= set(raw.get("subgroup_operations") or ()),
        cores=0 if type_ == "cpu" else core_count(raw),
        registers=REGISTERS.get(int(raw["vendor_id"]), defaults.registers),
        fp16_sums_faster="GeForce" in str(raw.get("name") or ""),
        coopmat_attention_slow=has_slow_attention(str(raw.get("name") or "")),
        software=type_ == "cpu",
        **_features(raw),
    )
    return limits, max_bytes


def _features(raw: RawDevice) -> dict[str, Any]:
    """Return the features of a device beyond Vulkan 1.1, by field of Limits."""
    defaults, reported = Limits(), dict(raw.get("features") or {})
    if not is_on("VKSCHED_COOPMAT", True):
        reported["matrices"] = ()
    return {name: type(getattr(defaults, name))(reported.get(name) or ()) for name in FEATURES}


def _memory(raw: RawDevice, type_: str) -> tuple[int, int]:
    """Return total and free bytes of the heap of our buffers, the largest device-local one.

    On most drivers the other device-local heaps are host-visible parts of this memory.
    """
    heaps: Sequence[dict[str, Any]] = raw.get("heaps") or ()
    local = [h for h in heaps if h.get("device_local")] or list(heaps)
    if not local:
        return 0, 0
    heap = max(local, key=lambda h: int(h["size_bytes"]))
    total = int(heap["size_bytes"])
    budget, usage = heap.get("budget_bytes"), heap.get("usage_bytes")
    free = total if not budget else max(0, min(total, int(budget)) - int(usage or 0))
    if type_ in ("integrated", "cpu"):
        free = min(free, host_memory_bytes()[1])
    return total, free


def _driver(raw: RawDevice) -> str:
    """Return the driver's name and version; the readable version is in driver_info, if anywhere."""
    name, info = (
        str(raw.get("driver_name") or "").strip(),
        str(raw.get("driver_info") or "").strip(),
    )
    version = raw.get("driver_version") or ""
    if not info and isinstance(version, int):
        version = f"{version >> 22}.{version >> 12 & 0x3FF}.{version & 0xFFF}"
    return f"{name or 'driver'} {info or version}".strip()


def _mark_duplicates(raws: Sequence[RawDevice], infos: list[DeviceInfo]) -> list[DeviceInfo]:
    """Mark each device that duplicates another one; usable devices count as the originals."""
    originals: list[int] = []
    out = list(infos)
    for i in sorted(range(len(infos)), key=lambda i: bool(infos[i].problem)):
        same = next((k for k in originals if _same_device(raws, k, i)), None)
        if same is None:
            originals.append(i)
        else:
            out[i] = dataclasses.replace(infos[i], duplicate_of=infos[same].name)
    return out


def _same_device(raws: Sequence[RawDevice], i: int, j: int) -> bool:
    """Return True if two entries are one device: by bus address, else by UUID or LUID, else because
    they are the only two of their model, with different drivers. Equal cards with one driver are
    two devices.
    """
    a, b = raws[i], raws[j]
    if _bus(a) and _bus(b):
        return _bus(a) == _bus(b)
    for key in ("uuid", "luid"):
        if _hex(a.get(key)) and _hex(a.get(key)) == _hex(b.get(key)):
            return True
    if "cpu" in (a["type"], b["type"]):
        return False
    alike = [r for r in raws if _model(r) == _model(a)]
    return _model(a) == _model(b) and len(alike) == 2 and _driver_key(a) != _driver_key(b)


def _model(raw: RawDevice) -> tuple[int, int]:
    return int(raw["vendor_id"]), int(raw.get("device_id") or 0)


def _driver_key(raw: RawDevice) -> tuple[str, str]:
    return str(raw.get("driver_name") or ""), _hex(raw.get("driver_uuid"))


def _bus(raw: RawDevice) -> str:
    """Return the PCI address as text from any of its forms, or ""."""
    pci = raw.get("pci") or raw.get("pci_bus") or ""
    return str(sorted(pci.items()) if isinstance(pci, dict) else pci)


def _hex(value: object) -> str:
    """Return a UUID as lower-case hex digits; "" if it is all zeros."""
    text = value.hex() if isinstance(value, bytes) else str(value or "")
    text = text.replace("-", "").lower()
    return text if text.strip("0") else ""


def uuid_of(raw: Mapping[str, Any]) -> str:
    """Return the UUID of a device that a driver describes, as hex digits; "" if it has none."""
    return _hex(raw.get("uuid"))


def _with_default_use(info: DeviceInfo) -> DeviceInfo:
    """Return the device with its default use decided."""
    if info.duplicate_of is not None:
        why = f"duplicate: the same device as {info.duplicate_of}"
    elif info.problem:
        why = info.problem
    elif info.type == "other":
        why = "the driver does not say what kind of device it is; name it to use it"
    elif info.type == "cpu" and not is_on("VKSCHED_SOFTWARE"):
        why = _SOFTWARE_WHY
    else:
        why = ""
    return dataclasses.replace(info, default=not why, why_not=why)


def _match(name: str, which: str, found: Sequence[DeviceInfo]) -> DeviceInfo:
    prefix = which.replace("-", "").lower()
    known = ", ".join(f"{d.name} ({d.label}{f', {d.uuid[:8]}' if d.uuid else ''})" for d in found)
    if re.fullmatch(r"[0-9]{1,3}", which):
        hits = [d for d in found if d.index == int(which)]
    elif re.fullmatch(r"[0-9a-f]{4,32}", prefix):
        hits = [d for d in found if d.uuid.startswith(prefix)]
    else:
        raise DeviceError(
            f"[device] expected an index or a UUID prefix of 4 to 32 hex digits, got {name!r}; "
            f"there is: {known}, cpu"
        )
    # A device and its duplicates count as one match if their UUIDs agree.
    roots = {d.duplicate_of or d.name for d in hits}
    if not hits:
        raise DeviceError(
            f"[device] expected a device of this machine, got {name!r}; there is: {known}, cpu"
        )
    if len(roots) > 1:
        names = ", ".join(f"{d.name} ({d.uuid})" for d in hits)
        raise DeviceError(f"[device] {name!r} fits {names}; try an index or more digits")
    return min(hits, key=lambda d: d.duplicate_of is not None)


def _numpy_version() -> str:
    import numpy

    return str(numpy.__version__)
