"""Aside: which copies a device's own copy queue makes.

Problem: a queue that computes copies nothing meanwhile, while cards have engines that do just that.
Method: large copies in and out of a split become submissions to the copy queue. Values that come
in so have their memory from the start of the split before, so that they come while that one works.
Values that leave so keep theirs until the host waits for them.

    work        [ split 0 ][ split 1     ][ split 2     ]
    copies  [in 0][ in 1 ]  [out 0][ in 2 ][out 1][in 3 ]

A copy in waits for the last work that uses its memory for something else; the work for its copies
in. A copy queue does its submissions in order. So a copy out, which has to wait for its work, is
submitted behind the copies in of its device's next split, which could go on before, and where the
host waits earlier than that, then. Small copies stay in the work: they take less than another
submission.

What waits for what: orders.py. Complexity: O(values + splits). Examples:
tests/planner/test_transfers.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence

from ...ir.graph import Graph
from ...plan.types.plan_types import DOWNLOAD, UPLOAD
from ...topology.device_spec import DeviceSpec

MIN_BYTES = 1 << 20
"""Of all copies in, or out, of a split: what takes a bus longer than a driver another submission.
"""


def choose_async_transfers(
    spec: DeviceSpec, graph: Graph, live_in: Collection[int], live_out: Collection[int]
) -> tuple[str, ...]:
    """Return the stages of a split that its device's copy queue carries out."""
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
    """Return for each split of a device the first one, of any device, before which the host has
    waited for its copies out; the number of splits where that is the end of the run.

    devices, waits: of each split.
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
    """Return for each split the earlier one, if any, whose copies out are submitted behind it, and
    the position, among the splits of its device, of the first one that may write over what it
    copies out.
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
