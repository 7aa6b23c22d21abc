"""Splits: group nodes into submissions with an order, transfers and host waits.

Problem: few submissions and waits, but early starts. Method: the transfer depth of a node is the
largest number of transfers on a path to it. Nodes of one device and one depth form a split; by
construction, splits have no cycles. Within a depth, the ancestors of transferred values form a
split of their own that goes first, so that the other device can start. A split is divided if it
would occupy its device too long, where a weight is streamed, so that the weight is there no longer
than needed, after an observed value, and where `submit_granularity` of the device requires it. If
nodes have pipeline positions, nodes of one position form splits of their own, and each device runs
its positions in order. Splits are ordered by the estimated time at which their dependencies are
complete; those that write states are last.

    gpu:0   a0 -> a1 ----------> a4        depth 0: {a0, a1} early, {a2} late     depth 2: {a4}
             \\-> a2     \\        ^
    gpu:1                 b3 -----/         depth 1: {b3}

Complexity: O(edges + splits * devices). Examples: tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set

from ...plan.costs.op_support import OpSupport
from ...plan.types.early_commits import may_commit_early
from ...plan.types.plan_types import HOST, Placement, value_of
from ...plan.types.split_draft import SUBMISSION_S, SplitDraft
from ...topology.host_names import DRIVER
from ...topology.topology import Topology
from .in_place import InPlace, find_in_place
from .streaming_windows import StreamingBuffers
from .transfers import choose_async_transfers, follow

STREAMED_TOGETHER = 1.25
"""Maximum bytes that one submission streams, as a multiple of the largest weight in host memory, so
that biases are streamed with their weights. All uploads of a submission complete before it starts.
"""


def split_graph(
    support: OpSupport,
    placements: Sequence[Placement],
    streaming_buffers: StreamingBuffers | None = None,
) -> tuple[tuple[SplitDraft, ...], tuple[int, ...]]:
    """Return the splits in submission order, and the splits to wait for at the end.

    streaming_buffers: by default those of the machine.
    """
    graph, is_cpu = support.graph, support.topology.is_cpu
    roots = graph.view_bases
    device = {n.id: placements[n.id].device for n in support.computed}
    in_host = {w.id: w.type.device_bytes for w in graph.weights if is_cpu(placements[w.id].device)}
    in_place = find_in_place(support, device, in_host)
    commits = _commits(support, device, in_place)
    groups = _by_ready_time(support, device, _group(support, device, in_host, commits))
    run = len(groups)
    groups += commits
    shown = support.observed_roots
    of_node = {n: position for position, nodes in enumerate(groups) for n in nodes}
    live_in: list[dict[int, int]] = [{} for _ in groups]
    live_out: list[dict[int, None]] = [{} for _ in groups]
    whole = _read_whole(support, device)
    present: set[tuple[int, int]] = set()
    for position, nodes in enumerate(groups):
        here = device[nodes[0]]
        for node_id in nodes:
            for operand in graph.nodes[node_id].inputs:
                root = roots[operand]
                stays = root in graph.data and (is_cpu(here) or root not in in_host)
                if stays or device.get(root) == here:
                    continue
                value = root if (here, root) in whole else value_of(graph, operand, False)
                if (here, value) in present:
                    continue
                present.add((here, value))
                if root in device:
                    live_in[position][value] = of_node[root]
                    live_out[of_node[root]][value] = None
                else:
                    live_in[position][value] = HOST
    returned = (
        *(output for _, output in graph.outputs),
        *graph.backed_up_states,
        *support.observed,
    )
    for value in returned:
        root = graph.view_base(value)
        if root in of_node:
            live_out[of_node[root]][value_of(graph, value, False)] = None
    devices = [device[nodes[0]] for nodes in groups]
    streaming_buffers = streaming_buffers or StreamingBuffers.of(support.topology)
    refills = streaming_buffers.refills(graph, devices, live_in)
    before = streaming_buffers.had_before(devices, refills)
    specs, host_of = support.topology.devices, support.topology.host_of
    alone = {host_of(device) for device in devices} <= {
        DRIVER
    }  # waits of host subplans are computed anew
    async_transfers = [
        choose_async_transfers(specs[devices[i]], graph, live_in[i], live_out[i])
        if alone and i < run
        else ()
        for i in range(len(groups))
    ]
    is_early = (
        0 < run < len(groups)
        and not (shown or any(async_transfers) or any(refills))
        and _commits_early(support, devices, groups)
    )
    waits = _find_waits(
        support.topology,
        devices,
        [(*e.values(), had) for e, had in zip(live_in, before, strict=True)],
        live_out,
        {i for i, nodes in enumerate(groups) if not shown.isdisjoint(nodes)},
        run,
        is_early,
    )
    observed: list[list[int]] = [[] for _ in groups]
    for value in support.observed:
        observed[of_node[graph.view_base(value)]].append(value)
    handed_over, free_at = follow(devices, waits, async_transfers)
    split_drafts = tuple(
        SplitDraft(
            devices[i],
            nodes,
            tuple(live_in[i].items()),
            tuple(live_out[i]),
            waits[i],
            tuple(observed[i]),
            tuple((n, in_place.states[n]) for n in nodes if n in in_place.states),
            async_transfers[i],
            handed_over[i],
            refills[i],
            free_at[i],
        )
        for i, nodes in enumerate(groups)
    )
    return split_drafts, waits[-1]


def _read_whole(support: OpSupport, device: Mapping[int, int]) -> set[tuple[int, int]]:
    """Return (device, value) pairs of values read whole; their views need no transfer."""
    graph = support.graph
    return {
        (device[node.id], value)
        for node in support.computed
        for operand in node.inputs
        if (value := value_of(graph, operand, False)) == graph.view_bases[operand]
    }


def _commits(
    support: OpSupport, device: dict[int, int], in_place: InPlace
) -> list[tuple[int, ...]]:
    """Return the splits that write the next values of states, one per device.

    They run last, so that a run that fails earlier has changed no state. Nodes that write in place
    come first, then copies of the other values. States that nothing else reads are included, too.
    """
    graph = support.graph
    read = {graph.view_base(output) for _, output in graph.outputs} | support.observed_roots
    commits: dict[int, tuple[list[int], list[int], list[int]]] = {}
    written, moved = set(in_place.states.values()), set(in_place.order)
    for node_id, state in graph.states.items():
        held, _, copied = commits.setdefault(device[state], ([], [], []))
        if node_id != state and state not in written:
            copied.append(node_id)
        readers = support.readers[node_id] if node_id == state and state not in read else ()
        if readers and all(
            graph.nodes[r].op == "assign" or (r in moved and device[r] == device[state])
            for r in readers
        ):
            held.append(node_id)
    for node_id in in_place.order:
        commits[device[node_id]][1].append(node_id)
    parts = [(sorted(held), nodes, sorted(copied)) for held, nodes, copied in commits.values()]
    return [(*held, *nodes, *copied) for held, nodes, copied in parts if nodes or copied]


def _group(
    support: OpSupport,
    device: dict[int, int],
    in_host: Mapping[int, int],
    commits: Sequence[tuple[int, ...]],
) -> list[tuple[int, ...]]:
    """Return the nodes of each split except commits, in submission and execution order."""
    apart = {node_id for nodes in commits for node_id in nodes}
    computed = [n for n in support.computed if n.id not in apart and n.op != "assign"]
    depth: dict[int, int] = {}
    for node in computed:
        here, deepest = device[node.id], 0
        for source in support.operands[node.id]:
            if source in depth:
                deepest = max(deepest, depth[source] + (device[source] != here))
        depth[node.id] = deepest
    early: set[int] = set()
    pipeline_order = support.pipeline_order
    for node in reversed(computed):
        here, own = device[node.id], (pipeline_order[node.id], depth[node.id])
        for reader in support.readers[node.id]:
            if device[reader] != here or (
                reader in early and (pipeline_order[reader], depth[reader]) == own
            ):
                early.add(node.id)
                break
    buckets: dict[tuple[int, int, bool, int], list[int]] = {}
    for node in computed:
        key = (pipeline_order[node.id], depth[node.id], node.id not in early, device[node.id])
        buckets.setdefault(key, []).append(node.id)
    return [
        part
        for key in sorted(buckets)
        for part in _cut(support, key[3], _by_level(support, buckets[key]), in_host)
    ]


def _cut(
    support: OpSupport, device: int, levels: list[tuple[int, int]], in_host: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Divide a split of (level, node) pairs into submissions that suit its device."""
    spec = support.topology.devices[device]
    parts: list[list[int]] = []
    total_s, streamed_bytes, before, shown = 0.0, 0, -1, False
    most_bytes = STREAMED_TOGETHER * max(in_host.values(), default=0)
    for level, node_id in levels:
        seconds, comes_bytes, starts = 0.0, 0, not parts or shown
        starts |= spec.submit_granularity == "op" or (
            spec.submit_granularity == "level" and level != before
        )
        if spec.kind != "cpu":
            seconds = support.longest_seconds(node_id, device)
            starts |= total_s + seconds > SUBMISSION_S
            if in_host:
                comes_bytes = sum(in_host.get(i, 0) for i in support.operands[node_id])
                starts |= streamed_bytes + comes_bytes > most_bytes
        if starts:
            parts.append([])
            total_s, streamed_bytes = 0.0, 0
        parts[-1].append(node_id)
        total_s += seconds
        streamed_bytes += comes_bytes
        before, shown = level, node_id in support.observed_roots
    return [tuple(part) for part in parts]


