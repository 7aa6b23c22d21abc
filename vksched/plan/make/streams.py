"""Streams: which weights of host memory are worth a try elsewhere than the rule of thumb has them.

Problem: where memory is short, nodes whose weights stay in host memory run on the CPU, or have the
weights streamed to a device. A rule says which: so many flops for each byte. It knows neither the
link nor the CPU. Method: a draft by the rule is simulated, and so are drafts with all such weights
streamed, and with none, unless what these take at least is more than the first draft takes already.

    draft by the rule: 25 ms --> none streamed: 61 ms on the CPU at least, not tried
                            '--> all streamed: 9 ms of links at least, tried

Complexity: O(edges). Examples: tests/plan/test_windows.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ..cost import COPY_IN, submission_seconds
from ..simulate import link_seconds
from ..support import Support
from .draft import Draft
from .placing import Wishes
from .split import STREAMED_TOGETHER


def other_streams(
    support: Support, wishes: Wishes, draft: Draft, latency_s: float
) -> Iterator[Wishes]:
    """Yields wishes under which other weights are streamed, which may make a run shorter.

    draft: what came of `wishes`, where memory is short. latency_s: what a run of that takes.
    """
    is_cpu, data = support.machine.is_cpu, support.graph.data
    streamed = {v for o in draft.outlines for v, _ in o.entering if v in data}
    by_cpu = [n for o in draft.outlines if is_cpu(o.device) for n in o.nodes]
    if streamed and _seconds_on_cpu(support, streamed) < latency_s:
        yield replace(wishes, streams=math.inf)
    if by_cpu and _seconds_of_streams(support, by_cpu) < latency_s:
        yield replace(wishes, streams=0.0)


def _seconds_on_cpu(support: Support, weights: Iterable[int]) -> float:
    """Returns what the CPU takes for the nodes that read some weights."""
    readers = {reader for weight in weights for reader in support.readers[weight]}
    return sum(support.node_seconds(n, support.machine.cpu) for n in sorted(readers))


def _seconds_of_streams(support: Support, nodes: Iterable[int]) -> float:
    """Returns what it takes at least to stream the weights of some nodes to one device: the link,
    or the submissions.
    """
    machine, graph = support.machine, support.graph
    read = {w for n in nodes for w in support.operands[n] if w in graph.data}
    sizes = [graph.nodes[w].type.device_bytes for w in read if graph.nodes[w].op == "weight"]
    if not any(sizes):
        return math.inf
    submissions = sum(sizes) / (STREAMED_TOGETHER * max(sizes))
    return min(
        max(
            link_seconds(machine, device, COPY_IN, sum(sizes)),
            submissions * submission_seconds(spec),
        )
        for device, spec in enumerate(machine.devices)
        if spec.kind != "cpu"
    )
