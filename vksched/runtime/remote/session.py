"""Session: what one caller has on a node, until its connection ends.

    missing, weight --> weights    prepare --> Served: parts    start, commit, abort --> its runs
    add, read, write, remove --> states of devices               ready, done, failed --> caller

Examples: tests/runtime/remote/test_node_server.py.
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

from ...errors import DeviceError, HostLost, VkschedError
from ...ops.core.late import Held
from ...plan.documents.digests import digest_of
from ...plan.parts import Part, Take
from ...trace import Event, warn
from ...trace.events import Clock
from ...trace.schema import Wrong, check
from ...types import NDArray, Progress, TensorType
from ..carrier import CommitFailed
from ..device import Device
from ..stats import RunStats
from .arrays import memory, pack, packed_bytes, typed_arrays, typed_bytes, unpack
from .cache import WeightCache
from .channel import Channel, Payload
from .folders import ModelFolders
from .holding import Holding
from .inbox import run_of
from .mail import Mail, Peers, echo_of
from .measuring import measure_link
from .messages import HOSTS, WEIGHT, Fields, Message
from .ports import Caller, Post, RunKey
from .refusals import fields_of
from .secure import Security
from .spares import Spares
from .stream import Stream
from .told import Told, devices_document, ran_document

THREADS = 8
Answer = tuple[Fields, Payload]


class StateKey:
    """A state of a caller, as the devices of this node know it."""

    def __init__(self, name: str) -> None:
        self.name = name


class Served(Protocol):
    """Carries out the parts of one caller on the devices of this node; see `ports.Host`."""

    def prepare(self, number: int, part: Part, progress: Progress | None = None) -> None: ...

    def start(self, run: RunKey, feeds: Mapping[int, NDArray], traced: bool = False) -> None: ...

    def commit(self, run: RunKey) -> None: ...

    def abort(self, run: RunKey) -> None: ...

    def retire(self, number: int) -> None: ...

    def close(self) -> None:
        """Gives up all runs, waits for what is under way, and frees everything."""


class Documents(Protocol):
    """Parts as bytes, and back."""

    def write(
        self, part: Part, state: Callable[[object], str]
    ) -> tuple[bytes, Mapping[str, Payload]]:
        """Returns a part, and the bytes of its weights by their hash. state: names a key."""

    def read(
        self, text: bytes, weight: Callable[[str], Held], state: Callable[[str], object]
    ) -> Part:
        """Returns the part; equal hashes and names give equal keys.

        Raises:
            VkschedError: the bytes are no part.
        """


@dataclass(frozen=True)
class Here:
    """What all sessions of a node share. tell: what callers may know of the devices now. serve:
    begins to carry out parts for a caller.
    """

    name: str
    devices: Sequence[Device]
    tell: Callable[[], Iterable[Told]]
    security: Security
    documents: Documents
    cache: WeightCache
    folders: ModelFolders
    clock: Clock
    serve: Callable[[Post, Caller], Served]


class Session:
    """caller, life: as in its hello. ended: called once all is freed."""

    def __init__(
        self, here: Here, caller: str, life: str, ended: Callable[[Session], None]
    ) -> None:
        self.caller = caller
        self._here, self._ended = here, ended
        self._mail = Mail(self._channel_to)
        self._peers = Peers(here.name, caller, life, here.security, self._mail)
        self._channel: Channel | None = None
        self._served: Served | None = None
        self._parts: dict[int, Part] = {}
        self._preparing: set[int] = set()
        """Of plans, without those whose caller gave up waiting."""
        self._weights = Holding(here.cache, here.folders, digest_of)
        self._spares = Spares()
        self._states: dict[str, StateKey] = {}
        self._types: dict[tuple[str, str], TensorType] = {}
        """Of each state, by its device and name."""
        self._devices = {device.name: device for device in here.devices}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="vksched-session")

    def start(self, channel: Channel) -> None:
        """Begins to serve."""
        self._channel = channel
        self._served = self._here.serve(self._mail, _Telling(channel))
        channel.start()

    def take_peer(self, stream: Stream, host: str, life: str) -> None:
        """Takes values of another node in."""
        channel = Channel(stream, host, self._peers.handler(host, life))
        self._peers.take_in(channel)

    def close(self) -> None:
        """Ends the connection, as if the caller had; what it had is freed soon."""
        if self._channel is not None:
            self._channel.lose("the node was closed")

    def _channel_to(self, host: str) -> Channel:
        assert self._channel is not None
        return self._peers.channel(host) if host else self._channel

    # -- of the caller's channel -------------------------------------------------------------------

    def place(self, message: Message, size: int) -> memoryview | None:
        fields = message.fields
        if message.kind == "value":
            return self._mail.place(message, size, "")
        expected, run = size, None
        if message.kind == "start":
            run = run_of(fields)
            expected = typed_bytes(self._input_types(run))
        elif message.kind in ("add", "write"):
            expected = packed_bytes(fields["arrays"] if message.kind == "add" else [fields])
        if size != expected:
            raise Wrong(f"expected {expected} bytes with {message.kind}, got {size}")
        return memory(size) if run is None else self._spares.take(run[:2], size)

    def received(self, channel: Channel, message: Message) -> None:
        assert self._served is not None
        fields = message.fields
        if message.kind == "value":
            self._mail.arrived(message, "")
        elif message.kind == "start":
            run = run_of(fields)
            part, types = self._part(run.plan), self._input_types(run)
            missing = message.payload is None and typed_bytes(types)
            if missing or not 0 <= run.slot < part.plan.copies:
                raise Wrong(f"expected the inputs of a run, got those of {run}")
            payload = self._spares.lend(run[:2], message.payload or memoryview(b""))
            arrays = typed_arrays(types, payload)
            feeds = dict(zip(part.inputs, arrays, strict=True))
            self._served.start(run, feeds, fields["traced"])
        elif message.kind == "commit":
            self._served.commit(run_of(fields))
        elif message.kind == "abort":
            self._served.abort(run_of(fields))
        elif message.kind == "clock":
            self._pool.submit(self._tell_clock, channel, message, self._here.clock.now())
        elif message.kind == "retire" or message.ask is not None:
            self._pool.submit(self._do, channel, message)
        else:
            raise Wrong(f"a caller does not say {message.kind}")

    def lost(self, channel: Channel, error: HostLost) -> None:
        threading.Thread(target=self._free, name="vksched-free", daemon=True).start()

    def _part(self, number: int) -> Part:
        part = self._parts.get(number)
        if part is None:
            raise Wrong(f"there is no plan {number}")
        return part

    def _input_types(self, run: RunKey) -> list[Any]:
        part = self._part(run.plan)
        return [part.plan.graph.nodes[node].type for node in part.inputs]

    def _free(self) -> None:
        self._weights.close()  # first, as whoever hashes files there takes long
        self._pool.shutdown(wait=True)
        steps: list[Callable[[], object]] = [self._peers.close]
        if self._served is not None:
            steps.insert(0, self._served.close)
        for device in self._here.devices:
            for key in self._states.values():
                steps.append(lambda device=device, key=key: device.states.remove(key))  # type: ignore[misc]
        for step in steps:
            try:
                step()
            except Exception as error:  # the rest is freed all the same
                warn(f"[cluster] freeing what a caller had failed: {error!r}")
        self._ended(self)

    # -- on threads of the session -----------------------------------------------------------------

    def _do(self, channel: Channel, message: Message) -> None:
        with suppress(HostLost):  # of the caller's own channel
            try:
                answer = _DO[message.kind](self, message)
            except BaseException as error:
                if message.ask is not None:
                    channel.refuse(message, error)
                return
            if answer is not None:
                channel.answer(message, *answer)

    def _specs(self, message: Message) -> Answer:
        return {}, [devices_document(self._here.tell())]

    def _tell_clock(self, channel: Channel, message: Message, came_s: float) -> None:
        with suppress(HostLost):
            channel.answer(message, {"came_s": came_s, "left_s": self._here.clock.now()})

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
        asked = _json(bytes(message.payload or b"null"), [WEIGHT], message.kind)
        return {}, [json.dumps(self._weights.missing(message.fields["plan"], asked)).encode()]

    def _weight(self, message: Message) -> Answer:
        fields = message.fields
        data = np.frombuffer(message.payload or b"", np.uint8)
        self._weights.add(fields["plan"], fields["hash"], data)
        return {}, []

    def _state(self, name: str) -> StateKey:
        return self._states.setdefault(name, StateKey(name))

    def _prepare(self, message: Message) -> Answer:
        assert self._served is not None and self._channel is not None
        number, channel = message.fields["plan"], self._channel
        if number in self._parts:
            raise DeviceError(f"[cluster] plan {number} is prepared already")
        self._preparing.add(number)

        def progress(what: str, done: int, total: int) -> None:
            with suppress(HostLost):
                told = {"plan": number, "what": what, "done": done, "total": total}
                channel.tell("progress", told)

        try:
            part = self._parts[number] = self._read_part(message)
            self._served.prepare(number, part, progress)
        except BaseException:
            self._forget(number)
            raise
        if number not in self._preparing:
            self._served.retire(number)
            self._forget(number)
        self._preparing.discard(number)
        return {}, []

    def _read_part(self, message: Message) -> Part:
        number, begin = message.fields["plan"], message.fields["hosts_bytes"]
        data = bytes(message.payload or b"")
        require = partial(self._weights.require, number)
        self._peers.know(_json(data[:begin], HOSTS, "hosts"))
        part = self._here.documents.read(data[begin:], require, self._state)
        self._require_states(part)
        nodes = part.plan.graph.nodes
        takes = [step for step in part.walk() if isinstance(step, Take)]
        awaited = {take.value: (take.host, nodes[take.value].type) for take in takes}
        self._mail.expect(number, part.plan.copies, awaited)
        return part

    def _require_states(self, part: Part) -> None:
        """Raises where a part takes a state for another type than it has here."""
        graph = part.plan.graph
        for spec, there in zip(part.plan.machine.devices, part.plan.memory, strict=True):
            for node in there.states:
                key, type_ = graph.keys[node], graph.nodes[node].type
                held = isinstance(key, StateKey) and self._types.get((spec.name, key.name))
                if held and held != type_:
                    raise DeviceError(
                        f"[cluster] expected {held} for a state on {spec.name}, got {type_}"
                    )

    def _forget(self, number: int) -> None:
        self._preparing.discard(number)
        self._mail.forget(number)
        self._spares.forget(lambda key: key[0] == number)
        self._parts.pop(number, None)
        self._weights.forget(number)

    def _retire(self, message: Message) -> None:
        assert self._served is not None
        try:
            self._served.retire(message.fields["plan"])
        finally:
            self._forget(message.fields["plan"])

    def _device(self, message: Message) -> Device:
        found = self._devices.get(message.fields["device"])
        if found is None:
            raise DeviceError(f"[cluster] there is no device {message.fields['device']!r} here")
        return found

    def _add(self, message: Message) -> Answer:
        fields = message.fields
        arrays = unpack(fields["arrays"], message.payload)
        device, keys = self._device(message), [self._state(name) for name in fields["keys"]]
        items = list(zip(keys, arrays, strict=True))
        for key in keys:  # of which the caller knows nothing
            device.states.remove(key)
        device.states.add(items)
        self._states.update({key.name: key for key in keys})  # as one was forgotten meanwhile
        self._types.update({(device.name, key.name): _type_of(array) for key, array in items})
        return {}, []

    def _held(self, message: Message) -> tuple[Device, StateKey]:
        device, name = self._device(message), message.fields["key"]
        key = self._states.get(name)
        if key is None or not device.states.holds(key):
            raise DeviceError(f"[cluster] there is no state {name!r} on {device.name}")
        return device, key

    def _read(self, message: Message) -> Answer:
        device, key = self._held(message)
        (fields,), payload = pack([device.states.read(key)])
        return fields, payload

    def _write(self, message: Message) -> Answer:
        device, key = self._held(message)
        (array,) = unpack([message.fields], message.payload)
        expected = self._types[device.name, key.name]
        if _type_of(array) != expected:
            raise DeviceError(f"[cluster] expected {expected} for a state, got {_type_of(array)}")
        device.states.write(key, array)
        return {}, []

    def _remove(self, message: Message) -> Answer:
        device, name = self._device(message), message.fields["key"]
        key = self._states.get(name)
        if key is not None:
            device.states.remove(key)
            self._types.pop((device.name, name), None)
            if not any(each.states.holds(key) for each in self._here.devices):
                self._states.pop(name, None)
        return {}, []


_DO: dict[str, Callable[[Session, Message], Answer | None]] = {
    "specs": Session._specs,
    "echo": Session._echo,
    "measure": Session._measure,
    "reach": Session._reach,
    "missing": Session._missing,
    "weight": Session._weight,
    "prepare": Session._prepare,
    "retire": Session._retire,
    "add": Session._add,
    "read": Session._read,
    "write": Session._write,
    "remove": Session._remove,
}


class _Telling:
    """`ports.Caller` over the caller's channel; a caller that is gone is told nothing."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def ready(self, run: RunKey) -> None:
        with suppress(HostLost):
            self._channel.tell("ready", run._asdict())

    def done(self, run: RunKey, stats: RunStats, events: Sequence[Event]) -> None:
        with suppress(HostLost):
            self._channel.tell("done", run._asdict(), [ran_document(stats, events)])

    def failed(self, run: RunKey, error: BaseException) -> None:
        torn = sorted(error.devices) if isinstance(error, CommitFailed) else None
        cause = error.cause if isinstance(error, CommitFailed) else error
        with suppress(HostLost):
            self._channel.tell("failed", {**run._asdict(), **fields_of(cause), "torn": torn})


def _type_of(array: NDArray) -> TensorType:
    return TensorType(array.shape, array.dtype.name)


def _json(text: bytes, schema: object, what: str) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise VkschedError(f"[cluster] {what} came with no JSON: {error}") from None
    check(data, schema, what)
    return data
