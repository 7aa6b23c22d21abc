"""A Vulkan device: memory for a plan, one recording per split and slot, submissions and their
checks. A node that alone takes longer than drivers allow is spread over several recordings.

Recording of a split:  barrier | copies in (inbox -> activations) | nodes, with the plan's barriers
                       | copies out (activations -> outbox) | barrier | ticket -> status word |
                       barrier to host
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import TypeVar

from ..errors import DeviceError, DeviceLost, IndexOutOfRange
from ..graph import Graph
from ..ops.lower import Lowering
from ..ops.op import OUTPUT, SCRATCH, STATUS, Dispatch
from ..plan.machine import DeviceSpec
from ..plan.memory import scratch_of
from ..plan.plan import CopyIn, CopyOut, Plan, Span, Split
from ..plan.split import SUBMISSION_S
from ..types import NDArray, numpy_dtype
from .device import Progress
from .kompute import CLOSE_LIMIT_S, Buffer, Context, HostBuffer, Pipeline, Recording
from .memory import DeviceStates, WeightStore, copy_groups, read_words, write_words
from .probe import PLANNED_SHARE
from .shaders import Shader, load_shader

B = TypeVar("B", Buffer, HostBuffer)

TICKET, ECHO, FLAGS, STATUS_WORDS = 0, 1, 2, 4
"""Words of a split in its slot's status buffer: number given by the host, number written back,
error bits.
"""


class VulkanDevice:
    """One logical Vulkan device."""

    def __init__(self, spec: DeviceSpec, index: int) -> None:
        self._spec = spec
        self.context = Context(index, spec.name)
        self.limits = spec.limits
        self.own_buffers = spec.own_buffers
        self.kept: list[object] = []
        store = self.context, spec.page_bytes, self.limits.max_groups[0]
        self.weights = WeightStore(*store)
        self.states = DeviceStates(*store, spec.own_buffers)

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        free = int(self.context.free_bytes() * PLANNED_SHARE)
        return dataclasses.replace(self._spec, memory_bytes=min(self._spec.memory_bytes, free))

    def holds(self, key: object) -> bool:
        return self.weights.holds(key) or self.states.holds(key)

    def prepare(self, plan: Plan, index: int, progress: Progress | None = None) -> VulkanSession:
        return VulkanSession(self, plan, index, progress)

    def close(self) -> None:
        self.context.close()


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where an operand lies: a buffer and a word offset in it."""

    buffer: Buffer
    offset: int


class _Slot:
    """The memory and the recordings of one slot."""

    def __init__(self, context: Context, plan: Plan, index: int, splits: Sequence[Split]) -> None:
        memory = plan.memory[index]
        self.activations: list[Buffer] = []
        self.inbox: list[HostBuffer] = []
        self.outbox: list[HostBuffer] = []
        self.recordings: dict[int, tuple[Recording, ...]] = {}
        self.status_of = {s.id: STATUS_WORDS * i for i, s in enumerate(splits)}
        self._buffers: list[Buffer] = []
        try:
            self.status = self._keep(context.host(STATUS_WORDS * max(1, len(splits))))
            self.status.array[:] = 0
            for words in memory.activation_pages:
                self.activations.append(self._keep(context.storage(words)))
            for words in memory.inbox_pages:
                self.inbox.append(self._keep(context.host(words)))
            for words in memory.outbox_pages:
                self.outbox.append(self._keep(context.host(words)))
        except BaseException:
            self.close()
            raise

    def _keep(self, buffer: B) -> B:
        self._buffers.append(buffer)
        return buffer

    def close(self) -> None:
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


