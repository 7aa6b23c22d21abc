"""Verify: does a plan keep every promise? Checked by simulation, not by the code that made the
plan.

    host order --> what is present where --> what is complete --> which words are alive

Walks the splits as the executor will. A value must be present on a device before a node there reads
it; the split that made a value must be known complete before the host copies it; no word may be
written while a value in it is still needed; a barrier must part what conflicts. Complexity: O(items
* log(values)). Examples: tests/test_plan_verify.py.
"""

from __future__ import annotations

from ..errors import PlanError
from .memory import scratch_of
from .plan import HOST, Plan, Span, Split
from .words import Owners, WordSet


def verify_plan(plan: Plan) -> Plan:
    """Returns the plan when it is sound.

    Raises:
        PlanError: the first promise that is broken.
    """
    plan.machine.verify()
    if plan.copies < 1 or len(plan.memory) != len(plan.machine.devices):
        raise _fail(f"{plan.copies} copies, memory of {len(plan.memory)} devices")
    _check_nodes(plan)
    _check_order(plan)
    for device, spec in enumerate(plan.machine.devices):
        if spec.kind != "cpu":
            _check_words(plan, device)
            _check_capacity(plan, device)
    return plan


def _fail(message: str) -> PlanError:
    return PlanError(f"[plan] {message}")


def _check_nodes(plan: Plan) -> None:
    graph = plan.graph
    if len(plan.placements) != len(graph.nodes):
        raise _fail(f"{len(plan.placements)} placements for {len(graph.nodes)} nodes")
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
            reason = plan.machine.devices[split.device].why_not(graph, graph.nodes[node_id])
            if reason is not None:
                raise _fail(f"{graph.nodes[node_id].name} cannot run where it is placed: {reason}")
    needed = {n.id for n in graph.ops if n.id not in graph.views}
    if needed != set(seen):
        missing = [graph.nodes[n].name for n in sorted(needed ^ set(seen))]
        raise _fail(f"nodes that run too often or never: {missing}")


def _check_order(plan: Plan) -> None:
    """Simulates host and queues: presence of operands, completeness of what the host reads, and
    states that are written last.
    """
    graph = plan.graph
    present: set[tuple[int, int]] = set()
    complete: set[int] = set()
    made: dict[int, int] = {}
    shown: list[int] = []

    def wait(split: int, before: int) -> None:
        if not 0 <= split < before:
            raise _fail(f"waits for split {split} before it is submitted")
        complete.update(
            s.id for s in plan.splits[: split + 1] if s.device == plan.splits[split].device
        )

    for split in plan.splits:
        for waited in split.waits:
            wait(waited, split.id)
        _check_commit(plan, split, complete)
        unseen = [s for s in shown if s not in complete]
        if unseen:
            raise _fail(f"split {split.id} starts before what split {unseen[0]} shows is complete")
        for copy in split.copies_in:
            name = graph.nodes[copy.node].name
            if copy.source == HOST:
                if not _from_host(plan, copy.node):
                    raise _fail(
                        f"{name} is copied in from the caller, but is no input, nor a weight in "
                        "host memory"
                    )
            elif made.get(copy.node) != copy.source:
                raise _fail(
                    f"{name} is copied in from split {copy.source}, which does not give it out"
                )
            elif copy.source not in complete:
                raise _fail(
                    f"split {split.id} reads {name} before split {copy.source} was waited for"
                )
            present.add((split.device, copy.node))
        for node_id in split.nodes:
            for operand in graph.nodes[node_id].inputs:
                _check_present(plan, split, present, operand, graph.nodes[node_id].name)
            present.add((split.device, node_id))
        if split.observed:
            shown.append(split.id)
            given = {copy.node for copy in split.copies_out}
            for value in split.observed:
                if not {value, graph.root(value)} & given:
                    raise _fail(f"{graph.nodes[value].name} is observed, but not copied out")
        for out in split.copies_out:
            _check_present(plan, split, present, out.node, "a copy out")
            if plan.placements[graph.root(out.node)].device == split.device:
                made[out.node] = split.id
    for waited in plan.final_waits:
        wait(waited, len(plan.splits))
    left = [s.id for s in plan.splits if s.id not in complete]
    if left:
        raise _fail(f"splits {left} are not complete when the run ends")
    for name, output in (*graph.outputs, *((graph.nodes[v].name, v) for v in graph.kept)):
        root = graph.root(output)
        if not graph.nodes[root].declaration.leaf and not {output, root} & made.keys():
            raise _fail(f"output {name!r} is not copied out")


def _from_host(plan: Plan, node_id: int) -> bool:
    """Whether the host has a value at hand: an input, or a weight that the plan leaves there."""
    op, device = plan.graph.nodes[node_id].op, plan.placements[node_id].device
    return op == "input" or (op == "weight" and device == plan.machine.cpu)