def _by_ready_time(
    support: OpSupport, device: dict[int, int], groups: list[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Order splits by the estimated time at which their dependencies are complete, without
    reordering those of one device.

    The host waits in this order: a late split must not delay one that could start at once.
    """
    of_node = {n: position for position, nodes in enumerate(groups) for n in nodes}
    after: list[list[int]] = [[] for _ in groups]
    waits, ready_s = [0] * len(groups), [0.0] * len(groups)
    queues: dict[int, deque[int]] = {}
    for position, nodes in enumerate(groups):
        queues.setdefault(device[nodes[0]], deque()).append(position)
        sources = {of_node[p] for n in nodes for p in support.operands[n] if p in of_node}
        for source in sources - {position}:
            after[source].append(position)
            waits[position] += 1
    free_s = dict.fromkeys(queues, 0.0)
    order: list[int] = []
    while len(order) < len(groups):
        heads = [(queue[0], here) for here, queue in queues.items() if queue]
        ready = [(ready_s[first], first, here) for first, here in heads if not waits[first]]
        start_s, position, here = min(ready)
        queues[here].popleft()
        seconds = support.split_seconds(groups[position], here)
        done_s = free_s[here] = max(free_s[here], start_s) + seconds
        for other in after[position]:
            waits[other] -= 1
            ready_s[other] = max(ready_s[other], done_s)
        order.append(position)
    return [groups[position] for position in order]


def _by_level(support: OpSupport, nodes: list[int]) -> list[tuple[int, int]]:
    """Order nodes by the longest path to them within the split, as (length, node), so that
    independent ones are adjacent. An upload counts as a step of the path.

    A result larger than its operands is computed as late as its first reader allows, so that values
    derived from the weights of all layers are not live from the start.
    """
    held = support.graph.data.keys() | support.graph.initial.keys()
    operands = support.operands
    level: dict[int, int] = {}
    for node_id in nodes:
        above = [0 if p in held else level.get(p, 0) + 1 for p in operands[node_id]]
        level[node_id] = max(above, default=0)
    words = support.graph.words
    for node_id in reversed(nodes):
        below = [level[r] for r in support.readers[node_id] if r in level]
        if below and min(below) - 1 > level[node_id]:
            taken = sum(words[p] for p in operands[node_id] if p not in held)
            if words[node_id] > taken:
                level[node_id] = min(below) - 1
    return sorted([(level[n], n) for n in nodes])


def _commits_early(
    support: OpSupport, devices: Sequence[int], groups: Sequence[tuple[int, ...]]
) -> bool:
    """Return True if states are written without a wait for the results. Ctrl-C then waits for all
    of the work, so it must be brief.
    """
    nodes = [node_id for each in groups for node_id in each]
    if not may_commit_early(support.graph, support.topology, devices, nodes):
        return False
    seconds = [support.longest_seconds(node_id, devices[0]) for node_id in nodes]
    return sum(seconds) <= SUBMISSION_S


def _find_waits(
    topology: Topology,
    devices: Sequence[int],
    sources: Sequence[Iterable[int]],
    live_out: Sequence[dict[int, None]],
    shown: Set[int],
    run: int,
    is_early: bool,
) -> list[tuple[int, ...]]:
    """Return, for each split and finally for the end of the run, the splits the host waits for
    first: producers of its inputs, users of its staging buffers and, if the device's
    `submit_granularity` requires it, its predecessor.

    A wait covers all earlier splits of its device, because queues run in order. run: the number of
    splits before those that write states, which wait for all of them unless `is_early`.
    """
    known = dict.fromkeys(devices, -1)
    newest = dict.fromkeys(devices, HOST)
    shown_last = HOST
    out: list[tuple[int, ...]] = []

    def need(splits: Iterable[int]) -> tuple[int, ...]:
        latest: dict[int, int] = {}
        for split in splits:
            if split != HOST and split > known[devices[split]]:
                latest[devices[split]] = max(split, latest.get(devices[split], -1))
        known.update(latest)
        return tuple(sorted(latest.values()))

    for position, needed in enumerate(sources):
        here = devices[position]
        wanted = [*(needed if position < run or is_early else range(run)), shown_last]
        if topology.devices[here].submit_granularity != "split":
            wanted.append(newest[here])
        out.append(need(wanted))
        newest[here] = position
        if position in shown:
            shown_last = position
    out.append(need(i for i, values in enumerate(live_out) if values or i >= run))
    return out
