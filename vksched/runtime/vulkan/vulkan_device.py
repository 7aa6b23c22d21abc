"""Vulkan device: memory of plans, recordings per split and slot, submissions and their checks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from ...common.dtypes import NDArray, Progress, TensorType
from ...common.errors import DeviceError, DeviceLost, IndexOutOfRange
from ...ir.graph import Graph
from ...plan.types.offsets import aligned
from ...plan.types.plan_types import COMPUTE, DOWNLOAD, UPLOAD, Download, PlanValue, Split, Upload
from ...storage.lazy_array import ArrayLike
from ...topology.device_spec import DeviceSpec
from ...topology.links import Link
from ..device import MemoryUsage, Times, TransferTimes
from .binding import describe_devices
from .buffers import Buffer, HostBuffer
from .context import Context, Recording, Wanted, is_same_queue
from .device_handle import CLOSE_LIMIT_S
from .device_probe import PLANNED_SHARE, uuid_of
from .device_states import DeviceStates
from .host_memory_import import Pages, import_array
from .prefetch import WeightPrefetcher
from .shaders import left_out
from .split_recorder import (
    ASIDE_ECHO,
    ASIDE_WORDS,
    ECHO,
    FLAGS,
    STATUS_WORDS,
    TICKET,
    Recorder,
)
from .staging import upload
from .weight_store import WeightStore
from .word_view import WordView

B = TypeVar("B", Buffer, HostBuffer)


class VulkanDevice:
    """One logical Vulkan device."""

    def __init__(self, spec: DeviceSpec, index: int) -> None:
        self._opened_as = spec, index
        self.context = Context(index, spec.name, spec.limits.copy_queue)
        if not self.context.featured:
            spec = dataclasses.replace(spec, limits=spec.limits.without_features())
        if left_out():
            spec = dataclasses.replace(spec, limits=dataclasses.replace(spec.limits, matrices=()))
        copy_queue = bool(self.context.copies) and (spec.limits.copy_queue or is_same_queue())
        limits = dataclasses.replace(spec.limits, copy_queue=copy_queue)
        spec = dataclasses.replace(spec, limits=limits)
        self._spec = spec
        self.limits = spec.limits
        self.disable_aliasing = spec.disable_aliasing
        self.import_alignment = self.context.import_alignment if limits.host_import else 0
        self._prefetchers: list[WeightPrefetcher] = []
        self.weights = WeightStore(self.context, spec.max_buffer_bytes)
        self.states = DeviceStates(self.context, spec.max_buffer_bytes, spec.disable_aliasing)

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def spec(self) -> DeviceSpec:
        free = int(self.context.free_bytes() * PLANNED_SHARE)
        return dataclasses.replace(self._spec, memory_bytes=min(self._spec.memory_bytes, free))

    def busy(self) -> bool:
        """Return True if a submission is in flight."""
        return self.context.pending()

    def memory_usage(self) -> MemoryUsage:
        with self.context.keep_open():  # another thread may be closing it
            return MemoryUsage(*self.context.memory_bytes(), self.context.pci)

    @property
    def link(self) -> Link | None:
        return None

    def holds(self, key: object) -> bool:
        return self.weights.holds(key) or self.states.holds(key)

    def prefetch_weights(self, weights: Sequence[tuple[object, ArrayLike]]) -> WeightPrefetcher:
        prefetcher = WeightPrefetcher(self.context, self.weights, weights)
        self._prefetchers = [prefetcher, *(each for each in self._prefetchers if not each.closing)]
        return prefetcher

    def prepare(
        self, plan: PlanValue, index: int, progress: Progress | None = None
    ) -> VulkanPreparedPlan:
        return VulkanPreparedPlan(self, plan, index, progress)

    def reopen(self) -> VulkanDevice:
        spec, index = self._opened_as
        devices = describe_devices()  # asks the drivers again, because indices may have changed
        now = ("", "no device")
        if index < len(devices):
            now = uuid_of(devices[index]), str(devices[index]["name"])
        if now != (spec.memory_node, spec.label):
            raise DeviceError(
                f"[reopen] {self.name}: expected {_identity(spec.memory_node, spec.label)}, got "
                f"{_identity(*now)}; try a new Scheduler"
            )
        return VulkanDevice(spec, index)

    def close(self) -> None:
        while self._prefetchers:
            self._prefetchers.pop().close()
        self.context.close()


def _identity(uuid: str, label: str) -> str:
    return f"{label} with UUID {uuid}" if uuid else label


class _Slot:
    """The memory and the recordings of one slot."""

    def __init__(
        self,
        context: Context,
        plan: PlanValue,
        index: int,
        splits: Sequence[Split],
        counter_words: int,
    ) -> None:
        memory = plan.memory[index]
        self.activations: list[Buffer] = []
        self.upload_buffers: list[HostBuffer] = []
        self.download_buffers: list[HostBuffer] = []
        self.recordings: dict[int, dict[str, tuple[Recording, ...]]] = {}
        """Recordings by split and stage."""
        self.status_of = {s.id: STATUS_WORDS * i for i, s in enumerate(splits)}
        with_transfers = [s.id for s in splits if s.async_transfers]
        self.aside_of = {split: ASIDE_WORDS * i for i, split in enumerate(with_transfers)}
        self.aside: HostBuffer | None = None
        self.counters: Buffer | None = None
        """Counters, and as many zeros behind them. Counters are 0 when a run begins: a dispatch
        resets its own, and each split ends with a copy of the zeros, because a driver may end the
        workgroups of a hanging dispatch and keep the device. Runs that are in flight have slots,
        and so counters, of their own.
        """
        self.sequence_numbers: dict[int, int] = {}
        """By split, the sequence number of the run that submitted it last, or was about to."""
        self.order: dict[int, int] = {}
        """By split, the index of its submission in the current run."""
        self.download_runs: dict[int, int] = {}
        """By split, the run whose downloads were submitted last to the transfer queue."""
        self.imported: dict[int, dict[int, Pages]] = {}
        """By split and node, the imported inputs of the current run."""
        self.importing: dict[int, Recording] = {}
        """By split, the recording that uploads them, which is recorded in each run."""
        self.imported_run: dict[int, int] = {}
        """By split, the run of that recording."""
        self.imported_s: dict[int, float | None] = {}
        """By split, the time of these uploads in the current run."""
        self._buffers: list[Buffer] = []
        self._views: dict[int, WordView] = {}
        try:
            self.status = self._keep(context.host(STATUS_WORDS * max(1, len(splits)), read=True))
            self.status.array[:] = 0
            if with_transfers:
                words = ASIDE_WORDS * len(with_transfers)
                self.aside = self._keep(context.host(words, read=True))
            if counter_words:
                self.counters = self._keep(context.storage(aligned(2 * counter_words)))
                upload(context, self.counters, [np.zeros(2 * counter_words, np.uint32)])
            for words in memory.activation_pages:
                self.activations.append(self._keep(context.storage(words)))
            for words in memory.upload_pages:
                self.upload_buffers.append(self._keep(context.host(words)))
            for words in memory.download_pages:
                self.download_buffers.append(self._keep(context.host(words, read=True)))
        except BaseException:
            self.close()
            raise

    def stage(self, split: int, stage: str) -> tuple[Recording, ...]:
        """Return the recordings of a stage in the current run."""
        if stage == UPLOAD and split in self.imported:
            return (self.importing[split],)
        return self.recordings[split][stage]

    def stages(self, split: int) -> Iterator[Recording]:
        """Yield all recordings of a split that may be in flight."""
        for stage in self.recordings[split]:
            yield from self.stage(split, stage)

    def release(self, split: int) -> None:
        """Release the imported inputs of a finished split."""
        if self.imported.pop(split, None) is not None and split in self.importing:
            self.imported_s[split] = self.importing[split].duration_s()
            self.importing[split].begin()  # this releases the pages

    def view(self, copy: Upload | Download, type_: TensorType) -> WordView:
        """Return the view of a value in its upload or download buffer."""
        found = self._views.get(id(copy))
        if found is None:
            pages, span = (
                (self.upload_buffers, copy.staging)
                if isinstance(copy, Upload)
                else (self.download_buffers, copy.staging)
            )
            words = pages[span.page].array[span.offset : span.offset + span.words]
            found = self._views[id(copy)] = WordView(words, type_)
        return found

    def _keep(self, buffer: B) -> B:
        self._buffers.append(buffer)
        return buffer

    def close(self) -> None:
        self._views.clear()
        self.imported.clear()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()


class VulkanPreparedPlan:
    """One plan on a Vulkan device."""

    def __init__(
        self, device: VulkanDevice, plan: PlanValue, index: int, progress: Progress | None
    ) -> None:
        self._device = device
        self._context = device.context
        self._graph: Graph = plan.graph
        self._index = index
        self._splits = tuple(s for s in plan.splits if s.device == index)
        self._by_id = {split.id: split for split in self._splits}
        self._imports: dict[int, int] = {
            copy.node: split.id
            for split in self._splits
            if UPLOAD in split.async_transfers
            for copy in split.uploads
            if plan.graph.nodes[copy.node].op == "input"
        }
        """By input, the split that it enters, if it may be imported."""
        self._outboxes: dict[int, Download] = {
            copy.node: copy for split in self._splits for copy in split.downloads
        }
        self._recorder = Recorder(
            self._context, plan, index, self._splits, device.weights, device.states
        )
        self._slots: list[_Slot] = []
        self._numbers = itertools.count()
        self._pages: tuple[int, ...] = ()
        self._closed = False
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            leaves = plan.memory[index].weights
            with ThreadPoolExecutor(1, thread_name_prefix="vksched-compile") as compiler:
                compiled = compiler.submit(self._compile, self._recorder.wanted)
                self._pages = device.weights.acquire(
                    [(self._graph.keys[n], self._graph.data[n]) for n in leaves], progress
                )
                compiled.result()
            for _ in range(plan.copies):
                words = self._recorder.counter_words
                self._slots.append(_Slot(self._context, plan, index, self._splits, words))
                for split in self._splits:
                    recorded = self._recorder.record(split, self._slots[-1])
                    self._slots[-1].recordings[split.id] = recorded
            undo.pop_all()

    def _compile(self, wanted: Collection[Wanted]) -> None:
        with self._context.keep_open():
            self._context.make_pipelines(wanted)

    # -- running -----------------------------------------------------------------------------------

    def begin(self, slot: int) -> None:
        memory = self._slots[slot]
        memory.order.clear()
        for split in list(memory.imported):  # left over from a failed run
            memory.release(split)

    def upload(self, slot: int, copy: Upload, array: NDArray) -> None:
        if copy.staging.words:
            type_, split = self._graph.nodes[copy.node].type, self._imports.get(copy.node)
            if split is not None:
                pages = import_array(self._context, self._device.import_alignment, type_, array)
                if pages is not None:
                    self._slots[slot].imported.setdefault(split, {})[copy.node] = pages
                    return
            self._slots[slot].view(copy, type_).write(array)

    def submit(self, slot: int, split: int, sequence_number: int) -> None:
        memory = self._slots[slot]
        at = memory.status_of[split]
        memory.status.array[at + TICKET] = sequence_number
        memory.status.array[at + FLAGS] = 0
        # repeated after an interrupt, maybe after the device's
        again = memory.sequence_numbers.get(split) == sequence_number
        memory.sequence_numbers[split] = sequence_number
        memory.order[split] = next(self._numbers)
        current = self._by_id[split]
        if memory.aside is not None and current.async_transfers:
            memory.aside.array[memory.aside_of[split] + TICKET] = sequence_number
        if UPLOAD in current.async_transfers:
            self._record_imported(memory, current, sequence_number)
            self._hand_over(memory, split, UPLOAD, again)
        self._hand_over(memory, split, COMPUTE, again)
        for number in current.deferred_downloads:
            if number in memory.order:  # else its submission was dropped
                self._hand_over(memory, number, DOWNLOAD, again)

    def _record_imported(self, memory: _Slot, split: Split, sequence_number: int) -> None:
        """Record the uploads of a split once per run, if some are imported."""
        pages, first = memory.imported.get(split.id), memory.importing.get(split.id)
        if pages is None:
            memory.imported_s.pop(split.id, None)
        elif memory.imported_run.get(split.id) != sequence_number:
            memory.importing[split.id] = self._recorder.record_imported(split, memory, pages, first)
            memory.imported_run[split.id] = sequence_number

    def _hand_over(self, memory: _Slot, split: int, stage: str, again: bool = False) -> None:
        """Submit a stage of a split with its dependencies. again: skip recordings in flight."""
        after = [memory.stage(n, of)[-1] for of, n in self._by_id[split].after(stage)]
        for recording in memory.stage(split, stage):
            if not (again and recording.pending):
                recording.submit(after)
                after = []
        if stage == DOWNLOAD:
            memory.download_runs[split] = memory.sequence_numbers[split]

    def wait(self, slot: int, split: int, timeout_s: float) -> None:
        """Wait for the fence of the split, which covers all earlier submissions because a queue is
        in order, and for the fences of asynchronous downloads.
        """
        limit_s = time.monotonic() + timeout_s
        memory = self._slots[slot]
        recordings, order = memory.recordings, memory.order
        until = order.get(split, math.inf)  # a dropped split counts as the last one
        recordings[split][COMPUTE][-1].wait(timeout_s)
        ended = [number for number, at in order.items() if at <= until]
        leaving = [number for number in ended if DOWNLOAD in recordings[number]]
        for number in leaving:
            if memory.download_runs.get(number) != memory.sequence_numbers[number]:
                self._hand_over(memory, number, DOWNLOAD, again=True)
        for number in leaving:
            recordings[number][DOWNLOAD][-1].wait(max(0.0, limit_s - time.monotonic()))
        for number in ended:
            for recording in memory.stages(number):
                if recording.pending and not recording.done():
                    recording.wait(timeout_s)  # its own fence is signalled a moment after its work
            memory.release(number)

    def ends_s(self, slot: int, split: int) -> float | None:
        parts = self._slots[slot].recordings[split][COMPUTE]
        return None if any(part.pending and not part.done() for part in parts) else -math.inf

    def check(self, slot: int, split: int, sequence_number: int) -> None:
        memory = self._slots[slot]
        at = memory.status_of[split]
        echo, flags = int(memory.status.array[at + ECHO]), int(memory.status.array[at + FLAGS])
        if memory.aside is not None:
            words, stages = memory.aside.array, self._by_id[split].async_transfers
            echoes = [int(words[memory.aside_of[split] + ASIDE_ECHO[stage]]) for stage in stages]
            echo = next((each for each in echoes if each != sequence_number), echo)
        if echo != sequence_number:
            raise DeviceLost(
                f"[check] {self._device.name}: expected sequence word {sequence_number} after split"
                f" {split}, got {echo}: the driver dropped the submission; try another "
                f"device or driver"
            )
        if flags:
            names = ", ".join(self._recorder.checked[split])
            raise IndexOutOfRange(
                f"[run] {self._device.name}: an index is outside its axis, in: {names}"
            )

    def fetch(self, slot: int, node: int) -> NDArray:
        return self._slots[slot].view(self._outboxes[node], self._graph.nodes[node].type).read()

    def times_s(self, slot: int, split: int) -> Times:
        each = [r.duration_s() for r in self._slots[slot].recordings[split][COMPUTE]]
        known = [t for t in each if t is not None]
        return (sum(known), max(known)) if known and len(known) == len(each) else (None, None)

    def async_transfer_s(self, slot: int, split: int) -> TransferTimes:
        """Return the transfer queue's times; it has timestamps if the host can reset queries."""
        memory, out = self._slots[slot], dict[str, tuple[None, float | None]]()
        if split in memory.imported_s:
            out[UPLOAD] = None, memory.imported_s[split]
        elif UPLOAD in memory.recordings[split]:
            out[UPLOAD] = None, memory.recordings[split][UPLOAD][-1].duration_s()
        if DOWNLOAD in memory.recordings[split]:
            out[DOWNLOAD] = None, memory.recordings[split][DOWNLOAD][-1].duration_s()
        return out

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        stuck: list[DeviceError] = []
        # a common limit: one hanging submission delays the others
        limit = time.monotonic() + CLOSE_LIMIT_S
        for slot in self._slots:
            stages = (parts for recorded in slot.recordings.values() for parts in recorded.values())
            own = itertools.chain.from_iterable(stages)
            for recording in (*own, *slot.importing.values()):
                try:
                    recording.close(max(0.0, limit - time.monotonic()))
                except DeviceError as error:
                    stuck.append(error)
        if stuck:
            self._context.keep(self._slots, self._recorder)
            self._slots = []
            raise stuck[0]
        self._recorder.close()
        for slot in self._slots:
            slot.close()
        self._slots.clear()
        self._device.weights.release(self._pages)
        self._pages = ()