def _check_commit(plan: Plan, split: Split, complete: set[int]) -> None:
    """A split that writes states does nothing else, and starts when all others are complete."""
    graph = plan.graph
    writers = [n for n in split.nodes if graph.nodes[n].op == "assign"]
    if not writers:
        return
    others = [n for n in split.nodes if n not in graph.states]
    if others:
        raise _fail(f"split {split.id} writes states and runs {graph.nodes[others[0]].name}")
    for node_id in writers:
        if plan.placements[graph.states[node_id]].device != split.device:
            raise _fail(f"{graph.nodes[node_id].name} writes a state of another device")
    for other in plan.splits:
        commits = any(graph.nodes[n].op == "assign" for n in other.nodes)
        if not commits and (other.id > split.id or other.id not in complete):
            raise _fail(f"split {split.id} writes states before split {other.id} is complete")


def _check_present(
    plan: Plan, split: Split, present: set[tuple[int, int]], operand: int, reader: str
) -> None:
    graph, root = plan.graph, plan.graph.root(operand)
    if (split.device, operand) in present or (split.device, root) in present:
        return
    if root in plan.memory[split.device].weights and root in graph.data:
        resident = split.device != plan.machine.cpu and graph.nodes[root].op == "weight"
        if resident and _from_host(plan, root):
            raise _fail(f"{graph.nodes[root].name} is resident, though the plan has it on the host")
        return
    raise _fail(
        f"{reader} in split {split.id} needs {graph.nodes[operand].name}, which is not there"
    )


def _check_words(plan: Plan, device: int) -> None:
    """Replays a device's program on a map of words: who owns what, and which accesses no barrier
    parts.
    """
    graph, memory = plan.graph, plan.memory[device]
    state_spans = {
        s: Span(len(memory.activation_pages) + i, 0, graph.nodes[s].type.words)
        for i, s in enumerate(memory.states)
    }
    for (where, node_id), span in plan.locations.items():
        if where == device:
            pages = (*memory.activation_pages, *(s.words for s in state_spans.values()))
            _check_span(plan, device, node_id, span, pages, "activation")
            held = state_spans.get(graph.states.get(node_id, -1))  # elsewhere it is a copy
            if (held is None) != (span.page < len(memory.activation_pages)):
                raise _fail(f"{_name(plan, node_id)} is not in the memory of its kind")
            if held is not None and span != held:
                raise _fail(f"{_name(plan, node_id)} is not where its state is")
    for split in plan.splits:
        for written in (*(c.node for c in split.copies_in), *split.nodes):
            if split.device == device and (device, written) not in plan.locations:
                raise _fail(f"{graph.nodes[written].name} has no place on its device")
        for node_id in split.nodes if split.device == device else ():
            need = plan.machine.devices[device].lower(graph, graph.nodes[node_id]).scratch_words
            if need and (device, scratch_of(node_id)) not in plan.locations:
                raise _fail(f"{graph.nodes[node_id].name} has no scratch memory")
    last = _last_reads(plan, device)
    owners = Owners()
    clock = 0
    windows: dict[str, list[Span]] = {"inbox": [], "outbox": []}
    for split in plan.splits:
        if split.device != device:
            continue
        reads, writes = WordSet(), WordSet()
        for position in range(len(split.copies_in) + len(split.nodes) + len(split.copies_out)):
            if position in split.barriers:
                reads.clear()
                writes.clear()
            operands, result = _accesses(plan, split, position)
            own = [_span(plan, device, i) for i in operands]
            sources = [s for s in own if s is not None]
            targets = []
            for taker in _written(plan, device, result):
                targets.append(plan.locations[device, taker])
                for value in owners.take(targets[-1], taker):
                    # what the item itself holds, operands and scratch, is needed until it ends
                    if value != taker and last.get(value, -1) >= clock:
                        names = _name(plan, taker), _name(plan, value)
                        raise _fail(f"{names[0]} is written over {names[1]}, which is still needed")
            if any(writes.meets(s) for s in (*sources, *targets)) or any(
                reads.meets(s) for s in targets
            ):
                raise _fail(f"item {position} of split {split.id} needs a barrier before it")
            for span in sources:
                reads.add(span)
            for span in targets:
                writes.add(span)
            clock += 1
        for copy in split.copies_in:
            windows["inbox"].append(
                _check_span(plan, device, copy.node, copy.inbox, memory.inbox_pages, "inbox")
            )
            if copy.target != plan.locations.get((device, copy.node)):
                raise _fail(
                    f"{graph.nodes[copy.node].name} is copied to another place than it is read"
                )
        for out in split.copies_out:
            windows["outbox"].append(
                _check_span(plan, device, out.node, out.outbox, memory.outbox_pages, "outbox")
            )
    for name, spans in windows.items():
        ordered = sorted(spans, key=lambda s: (s.page, s.offset))
        for one, two in zip(ordered, ordered[1:], strict=False):
            if _meet(one, two):
                raise _fail(f"two values share words of the {name}")


