"""DeviceSubset: some devices of a scheduler, as the steps of a replica see them.

    scheduler: vulkan:0, vulkan:1, cpu
    replica 0: vulkan:0, cpu     replica 1: vulkan:1, cpu

Graphs are compiled by the scheduler, with a placement that names the devices of the subset.
Examples: tests/generation/device_split/test_device_subset.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...common.errors import StateLost
from ...engine.graph_cache import DeferredGraph
from ...topology.edit import some
from ..compiled_steps import CompilingScheduler, DeviceNames

if TYPE_CHECKING:
    from ...common.dtypes import Progress
    from ...engine.compile_options import Placements
    from ...engine.executable import CompiledGraph
    from ...engine.request_precision import Precision
    from ...ir.build_graph import Outputs, Updates
    from ...ir.tensor import Tensor
    from ...plan.plan import Plan
    from ...runtime.device import Device
    from ...topology.topology import Topology


class DeviceSubset:
    """The `CompilingScheduler` with some devices of another one, and the CPU for what they do not
    support.

    Once all of them have failed, compiling is an error until `use_all` was called.
    """

    def __init__(self, scheduler: CompilingScheduler, names: Sequence[str]) -> None:
        self._scheduler = scheduler
        self._names = tuple(names)
        self._may_use_all = False
        self.policy = scheduler.policy
        self.with_cpu = False

    @property
    def is_working(self) -> bool:
        """Return True if a device of the subset works."""
        return bool(self._working())

    def use_all(self) -> None:
        """Use the scheduler's other devices once those of the subset have failed."""
        self._may_use_all = True

    @property
    def topology(self) -> Topology:
        """The subset's working devices; all devices if there are none.

        Raises
        ------
        StateLost
            All devices of the subset have failed, and others may not be used.
        """
        names = self._working()
        if names:
            return some(self._scheduler.topology, names)
        if self._may_use_all:
            return self._scheduler.topology
        raise StateLost(
            f"[split] expected a working device of {', '.join(self._names)}, got failures: "
            f"{'; '.join(self._scheduler.failed_devices.values())}"
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the subset, the CPU last."""
        devices = self._scheduler.devices
        own = tuple(device for device in devices[:-1] if device.name in self._names)
        return (*own, devices[-1])

    @property
    def precision(self) -> str | None:
        return self._scheduler.precision

    @property
    def failed_devices(self) -> Mapping[str, str]:
        return self._scheduler.failed_devices

    @property
    def graphs(self) -> DeviceNames:
        return self._scheduler.graphs

    def compile(
        self,
        outputs: Outputs | DeferredGraph,
        placement: Placements | None = None,
        progress: Progress | None = None,
        *,
        updates: Updates | None = None,
        precision: Precision | None = None,
        ahead: bool = False,
    ) -> CompiledGraph:
        """Compile a graph for the subset; see `Scheduler.compile`."""
        if isinstance(outputs, DeferredGraph):
            outputs = replace(outputs, key=None)  # cached graphs have no placement
        pinned = self._pinned(placement)
        return self._scheduler.compile(
            outputs, pinned, progress, updates=updates, precision=precision, ahead=ahead
        )

    def reserve(
        self,
        outputs: Outputs,
        placement: Placements | None = None,
        *,
        updates: Updates | None = None,
        precision: Precision | None = None,
    ) -> Plan:
        """Return the plan of `compile` without allocating anything."""
        pinned = self._pinned(placement)
        return self._scheduler.reserve(outputs, pinned, updates=updates, precision=precision)

    def delete_state(self, state: Tensor) -> None:
        self._scheduler.delete_state(state)

    def _working(self) -> list[str]:
        failed = self._scheduler.failed_devices
        return [name for name in self._names if name not in failed]

    def _pinned(self, placement: Placements | None) -> Placements:
        """Return a placement in which all other names are on the first working device."""
        names = self._working()
        pinned: dict[Any, str] = {"*": names[0]} if names else {}
        return pinned | dict(placement or {})
