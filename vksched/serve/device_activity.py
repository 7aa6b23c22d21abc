"""DeviceActivityReader: the busy share and memory of each device, for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..engine.graph_registry import GraphRegistry
from ..monitor.watch import Watch
from ..plan.plan import Plan
from ..runtime.run_stats import RunStats


class ObservedScheduler(Protocol):
    """The parts of a scheduler that show its devices."""

    graphs: GraphRegistry
    policy: str

    @property
    def failed_devices(self) -> Mapping[str, str]: ...

    def restore_device(self, name: str) -> None:
        """Use a failed device again."""


class DeviceActivityReader:
    """Reads the activity of a scheduler's devices. scheduler: None shows no devices."""

    def __init__(self, scheduler: ObservedScheduler | None) -> None:
        self._scheduler = scheduler
        self._watch: Watch | None = None
        if scheduler is not None:
            preparing = scheduler.graphs.preparing
            others = preparing.seen
            self._watch = watch = Watch(scheduler.graphs, scheduler.policy)
            if others is not None:  # `vksched top` watches it, too

                def seen(plan: Plan, stats: RunStats) -> None:
                    others(plan, stats)
                    watch.activity.ran(plan, stats)

                preparing.seen = seen

    @property
    def failed_devices(self) -> dict[str, str]:
        """The failed devices: name to reason."""
        return dict(self._scheduler.failed_devices) if self._scheduler else {}

    def devices(self) -> list[dict[str, Any]]:
        """Return the state of each device: its busy share in the last two seconds, and memory."""
        now = self._watch.look() if self._watch else None
        return [
            {
                "name": each.name,
                "label": each.label,
                "busy": round(each.busy, 3),
                "memory_used_bytes": each.memory_used_bytes,
                "memory_total_bytes": each.memory_total_bytes,
                "problem": each.problem,
            }
            for each in (now.devices if now else ())
        ]
