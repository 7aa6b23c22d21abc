"""Split recorder: records the splits of a plan as Vulkan commands.

Recording of a split:  barrier | uploads (upload buffer -> activations) | nodes and barriers
                       | downloads (activations -> download buffer), sequence_number -> status word
                       | barrier to host

Transfers on the transfer queue are separate recordings, each with its own sequence number and
barriers.

A barrier without adjacent copies orders dispatches only: then drivers need not wait for their copy
engines. A node that exceeds the drivers' timeout alone is spread over several recordings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Protocol

from ...common.errors import DeviceError
from ...ir.graph import Graph
from ...ir.op import COUNTERS, OUTPUT, SCRATCH, STATUS, Dispatch
from ...ops.layout.dynamic_update_slice import FUSED_STATES
from ...ops.lowering.lower import Lowering
from ...plan.costs import node_cost
from ...plan.costs.fused_writes import fused_dispatch, fused_writes
from ...plan.types.plan_types import (
    COMPUTE,
    DOWNLOAD,
    UPLOAD,
    Download,
    PlanValue,
    Span,
    Split,
    Upload,
    scratch_of,
)
from ...plan.types.split_draft import SUBMISSION_S
from .buffers import Buffer
from .context import Context, Pipeline, Recording, Wanted
from .device_states import DeviceStates
from .host_memory_import import Pages
from .shaders import Shader, load_shader
from .weight_store import WeightStore

TICKET, ECHO, FLAGS, STATUS_WORDS = 0, 1, 2, 4
"""Word offsets of a split in its slot's status buffer: sequence number written by the host, the
echo written by the device, and error flags.
"""
ASIDE_ECHO, ASIDE_WORDS = {UPLOAD: 1, DOWNLOAD: 2}, 4
"""Word offsets of a split in its slot's status buffer of the transfer queue: the sequence number,
then the echo of each stage. It is a separate buffer, because kernels bind all of the other one.
"""


@dataclass(frozen=True, slots=True)
class _Place:
    """The location of an operand: a buffer, a word offset in it, and a size in words."""

    buffer: Buffer
    offset: int
    words: int

    def part(self, words: int, name: str, at: int = 0) -> _Place:
        """Return the location of some words from word `at` of this one.

        Raises
        ------
        DeviceError
            They exceed the location or its buffer; kernels do not check bounds.
        """
        end = self.offset + at + words
        if min(at, words) < 0 or at + words > self.words or end > self.buffer.words:
            there = min(self.words, self.buffer.words - self.offset)
            raise DeviceError(
                f"[record] expected {words} words for {name} from word {at} of its memory, got "
                f"{there}; try to plan again"
            )
        return _Place(self.buffer, self.offset + at, words)


class SlotMemory(Protocol):
    """The memory of splits in one slot."""

    @property
    def activations(self) -> Sequence[Buffer]: ...

    @property
    def upload_buffers(self) -> Sequence[Buffer]: ...

    @property
    def download_buffers(self) -> Sequence[Buffer]: ...

    @property
    def counters(self) -> Buffer | None:
        """Counters, and as many zeros behind them."""

    @property
    def status(self) -> Buffer: ...

    @property
    def status_of(self) -> dict[int, int]: ...

    @property
    def aside(self) -> Buffer | None: ...

    @property
    def aside_of(self) -> dict[int, int]: ...


class _Commands:
    """The recordings of one stage, the last of which is being written, with its commands since the
    last barrier.
    """

    def __init__(
        self, context: Context, copies: bool = False, first: Recording | None = None
    ) -> None:
        """Begin recording. copies: True for the transfer queue. first: a recording to reuse as the
        first one.
        """
        self._context = context
        self._copies = copies
        self._first = first
        self.parts: list[Recording] = []
        self.next_part()

    def next_part(self) -> None:
        """Begin a recording; its first command waits for all earlier submissions.

        Host writes before a submission are visible to it without a barrier.
        """
        if self.parts:
            self.parts[-1].end()
        self.parts.append(self._first or self._context.recording(self._copies))
        self._first = None
        self.parts[-1].begin()
        self.parts[-1].barrier("device", "device")
        self._copied = self._dispatched = False
        self._taken_s = 0.0

    def make_room(self, seconds: float) -> None:
        """Begin another recording if the current one could exceed the drivers' timeout."""
        if self._dispatched and self._taken_s + seconds > SUBMISSION_S:
            self.next_part()
        self._taken_s += seconds

    def copy(self, source: _Place, target: _Place) -> None:
        """Copy all words of the target."""
        if target.words:
            ends = source.buffer, target.buffer, source.offset, target.offset
            self.parts[-1].copy(*ends, target.words)
            self._copied = True

    def copy_imported(self, pages: Pages, target: _Place) -> None:
        to = target.buffer, pages.offset, target.offset
        self.parts[-1].copy_imported(pages.native, *to, target.words)
        self._copied = True

    def dispatch(self, pipeline: Pipeline, groups: tuple[int, int, int], push: bytes) -> None:
        self.parts[-1].dispatch(pipeline, groups, push)
        self._dispatched = True

    def barrier(self, copies_follow: bool = False) -> None:
        around = "device" if self._copied or copies_follow else "shader"
        self.parts[-1].barrier(around, around)
        self._copied = self._dispatched = False

    def finish(self, *copies: tuple[_Place, _Place]) -> tuple[Recording, ...]:
        """Copy words from a source to a target each after all dispatches, for example the echo of
        the sequence number, and end the last recording.
        """
        if self._dispatched:
            self.barrier(copies_follow=True)
        for source, target in copies:
            self.copy(source, target)
        self.parts[-1].barrier("device", "host")
        self.parts[-1].end()
        return tuple(self.parts)


