"""Providers: the devices that onnxruntime's execution providers stand for here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.env import names_in
from ..common.errors import DeviceError, VkschedError
from ..common.user_warning import warn_user
from ..runtime.vulkan import device_probe
from .ort_errors import InvalidArgument, both
from .warn_once import say_once

SWITCH = "VKSCHED_PROVIDERS"
"""The variable that lists providers which `get_available_providers()` offers and which stand for
the Vulkan devices, as "cuda,cpu": for programs that ask for no other.
"""
CPU = "CPUExecutionProvider"
VULKAN = "VulkanExecutionProvider"
ON_CPU = frozenset(
    (CPU, "AzureExecutionProvider", "DnnlExecutionProvider", "XnnpackExecutionProvider")
)
"""Providers that never meant a GPU."""
_SUFFIX = "ExecutionProvider"
_OTHERS = frozenset(
    f"{name}{_SUFFIX}"
    for name in (
        *("CANN", "CUDA", "CoreML", "Dml", "Js", "MIGraphX", "Nnapi", "NvTensorRTRTX"),
        *("OpenVINO", "QNN", "ROCM", "Rknpu", "Tensorrt", "VSINPU", "VitisAI", "WebGpu", "WebNN"),
    )
)
"""Providers of onnxruntime that mean a GPU or the like: Vulkan devices are taken in their place."""
_BY_SHORT = {name.removesuffix(_SUFFIX).lower(): name for name in _OTHERS | ON_CPU}

Provider = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """devices: as for vs.Scheduler. stands_for: providers of onnxruntime for which the default
    Vulkan devices are taken. shown: those of them that the session says it runs on. policy,
    objective, precision: as for vs.Scheduler.
    """

    devices: tuple[str, ...] | None
    stands_for: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    policy: str = "auto"
    objective: str | Mapping[str, float] = "latency"
    precision: str = "float32"


def provider_name(name: str) -> str:
    """Return the full name of a provider: "CUDAExecutionProvider" for "cuda".

    Raises:
        VkschedError: onnxruntime has no such provider.
    """
    short = name.lower().removesuffix(_SUFFIX.lower())
    if short not in _BY_SHORT:
        raise VkschedError(
            f"[session] expected providers of onnxruntime in {SWITCH}, got {name!r}; try "
            f"{SWITCH}=cuda,cpu"
        )
    return _BY_SHORT[short]


def offered() -> tuple[str, ...]:
    """Return the providers that the user wants to stand for Vulkan devices; see SWITCH."""
    return tuple(dict.fromkeys(map(provider_name, names_in(SWITCH))))


def choose_devices(
    providers: Sequence[Provider] | str | None, options: Sequence[Mapping[str, Any]] | None = None
) -> Chosen:
    """Return the devices that providers stand for; None and an empty list for the default ones.

    "CPUExecutionProvider" is the cpu; "VulkanExecutionProvider" all default Vulkan devices, or that
    of its option device_id; "vulkan:1" and "cpu" name a device. The options policy and objective of
    Vulkan devices say how plans are found and what they make small, as those of vs.Scheduler do;
    the option precision, also of the cpu, says what products may round. Of several providers that
    have an option the first one's counts. Another provider of onnxruntime stands for the default
    Vulkan devices, and its options have no effect. Other names are skipped with a warning. Where
    the user offers the cpu's provider for Vulkan, it stands for the default devices unless others
    are named.

    Raises:
        DeviceError: what is given are no providers. VkschedError: a Vulkan device or "cpu" has no
            such option.
    """
    if providers is None or not len(providers):
        return Chosen(None)
    if isinstance(providers, str):
        providers = [providers]
    if options is not None and len(options) != len(providers):
        raise DeviceError(
            f"[session] expected provider_options for {len(providers)} providers, got "
            f"{len(options)}"
        )
    gpus: dict[str | None, None] = {}  # names in order; None: the default Vulkan devices
    foreign: list[str] = []
    wanted = offered()
    moved = False
    aim: dict[str, Any] = {}
    for index, provider in enumerate(providers):
        name, own = provider if isinstance(provider, (tuple, list)) else (provider, {})
        passed = {**(options[index] if options is not None else {}), **own}
        if not isinstance(name, str):
            raise DeviceError(f"[session] expected the name of a provider, got {name!r}")
        of_vulkan = name == VULKAN or name.startswith("vulkan:")
        if of_vulkan or name in (CPU, "cpu"):
            known = ("policy", "objective", "precision") if of_vulkan else ("precision",)
            aim = {key: passed[key] for key in known if key in passed} | aim
            _check_options(name, passed, (*known, "device_id") if name == VULKAN else known)
        if name in ON_CPU or name == "cpu":
            moved = moved or name in wanted
        elif name.startswith("vulkan:"):
            gpus[name] = None
        elif name == VULKAN:
            gpus[f"vulkan:{passed['device_id']}" if "device_id" in passed else None] = None
        elif name in _OTHERS:
            gpus[None] = None
            foreign.append(name)
        else:
            warn_user(
                f"[session] provider {name!r} is skipped, as vksched has none of that name; try "
                f"{VULKAN!r}, 'vulkan:0' or {CPU!r}"
            )
    if list(gpus) == [None] or (moved and not gpus):
        shown = tuple(name for name in foreign if name in wanted)
        return Chosen(None, tuple(foreign), shown, **aim)
    defaults = (
        [i.name for i in device_probe.default_devices() if i.name != "cpu"] if None in gpus else []
    )
    found = [name for gpu in gpus for name in ([gpu] if gpu is not None else defaults)]
    return Chosen((*dict.fromkeys(found), "cpu"), tuple(foreign), (), **aim)


def _check_options(name: str, passed: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse options that a provider of vksched does not have. For onnxruntime's own CPU provider
    one warning names them: programs give it options of memory arenas.
    """
    for key in passed:
        if key in known:
            continue
        if name != CPU:
            raise both(VkschedError, InvalidArgument)(
                f"[session] expected options of {name!r} among {', '.join(known)}, got {key!r}; "
                "try one of these"
            )
        say_once(f"the option {key!r} of {name}")


def get_available_providers() -> list[str]:
    """Return the providers that have a device here by default, with those the user offers."""
    if not any(info.default and info.name != "cpu" for info in device_probe.list_devices()):
        return [CPU]
    return [*(name for name in offered() if name not in ON_CPU), VULKAN, CPU]


def get_all_providers() -> list[str]:
    """Return the providers of vksched."""
    return [VULKAN, CPU]


def get_device() -> str:
    """Return "GPU" where a Vulkan device is used by default, else "CPU"."""
    return "GPU" if VULKAN in get_available_providers() else "CPU"
