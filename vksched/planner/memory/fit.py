"""Fit: find a placement within the memory of each device, and the number of copies.

Problem: the memory of a placement is known only once it is split and allocated. Method: a device
that is too small runs only the nodes before a number, its cap, and later devices run the rest. A
search between a cap that fits and one that does not, guided by the bytes of weights and states,
fills the device well. If only a short run of nodes exceeds the memory, only this run is moved.
Copies are chosen last and never move nodes: they use the memory that the model leaves free.

    nodes   0 ........... cap ........... n        gpu:0 |#########-|
            gpu:0         |  gpu:1 or cpu          gpu:1 |######    |

Complexity: at most a few drafts for each device that is too small. Examples:
tests/planner/test_plan_spill.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate

from ...common.errors import OutOfMemory
from ...common.formatting import format_share
from ...ir.graph import Graph
from ...plan.costs.op_support import OpSupport
from ...plan.types.offsets import aligned
from ...plan.types.query import FULL, ON_HOST
from ..placement.candidate_devices import NONE, Caps
from ..placement.memory_budget import WELL_FILLED
from .allocate import MemoryUse
from .draft import PlanDraft

AUTO = "auto"
"""As many copies as the objective benefits from."""
LEAST = "least"
"""One copy for each device that takes whole runs."""
AHEAD = "ahead"
"""Two copies on one device, whose queue orders runs that are submitted ahead; see `run_ahead`."""
PEAK_SHARE = 0.6
"""Maximum fraction of the nodes of a device that are moved as a peak, such as the first layers of a
vision network; beyond that a cap retains the nodes before it.
"""

TRIES = 8
"""Maximum number of caps tried for a device, and of peaks before a cap."""
TIMES_BEFORE_GROWTH = 2
"""Number of times a device may be full before its cap is lowered in growing steps."""


def fit(
    support: OpSupport, try_caps: Callable[[Caps], PlanDraft]
) -> tuple[PlanDraft, Caps, list[str]]:
    """Return a draft within the memory of every GPU, its caps, and reasons for full devices."""
    topology = support.topology
    count = len(topology.devices)
    caps = Caps([None] * count, [range(0)] * count)
    reasons: dict[tuple[int, ...], str] = {}
    times = dict.fromkeys(topology.memory_nodes, 0)
    draft = try_caps(caps)
    while True:
        full = next((peers for peers in topology.memory_nodes if not draft.fits(peers)), None)
        if full is None:
            break
        need, free_bytes = draft.need(full), draft.free_bytes(full)
        reasons.setdefault(full, f"it would take {format_share(need, free_bytes)}")
        times[full] += 1
        peak = _find_peak(draft, full, caps) if times[full] <= TRIES else None
        if peak is None:
            # nodes evicted from one device may fill another: quadruple the step each time
            step = 4 ** max(0, times[full] - TIMES_BEFORE_GROWTH)
            draft = _search_cap(draft, full, caps, step, try_caps)
        else:
            caps.peaks[full[0]] = peak
            draft = try_caps(caps)
    return draft, caps, [_describe(draft, caps, peers, reasons[peers]) for peers in sorted(reasons)]


def _describe(draft: PlanDraft, caps: Caps, peers: tuple[int, ...], why: str) -> str:
    """Return which nodes the devices of one memory do not run, as text. why: the reason."""
    full = f"{', '.join(draft.topology.devices[d].name for d in peers)}{FULL}{why}"
    peak, first = caps.peaks[peers[0]], caps.first[peers[0]]
    parts = [f"number {peak[0]} to {peak[-1]}, which take most,"] if peak else []
    if first is not None:
        parts.append(f"from number {max(first, 0)} on")
    nodes, data = " and ".join(parts), draft.support.graph.data
    here = (split_draft for split_draft in draft.split_drafts if split_draft.device in peers)
    if any(value in data for split_draft in here for value, _ in split_draft.live_in):
        return f"{full}; weights of nodes {nodes} {ON_HOST}"
    return f"{full}; nodes {nodes} go elsewhere"


def _find_peak(draft: PlanDraft, peers: tuple[int, ...], caps: Caps) -> range | None:
    """Return the indices of a short run of nodes that alone exceed the device's memory, if there is
    one. A cap would also evict every later node.
    """
    device, support = peers[0], draft.support
    memory = draft.memory[device]
    other_bytes = memory.needed_bytes - 4 * sum(memory.activation_pages)
    most_words = (draft.free_bytes(peers) - other_bytes) // 4
    if len(peers) > 1 or most_words <= 0:
        return None
    live = MemoryUse(support, draft.split_drafts, device).live()
    number = {node.id: i for i, node in enumerate(support.computed)}
    here = [number[n] for o in draft.split_drafts if o.device == device for n in o.nodes]
    found: list[int] = []
    position = 0
    for split_draft in draft.split_drafts:
        if split_draft.device == device:
            items = [support.readers[value] for value, _ in split_draft.live_in]
            items += [(node_id,) for node_id in (*split_draft.nodes, *split_draft.live_out)]
            for nodes in items:
                if live[position] > most_words:
                    found += [number[n] for n in nodes if n in split_draft.nodes]
                position += 1
    before = caps.peaks[device]
    peak = range(min((*found, *before)), max((*found, *before)) + 1) if found else before
    evicted = sum(n in peak for n in here) + len(before)
    return peak if peak != before and evicted <= max(2, PEAK_SHARE * len(here)) else None


def _search_cap(
    draft: PlanDraft,
    peers: tuple[int, ...],
    caps: Caps,
    step: int,
    try_caps: Callable[[Caps], PlanDraft],
) -> PlanDraft:
    """Lower the cap of the devices of one memory, in place, until they fit, but not much further.

    draft: one in which they do not fit. step: minimum number of nodes to lower the cap by. With the
    cap NONE they run nothing but the states that live there.
    """
    before, low, high = caps.first[peers[0]], NONE, len(draft.support.computed)
    if before is not None:
        high = max(low + 1, min(high, before - step + 1))
    found: PlanDraft | None = None
    starts, sum_bytes = _held_by_first_reader(draft, peers)
    tried = 0
    while found is None or (tried < TRIES and high - low > 1):
        need, free_bytes = draft.need(peers), draft.free_bytes(peers)
        if found is not None and (
            step > 1 or (found is draft and need >= WELL_FILLED * free_bytes)
        ):
            break
        memories = [draft.memory[d] for d in peers]
        held_bytes = sum(m.weight_bytes + m.state_bytes - m.resident_bytes for m in memories)
        other_bytes = need - held_bytes
        if step > 1 and not tried:
            guess = high - 1
        elif other_bytes < free_bytes and tried < TRIES // 2:
            guess = starts[bisect_right(sum_bytes, free_bytes - other_bytes)]
        else:
            guess = (low + high) // 2
        cap = max(low + 1, min(guess, high - 1)) if high - low > 1 else NONE
        for device in peers:
            caps.first[device] = cap
        draft = try_caps(caps)
        tried += 1
        if draft.fits(peers):
            found, low = draft, cap
        elif cap == NONE:
            names = ", ".join(draft.topology.devices[d].name for d in peers)
            raise OutOfMemory(
                f"[plan] expected {draft.need(peers)} bytes of free memory on {names} for the "
                f"states that live there, got {draft.free_bytes(peers)}; try to drop other graphs"
            )
        else:
            high = cap
    for device in peers:
        caps.first[device] = low
    return found


def _held_by_first_reader(draft: PlanDraft, peers: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return, in order, the first reader on a device of each weight or state that is not resident,
    with one past the last node, and the cumulative bytes of these weights and states.
    """
    support = draft.support
    wanted = {
        d: {*draft.memory[d].weights, *draft.memory[d].states}
        - support.resident.get(d, frozenset())
        for d in peers
    }
    starts: list[int] = []
    sizes: list[int] = []
    for number, node in enumerate(support.computed):
        missing = wanted.get(draft.placements[node.id].device, set())
        for value in missing.intersection(support.operands[node.id]):
            missing.discard(value)
            starts.append(number)
            sizes.append(aligned(support.graph.words[value]) * 4)
    return [*starts, len(support.computed)], list(accumulate(sizes))


