"""Streaming buffers: which weights of host memory take turns in the memory through which the host
hands them to a device.

Problem: a weight that is streamed in lies in a staging buffer, memory that the host sees. A staging
buffer for each weight takes as much as the weights do. A card with memory of its own has its
staging buffers in the computer's memory, and each weight has one there, written before the first
run. Method: where staging buffers lie in the device's memory, or the computer's is too small,
splits take turns in a few sets of staging buffers. In each run the host writes the weights of a
split once the split that had the set before is complete. With two sets it writes those of the next
split while the device works.

    device   [ split 0: w0 ][ split 1: w1 ][ split 2: w2 ][ split 3: w3 ]
    host     w0 | w1        | w2 over w0   | w3 over w1   |

Complexity: O(splits). Where staging buffers lie: inbox.py. Examples:
tests/planner/test_streaming_windows.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...ir.graph import Graph
from ...plan.types.plan_types import HOST
from ...topology.topology import Topology


@dataclass(frozen=True, slots=True)
class StreamingBuffers:
    """Which staging buffers are reused in a run, and how often.

    shared: devices whose splits take turns. sets: how many splits of a device have their weights in
    staging buffers at once.
    """

    shared: frozenset[int]
    sets: int = 2

    @staticmethod
    def of(topology: Topology, ahead: bool = True, scarce: bool = False) -> StreamingBuffers:
        """Return the staging buffers of a machine.

        ahead: the host writes the weights of the next split while the device works. scarce: the
        computer has little memory: devices with staging buffers there share them, too.
        """
        shared = {
            device
            for device, spec in enumerate(topology.devices)
            if spec.kind != "cpu" and (scarce or spec.unified_memory)
        }
        return StreamingBuffers(frozenset(shared), 2 if ahead else 1)

    def refills(
        self, graph: Graph, devices: Sequence[int], live_in: Sequence[Collection[int]]
    ) -> list[bool]:
        """Return for each split whether the host writes its weights in each run. Where a device
        has no more of them than sets, each has a set of its own.

        devices: of each split. live_in: the values that it copies in.
        """
        out = [
            here in self.shared and any(value in graph.data for value in values)
            for here, values in zip(devices, live_in, strict=True)
        ]
        counts = dict.fromkeys(self.shared, 0)
        for here, refills in zip(devices, out, strict=True):
            if refills:
                counts[here] += 1
        return [
            refills and counts[here] > self.sets for here, refills in zip(devices, out, strict=True)
        ]

    def had_before(self, devices: Sequence[int], refills: Sequence[bool]) -> list[int]:
        """Return for each split the one that had its set of staging buffers before, or HOST."""
        turns: dict[int, list[int]] = {}
        out: list[int] = []
        for number, (here, refilled) in enumerate(zip(devices, refills, strict=True)):
            own = turns.setdefault(here, [])
            out.append(own[-self.sets] if refilled and len(own) >= self.sets else HOST)
            if refilled:
                own.append(number)
        return out
