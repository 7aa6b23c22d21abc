"""Simulation of a plan, event by event, without running it.

Problem: the estimates of single nodes do not give the time of a run: devices work concurrently, the
host copies and waits, and queues are in order. Method: the loop of the executor, with a clock for
the host of each run and the end time of each queue of each device: one that computes, and possibly
one that copies. Several concurrent runs, one per copy of the plan, use the queues in the order of
their submissions.

    host    copy x | submit 0 | wait 0 ....... | copy h | submit 1 | wait 1 .... | fetch y
    gpu:0            [ split 0              ]
    gpu:1                                              [ split 1             ]

Software Vulkan devices and the CPU of one host compute on shared cores. Each of them uses all
cores, so that work of two of them is sequential, as if they had one queue.

With several hosts, each has a loop and a clock of its own, see host_schedules.py. Messages occupy
the link between two hosts for their bytes, one after the other, and arrive a latency later; links
of other pairs are independent. Hosts without a named link are joined by a network: a message then
uses the port of either host, which all messages to or from that host share.

Simulated devices with a simulated clock take equal times; tests compare both.

Complexity: O((splits + copies) * runs). Examples: tests/plan/test_simulate.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ...ir.graph import Graph
from ...topology.device_spec import DeviceSpec
from ...topology.host_names import DRIVER
from ...topology.topology import Topology
from ..costs import node_cost
from ..types.plan_types import (
    COMPUTE,
    DOWNLOAD,
    HOST,
    UPLOAD,
    PlanValue,
    Split,
    commits,
    value_of,
)
from ..types.split_draft import SplitDraft
from .event_sim import EventSim
from .host_schedules import make_walks
from .sim_types import Program, Simulation, SplitTiming


def simulate(plan: PlanValue, runs: int = 1) -> Simulation:
    """Return the simulated times of runs of a plan, one concurrent run for each copy."""
    return run_program(program_of(plan), runs, plan.copies)


def program_of(plan: PlanValue) -> Program:
    """Return the inputs of the simulation of a plan."""
    drafts = [
        SplitDraft(
            s.device,
            s.nodes,
            tuple((c.node, c.source) for c in s.uploads),
            tuple(c.node for c in s.downloads),
            s.waits,
            in_place=s.in_place,
            async_transfers=s.async_transfers,
            deferred_downloads=s.deferred_downloads,
            refills=s.refills,
        )
        for s in plan.splits
    ]
    after = [
        max((split for stage, split in s.after(UPLOAD) if stage == COMPUTE), default=HOST)
        for s in plan.splits
    ]
    known: list[dict[int, float]] = [{} for _ in plan.topology.devices]

    def seconds(node: int, device: int) -> float:
        call, spec = plan.graph.signatures[node], plan.topology.devices[device]
        if call not in known[device]:
            known[device][call] = node_cost.node_seconds(spec, plan.graph, plan.graph.nodes[node])
        return known[device][call]

    return make_program(plan.graph, plan.topology, drafts, plan.final_waits, seconds, after)


def make_program(
    graph: Graph,
    topology: Topology,
    parts: Sequence[SplitDraft],
    final_waits: tuple[int, ...],
    seconds: Callable[[int, int], float],
    after: Sequence[int],
) -> Program:
    """Return the inputs of the simulation of splits.

    seconds: a function from node and device to seconds. after: for each split, the split whose work
    must end before its asynchronous uploads begin, or HOST for none.
    """
    names = tuple(spec.name for spec in topology.devices)
    nodes, host_of = graph.nodes, topology.host_of

    def enters_s(value: int, part: SplitDraft) -> float:
        size_bytes, async_transfer = nodes[value].type.device_bytes, UPLOAD in part.async_transfers
        return host_seconds(topology, part.device, node_cost.COPY_IN, size_bytes, async_transfer)

    def leaves_s(value: int, device: int) -> float:
        size_bytes, maker = nodes[value].type.device_bytes, split_of.get(graph.view_base(value))
        async_transfer = maker is not None and DOWNLOAD in parts[maker].async_transfers
        return host_seconds(topology, device, node_cost.COPY_OUT, size_bytes, async_transfer)

    split_of = {n: number for number, part in enumerate(parts) for n in part.nodes}
    wanted = [
        (value_of(graph, node, False), split_of.get(graph.view_base(node)))
        for node in _shown(graph)
    ]
    results = [(value, split) for value, split in wanted if split is not None]
    written = sum(commits(graph, part.nodes, part.in_place) for part in parts)
    walks = make_walks(graph, topology, parts, written, results, leaves_s)
    costs_of = {part.device: topology.devices[part.device].costs for part in parts}
    if len(parts) == 1 and walks is None and topology.is_cpu(parts[0].device):
        costs_of = {device: costs.alone() for device, costs in costs_of.items()}
    steps: list[SplitTiming] = []
    for number, part in enumerate(parts):
        input_s = crossed_s = 0.0
        for value, source in part.live_in:
            if source != HOST:
                near = host_of(parts[source].device) == host_of(part.device)
                left_s = leaves_s(value, parts[source].device) if near else 0.0
                crossed_s += left_s + enters_s(value, part)
            elif value not in graph.data:
                input_s += enters_s(value, part)
            elif part.refills:
                crossed_s += enters_s(value, part)
        live_in = [value for value, _ in part.live_in]
        coming_s = leaving_s = None
        if UPLOAD in part.async_transfers:
            coming_s = copy_submission_seconds(
                graph, topology, part.device, node_cost.COPY_IN, live_in
            )
        if DOWNLOAD in part.async_transfers:
            leaving_s = copy_submission_seconds(
                graph, topology, part.device, node_cost.COPY_OUT, part.live_out
            )
        on_device_s = overhead_seconds(
            graph,
            topology,
            part.device,
            live_in if coming_s is None else (),
            part.live_out if leaving_s is None else (),
            part.refills,
        )
        on_device_s += sum([seconds(node, part.device) for node in part.nodes])
        costs = costs_of[part.device]
        steps.append(
            SplitTiming(
                part.device,
                input_s,
                part.waits if walks is None else walks.waits[number],
                crossed_s,
                on_device_s,
                costs.submit_s,
                costs.fence_s,
                coming_s,
                leaving_s,
                after[number],
                part.deferred_downloads,
            )
        )
    fetched_s = 0.0
    for value, split in results:
        if host_of(parts[split].device) == DRIVER:
            fetched_s += leaves_s(value, parts[split].device)
    run_s = max((costs.run_s for costs in costs_of.values()), default=0.0)
    if walks is not None:
        run_s = walks.run_s[walks.caller]
    about = written, fetched_s, final_waits, run_s, walks
    return Program(names, tuple(steps), *about, topology.queues)


def _shown(graph: Graph) -> tuple[int, ...]:
    """Return the nodes that the caller gets."""
    return (*(node for _, node in graph.outputs), *graph.backed_up_states)


def host_seconds(
    topology: Topology, device: int, way: str, size_bytes: int, async_transfer: bool = False
) -> float:
    """Return the seconds of the host to copy a value to a device or back, without the device's own
    part.

    way: COPY_IN or COPY_OUT. async_transfer: True if that part runs on the copy queue.
    """
    if topology.is_cpu(device):
        return 0.0
    spec, taken_s = topology.devices[device], link_seconds(topology, device, way, size_bytes)
    if async_transfer:
        return max(0.0, taken_s - copy_queue_seconds(topology, device, way, size_bytes))
    return max(0.0, taken_s - node_cost.copy_seconds(spec, way, size_bytes))


def link_seconds(topology: Topology, device: int, way: str, size_bytes: int) -> float:
    """Return the seconds of a link for a value from the host to a device, or back."""
    link = topology.link_in(device) if way == node_cost.COPY_IN else topology.link_out(device)
    return link.seconds(size_bytes)


def copy_queue_seconds(topology: Topology, device: int, way: str, size_bytes: int) -> float:
    """Return the seconds of a device's copy queue for a value: all of the link's time if the
    device's own part was not measured.
    """
    measured_s = node_cost.copy_seconds(topology.devices[device], way, size_bytes)
    return measured_s or link_seconds(topology, device, way, size_bytes)


def copy_submission_seconds(
    graph: Graph, topology: Topology, device: int, way: str, values: Iterable[int]
) -> float:
    """Return the seconds of a submission of copies on a device's copy queue."""
    seconds = submission_s(topology.devices[device])
    for value in values:
        size_bytes = graph.nodes[value].type.device_bytes
        seconds += copy_queue_seconds(topology, device, way, size_bytes)
    return seconds