def _accesses(plan: Plan, split: Split, position: int) -> tuple[tuple[int, ...], int | None]:
    """Returns the values that an item reads and the value that it writes."""
    if position < len(split.copies_in):
        return (), split.copies_in[position].node
    position -= len(split.copies_in)
    if position < len(split.nodes):
        node_id = split.nodes[position]
        if plan.graph.nodes[node_id].op == "state":  # it is there: nothing happens
            return (), None
        return plan.graph.nodes[node_id].inputs, node_id
    return (split.copies_out[position - len(split.nodes)].node,), None


def _last_reads(plan: Plan, device: int) -> dict[int, int]:
    """Returns for each value on a device the last item of its program that touches it."""
    last: dict[int, int] = {}
    clock = 0
    for split in plan.splits:
        if split.device == device:
            for position in range(len(split.copies_in) + len(split.nodes) + len(split.copies_out)):
                operands, result = _accesses(plan, split, position)
                for operand in operands:
                    key = (
                        operand if (device, operand) in plan.locations else plan.graph.root(operand)
                    )
                    last[key] = clock
                for value in _written(plan, device, result):
                    last[value] = clock
                clock += 1
    return last


def _written(plan: Plan, device: int, result: int | None) -> tuple[int, ...]:
    """Returns what an item writes: its result, and its scratch memory where it has some."""
    if result is None:
        return ()
    beside = scratch_of(result)
    return (result, beside) if (device, beside) in plan.locations else (result,)


def _name(plan: Plan, value: int) -> str:
    if value < 0:
        return f"the scratch memory of {plan.graph.nodes[scratch_of(value)].name}"
    return plan.graph.nodes[value].name


def _span(plan: Plan, device: int, node_id: int) -> Span | None:
    own = plan.locations.get((device, node_id))
    return own or plan.locations.get((device, plan.graph.root(node_id)))


def _meet(a: Span, b: Span) -> bool:
    return a.page == b.page and max(a.offset, b.offset) < min(
        a.offset + a.words, b.offset + b.words
    )


def _check_span(
    plan: Plan, device: int, value: int, span: Span, pages: tuple[int, ...], kind: str
) -> Span:
    if value < 0:
        node, kind = plan.graph.nodes[scratch_of(value)], "scratch"
        words = plan.machine.devices[device].lower(plan.graph, node).scratch_words
    else:
        node = plan.graph.nodes[value]
        words = node.type.words
    if span.words != words:
        raise _fail(f"{kind} span {span} of {node.name} is not of its {words} words")
    inside = 0 <= span.page < len(pages) and 0 <= span.offset
    if not inside or span.offset + span.words > pages[span.page]:
        raise _fail(f"{kind} span {span} lies outside the pages {pages}")
    if span.offset % 4:
        raise _fail(f"{kind} span {span} is not aligned to 16 bytes")
    return span


def _check_capacity(plan: Plan, device: int) -> None:
    spec, memory = plan.machine.devices[device], plan.memory[device]
    slot = sum(memory.activation_pages)
    if not spec.windows_apart:
        slot += sum(memory.inbox_pages) + sum(memory.outbox_pages)
    weight_bytes = sum(plan.graph.nodes[w].type.device_bytes for w in memory.weights)
    if memory.weight_bytes < weight_bytes:
        raise _fail(f"weights of {weight_bytes} bytes, the plan says {memory.weight_bytes}")
    state_bytes = sum(plan.graph.nodes[s].type.device_bytes for s in memory.states)
    if memory.state_bytes < state_bytes:
        raise _fail(f"states of {state_bytes} bytes, the plan says {memory.state_bytes}")
    needed = memory.weight_bytes + memory.state_bytes + plan.copies * slot * 4
    if needed > memory.peak_bytes:
        raise _fail(f"{spec.name} needs {needed} bytes, the plan says {memory.peak_bytes}")
    kept = memory.weight_bytes + memory.state_bytes
    if not 0 <= memory.resident_bytes <= kept:
        raise _fail(f"{spec.name} holds {memory.resident_bytes} of {kept} bytes")
    shared = sum(plan.memory[d].needed_bytes for d in plan.machine.pool(device))
    if shared > spec.memory_bytes:
        raise _fail(f"{spec.name} needs {shared} of {spec.memory_bytes} bytes")
    for words in (*memory.activation_pages, *memory.inbox_pages, *memory.outbox_pages):
        if words * 4 > spec.page_bytes:
            raise _fail(f"a page of {words * 4} bytes is over {spec.name}'s {spec.page_bytes}")
