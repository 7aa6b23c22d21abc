"""Verification of all invariants of a plan, by a simulation that is independent of the planner.

    host order --> values present on each device --> completed splits --> alive words

The checks go through the splits as the executor does. A value must be present on a device before a
node there reads it; the split that produced a value must be known complete before the host copies
it; no word may be overwritten while its value is still needed; a barrier must separate conflicting
accesses.
Complexity: O(items * log(values)). Examples: tests/plan/test_plan_verify.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from ...common.errors import PlanError
from ...ir.graph import Node
from ..costs import node_cost
from ..types.early_commits import is_early_allowed
from ..types.interval_set import IntervalSet, Owners
from ..types.plan_types import (
    COMPUTE,
    HOST,
    PlanValue,
    Span,
    Split,
    commits,
    may_lie_over,
    numpy_may_write,
    scratch_of,
)
from .index_checks import check_numbers
from .staging import StagingOwners, check_span, check_staging
from .transfers import check_async_transfers

AnyPlan = TypeVar("AnyPlan", bound=PlanValue)


def verify_plan(plan: AnyPlan) -> AnyPlan:
    """Return the plan if it is valid.

    Raises
    ------
    PlanError
        The first broken invariant.
    """
    plan.topology.verify()
    calls = _Calls(plan)
    if plan.copies < 1 or len(plan.memory) != len(plan.topology.devices):
        raise _fail(f"{plan.copies} copies, memory of {len(plan.memory)} devices")
    if len(plan.placements) != len(plan.graph.nodes):
        raise _fail(f"{len(plan.placements)} placements for {len(plan.graph.nodes)} nodes")
    check_numbers(plan)
    _check_nodes(plan, calls)
    _check_order(plan)
    spans: dict[int, dict[int, Span]] = {}
    splits: dict[int, list[Split]] = {}
    for (device, value), span in plan.locations.items():
        spans.setdefault(device, {})[value] = span
    for split in plan.splits:
        splits.setdefault(split.device, []).append(split)
    for device, spec in enumerate(plan.topology.devices):
        own = splits.get(device, [])
        if spec.kind != "cpu":
            _check_words(plan, device, calls, spans.get(device, {}), own)
            _check_capacity(plan, device)
        elif own:
            check_async_transfers(plan, own, {}, {})
    _check_replicas(plan)
    return plan


def _check_replicas(plan: PlanValue) -> None:
    """Check that each replica is a valid plan of the graph on memory of its own."""
    used = {split.device for split in plan.splits}
    for other in plan.replicas:
        own = {split.device for split in other.splits}
        memory_nodes = {d for device in own for d in plan.topology.memory_peers(device)}
        if (
            other.graph is not plan.graph
            or other.replicas
            or plan.graph.states
            or memory_nodes & used
        ):
            raise _fail(f"a replica on devices {sorted(own)}, where {sorted(used)} have work")
        used |= own
        verify_plan(other)


def _fail(message: str) -> PlanError:
    return PlanError(f"[plan] {message}")


class _Calls:
    """The support of the graph's calls on devices, computed anew: results of the planner do not
    count.
    """

    def __init__(self, plan: PlanValue) -> None:
        self._graph = plan.graph
        self._devices = plan.topology.devices
        self._alike = plan.topology.alike()
        self._reasons: dict[tuple[int, int], str | None] = {}
        self._scratch: dict[tuple[int, int], int] = {}

    def unsupported_reason(self, device: int, node: Node) -> str | None:
        key = self._alike[device], self._graph.kinds[node.id]
        if key not in self._reasons:
            self._reasons[key] = node_cost.unsupported_reason(
                self._devices[device], self._graph, node
            )
        return self._reasons[key]

    def scratch_words(self, device: int, node: Node) -> int:
        key = self._alike[device], self._graph.signatures[node.id]
        if key not in self._scratch:
            lowering = node_cost.lower_node(self._devices[device], self._graph, node)
            self._scratch[key] = lowering.scratch_words
        return self._scratch[key]


def _check_nodes(plan: PlanValue, calls: _Calls) -> None:
    graph = plan.graph
    seen: dict[int, int] = {}
    for position, split in enumerate(plan.splits):
        if split.id != position or not split.nodes:
            raise _fail(f"split {split.id} stands at {position} or is empty")
        for node_id in split.nodes:
            if node_id in seen:
                raise _fail(
                    f"{graph.nodes[node_id].name} runs in splits {seen[node_id]}, {position}"
                )
            seen[node_id] = position
            if plan.placements[node_id].device != split.device:
                raise _fail(
                    f"{graph.nodes[node_id].name} runs on another device than its placement"
                )
            reason = calls.unsupported_reason(split.device, graph.nodes[node_id])
            if reason is not None:
                raise _fail(f"{graph.nodes[node_id].name} cannot run where it is placed: {reason}")
    in_place = set(plan.in_place.values())
    needed = {
        n.id
        for n in graph.ops
        if n.id not in graph.views and not (n.op == "assign" and graph.states[n.id] in in_place)
    }
    if needed != set(seen):
        missing = [graph.nodes[n].name for n in sorted(needed ^ set(seen))]
        raise _fail(f"nodes that run too often or never: {missing}")


def _check_order(plan: PlanValue) -> None:
    """Simulate host and queues: presence of operands, completeness of the splits that the host
    reads, and states that are written last.
    """
    graph = plan.graph
    present: set[tuple[int, int]] = set()
    held = [frozenset(memory.weights) for memory in plan.memory]
    done: dict[int, int] = {}  # for each device, the last complete split
    producers: dict[int, int] = {}
    shown: list[int] = []
    staging_owners = StagingOwners(plan)

    def wait(split: int, before: int) -> None:
        if not 0 <= split < before:
            raise _fail(f"waits for split {split} before it is submitted")
        device = plan.splits[split].device
        done[device] = max(split, done.get(device, -1))

    def is_complete(split: int) -> bool:
        return split <= done.get(plan.splits[split].device, -1)

    for split in plan.splits:
        for waited in split.waits:
            wait(waited, split.id)
        _check_commit(plan, split, is_complete)
        staging_owners.take(split, is_complete)
        if shown and not is_complete(shown[-1]):  # which waited for the one before it
            raise _fail(f"split {split.id} starts before what split {shown[-1]} shows is complete")
        for copy in split.uploads:
            name = graph.nodes[copy.node].name
            if copy.source == HOST:
                if not _from_host(plan, copy.node):
                    raise _fail(
                        f"{name} is copied in from the caller, but is no input, nor a weight in "
                        "host memory"
                    )
            elif producers.get(copy.node) != copy.source:
                raise _fail(
                    f"{name} is copied in from split {copy.source}, which does not give it out"
                )
            elif not is_complete(copy.source):
                raise _fail(
                    f"split {split.id} reads {name} before split {copy.source} was waited for"
                )
            present.add((split.device, copy.node))
        for node_id in split.nodes:
            for operand in graph.nodes[node_id].inputs:
                if (split.device, operand) not in present:
                    _check_present(plan, split, present, held, operand, graph.nodes[node_id].name)
            present.add((split.device, node_id))
        if split.observed:
            shown.append(split.id)
            downloaded = {copy.node for copy in split.downloads}
            for value in split.observed:
                if not {value, graph.view_base(value)} & downloaded:
                    raise _fail(f"{graph.nodes[value].name} is observed, but not copied out")
        for out in split.downloads:
            _check_present(plan, split, present, held, out.node, "a copy out")
            if plan.placements[graph.view_base(out.node)].device == split.device:
                producers[out.node] = split.id
    for waited in plan.final_waits:
        wait(waited, len(plan.splits))
    left = [s.id for s in plan.splits if not is_complete(s.id)]
    if left:
        raise _fail(f"splits {left} are not complete when the run ends")
    for name, output in (
        *graph.outputs,
        *((graph.nodes[v].name, v) for v in graph.backed_up_states),
    ):
        root = graph.view_base(output)
        if not graph.nodes[root].declaration.leaf and not {output, root} & producers.keys():
            raise _fail(f"output {name!r} is not copied out")


def _from_host(plan: PlanValue, node_id: int) -> bool:
    """Return True if the host holds a value: an input or a view of one, or a weight that the plan
    leaves there.
    """
    graph, device = plan.graph, plan.placements[node_id].device
    if graph.nodes[graph.view_base(node_id)].op == "input":
        return True
    return graph.nodes[node_id].op == "weight" and plan.topology.is_cpu(device)


def _check_commit(plan: PlanValue, split: Split, is_complete: Callable[[int], bool]) -> None:
    """Check that a split that writes states starts when all others are complete, unless it may be
    early, and has no other nodes except ones that cannot fail and are needed there alone.
    """
    graph = plan.graph
    if not commits(graph, split.nodes, split.in_place):
        return
    _check_in_place(plan, split)
    writers = [n for n in split.nodes if graph.nodes[n].op == "assign"]
    downloaded = {graph.view_base(out.node) for out in split.downloads}
    others = [
        n
        for n in split.nodes
        if n not in graph.states
        and (n in downloaded or graph.nodes[n].declaration.in_place is None)
    ]
    if others:
        raise _fail(f"split {split.id} writes states and runs {graph.nodes[others[0]].name}")
    for node_id in writers:
        if plan.placements[graph.states[node_id]].device != split.device:
            raise _fail(f"{graph.nodes[node_id].name} writes a state of another device")
    is_early = is_early_allowed(plan)
    for other in plan.splits:
        last = commits(graph, other.nodes, other.in_place)
        if not last and (other.id > split.id or not (is_early or is_complete(other.id))):
            raise _fail(f"split {split.id} writes states before split {other.id} is complete")


def _check_in_place(plan: PlanValue, split: Split) -> None:
    """Check that a value that overwrites a state is its next value and that of no other state, on
    the state's device, and that the value is neither downloaded, observed nor an output.
    """
    graph, own = plan.graph, set(split.nodes)
    exposed = {v for s in plan.splits for v in s.observed} | {out.node for out in split.downloads}
    exposed = {
        graph.view_base(v)
        for v in (*exposed, *graph.backed_up_states, *(v for _, v in graph.outputs))
    }
    states_of: dict[int, list[int]] = {}
    for node_id, state in graph.states.items() if split.in_place else ():
        if node_id != state:
            states_of.setdefault(graph.view_base(graph.nodes[node_id].inputs[1]), []).append(state)
    by_numpy = split.in_place if plan.topology.is_cpu(split.device) else ()
    readers = _readers(plan, {state for _, state in by_numpy})
    for value, state in split.in_place:
        name = graph.nodes[value].name
        if value not in own or states_of.get(value) != [state]:
            raise _fail(
                f"{name} overwrites {graph.nodes[state].name}, but is not the next value of "
                "this state only"
            )
        if not may_lie_over(graph, value, state):
            raise _fail(f"{name} cannot be written over {graph.nodes[state].name}")
        if by_numpy:
            _check_written_by_numpy(plan, value, state, readers[state], exposed, split.device)
        if plan.placements[state].device != split.device:
            raise _fail(f"{name} writes a state of another device")
        if value in exposed:
            raise _fail(
                f"{name} is visible to the caller or another device, but overwrites its state"
            )


def _readers(plan: PlanValue, states: set[int]) -> dict[int, set[int]]:
    """Return, for each of some states, the nodes that read it and are no views."""
    graph, out = plan.graph, {state: set[int]() for state in states}
    for node in graph.ops if states else ():
        for state in states.intersection(map(graph.view_base, node.inputs)):
            if node.id not in graph.views:
                out[state].add(node.id)
    return out


def _check_written_by_numpy(
    plan: PlanValue, value: int, state: int, readers: set[int], exposed: set[int], cpu: int
) -> None:
    """Check that no view of a state's array is alive when numpy updates it in place."""
    graph = plan.graph
    if not numpy_may_write(graph, value, state, readers) or state in exposed:
        raise _fail(f"numpy cannot write {graph.nodes[value].name} in place of its state")
    for reader in readers:
        if plan.placements[reader].device != cpu:
            raise _fail(f"{graph.nodes[reader].name} may read {graph.nodes[state].name} too late")