def submission_s(spec: DeviceSpec) -> float:
    """Return the measured seconds of a device for a submission, or else its rough cost."""
    return spec.costs.start_s if spec.costs.calls else spec.submit_s


def split_overhead_seconds(plan: PlanValue, split: Split) -> float:
    """Return the overhead of a split on its compute queue in seconds, excluding its nodes."""
    live_in = [] if UPLOAD in split.async_transfers else [c.node for c in split.uploads]
    live_out = [] if DOWNLOAD in split.async_transfers else [c.node for c in split.downloads]
    return overhead_seconds(
        plan.graph, plan.topology, split.device, live_in, live_out, split.refills
    )


def overhead_seconds(
    graph: Graph,
    topology: Topology,
    device: int,
    live_in: Iterable[int],
    live_out: Iterable[int],
    refills: bool = False,
) -> float:
    """Return the seconds of a split on its device, excluding its nodes, with the values that its
    compute queue copies in and out.

    refills: True if the host takes part in copies of weights as in other copies.
    """
    spec = topology.devices[device]
    seconds = submission_s(spec)
    if topology.is_cpu(device):
        return seconds
    link = topology.link_in(device)
    for way, values in ((node_cost.COPY_IN, live_in), (node_cost.COPY_OUT, live_out)):
        for value in values:
            size_bytes = graph.nodes[value].type.device_bytes
            taken_s = node_cost.copy_seconds(spec, way, size_bytes)
            if not taken_s and value in graph.data and not refills:
                taken_s = size_bytes / link.bytes_per_s
            seconds += taken_s
    return seconds


def run_program(program: Program, runs: int = 1, copies: int = 1) -> Simulation:
    """Return the simulated times of runs, with as many concurrent runs as there are copies."""
    return EventSim(program).simulate(runs, copies)
