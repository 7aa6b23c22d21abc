"""Execution providers: the devices that onnxruntime's providers stand for."""

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
"""Environment variable with providers, for instance "cuda,cpu", that `get_available_providers()`
lists and that stand for the Vulkan devices: for programs that only request these.
"""
CPU = "CPUExecutionProvider"
VULKAN = "VulkanExecutionProvider"
ON_CPU = frozenset(
    (CPU, "AzureExecutionProvider", "DnnlExecutionProvider", "XnnpackExecutionProvider")
)
"""Providers that run on the CPU."""
_SUFFIX = "ExecutionProvider"
_OTHERS = frozenset(
    f"{name}{_SUFFIX}"
    for name in (
        *("CANN", "CUDA", "CoreML", "Dml", "Js", "MIGraphX", "Nnapi", "NvTensorRTRTX"),
        *("OpenVINO", "QNN", "ROCM", "Rknpu", "Tensorrt", "VSINPU", "VitisAI", "WebGpu", "WebNN"),
    )
)
"""Providers of onnxruntime for GPUs and accelerators: Vulkan devices replace them."""
_BY_SHORT = {name.removesuffix(_SUFFIX).lower(): name for name in _OTHERS | ON_CPU}

Provider = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """The devices and options that providers select.

    Attributes
    ----------
    devices
        Devices, as for vs.Scheduler.
    stands_for
        Providers of onnxruntime that the default Vulkan devices replace.
    shown
        Those of them that the session reports as its providers.
    policy, objective, precision
        As for vs.Scheduler.
    """

    devices: tuple[str, ...] | None
    stands_for: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    policy: str = "auto"
    objective: str | Mapping[str, float] = "latency"
    precision: str = "float32"


def provider_name(name: str) -> str:
    """Return the full name of a provider: "CUDAExecutionProvider" for "cuda".

    Raises
    ------
    VkschedError
        onnxruntime has no such provider.
    """
    short = name.lower().removesuffix(_SUFFIX.lower())
    if short not in _BY_SHORT:
        raise VkschedError(
            f"[session] expected providers of onnxruntime in {SWITCH}, got {name!r}; try "
            f"{SWITCH}=cuda,cpu"
        )
    return _BY_SHORT[short]


def offered() -> tuple[str, ...]:
    """Return the providers that stand for Vulkan devices; see SWITCH."""
    return tuple(dict.fromkeys(map(provider_name, names_in(SWITCH))))


def choose_devices(
    providers: Sequence[Provider] | str | None, options: Sequence[Mapping[str, Any]] | None = None
) -> ProviderChoice:
    """Return the devices of providers; None and an empty list select the default devices.

    "CPUExecutionProvider" is the CPU. "VulkanExecutionProvider" is all default Vulkan devices, or
    the one in its option device_id. "vulkan:1" and "cpu" name a device. Another provider of
    onnxruntime stands for the default Vulkan devices, and its options are ignored. Other names are
    skipped with a warning. If VKSCHED_PROVIDERS contains the CPU provider, it stands for the
    default devices unless others are named.

    Vulkan providers have the options policy and objective of vs.Scheduler. The option precision,
    which the CPU supports, too, allows rounding in products. If several providers have an option,
    the first one applies.

    Raises
    ------
    DeviceError
        The arguments are not providers.
    VkschedError
        A Vulkan device or "cpu" has no such option.
    """
    if providers is None or not len(providers):
        return ProviderChoice(None)
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
        return ProviderChoice(None, tuple(foreign), shown, **aim)
    defaults = (
        [i.name for i in device_probe.default_devices() if i.name != "cpu"] if None in gpus else []
    )
    found = [name for gpu in gpus for name in ([gpu] if gpu is not None else defaults)]
    return ProviderChoice((*dict.fromkeys(found), "cpu"), tuple(foreign), (), **aim)


def _check_options(name: str, passed: Mapping[str, Any], known: Sequence[str]) -> None:
    """Reject unknown options of vksched's providers. For onnxruntime's CPU provider warn instead:
    programs pass it options of memory arenas.
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
    """Return the providers with a default device on this system, and those in VKSCHED_PROVIDERS."""
    if not any(info.default and info.name != "cpu" for info in device_probe.list_devices()):
        return [CPU]
    return [*(name for name in offered() if name not in ON_CPU), VULKAN, CPU]


def get_all_providers() -> list[str]:
    """Return the providers of vksched."""
    return [VULKAN, CPU]


def get_device() -> str:
    """Return "GPU" if a Vulkan device is used by default, else "CPU"."""
    return "GPU" if VULKAN in get_available_providers() else "CPU"
