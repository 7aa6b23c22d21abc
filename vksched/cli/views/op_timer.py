"""Op timer: seconds per device and op kind, from the events of runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...runtime.run_stats import RunStats
from ...trace import Event


@dataclass
class OpTimer:
    """A trace sink that sums times.

    The time of a split is distributed over its ops as the planner estimates; with
    submit_granularity="op" a split is one op. graphs: runs of graphs. seconds: host time of these
    and of ops between them. by_op: (device, op) -> seconds.
    """

    graphs: int = 0
    seconds: float = 0.0
    fence_waits: int = 0
    transfer_bytes: int = 0
    by_device: dict[str, float] = field(default_factory=dict)
    by_op: dict[tuple[str, str], float] = field(default_factory=dict)
    _splits: dict[tuple[int, object], dict[str, float]] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        stats, ops = event.fields.get("stats"), event.fields.get("ops")
        if event.name == "split" and isinstance(ops, dict):
            self._splits[event.run, event.fields["split"]] = ops
        if event.name == "host_op":
            self._add_step(event)
        if not isinstance(stats, RunStats):
            return
        self.graphs += 1
        self.seconds += stats.seconds
        self.fence_waits += stats.fence_waits
        self.transfer_bytes += stats.transfer_bytes
        for device, seconds in stats.device_seconds.items():
            self.by_device[device] = self.by_device.get(device, 0.0) + seconds
        for split in stats.splits:
            shares = self._splits.pop((event.run, split.split), {})
            total = sum(shares.values())
            for op, share in shares.items():
                part = share / total if total else 1 / len(shares)
                key = (split.device, op)
                self.by_op[key] = self.by_op.get(key, 0.0) + part * split.device_s

    def _add_step(self, event: Event) -> None:
        seconds, key = event.end_s - event.start_s, (event.device, str(event.fields["op"]))
        self.seconds += seconds
        self.by_device[event.device] = self.by_device.get(event.device, 0.0) + seconds
        self.by_op[key] = self.by_op.get(key, 0.0) + seconds

    def clear(self) -> None:
        """Reset all sums."""
        self.__init__()  # type: ignore[misc]
