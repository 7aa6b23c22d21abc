"""Session: the resources of one driver on a worker, until its connection ends.

    missing, weight --> weights   prepare --> WorkerService   start, commit, abort --> its runs
    add, read, write, remove --> states of devices               ready, done, failed --> driver

A plan holds its number from the arrival of its message until all its resources are freed: another
plan with that number is refused meanwhile, independent of the order of threads.

Examples: tests/distributed/test_node_server.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, HostLost
from ...common.schema import SchemaError
from ...common.user_warning import warn
from ...plan.multi_host.host_plan import HostPlan, Recv
from ...runtime.device import Device
from ...runtime.executors.base_executor import CommitFailed
from ...runtime.run_stats import RunStats
from ...storage.content_hash import digest_of
from ...storage.lazy_array import ArrayLike
from ...trace import Event
from ...trace.events import Clock
from ..protocols import Driver, RunKey, TensorTransport
from ..wire.array_codec import (
    memory,
    pack,
    packed_bytes,
    typed_arrays,
    typed_bytes,
    unpack,
)
from ..wire.channel import Channel, Payload
from ..wire.error_codec import fields_of
from ..wire.json_payload import document_of, room_for
from ..wire.link_benchmark import measure_link
from ..wire.messages import HOSTS, Fields, Message, WeightDocument
from ..wire.peer_list import PeerList
from ..wire.quota import Quota
from ..wire.stats_codec import RemoteDeviceInfo, encode_devices, encode_run_stats
from ..wire.stream import Stream
from ..wire.tls import Security
from .buffer_pool import BufferPool
from .client_states import ClientStates
from .inbox import run_of
from .local_weights import ModelFolders
from .transport import ChannelTransport, Peers, echo_of
from .weight_cache import WeightCache
from .weight_registry import MAX_PLANS, WeightRegistry

THREADS = 8
QUEUED = ("echo", "missing", "prepare")
"""Requests whose payloads wait for a thread and are not uploaded to devices."""
Answer = tuple[Fields, Payload]


class WorkerService(Protocol):
    """Runs the parts of one driver on the devices of this worker; see `protocols.Worker`."""

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None: ...

    def start(self, run: RunKey, feeds: Mapping[int, NDArray], traced: bool = False) -> None: ...

    def commit(self, run: RunKey) -> None: ...

    def abort(self, run: RunKey) -> None: ...

    def release_plan(self, number: int) -> None: ...

    def close(self) -> None:
        """Abort all runs, wait for pending work and free all resources."""


class Documents(Protocol):
    """Serialization of parts."""

    def write(
        self, part: HostPlan, state: Callable[[object], str]
    ) -> tuple[bytes, Mapping[str, Payload]]:
        """Serialize a part; also return the bytes of its weights by hash. state: names a key."""

    def read(
        self, text: bytes, weight: Callable[[str], ArrayLike], state: Callable[[str], object]
    ) -> HostPlan:
        """Deserialize a part; equal hashes and names give equal keys. Raise VkschedError if it is
        invalid.
        """


@dataclass(frozen=True)
class WorkerContext:
    """Shared by all sessions of a worker.

    device_infos: current descriptions of the devices for drivers. serve: creates the WorkerService
    of a driver. allowed: the only addresses that it connects to.
    """

    name: str
    devices: Sequence[Device]
    device_infos: Callable[[], Iterable[RemoteDeviceInfo]]
    security: Security
    documents: Documents
    cache: WeightCache
    folders: ModelFolders
    clock: Clock
    serve: Callable[[TensorTransport, Driver], WorkerService]
    allowed: PeerList | None = None


@dataclass(slots=True, eq=False)
class _Plan:
    """A plan whose number is taken. part: set once it is read. preparing: True until a thread has
    prepared it. is_released: its driver has released it.
    """

    part: HostPlan | None = None
    preparing: bool = True
    is_released: bool = False


class Session:
    """driver: name in its HELLO. ended: called once all resources are freed."""

    def __init__(self, here: WorkerContext, driver: str, ended: Callable[[Session], None]) -> None:
        self.driver = driver
        self._here, self._ended = here, ended
        self._transport = ChannelTransport(self._channel_to)
        self._peers = Peers(here.name, driver, here.security, self._transport, here.allowed)
        self._channel: Channel | None = None
        self._served: WorkerService | None = None
        self._plans: dict[int, _Plan] = {}
        self._weights = WeightRegistry(here.cache, here.folders, digest_of)
        self._buffer_pool = BufferPool()
        self._states = ClientStates(here.devices)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="vksched-session")
        self._asked = Quota()
        self._lock = threading.Lock()
        """Guards the plans: the reader thread takes numbers, other threads release them."""

    def start(self, channel: Channel) -> None:
        """Start to serve."""
        self._channel = channel
        self._served = self._here.serve(self._transport, _ChannelDriver(channel))
        channel.start()

    def accept_peer(self, stream: Stream, host: str, pair: str) -> None:
        """Accept the connection of another worker."""
        self._peers.take_in(Channel(stream, host, self._peers.handler(host, pair)))

    def close(self) -> None:
        """Close the connection, as if the driver had; its resources are freed soon."""
        if self._channel is not None:
            self._channel.mark_lost("the worker was closed")

    def _channel_to(self, host: str) -> Channel:
        assert self._channel is not None
        return self._peers.channel(host) if host else self._channel

    # -- channel of the driver ---------------------------------------------------------------------

    def place(self, message: Message, size: int) -> memoryview | None:
        fields = message.fields
        if message.kind == "value":
            return self._transport.place(message, size, "")
        expected, run = size, None
        if message.kind == "start":
            run = run_of(fields)
            expected = typed_bytes(self._input_types(run))
        elif message.kind in ("add", "write"):
            expected = packed_bytes(fields["arrays"] if message.kind == "add" else [fields])
        if size != expected:
            raise SchemaError(f"expected {expected} bytes with {message.kind}, got {size}")
        if message.kind in QUEUED:
            self._asked.take_bytes(size)
        return memory(size) if run is None else self._buffer_pool.acquire(run[:2], size)

    def received(self, channel: Channel, message: Message) -> None:
        assert self._served is not None
        fields = message.fields
        if message.kind == "value":
            self._transport.arrived(message, "")
        elif message.kind == "start":
            run = run_of(fields)
            part, types = self._part(run.plan), self._input_types(run)
            missing = message.payload is None and typed_bytes(types)
            if missing or not 0 <= run.slot < part.plan.copies:
                raise SchemaError(f"expected the inputs of a run, got those of {run}")
            payload = self._buffer_pool.lend(run[:2], message.payload or memoryview(b""))
            arrays = typed_arrays(types, payload)
            feeds = dict(zip(part.inputs, arrays, strict=True))
            self._served.start(run, feeds, fields["traced"])
        elif message.kind == "commit":
            self._served.commit(run_of(fields))
        elif message.kind == "abort":
            self._served.abort(run_of(fields))
        elif message.kind == "release_plan":
            self._give_up(fields["plan"])
        elif message.kind == "clock":
            self._queue(channel, message, self._here.clock.now())
        elif message.kind == "prepare":
            self._queue(channel, message, self._reserve(fields["plan"]))
        elif message.ask is not None:
            self._queue(channel, message)
        else:
            raise SchemaError(f"a driver must not send {message.kind}")

    def lost(self, channel: Channel, error: HostLost) -> None:
        threading.Thread(target=self._free, name="vksched-free", daemon=True).start()

    def _queue(self, channel: Channel, message: Message, *about: object) -> None:
        """Answer a request on a thread of the session, unless too many are pending."""
        self._asked.take()
        self._pool.submit(self._do, channel, message, *about)

    def _part(self, number: int) -> HostPlan:
        found = self._plans.get(number)
        if found is None or found.part is None:
            raise SchemaError(f"there is no plan {number}")
        return found.part

    def _input_types(self, run: RunKey) -> list[Any]:
        part = self._part(run.plan)
        return [part.plan.graph.nodes[node].type for node in part.inputs]

    def _free(self) -> None:
        self._weights.close()  # first, because hashing files takes long
        self._states.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)
        steps: list[Callable[[], object]] = [self._peers.close, self._states.close]
        if self._served is not None:
            steps.insert(0, self._served.close)
        for step in steps:
            try:
                step()
            except Exception as error:  # the remaining resources are freed nevertheless
                warn(f"[cluster] freeing what a driver had failed: {error!r}")
        self._ended(self)

    # -- threads of the session --------------------------------------------------------------------

    def _do(self, channel: Channel, message: Message, *about: object) -> None:
        size = len(message.payload or b"") if message.kind in QUEUED else 0
        with suppress(HostLost):  # of the driver's own channel
            try:
                answer = _DO[message.kind](self, message, *about)
            except BaseException as error:
                self._asked.release(size)
                channel.refuse(message, error)
                return
            self._asked.release(size)
            channel.answer(message, *answer)

    def _specs(self, message: Message) -> Answer:
        return {}, [encode_devices(self._here.device_infos())]

    def _clock(self, message: Message, came_s: float) -> Answer:
        return {"came_s": came_s, "left_s": self._here.clock.now()}, []

    def _echo(self, message: Message) -> Answer:
        return {}, echo_of(message)

    def _measure(self, message: Message) -> Answer:
        host = message.fields["host"]
        self._peers.know(message.fields["hosts"])
        link = measure_link(self._peers.channel(host))
        return {"bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}, []

    def _reach(self, message: Message) -> Answer:
        self._peers.know(message.fields["hosts"])
        self._peers.channel(message.fields["host"])
        return {}, []

    def _missing(self, message: Message) -> Answer:
        asked = document_of(bytes(message.payload or b"null"), list[WeightDocument], message.kind)
        return {}, [json.dumps(self._weights.missing(message.fields["plan"], asked)).encode()]

    def _weight(self, message: Message) -> Answer:
        fields = message.fields
        data = np.frombuffer(message.payload or b"", np.uint8)
        self._weights.add(fields["plan"], fields["hash"], data)
        return {}, []

    # -- plans -------------------------------------------------------------------------------------

    def _reserve(self, number: int) -> _Plan | None:
        """Return a new plan with a number, or None if the number is taken or there are too many
        plans.
        """
        with self._lock:
            if number in self._plans or len(self._plans) >= MAX_PLANS:
                return None
            found = self._plans[number] = _Plan()
            return found

    def _give_up(self, number: int) -> None:
        """Release a plan for its driver, once."""
        with self._lock:
            found = self._plans.get(number)
            again = found is not None and found.is_released
            if found is not None:
                found.is_released = True
        if found is None:  # its driver may have requested weights for it without preparing it
            self._weights.forget(number)
        elif not again:
            self._states.begin_unpin(number)
            self._pool.submit(self._release_plan, number, found)

    def _prepare(self, message: Message, plan: _Plan | None) -> Answer:
        assert self._served is not None and self._channel is not None
        number, channel = message.fields["plan"], self._channel
        if plan is None:
            raise DeviceError(
                f"[cluster] expected the number of a new plan, of at most {MAX_PLANS}, got "
                f"{number}: one that is prepared already, or is being prepared or retired"
            )

        def progress(what: str, done: int, total: int) -> None:
            with suppress(HostLost):
                fields = {"plan": number, "what": what, "done": done, "total": total}
                channel.notify("progress", fields)

        try:
            part = self._read_part(message)
            plan.part = part
            self._served.prepare(number, part, progress)
        except BaseException:
            self._forget(number)
            raise
        with self._lock:
            plan.preparing, gone = False, plan.is_released
        if gone:
            self._end(number)
        return {}, []

    def _read_part(self, message: Message) -> HostPlan:
        number, begin = message.fields["plan"], message.fields["hosts_bytes"]
        data = bytes(message.payload or b"")
        require = partial(self._weights.require, number)
        self._peers.know(document_of(data[:begin], HOSTS, "hosts"))
        text = data[begin:]
        with room_for(text, "a part"):
            part = self._here.documents.read(text, require, self._states.key)
        self._states.pin(number, part)
        nodes = part.plan.graph.nodes
        takes = [step for step in part.walk() if isinstance(step, Recv)]
        awaited = {take.value: (take.host, nodes[take.value].type) for take in takes}
        self._transport.expect(number, part.plan.copies, awaited)
        return part

    def _release_plan(self, number: int, plan: _Plan) -> None:
        with self._lock:
            left = self._plans.get(number) is plan and not plan.preparing
        if left:  # else the preparing thread frees it, or has freed it
            self._end(number)

    def _end(self, number: int) -> None:
        assert self._served is not None
        try:
            self._served.release_plan(number)
        finally:
            self._forget(number)

    def _forget(self, number: int) -> None:
        """Free all resources of a plan, then its number."""
        self._transport.forget(number)
        self._buffer_pool.forget(lambda key: key[0] == number)
        self._weights.forget(number)
        self._states.unpin(number)
        with self._lock:
            self._plans.pop(number, None)

    # -- states ------------------------------------------------------------------------------------

    def _add(self, message: Message) -> Answer:
        fields = message.fields
        arrays = unpack(fields["arrays"], message.payload)
        self._states.add(fields["device"], fields["keys"], arrays)
        return {}, []

    def _read(self, message: Message) -> Answer:
        found = self._states.read(message.fields["device"], message.fields["key"])
        (fields,), payload = pack([found])
        return fields, payload

    def _write(self, message: Message) -> Answer:
        (array,) = unpack([message.fields], message.payload)
        self._states.write(message.fields["device"], message.fields["key"], array)
        return {}, []

    def _remove(self, message: Message) -> Answer:
        self._states.remove(message.fields["device"], message.fields["key"])
        return {}, []


_DO: dict[str, Callable[..., Answer]] = {
    "specs": Session._specs,
    "clock": Session._clock,
    "echo": Session._echo,
    "measure": Session._measure,
    "reach": Session._reach,
    "missing": Session._missing,
    "weight": Session._weight,
    "prepare": Session._prepare,
    "add": Session._add,
    "read": Session._read,
    "write": Session._write,
    "remove": Session._remove,
}


class _ChannelDriver:
    """`protocols.Driver` over the channel of the driver; a lost driver receives nothing."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def ready(self, run: RunKey) -> None:
        with suppress(HostLost):
            self._channel.notify("ready", run._asdict())

    def done(self, run: RunKey, stats: RunStats, events: Sequence[Event]) -> None:
        with suppress(HostLost):
            self._channel.notify("done", run._asdict(), [encode_run_stats(stats, events)])

    def failed(self, run: RunKey, error: BaseException) -> None:
        torn = sorted(error.devices) if isinstance(error, CommitFailed) else None
        cause = error.cause if isinstance(error, CommitFailed) else error
        with suppress(HostLost):
            self._channel.notify("failed", {**run._asdict(), **fields_of(cause), "torn": torn})
