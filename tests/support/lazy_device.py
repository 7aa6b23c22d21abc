"""A device that takes every liberty a plan leaves it: words in memory, worked on late and in any
order.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray, Progress, numpy_dtype
from vksched.plan.plan import Plan
from vksched.plan.types.plan_types import (
    COMPUTE,
    DOWNLOAD,
    UPLOAD,
    Download,
    Span,
    Upload,
    scratch_of,
)
from vksched.runtime.cpu.evaluate import Values, evaluate_node
from vksched.runtime.device import Times, TransferTimes
from vksched.runtime.state_store import CpuStates
from vksched.runtime.vulkan.word_view import read_words, write_words
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.links import Link

GARBAGE = 0x7FC0DEAD
"""What is in memory that nobody has written: not a number, whatever the type."""


class LazyDevice:
    """Submissions are carried out when a wait needs them, or at any time before, those of one queue
    in order; the items between two barriers in any order. It has a queue for work and one for
    copies. An eager one does all at once and in order, so that no fault of a plan shows.
    """

    def __init__(self, spec: DeviceSpec, seed: int = 0, eager: bool = False) -> None:
        self._spec = spec
        self.eager = eager
        self.states = CpuStates()
        self.queue: list[Sent] = []
        self.lock = threading.RLock()
        self.rng = np.random.default_rng(seed)

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        return self._spec

    @property
    def link(self) -> Link | None:
        return None

    def holds(self, key: object) -> bool:
        return self.states.holds(key)

    def prepare(self, plan: Plan, index: int, progress: Progress | None = None) -> LazyPreparedPlan:
        return LazyPreparedPlan(self, plan, index)

    def close(self) -> None:
        self.queue.clear()

    def work(self, some: Sequence[Sent]) -> None:
        """Carry out submissions, and what they need before."""
        for sent in some:
            self.finish(sent)

    def some(self) -> list[Sent]:
        """Some submissions, as the device may carry them out now."""
        count = int(self.rng.integers(0, len(self.queue) + 1))
        return [self.queue[i] for i in self.rng.permutation(len(self.queue))[:count]]

    def finish(self, sent: Sent) -> None:
        """Carry out a submission behind those before it on its queue, and what it waits for."""
        if sent not in self.queue:
            return
        before = self.queue[: self.queue.index(sent)]
        for other in before:
            if (other.stage == COMPUTE) == (sent.stage == COMPUTE):
                self.finish(other)
        for other in before:
            same = (other.prepared, other.slot) == (sent.prepared, sent.slot)
            if same and (other.stage, other.split) in sent.after:
                self.finish(other)
        self.queue.remove(sent)
        sent.prepared.carry_out(sent.slot, sent.split, sent.stage)
        if sent.stage == COMPUTE:
            sent.prepared.echo[sent.slot, sent.split] = sent.sequence_number


class Sent(NamedTuple):
    """A submission that waits to be carried out. after: stages and splits that it waits for."""

    prepared: LazyPreparedPlan
    slot: int
    split: int
    stage: str
    sequence_number: int
    after: tuple[tuple[str, int], ...]


def pages(words: Sequence[int]) -> list[NDArray]:
    return [np.full(count, GARBAGE, np.uint32) for count in words]


class LazyPreparedPlan:
    """One plan's share of a lazy device."""

    def __init__(self, device: LazyDevice, plan: Plan, index: int) -> None:
        self.device, self.plan, self.index = device, plan, index
        memory, slots = plan.memory[index], range(plan.copies)
        self.activations = [pages(memory.activation_pages) for _ in slots]
        self.upload_buffers = [pages(memory.upload_pages) for _ in slots]
        self.download_buffers = [pages(memory.download_pages) for _ in slots]
        self.download_spans = {
            c.node: c.staging for s in plan.splits if s.device == index for c in s.downloads
        }
        self.echo: dict[tuple[int, int], int] = {}
        self.downloaded: dict[tuple[int, int], int] = {}
        """By slot and split, of the run whose copies out the copy queue has got."""

    def begin(self, slot: int) -> None:
        return None

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        write_words(words(self.upload_buffers[slot], copy.staging), array)

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        built = self.plan.splits[split]
        with self.device.lock:
            if UPLOAD in built.async_transfers:
                self.send(slot, split, UPLOAD, sequence_number)
            self.send(slot, split, COMPUTE, sequence_number)
            for number in built.deferred_downloads:
                self.send(slot, number, DOWNLOAD, sequence_number)
            if self.device.eager or self.device.rng.random() < 0.3:
                queue = list(self.device.queue)
                self.device.work(queue if self.device.eager else self.device.some())

    def send(self, slot: int, split: int, stage: str, sequence_number: int) -> None:
        after = self.plan.splits[split].after(stage)
        self.device.queue.append(Sent(self, slot, split, stage, sequence_number, after))
        if stage == DOWNLOAD:
            self.downloaded[slot, split] = sequence_number

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        own = [s for s in self.plan.splits if s.device == self.index and s.id <= split]
        leaving = {s.id for s in own if DOWNLOAD in s.async_transfers}
        with self.device.lock:
            self.device.work([s for s in self.sent(slot) if (s.split, s.stage) == (split, COMPUTE)])
            for number in sorted(leaving):
                sequence_number = self.echo.get((slot, number), -1)
                if sequence_number != -1 and self.downloaded.get((slot, number)) != sequence_number:
                    self.send(slot, number, DOWNLOAD, sequence_number)
            out = [s for s in self.sent(slot) if s.stage == DOWNLOAD and s.split in leaving]
            self.device.work(out)

    def sent(self, slot: int) -> list[Sent]:
        return [s for s in self.device.queue if (s.prepared, s.slot) == (self, slot)]

    def ends_s(self, slot: int, split: int) -> float | None:
        with self.device.lock:
            self.device.work(self.device.some())
            left = any(s.split == split for s in self.sent(slot))
            return None if left else -np.inf

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        if self.echo.get((slot, split)) != sequence_number:
            raise vs.DeviceLost(f"[check] split {split} of {self.device.name} did not run")

    def fetch(self, slot: int, node: int) -> NDArray:
        return self._array(words(self.download_buffers[slot], self.download_spans[node]), node)

    def times_s(self, slot: int, split: int) -> Times:
        return (None, None)

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        return dict.fromkeys(self.plan.splits[split].async_transfers, (None, None))

    def close(self) -> None:
        with self.device.lock:
            self.device.queue[:] = [s for s in self.device.queue if s.prepared is not self]

    # -- the device's side -------------------------------------------------------------------------

    def carry_out(self, slot: int, number: int, stage: str) -> None:
        split = self.plan.splits[number]
        items: list[Upload | int | Download] = [*split.uploads, *split.nodes, *split.downloads]
        group: list[Upload | int | Download] = []
        for position in split.stages[stage]:
            item = items[position]
            if position in split.barriers:
                self._together(slot, group)
                group = []
            group.append(item)
        self._together(slot, group)

    def _together(self, slot: int, group: Sequence[Upload | int | Download]) -> None:
        order = range(len(group)) if self.device.eager else self.device.rng.permutation(len(group))
        for position in order:
            item = group[position]
            if isinstance(item, Upload):
                words(self.activations[slot], item.target)[:] = words(
                    self.upload_buffers[slot], item.staging
                )
            elif isinstance(item, Download):
                write_words(
                    words(self.download_buffers[slot], item.staging), self._value(slot, item.node)
                )
            else:
                self._run(slot, item)

    def _run(self, slot: int, node_id: int) -> None:
        graph, node = self.plan.graph, self.plan.graph.nodes[node_id]
        if node.op == "state":
            return
        if node.op == "assign":
            self.device.states.write(graph.keys[node.inputs[0]], self._value(slot, node.inputs[1]))
            return
        others = self.plan.locations.get((self.index, scratch_of(node_id)))
        if others is not None:
            words(self.activations[slot], others)[:] = GARBAGE
        result = evaluate_node(graph, node_id, tuple(self._value(slot, i) for i in node.inputs))
        state = self.plan.in_place.get(node_id)
        if state is not None:
            held = self.device.states.view(graph.keys[state])
            held[...] = result.reshape(held.shape)
        else:
            write_words(words(self.activations[slot], self._span(node_id)), result)

    def _span(self, node_id: int) -> Span:
        return self.plan.locations[self.index, node_id]

    def _value(self, slot: int, node_id: int) -> NDArray:
        graph, plan = self.plan.graph, self.plan
        root, offset = graph.views.get(node_id, (node_id, 0))
        values = Values(graph)
        if root in graph.data:
            return values[node_id]
        if root in graph.states and plan.placements[root].device == self.index:
            values[root] = self.device.states.view(graph.keys[root])
            return values[node_id]
        if root in plan.in_place:
            held = self.device.states.view(graph.keys[plan.in_place[root]])
            values[root] = held.reshape(graph.nodes[root].type.shape)
            return values[node_id]
        span = plan.locations.get((self.index, node_id))
        if span is None:
            whole = self._span(root)
            span = Span(whole.page, whole.offset + offset, graph.nodes[node_id].type.words)
        return self._array(words(self.activations[slot], span), node_id)

    def _array(self, held: NDArray, node_id: int) -> NDArray:
        type_ = self.plan.graph.nodes[node_id].type
        return read_words(held, numpy_dtype(type_.dtype), type_.shape)


def words(memory: Sequence[NDArray], span: Span) -> NDArray:
    """The words of a span, as a view."""
    return memory[span.page][span.offset : span.offset + span.words]


def lazy_devices(count: int, seed: int = 0, **spec: object) -> list[LazyDevice]:
    """Some lazy devices, named as null devices are."""
    return [
        LazyDevice(DeviceSpec(f"null:{i}", "null", **spec), seed + i)  # type: ignore[arg-type]
        for i in range(count)
    ]