def check_host(draft: PlanDraft) -> None:
    """Raise OutOfMemory if the ops that only the CPU can run exceed its memory."""
    cpu = (draft.topology.cpu,)
    need, free_bytes = draft.need(cpu), draft.free_bytes(cpu)
    if need > free_bytes:
        raise OutOfMemory(
            f"[plan] expected at most {free_bytes} bytes of host memory for the ops that only "
            f"the CPU can run, got {need}; try smaller batches"
        )


def wanted_copies(graph: Graph, asked: int | str, devices: int) -> int:
    """Return the number of copies of a plan over some devices if memory does not matter. It is one
    if the graph writes states, because each run reads the states that the previous one wrote, and
    two if runs may be submitted ahead on one device.
    """
    if asked == AHEAD:
        return 1 + (devices == 1)
    if _writes_states(graph):
        return 1
    if isinstance(asked, int):
        return asked
    return 1 if asked == LEAST else 1 + (devices > 1)


def _writes_states(graph: Graph) -> bool:
    return len(set(graph.states.values())) < len(graph.states)


def most_copies(
    draft: PlanDraft, asked: int | str, otherwise: int | None = None
) -> tuple[int, tuple[str, ...]]:
    """Return how many of the requested copies fit besides the model, and a note if they are fewer.

    otherwise: the number of copies if the user has not requested one.
    """
    graph = draft.support.graph
    devices = len({split_draft.device for split_draft in draft.split_drafts})
    wanted = wanted_copies(graph, asked, devices)
    if asked == AUTO and otherwise is not None:
        wanted = otherwise
    if _writes_states(graph) and asked != AHEAD:
        in_order = "each run reads the states that the one before it wrote"
        if isinstance(asked, int) and asked > 1:
            return 1, (f"copies: {asked} asked for, 1 made, as {in_order}",)
        return 1, ()
    best, why = wanted, ""
    for peers in (*draft.topology.memory_nodes, (draft.topology.cpu,)):
        spec = draft.topology.devices[peers[0]]
        slot = sum(draft.slot_bytes(d) for d in peers)
        free = draft.free_bytes(peers) - draft.need(peers)
        fit = 1 + free // slot if slot else wanted
        if fit < best:
            best, why = fit, f"{spec.name} has room for {fit}: each takes {slot} bytes"
    if best == wanted or not isinstance(asked, int):
        return best, ()
    return best, (f"copies: {wanted} asked for, {best} made, as {why} beside the model",)
