"""Providers: the devices that onnxruntime's execution providers stand for here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import DeviceError
from ..runtime.vulkan import probe

CPU = "CPUExecutionProvider"
VULKAN = "VulkanExecutionProvider"
ON_CPU = frozenset(
    (CPU, "AzureExecutionProvider", "DnnlExecutionProvider", "XnnpackExecutionProvider")
)
"""Providers that never meant a GPU."""

Provider = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Chosen:
    """devices: as for vs.Scheduler. stands_for: providers of onnxruntime for which the default
    Vulkan devices are taken.
    """

    devices: tuple[str, ...] | None
    stands_for: tuple[str, ...] = ()


def choose_devices(
    providers: Sequence[Provider] | None, options: Sequence[Mapping[str, Any]] | None = None
) -> Chosen:
    """Returns the devices that providers stand for; None and an empty list for the default ones.

    "CPUExecutionProvider" is the cpu; "VulkanExecutionProvider" all default Vulkan devices, or that
    of its option device_id; "vulkan:1" and "cpu" name a device; any other execution provider stands
    for the default Vulkan devices.

    Raises:
        DeviceError: a name is neither a provider nor a device.
    """
    if providers is None or not len(providers):
        return Chosen(None)
    if isinstance(providers, str):
        raise DeviceError(f"[session] expected a list of providers, got {providers!r}")
    if options is not None and len(options) != len(providers):
        raise DeviceError(
            f"[session] expected provider_options for {len(providers)} providers, got "
            f"{len(options)}"
        )
    names: list[str | None] = []  # None: the default Vulkan devices
    foreign: list[str] = []
    for index, provider in enumerate(providers):
        name, own = provider if isinstance(provider, (tuple, list)) else (provider, {})
        given = {**(options[index] if options is not None else {}), **own}
        if not isinstance(name, str):
            raise DeviceError(f"[session] expected the name of a provider, got {name!r}")
        if name in ON_CPU or name == "cpu":
            names.append("cpu")
        elif name.startswith("vulkan:"):
            names.append(name)
        elif name == VULKAN:
            names.append(f"vulkan:{given['device_id']}" if "device_id" in given else None)
        elif name.endswith("ExecutionProvider"):
            names.append(None)
            foreign.append(name)
        else:
            raise DeviceError(
                f"[session] expected an execution provider, vulkan:N or cpu, got {name!r}; try "
                f"{VULKAN!r}"
            )
    gpus = list(dict.fromkeys(name for name in names if name != "cpu"))
    if gpus == [None]:
        return Chosen(None, tuple(foreign))
    defaults = [i.name for i in probe.default_devices() if i.name != "cpu"] if None in gpus else []
    found = [name for gpu in gpus for name in ([gpu] if gpu is not None else defaults)]
    return Chosen((*dict.fromkeys(found), "cpu"), tuple(foreign))


def get_available_providers() -> list[str]:
    """Returns the providers that have a device here by default."""
    gpu = any(info.default and info.name != "cpu" for info in probe.list_devices())
    return [VULKAN, CPU] if gpu else [CPU]


def get_all_providers() -> list[str]:
    """Returns the providers of vksched."""
    return [VULKAN, CPU]


def get_device() -> str:
    """Returns "GPU" where a Vulkan device is used by default, else "CPU"."""
    return "GPU" if VULKAN in get_available_providers() else "CPU"