def _check_present(
    plan: PlanValue,
    split: Split,
    present: set[tuple[int, int]],
    held: Sequence[frozenset[int]],
    operand: int,
    reader: str,
) -> None:
    graph, root = plan.graph, plan.graph.view_base(operand)
    if (split.device, operand) in present or (split.device, root) in present:
        return
    if root in held[split.device] and root in graph.data:
        resident = not plan.topology.is_cpu(split.device) and graph.nodes[root].op == "weight"
        if resident and _from_host(plan, root):
            raise _fail(f"{graph.nodes[root].name} is resident, though the plan has it on the host")
        return
    raise _fail(
        f"{reader} in split {split.id} needs {graph.nodes[operand].name}, which is not there"
    )


def _check_words(
    plan: PlanValue,
    device: int,
    calls: _Calls,
    spans: Mapping[int, Span],
    splits: Sequence[Split],
) -> None:
    """Replay the program of a device on a map of words with their owners, and check accesses
    without a barrier between them.
    """
    graph, memory = plan.graph, plan.memory[device]
    state_spans = {
        s: Span(len(memory.activation_pages) + i, 0, graph.nodes[s].type.words)
        for i, s in enumerate(memory.states)
    }
    pages = (*memory.activation_pages, *(s.words for s in state_spans.values()))
    for value, span in spans.items():
        node = graph.nodes[value if value >= 0 else scratch_of(value)]
        kind = "activation" if value >= 0 else "scratch"
        words = graph.words[value] if value >= 0 else calls.scratch_words(device, node)
        check_span(node, words, span, pages, kind)
        state = graph.states.get(value, plan.in_place.get(value, -1))
        held = state_spans.get(state)  # on another device it is a copy
        if (held is None) != (span.page < len(memory.activation_pages)):
            raise _fail(f"{_name(plan, value)} is not in the memory of its kind")
        if held is not None and span != held:
            raise _fail(f"{_name(plan, value)} is not where its state is")
    for split in splits:
        for written in (*(c.node for c in split.uploads), *split.nodes):
            if written not in spans:
                raise _fail(f"{graph.nodes[written].name} has no place on its device")
        for node_id in split.nodes:
            node = graph.nodes[node_id]
            if scratch_of(node_id) not in spans and calls.scratch_words(device, node):
                raise _fail(f"{node.name} has no scratch memory")
    last: dict[int, int] = {}
    every = itertools.chain.from_iterable(_accesses(plan, split, spans) for split in splits)
    for clock, (operands, results) in enumerate(every):
        for value in (*(value for value, _ in operands), *results):
            last[value] = clock
    owners = Owners()
    for state, span in state_spans.items():
        owners.take(span, state)
    clock = 0
    for split in splits:
        items = len(split.uploads) + len(split.nodes) + len(split.downloads)
        if any(not 0 <= position < items for position in split.barriers):
            raise _fail(f"split {split.id} has barriers at {split.barriers}, of {items} items")
        reads, writes = IntervalSet(), IntervalSet()
        barriers = frozenset((*split.barriers, *split.begins))
        for position, (operands, results) in enumerate(_accesses(plan, split, spans)):
            if position in barriers:
                reads.clear()
                writes.clear()
            sources, targets = [span for _, span in operands], [spans[v] for v in results]
            for taker, target in zip(results, targets, strict=True):
                for value in owners.take(target, taker):
                    # operands and scratch of the item are needed until it ends, except for the
                    # state that it overwrites
                    until = clock + (value == graph.states.get(taker, plan.in_place.get(taker)))
                    if value != taker and last.get(value, -1) >= until:
                        names = _name(plan, taker), _name(plan, value)
                        raise _fail(f"{names[0]} is written over {names[1]}, which is still needed")
            if writes.meets(*sources, *targets) or reads.meets(*targets):
                raise _fail(f"item {position} of split {split.id} needs a barrier before it")
            reads.add(*sources)
            writes.add(*targets)
            clock += 1
    if any(
        split.async_transfers or split.stage_deps or split.deferred_downloads for split in splits
    ):
        used = {split.id: _words_used(plan, split, spans) for split in splits}
        check_async_transfers(plan, splits, spans, used)
    check_staging(plan, device, splits)


