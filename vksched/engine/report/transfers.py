"""Transfer volume: what each device hands on to others in a run, and how much of it for sums over
devices.

A sum over n devices as `vksched.parallel` cuts it takes 2 (n - 1) / n of its bytes from each.
Complexity: O(copies). Examples: tests/engine/test_config_run.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...common.formatting import format_bytes
from ...plan.types.query import copied_bytes, transfers
from .run_history import WholeRun


@dataclass(frozen=True, slots=True)
class TransferVolume:
    """Bytes that other devices read of one device in a run. sums_bytes: those of them that are
    terms or results of sums over devices.
    """

    device: str
    all_bytes: int
    sums_bytes: int

    def line(self) -> str:
        """Return it as a sentence."""
        for_sums = ""
        if self.sums_bytes:
            part = "all" if self.sums_bytes == self.all_bytes else format_bytes(self.sums_bytes)
            for_sums = f", {part} of it for sums over devices"
        return f"{self.device} hands {format_bytes(self.all_bytes)} on to other devices{for_sums}"


def transfer_volumes(run: WholeRun) -> tuple[TransferVolume, ...]:
    """Returns what the devices of a run hand on, those that do so, by name."""
    whole: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for graph in run.graphs:
        plan, marked = graph.plan, graph.options.all_reduce_nodes
        for copy in transfers(plan):
            device = plan.topology.devices[plan.splits[copy.source].device].name
            size = copied_bytes(plan, (copy,))
            whole[device] += size
            if plan.graph.nodes[copy.node].name in marked:
                sums[device] += size
    return tuple(
        TransferVolume(device, size, sums[device]) for device, size in sorted(whole.items())
    )
