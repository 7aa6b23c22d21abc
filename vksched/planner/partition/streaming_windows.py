"""Streaming buffers: let streamed weights share staging buffers.

Problem: the host writes a streamed weight into a staging buffer. With one buffer for each weight,
staging takes as much memory as the weights. A discrete GPU has its staging buffers in host memory,
and each weight has one there, written before the first run. Method: if staging buffers are in
device memory, or if host memory is short, splits reuse a few sets of staging buffers. In each run,
the host writes the weights of a split once the split that used the set before is complete. With two
sets it writes those of the next split while the device computes.

    device   [ split 0: w0 ][ split 1: w1 ][ split 2: w2 ][ split 3: w3 ]
    host     w0 | w1        | w2 over w0   | w3 over w1   |

Complexity: O(splits). The places of staging buffers: staging.py. Examples:
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

    `shared` are the devices whose splits share staging buffers; `sets` is the number of splits of a
    device whose weights are in staging buffers at once.
    """

    shared: frozenset[int]
    sets: int = 2

    @staticmethod
    def of(topology: Topology, ahead: bool = True, scarce: bool = False) -> StreamingBuffers:
        """Return the streaming buffers of a machine.

        ahead: the host writes the weights of the next split while the device computes. scarce: host
        memory is short, so devices with staging buffers there share them, too.
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
        """Return for each split whether the host writes its weights in each run. If a device has no
        more splits with weights than sets, each split has a set of its own.

        devices: the device of each split. live_in: the uploads of each split.
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
        """Return for each split the previous user of its set of staging buffers, or HOST."""
        users: dict[int, list[int]] = {}
        out: list[int] = []
        for number, (here, refilled) in enumerate(zip(devices, refills, strict=True)):
            own = users.setdefault(here, [])
            out.append(own[-self.sets] if refilled and len(own) >= self.sets else HOST)
            if refilled:
                own.append(number)
        return out