def _words_used(
    plan: PlanValue, split: Split, spans: Mapping[int, Span]
) -> tuple[IntervalSet, IntervalSet]:
    """Return the words that the work of a split reads, and the words that it writes."""
    read, written = IntervalSet(), IntervalSet()
    part = split.stages[COMPUTE]
    every = _accesses(plan, split, spans)
    for operands, results in itertools.islice(every, part.start, part.stop):
        read.add(*(span for _, span in operands))
        written.add(*(spans[value] for value in results))
    return read, written


_Access = tuple[list[tuple[int, Span]], list[int]]


def _accesses(plan: PlanValue, split: Split, spans: Mapping[int, Span]) -> Iterator[_Access]:
    """Yield, for each item of a split, the values in memory that it reads, with the part that it
    reads, and the values that it writes: its result, and its scratch memory if it has some.
    """
    nodes, graph = plan.graph.nodes, plan.graph

    def read(*operands: int) -> list[tuple[int, Span]]:
        out = []
        for operand in operands:
            root, offset = graph.views.get(operand, (operand, 0))
            if operand in spans:
                out.append((operand, spans[operand]))
            elif root in spans:
                at = spans[root].page, spans[root].offset + offset
                out.append((root, Span(*at, graph.words[operand])))
        return out

    for copy in split.uploads:
        yield [], [copy.node]
    for node_id in split.nodes:
        node, scratch = nodes[node_id], scratch_of(node_id)
        if node.op == "state":  # no operation
            yield [], []
            continue
        written = [node_id, scratch] if scratch in spans else [node_id]
        yield read(*node.inputs), written
    for out in split.downloads:
        yield read(out.node), []


