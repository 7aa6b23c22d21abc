"""Transfer volume: the bytes that each device sends to others in a run, and the part for
all-reduces.

An all-reduce over n devices, as `vksched.parallel` partitions it, reads 2 (n - 1) / n of its bytes
from each device. Complexity: O(copies). Examples: tests/engine/test_config_run.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ...common.formatting import format_bytes
from ...plan.types.query import copied_bytes, transfers
from .run_history import WholeRun


@dataclass(frozen=True, slots=True)
class TransferVolume:
    """The bytes that other devices read from one device in a run. sums_bytes: the part of them that
    are terms or results of all-reduces.
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
    """Return the transfer volumes of the devices with transfers, by name."""
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