class VulkanSession:
    """One plan's share of a Vulkan device."""

    def __init__(
        self, device: VulkanDevice, plan: Plan, index: int, progress: Progress | None
    ) -> None:
        self._device = device
        self._context = device.context
        self._plan = plan
        self._graph: Graph = plan.graph
        self._index = index
        self._splits = tuple(s for s in plan.splits if s.device == index)
        self._outboxes: dict[int, CopyOut] = {
            copy.node: copy for split in self._splits for copy in split.copies_out
        }
        self._pipelines: dict[tuple[object, ...], Pipeline] = {}
        self._checked: dict[int, dict[str, None]] = {}
        self._slots: list[_Slot] = []
        self._pages: tuple[int, ...] = ()
        self._closed = False
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            leaves = plan.memory[index].weights
            self._pages = device.weights.acquire(
                [(self._graph.keys[n], self._graph.data[n]) for n in leaves], progress
            )
            for _ in range(plan.copies):
                self._slots.append(_Slot(self._context, plan, index, self._splits))
                for split in self._splits:
                    self._slots[-1].recordings[split.id] = self._record(split, self._slots[-1])
            undo.pop_all()

    # -- recording ---------------------------------------------------------------------------------

    def _begin(self) -> Recording:
        recording = self._context.recording()
        recording.begin()
        recording.barrier("host", "shader")
        recording.barrier("shader", "shader")
        return recording

    def _record(self, split: Split, slot: _Slot) -> tuple[Recording, ...]:
        """One recording, or several where one node would take longer than a submission may."""
        parts = [self._begin()]
        items: tuple[CopyIn | int | CopyOut, ...] = (
            *split.copies_in,
            *split.nodes,
            *split.copies_out,
        )
        for position, item in enumerate(items):
            if position in split.barriers:
                parts[-1].barrier("shader", "shader")
            if isinstance(item, CopyIn):
                self._record_copy(
                    parts[-1],
                    _Place(slot.inbox[item.inbox.page], item.inbox.offset),
                    _Place(slot.activations[item.target.page], item.target.offset),
                    item.target.words,
                )
            elif isinstance(item, CopyOut):
                self._record_copy(
                    parts[-1],
                    self._place(item.node, slot),
                    _Place(slot.outbox[item.outbox.page], item.outbox.offset),
                    item.outbox.words,
                )
            else:
                self._record_node(parts, item, slot, split)
        recording = parts[-1]
        at = slot.status_of[split.id]
        recording.barrier("shader", "shader")
        self._record_copy(
            recording, _Place(slot.status, at + TICKET), _Place(slot.status, at + ECHO), 1
        )
        recording.barrier("shader", "host")
        recording.end()
        return tuple(parts)

    def _record_copy(
        self, recording: Recording, source: _Place, target: _Place, words: int
    ) -> None:
        if words:
            shader = load_shader("copy")
            pipeline = self._pipeline(shader, (source.buffer, target.buffer), ())
            groups = copy_groups(words, shader, self._device.limits.max_groups[0])
            push = shader.pack_push((source.offset, target.offset), {"count": words})
            recording.dispatch(pipeline, groups, push)

    def _record_node(self, parts: list[Recording], node_id: int, slot: _Slot, split: Split) -> None:
        node = self._graph.nodes[node_id]
        spec = self._plan.machine.devices[self._index]
        lowering = spec.lower(self._graph, node)
        each_s = spec.node_seconds(self._graph, node) / max(1, len(lowering.dispatches))
        taken_s = 0.0
        for position, dispatch in enumerate(lowering.dispatches):
            taken_s += each_s
            if position and taken_s > SUBMISSION_S:  # what comes first waits for all before it
                parts[-1].end()
                parts.append(self._begin())
                taken_s = each_s
            recording = parts[-1]
            # Dispatches of a node write different words, and status words only collect bits: no
            # hazard, but validation with own buffers would see one.
            apart = self._device.own_buffers and (position or STATUS in dispatch.operands)
            if dispatch.barrier or apart:
                recording.barrier("shader", "shader")
            self._record_dispatch(recording, lowering, dispatch, node_id, slot, split)

    def _record_dispatch(
        self,
        recording: Recording,
        lowering: Lowering,
        dispatch: Dispatch,
        node_id: int,
        slot: _Slot,
        split: Split,
    ) -> None:
        node = self._graph.nodes[node_id]
        shader = load_shader(dispatch.shader)
        places = []
        for operand in dispatch.operands:
            if operand == OUTPUT:
                places.append(self._place(node_id, slot))
            elif operand == STATUS:
                places.append(_Place(slot.status, slot.status_of[split.id] + FLAGS))
                self._checked.setdefault(split.id, {})[node.name] = None
            elif operand <= SCRATCH:
                beside = self._plan.locations[self._index, scratch_of(node_id)]
                at = beside.offset + lowering.scratch_offset(SCRATCH - operand)
                places.append(_Place(slot.activations[beside.page], at))
            else:
                places.append(self._place(node.inputs[operand], slot))
        shifts = dispatch.shifts or (0,) * len(places)
        offsets = [place.offset + shift for place, shift in zip(places, shifts, strict=True)]
        pipeline = self._pipeline(shader, tuple(p.buffer for p in places), dispatch.constants)
        recording.dispatch(
            pipeline, dispatch.groups, shader.pack_push(offsets, dict(dispatch.push))
        )

    def _pipeline(
        self,
        shader: Shader,
        buffers: tuple[Buffer, ...],
        constants: tuple[tuple[str, int], ...],
    ) -> Pipeline:
        values = shader.specialize(dict(constants))
        key = (shader.name, values, *map(id, buffers))
        if key not in self._pipelines:
            self._pipelines[key] = self._context.pipeline(
                shader.module(values), buffers, values, shader.push_bytes
            )
        return self._pipelines[key]

    def _place(self, node_id: int, slot: _Slot) -> _Place:
        """Returns where a node's words are in this slot: its own span, its root's, a state's
        memory, or a weight page.
        """
        own = self._plan.locations.get((self._index, node_id))
        root, offset = self._graph.views.get(node_id, (node_id, 0))
        span = own or self._plan.locations.get((self._index, root))
        if own is not None:
            offset = 0
        if span is not None and span.page >= len(slot.activations):
            key = self._graph.keys[self._graph.states[root]]
            buffer, held = self._device.states.place(key)
            return _Place(buffer, held.offset + offset)
        if span is not None:
            return _Place(slot.activations[span.page], span.offset + offset)
        weight: Span = self._device.weights.span(self._graph.keys[root])
        return _Place(self._device.weights.buffer(weight.page), weight.offset + offset)

    # -- running -----------------------------------------------------------------------------------

    def begin(self, slot: int) -> None:
        return None

    def stage(self, slot: int, copy: CopyIn, array: NDArray) -> None:
        inbox = self._slots[slot].inbox
        if copy.inbox.words:
            end = copy.inbox.offset + copy.inbox.words
            write_words(inbox[copy.inbox.page].array[copy.inbox.offset : end], array)

    def submit(self, slot: int, split: int, ticket: int) -> None:
        memory = self._slots[slot]
        at = memory.status_of[split]
        memory.status.array[at + TICKET] = ticket
        memory.status.array[at + FLAGS] = 0
        for recording in memory.recordings[split]:
            recording.submit()

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        """One fence for all that was submitted before: a queue ends its submissions in order."""
        recordings = self._slots[slot].recordings
        last = recordings[split][-1]
        last.wait(timeout_s)
        for number, parts in recordings.items():
            for recording in parts if number <= split else ():
                if recording is not last and recording.pending and not recording.done():
                    recording.wait(timeout_s)  # its own fence comes a moment after its work

    def check(self, slot: int, split: int, ticket: int) -> None:
        memory = self._slots[slot]
        at = memory.status_of[split]
        echo, flags = int(memory.status.array[at + ECHO]), int(memory.status.array[at + FLAGS])
        if echo != ticket:
            raise DeviceLost(
                f"[check] {self._device.name}: expected sequence word {ticket} after split "
                f"{split}, got {echo}: the driver dropped the submission; try another "
                f"device or driver"
            )
        if flags:
            names = ", ".join(self._checked[split])
            raise IndexOutOfRange(
                f"[run] {self._device.name}: an index is outside its axis, in: {names}"
            )

    def fetch(self, slot: int, node: int) -> NDArray:
        copy, type_ = self._outboxes[node], self._graph.nodes[node].type
        dtype = numpy_dtype(type_.dtype)
        page = self._slots[slot].outbox[copy.outbox.page].array
        words = page[copy.outbox.offset : copy.outbox.offset + copy.outbox.words]
        return read_words(words, dtype, type_.shape)

    def duration_s(self, slot: int, split: int) -> float | None:
        times = self._times_s(slot, split)
        return None if times is None else sum(times)

    def longest_s(self, slot: int, split: int) -> float | None:
        times = self._times_s(slot, split)
        return None if times is None else max(times)

    def _times_s(self, slot: int, split: int) -> list[float] | None:
        """Returns the time of each recording of a split, if the device can tell of all."""
        times = [r.duration_s() for r in self._slots[slot].recordings[split]]
        known = [t for t in times if t is not None]
        return known if len(known) == len(times) else None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        stuck: list[DeviceError] = []
        limit = time.monotonic() + CLOSE_LIMIT_S  # for all: one that hangs holds up the others
        for slot in self._slots:
            for recording in (r for parts in slot.recordings.values() for r in parts):
                try:
                    recording.close(max(0.0, limit - time.monotonic()))
                except DeviceError as error:
                    stuck.append(error)
        if stuck:
            # The device may still work on all this: it is kept until the device itself ends.
            self._device.kept.append((self._slots, self._pipelines))
            self._slots, self._pipelines = [], {}
            raise stuck[0]
        for pipeline in self._pipelines.values():
            pipeline.close()
        self._pipelines.clear()
        for slot in self._slots:
            slot.close()
        self._slots.clear()
        self._device.weights.release(self._pages)
        self._pages = ()