def _name(plan: PlanValue, value: int) -> str:
    if value < 0:
        return f"the scratch memory of {plan.graph.nodes[scratch_of(value)].name}"
    return plan.graph.nodes[value].name


def _check_capacity(plan: PlanValue, device: int) -> None:
    spec, memory = plan.topology.devices[device], plan.memory[device]
    slot = sum(memory.activation_pages)
    if spec.unified_memory:
        slot += sum(memory.upload_pages) + sum(memory.download_pages)
    weight_bytes = sum(plan.graph.nodes[w].type.device_bytes for w in memory.weights)
    if memory.weight_bytes < weight_bytes:
        raise _fail(f"weights of {weight_bytes} bytes, the plan says {memory.weight_bytes}")
    state_bytes = sum(plan.graph.nodes[s].type.device_bytes for s in memory.states)
    if memory.state_bytes < state_bytes:
        raise _fail(f"states of {state_bytes} bytes, the plan says {memory.state_bytes}")
    needed = memory.weight_bytes + memory.state_bytes + plan.copies * slot * 4
    if needed > memory.peak_bytes:
        raise _fail(f"{spec.name} needs {needed} bytes, the plan says {memory.peak_bytes}")
    persistent_bytes = memory.weight_bytes + memory.state_bytes
    if not 0 <= memory.resident_bytes <= persistent_bytes:
        raise _fail(f"{spec.name} holds {memory.resident_bytes} of {persistent_bytes} bytes")
    shared = sum(plan.memory[d].needed_bytes for d in plan.topology.memory_peers(device))
    if memory.needed_bytes and shared > spec.memory_bytes:
        raise _fail(f"{spec.name} needs {shared} of {spec.memory_bytes} bytes")
    for words in (*memory.activation_pages, *memory.upload_pages, *memory.download_pages):
        if words * 4 > spec.max_buffer_bytes:
            raise _fail(
                f"a page of {words * 4} bytes is over {spec.name}'s {spec.max_buffer_bytes}"
            )
