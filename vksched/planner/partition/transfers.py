"""Asynchronous transfers: choose the copies that run on the transfer queue of a device.

Problem: a compute queue does not copy while it computes, although GPUs have copy engines. Method:
large uploads and downloads of a split are submitted to the transfer queue. Their upload buffers are
allocated from the start of the previous split, so that they are filled while it computes. A value
downloaded through the transfer queue stays allocated until the host has waited for the download.

    work        [ split 0 ][ split 1     ][ split 2     ]
    copies  [in 0][ in 1 ]  [out 0][ in 2 ][out 1][in 3 ]

An upload waits for the last compute stage that uses its memory for another value; the compute stage
waits for its uploads. The transfer queue executes submissions in order. A download has to wait for
its compute stage, so it is submitted after the uploads of the next split of its device, which can
run earlier, or when the host waits for it, if that is sooner. Small copies stay on the compute
queue: they take less time than another submission.

Dependencies: stage_deps.py. Complexity: O(values + splits). Examples:
tests/planner/test_transfers.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from ...ir.graph import Graph
from ...plan.types.plan_types import DOWNLOAD, UPLOAD
from ...topology.device_spec import DeviceSpec

MIN_BYTES = 1 << 20
"""Minimum bytes of all uploads, or downloads, of a split that justify another submission."""


def choose_async_transfers(
    spec: DeviceSpec, graph: Graph, live_in: Collection[int], live_out: Collection[int]
) -> tuple[str, ...]:
    """Return the stages of a split that run on the transfer queue of its device."""
    if spec.kind == "cpu" or not spec.limits.copy_queue:
        return ()
    values = {UPLOAD: live_in, DOWNLOAD: live_out}
    return tuple(
        stage
        for stage in (UPLOAD, DOWNLOAD)
        if sum(graph.nodes[v].type.device_bytes for v in values[stage]) >= MIN_BYTES
    )


def ends_of_copies(
    devices: Sequence[int], waits: Sequence[Sequence[int]], device: int
) -> dict[int, int]:
    """Return for each split of a device the first split, of any device, before which the host has
    waited for its downloads; the number of splits if that is the end of the run.

    devices, waits: the device and the waits of each split.
    """
    own = [at for at, here in enumerate(devices) if here == device]
    out = dict.fromkeys(own, len(devices))
    seen = 0
    for at in range(len(devices)):
        for waited in waits[at]:
            while seen < len(own) and devices[waited] == device and own[seen] <= waited:
                out[own[seen]] = at
                seen += 1
    return out


def follow(
    devices: Sequence[int],
    waits: Sequence[Sequence[int]],
    async_transfers: Sequence[Collection[str]],
) -> tuple[list[tuple[int, ...]], list[int]]:
    """For each split return (i) the earlier split whose downloads are submitted after it, if any,
    and (ii) the index on its device of the first split that may overwrite the downloaded memory.
    """
    deferred_downloads: list[tuple[int, ...]] = [() for _ in devices]
    free_at = [0] * len(devices)
    giving = [
        here
        for here, async_transfers in zip(devices, async_transfers, strict=True)
        if DOWNLOAD in async_transfers
    ]
    for device in dict.fromkeys(giving):
        ends = ends_of_copies(devices, waits, device)
        own = list(ends)
        for at, split in enumerate(own):
            free_at[split] = bisect_left(own, ends[split], at + 1)
            if DOWNLOAD in async_transfers[split] and free_at[split] > at + 1:
                deferred_downloads[own[at + 1]] = (split,)
    return deferred_downloads, free_at
