"""Runtime: one scheduler for each set of options, with the weights of all its graphs."""

from __future__ import annotations

import atexit
import gc
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..common.errors import VkschedError
from ..scheduler.scheduler import Scheduler
from .device_memory import DeviceMemory

LIMIT = 16
"""The default number of cached specialisations of a graph."""
OPTIONS = ("devices", "precision", "placement", "limit", "scheduler")
"""The options of the backend."""


@dataclass(frozen=True)
class BackendOptions:
    """The options of `torch.compile(model, backend="vksched", options={...})`.

    Attributes
    ----------
    devices, precision
        As in `vksched.Scheduler`.
    placement
        Name patterns to device names, as in `vksched.Scheduler.compile`. Ops are named after the
        modules that contain them, weights as in `model.state_dict()`.
    limit
        The maximum number of cached sets of sizes of a graph.
    scheduler
        An open scheduler to use, instead of devices and precision.
    """

    devices: tuple[str, ...] | None = None
    precision: str | None = None
    placement: tuple[tuple[str, str], ...] = ()
    limit: int = LIMIT
    scheduler: Scheduler | None = None

    @staticmethod
    def parse(options: Mapping[str, Any]) -> BackendOptions:
        """Return checked options.

        Raises
        ------
        VkschedError
            An option is unknown, or has a wrong type.
        """
        if not isinstance(options, Mapping):
            raise VkschedError(f"[torch] expected a dict of options, got {options!r}")
        unknown = [str(name) for name in options if name not in OPTIONS]
        if unknown:
            raise VkschedError(
                f"[torch] expected options {', '.join(OPTIONS)}, got {', '.join(unknown)}"
            )
        devices = options.get("devices")
        if devices is not None and not _is_list_of_names(devices):
            raise VkschedError(
                f'[torch] expected a list of device names, got {devices!r}; try ["vulkan:0"]'
            )
        placement = options.get("placement") or {}
        if not isinstance(placement, Mapping) or not _is_list_of_names(
            [*placement.keys(), *placement.values()]
        ):
            raise VkschedError(
                f"[torch] expected a dict of name patterns to device names, got {placement!r}"
            )
        limit = options.get("limit", LIMIT)
        if type(limit) is not int or limit < 1:
            raise VkschedError(f"[torch] expected a limit of at least 1, got {limit!r}")
        scheduler = options.get("scheduler")
        if scheduler is not None and not isinstance(scheduler, Scheduler):
            raise VkschedError(f"[torch] expected a Scheduler, got {scheduler!r}")
        if scheduler is not None and (devices is not None or options.get("precision")):
            raise VkschedError("[torch] expected a scheduler, or devices and precision, got both")
        return BackendOptions(
            None if devices is None else tuple(devices),
            options.get("precision"),
            tuple(placement.items()),
            limit,
            scheduler,
        )


def _is_list_of_names(values: Any) -> bool:
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    return listed and all(isinstance(value, str) for value in values)


class Runtime:
    """A scheduler, and the graphs and weights on its devices.

    Attributes
    ----------
    weights
        The weights of all graphs of the scheduler.
    memory
        The memory of all graphs of the scheduler.
    """

    def __init__(self, scheduler: Scheduler, options: BackendOptions) -> None:
        self.scheduler = scheduler
        self.placement = dict(options.placement)
        self.limit = options.limit
        with _lock:
            found = _shared.get(scheduler)
            if found is None:
                found = _shared[scheduler] = DeviceMemory(scheduler)
        self.memory, self.weights = found, found.weights

    @property
    def has_gpus(self) -> bool:
        """True if a device has memory that the arrays of PyTorch are copied to."""
        return len(self.scheduler.devices) > 1  # the last one is the CPU


_lock = threading.Lock()
_schedulers: dict[tuple[Any, ...], Scheduler] = {}
_shared: weakref.WeakKeyDictionary[Scheduler, DeviceMemory] = weakref.WeakKeyDictionary()


def open_runtime(options: BackendOptions) -> Runtime:
    """Return a runtime. Equal devices and precision share one scheduler, which stays open."""
    scheduler = options.scheduler
    if scheduler is None:
        key = (options.devices, options.precision)
        with _lock:
            scheduler = _schedulers.get(key)
            if scheduler is None:
                devices = None if options.devices is None else list(options.devices)
                scheduler = Scheduler(devices, precision=options.precision)
                _schedulers[key] = scheduler
    return Runtime(scheduler, options)


def release() -> None:
    """Free the memory on devices of compiled models that no longer exist.

    Otherwise the next compilation on their scheduler frees it. Dynamo refers to the functions that
    it has compiled: call `torch._dynamo.reset()` first.
    """
    gc.collect()  # models and their graphs in reference cycles
    with _lock:
        found = list(_shared.values())
    for memory in found:
        memory.free_unused()


def close_all() -> None:
    """Close the schedulers that this module has opened; later graphs open new ones."""
    with _lock:
        opened = list(_schedulers.values())
        _schedulers.clear()
    for scheduler in opened:
        scheduler.close()


atexit.register(close_all)