class Recorder:
    """Records the splits that a plan assigns to one device; the recordings use its pipelines.

    checked: by split, the nodes that check indices.
    """

    def __init__(
        self,
        context: Context,
        plan: PlanValue,
        index: int,
        splits: Sequence[Split],
        weights: WeightStore,
        states: DeviceStates,
    ) -> None:
        self._context = context
        self._plan = plan
        self._graph: Graph = plan.graph
        self._index = index
        self._spec = plan.topology.devices[index]
        self._splits = splits
        self._weights = weights
        self._states = states
        self._lowerings: dict[int, tuple[Lowering, float]] = {}
        """Lowerings by distinct call, with estimated seconds; the text of the attributes is a part
        of the key, because 0.0 and -0.0 are equal.
        """
        self.pipelines: dict[tuple[object, ...], Pipeline] = {}
        self.checked: dict[int, dict[str, None]] = {}

    @cached_property
    def wanted(self) -> tuple[Wanted, ...]:
        """The pipelines to compile, without duplicates."""
        found: dict[Wanted, None] = {}
        nodes = (n for split in self._splits for n in split.nodes)
        calls = {self._graph.signatures[node_id]: node_id for node_id in nodes}
        groups = ((s, g) for s in self._splits for g in fused_writes(self._plan, s).values())
        dispatches = (
            *(each for node_id in calls.values() for each in self._lower(node_id)[0].dispatches),
            *(fused_dispatch(self._plan, split, group) for split, group in groups),
        )
        for dispatch in dispatches:
            shader = load_shader(dispatch.shader)
            values = shader.specialize(dict(dispatch.constants))
            count = len(dispatch.operands)
            module = shader.module(dispatch.steps)
            found[module, values, count, shader.push_bytes, dispatch.subgroup] = None
        return tuple(found)

    @cached_property
    def counters_of(self) -> dict[int, int]:
        """The position of each node's counters among those of a slot, in words."""
        nodes = [n for split in self._splits for n in split.nodes]
        ends = accumulate((self._lower(n)[0].counters for n in nodes), initial=0)
        return dict(zip(nodes, ends, strict=False))

    @property
    def counter_words(self) -> int:
        """The words of the counters of all nodes."""
        return sum(self._lower(node_id)[0].counters for node_id in self.counters_of)

    def record(self, split: Split, slot: SlotMemory) -> dict[str, tuple[Recording, ...]]:
        """Return the recordings by stage; several if one submission could exceed the timeout."""
        return {stage: self._record_stage(split, slot, stage) for stage in split.stages}

    def record_imported(
        self,
        split: Split,
        slot: SlotMemory,
        pages: Mapping[int, Pages],
        recording: Recording | None,
    ) -> Recording:
        """Return the uploads of a split as a recording, some of them copied from imported pages, by
        node.

        Parameters
        ----------
        recording
            An earlier result of this method, to be reused.
        """
        return self._record_stage(split, slot, UPLOAD, pages, recording)[0]

    def _record_stage(
        self,
        split: Split,
        slot: SlotMemory,
        stage: str,
        pages: Mapping[int, Pages] = MappingProxyType({}),
        first: Recording | None = None,
    ) -> tuple[Recording, ...]:
        commands = _Commands(self._context, stage != COMPUTE, first)
        first_out = len(split.uploads) + len(split.nodes)
        last_barrier = max((b for b in split.barriers if b <= first_out), default=-1)
        items: tuple[Upload | int | Download, ...] = (
            *split.uploads,
            *split.nodes,
            *split.downloads,
        )
        fused = fused_writes(self._plan, split) if stage == COMPUTE else {}
        later = {node_id for group in fused.values() for node_id in group[1:]}
        for position in split.stages[stage]:
            item = items[position]
            if position in split.barriers:
                # without downloads, the last barrier is also the one before them
                commands.barrier(position == last_barrier or position >= first_out)
            if isinstance(item, Upload):
                words, name = item.target.words, self._graph.nodes[item.node].name
                source = _within(slot.upload_buffers, item.staging).part(words, name)
                target = _within(slot.activations, item.target)
                if item.node in pages:
                    commands.copy_imported(pages[item.node], target)
                else:
                    commands.copy(source, target)
            elif isinstance(item, Download):
                target = _within(slot.download_buffers, item.staging)
                name = self._graph.nodes[item.node].name
                commands.copy(self._place(item.node, slot).part(target.words, name), target)
            elif item in fused:
                self._record_fused(commands, fused[item], slot, split)
            elif item not in later:
                self._record_node(commands, item, slot, split)
        if stage == COMPUTE:
            at, status = slot.status_of[split.id], slot.status
            echo = _Place(status, at + TICKET, 1), _Place(status, at + ECHO, 1)
            return commands.finish(*self._reset_counters(split, slot), echo)
        assert slot.aside is not None
        at = slot.aside_of[split.id]
        echo = _Place(slot.aside, at + TICKET, 1), _Place(slot.aside, at + ASIDE_ECHO[stage], 1)
        return commands.finish(echo)

    def _reset_counters(self, split: Split, slot: SlotMemory) -> Iterator[tuple[_Place, _Place]]:
        """Yield the copy of zeros to the counters of a split, if it has any."""
        words = sum(self._lower(node_id)[0].counters for node_id in split.nodes)
        if words:
            assert slot.counters is not None
            at = self.counters_of[split.nodes[0]]
            zeros = _Place(slot.counters, self.counter_words, words)
            yield zeros, _Place(slot.counters, at, words)

    def close(self) -> None:
        for pipeline in self.pipelines.values():
            pipeline.close()
        self.pipelines.clear()

    def _lower(self, node_id: int) -> tuple[Lowering, float]:
        node = self._graph.nodes[node_id]
        call = self._graph.signatures[node_id]
        known = self._lowerings.get(call)
        if known is None:
            known = (
                node_cost.lower_node(self._spec, self._graph, node),
                node_cost.longest_seconds(self._spec, self._graph, node),
            )
            self._lowerings[call] = known
        return known

    def _record_node(
        self, commands: _Commands, node_id: int, slot: SlotMemory, split: Split
    ) -> None:
        lowering, seconds = self._lower(node_id)
        each_s = seconds / max(1, len(lowering.dispatches))
        for position, dispatch in enumerate(lowering.run(node_id in self._plan.in_place)):
            commands.make_room(each_s)
            # Dispatches of a node write different words, status words only collect bits, and nodes
            # have counters of their own: no hazard, but validation with separate buffers would
            # report one.
            shared = position or not {STATUS, COUNTERS}.isdisjoint(dispatch.operands)
            apart = self._spec.disable_aliasing and shared
            if dispatch.barrier or apart:
                commands.barrier()
            self._record_dispatch(commands, lowering, dispatch, node_id, slot, split)

    def _record_dispatch(
        self,
        commands: _Commands,
        lowering: Lowering,
        dispatch: Dispatch,
        node_id: int,
        slot: SlotMemory,
        split: Split,
    ) -> None:
        node = self._graph.nodes[node_id]
        places = []
        for operand in dispatch.operands:
            if operand == OUTPUT:
                places.append(self._place(node_id, slot))
            elif operand == STATUS:
                places.append(_Place(slot.status, slot.status_of[split.id] + FLAGS, 1))
                self.checked.setdefault(split.id, {})[node.name] = None
            elif operand == COUNTERS:
                assert slot.counters is not None
                at = self.counters_of[node_id]
                places.append(_Place(slot.counters, at, lowering.counters))
            elif operand <= SCRATCH:
                scratch = self._plan.locations[self._index, scratch_of(node_id)]
                number = SCRATCH - operand
                words, at = lowering.scratch[number], lowering.scratch_offset(number)
                places.append(_within(slot.activations, scratch).part(words, node.name, at))
            else:
                places.append(self._place(node.inputs[operand], slot))
        self._record_at(commands, dispatch, places)

    def _record_fused(
        self, commands: _Commands, nodes: tuple[int, ...], slot: SlotMemory, split: Split
    ) -> None:
        """Record the dispatch that updates several states."""
        commands.make_room(sum(self._lower(node_id)[1] for node_id in nodes))
        # states that a dispatch does not update are bound, too
        padded = (*nodes, *nodes[:1] * (FUSED_STATES - len(nodes)))
        values = [self._graph.nodes[node_id].inputs for node_id in padded]
        places = [self._place(values[0][2], slot)]
        places += [self._place(rows, slot) for _, rows, _ in values]
        places += [self._place(node_id, slot) for node_id in padded]
        self._record_at(commands, fused_dispatch(self._plan, split, nodes), places)

    def _record_at(self, commands: _Commands, dispatch: Dispatch, places: Sequence[_Place]) -> None:
        """Record a dispatch whose operands lie at these places."""
        shader = load_shader(dispatch.shader)
        shifts = dispatch.shifts or (0,) * len(places)
        offsets = [place.offset + shift for place, shift in zip(places, shifts, strict=True)]
        pipeline = self._pipeline(shader, dispatch, [p.buffer for p in places])
        push = shader.pack_push(offsets, dict(dispatch.push))
        commands.dispatch(pipeline, dispatch.groups, push)

    def _pipeline(
        self,
        shader: Shader,
        dispatch: Dispatch,
        buffers: Sequence[Buffer],
    ) -> Pipeline:
        values = shader.specialize(dict(dispatch.constants))
        key = (shader.name, values, dispatch.steps, dispatch.subgroup, *map(id, buffers))
        if key not in self.pipelines:
            self.pipelines[key] = self._context.pipeline(
                shader.module(dispatch.steps),
                buffers,
                values,
                shader.push_bytes,
                dispatch.subgroup,
            )
        return self.pipelines[key]

    def _place(self, node_id: int, slot: SlotMemory) -> _Place:
        """Return the location of a node in this slot: its own span, its view base's, a state's
        memory, or a weight page.
        """
        own = self._plan.locations.get((self._index, node_id))
        root, offset = self._graph.views.get(node_id, (node_id, 0))
        span = own or self._plan.locations.get((self._index, root))
        if own is not None:
            offset = 0
        state = self._plan.state_at(self._index, span) if span is not None else None
        if state is not None:
            buffer, held = self._states.place(self._graph.keys[state])
            whole = _Place(buffer, held.offset, held.words)
        elif span is not None:
            whole = _within(slot.activations, span)
        else:
            held = self._weights.span(self._graph.keys[root])
            whole = _Place(self._weights.buffer(held.page), held.offset, held.words)
        node = self._graph.nodes[node_id]
        return whole.part(node.type.words, node.name, offset)


def _within(pages: Sequence[Buffer], span: Span) -> _Place:
    return _Place(pages[span.page], span.offset, span.words)
