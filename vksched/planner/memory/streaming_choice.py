"""Streaming choice: alternatives to the default choice of streamed weights.

Problem: if memory is short, nodes whose weights stay in host memory run on the CPU, or their
weights are streamed to a device. The default rule is a threshold of flops per byte, which ignores
the speed of the link and of the CPU. Weights beyond a cap are streamed one after the other, so that
a slow link stalls the device. Method: simulate the default draft, drafts with all weights streamed
and with none, and a draft that streams as many bytes, spread evenly among the weights that fit.
Alternatives whose lower bound exceeds the default draft are not tried.

    default draft: 25 ms --> none streamed: at least 61 ms on the CPU, not tried
       w0 w1 w2 w3 [w4 w5]  '--> all streamed: at least 9 ms of links, tried
                            '--> w0 [w1] w2 w3 [w4] w5: the link works all the time, tried

Complexity: O(edges). Examples: tests/planner/test_streaming_windows.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from ...common.formatting import count_of
from ...plan.costs.node_cost import COPY_IN, submission_seconds
from ...plan.costs.op_support import OpSupport
from ...plan.simulation.simulate_plan import link_seconds
from ..partition.splits import STREAMED_TOGETHER
from ..placement.candidate_devices import PlacementHints
from .draft import PlanDraft

MIN_WEIGHT_SHARE = 0.125
"""Weights smaller than this fraction of the largest streamed weight are never streamed evenly."""


def other_streams(
    support: OpSupport, hints: PlacementHints, draft: PlanDraft, latency_s: float
) -> Iterator[PlacementHints]:
    """Yield hints under which other weights are streamed, which may shorten a run.

    draft: the draft of `hints`, for which memory is short. latency_s: its simulated latency.
    """
    is_cpu, data = support.topology.is_cpu, support.graph.data
    streamed = {v for o in draft.split_drafts for v, _ in o.live_in if v in data}
    by_cpu = [n for o in draft.split_drafts if is_cpu(o.device) for n in o.nodes]
    if streamed and _seconds_on_cpu(support, streamed) < latency_s:
        yield replace(hints, streams=math.inf)
    if by_cpu and _seconds_of_streams(support, by_cpu) < latency_s:
        yield replace(hints, streams=0.0)
    spread = _spread(support, draft) - hints.spread
    if spread:
        yield replace(hints, spread=spread)


def _seconds_on_cpu(support: OpSupport, weights: Iterable[int]) -> float:
    """Return the seconds of the CPU for the readers of some weights."""
    readers = {reader for weight in weights for reader in support.readers[weight]}
    return sum(support.node_seconds(n, support.topology.cpu) for n in sorted(readers))


def _seconds_of_streams(support: OpSupport, nodes: Iterable[int]) -> float:
    """Return a lower bound of the seconds to stream the weights of some nodes to one device: the
    time of the link or of the submissions.
    """
    topology, graph = support.topology, support.graph
    read = {w for n in nodes for w in support.operands[n] if w in graph.data}
    sizes = [graph.nodes[w].type.device_bytes for w in read if graph.nodes[w].op == "weight"]
    if not any(sizes):
        return math.inf
    submissions = sum(sizes) / (STREAMED_TOGETHER * max(sizes))
    return min(
        max(
            link_seconds(topology, device, COPY_IN, sum(sizes)),
            submissions * submission_seconds(spec),
        )
        for device, spec in enumerate(topology.devices)
        if spec.kind != "cpu"
    )


def spill_reasons(spills: Sequence[str], spread: Collection[int]) -> list[str]:
    """Return why weights are streamed, as text. spills: the reasons of the draft before."""
    if not spread:
        return []
    count = count_of(len(spread), "weight")
    evenly = f"{count}, spread evenly, {'stay' if len(spread) > 1 else 'stays'}"
    return [f"{each.partition(';')[0]}; {evenly} in host memory" for each in spills]


def _spread(support: OpSupport, draft: PlanDraft) -> frozenset[int]:
    """Return weights to stream instead of those that a draft streams, as many bytes, spread evenly
    among all weights of their devices; none if copies take no longer than the work that hides them.
    """
    topology, data = support.topology, support.graph.data
    out: set[int] = set()
    for device, spec in enumerate(topology.devices):
        here = [o for o in draft.split_drafts if o.device == device]
        streamed = [v for o in here for v, _ in o.live_in if v in data]
        hidden = spec.limits.copy_queue or any(o.refills for o in here)
        if streamed and hidden and _holds_up(support, device, streamed):
            there = support.resident.get(device, frozenset())
            others = [w for w in draft.memory[device].weights if w not in there]
            out |= _evenly(support, streamed, others)
    return frozenset(out)


def _holds_up(support: OpSupport, device: int, streamed: Sequence[int]) -> bool:
    """Return True if copies of weights take longer than the nodes that read them."""
    sizes = [support.graph.nodes[w].type.device_bytes for w in streamed]
    copies_s = sum(link_seconds(support.topology, device, COPY_IN, size) for size in sizes)
    readers = {reader for weight in streamed for reader in support.readers[weight]}
    return copies_s > sum(support.node_seconds(n, device) for n in sorted(readers))


def _evenly(support: OpSupport, streamed: Sequence[int], resident: Sequence[int]) -> set[int]:
    """Return as many bytes of weights as are streamed, spread evenly among these and the resident
    weights of a device, in the order of their readers; small ones are excluded.
    """
    size = {w: support.graph.nodes[w].type.device_bytes for w in (*streamed, *resident)}
    largest = max(size[w] for w in streamed)
    every = [
        w
        for w in sorted(size, key=lambda w: (min(support.readers[w], default=0), w))
        if support.graph.nodes[w].op == "weight" and size[w] > MIN_WEIGHT_SHARE * largest
    ]
    share = sum(size[w] for w in streamed) / sum(size.values())
    out: set[int] = set()
    owed = 0.0
    for weight in every:
        owed += share * size[weight]
        if 2 * owed >= size[weight]:
            out.add(weight)
            owed -= size[weight]
    return out
