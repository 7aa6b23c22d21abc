"""Client: the driver's connections to workers and their devices.

    RemoteWorkers --connect--> RemoteWorker (a `protocols.Worker`) --messages--> Session

Examples: tests/distributed/test_node_server.py.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ...common.dtypes import NDArray, Progress
from ...common.errors import DeviceError, DeviceTimeout, HostLost, RunAborted
from ...common.fork_guard import Owner
from ...common.schema import SchemaError
from ...plan.multi_host.host_plan import HostPlan, Send
from ...runtime.executors.base_executor import CommitFailed, RunResult
from ...runtime.run_stats import RunStats
from ...topology.links import Link
from ...trace.events import Clock, Event
from ..protocols import RunKey, WorkerRunResult
from ..wire.array_codec import typed_payload
from ..wire.channel import Channel
from ..wire.error_codec import copy_error, error_of, refusing
from ..wire.handshake import NAME, exchange, hello, require_equal
from ..wire.link_benchmark import measure_link
from ..wire.messages import Message
from ..wire.stats_codec import (
    RemoteDeviceInfo,
    decode_devices,
    decode_run_stats,
    events_to_local_clock,
    link_of,
    require_of,
    stats_to_local_clock,
)
from ..wire.stream import ConnectionClosed
from ..wire.tls import Security, place_of, place_text
from ..worker.inbox import run_of
from ..worker.session import Documents
from ..worker.transport import CONNECT_S, ChannelTransport
from .clock_sync import RemoteClock
from .progress import ProgressReporter
from .remote_device import RemoteDevice
from .weight_upload import send_weights

ANSWER_S = 30.0
PREPARE_S = 600.0
FRESH_S = 1.0
"""Seconds for which a worker's description of its devices stays valid."""
CLOCK_TRIES = 8  # when a worker is connected
CLOCK_S = 2.0  # between two later queries
PAIR_DIGITS = 32


class RemoteWorkers:
    """The workers of one driver, and the transport of values between them and the driver."""

    def __init__(self, security: Security, documents: Documents, clock: Clock) -> None:
        self.security, self.documents, self.clock = security, documents, clock
        self.driver = secrets.token_hex(16)
        self._secret = secrets.token_bytes(32)
        self.transport = ChannelTransport(self._channel_to)
        self._workers: dict[str, RemoteWorker] = {}
        self._names = itertools.count()
        self._state_names: dict[object, str] = {}
        self._owner = Owner()
        self._closed = threading.Event()
        self._clocks: threading.Thread | None = None
        self._lock = threading.Lock()

    def connect(self, address: str, timeout_s: float = CONNECT_S) -> RemoteWorker:
        """Connect to a worker and return it; the worker reports its own name.

        Raises
        ------
        DeviceError
            The worker cannot be reached, belongs to another cluster, runs another version of
            vksched, or has the name of a connected worker.
        """
        self._owner.require("the workers of a cluster")
        mine = hello("driver", "", self.driver)
        stream = self.security.connect(place_of(address), timeout_s)
        try:
            theirs = exchange(stream, mine)
            require_equal(mine, theirs, address)
            name = theirs["name"]
            if not NAME.fullmatch(name):
                raise DeviceError(f"[cluster] expected a worker with a name, got {name!r}")
            with self._lock:
                known = self._workers.get(name)
                if known is not None and known.error is None:
                    raise DeviceError(
                        f"[cluster] expected workers with names of their own, got {name} at "
                        f"{known.address} and {address}; try `vksched worker --name`"
                    )
                worker = self._workers[name] = RemoteWorker(
                    self, name, place_text(place_of(address))
                )
        except ConnectionClosed as error:
            stream.close()
            raise DeviceError(
                f"[cluster] the worker at {address} ended the connection: {error}"
            ) from None
        except BaseException:
            stream.close()
            raise
        self.transport.mark_recovered(name)
        worker.begin(Channel(stream, name, worker))
        with self._lock:
            if self._clocks is None and not self._closed.is_set():
                self._clocks = threading.Thread(
                    target=self._watch_clocks, name="vksched-clocks", daemon=True
                )
                self._clocks.start()
        return worker

    def hosts(self, at: RemoteWorker, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the addresses of workers by name, with the pair secrets that each shares with
        worker `at`; see `messages.HELLO`.
        """
        with self._lock:
            known = {name: self._workers[name] for name in names if name in self._workers}
        return {name: [worker.address, self._pair(at, worker)] for name, worker in known.items()}

    def _pair(self, one: RemoteWorker, other: RemoteWorker) -> str:
        incarnations = b"".join(sorted((one.incarnation, other.incarnation)))
        return hmac.new(self._secret, incarnations, hashlib.sha256).hexdigest()[:PAIR_DIGITS]

    def close(self) -> None:
        """Close all connections; workers free the resources of this driver."""
        self._closed.set()
        with self._lock:
            workers, clocks = list(self._workers.values()), self._clocks
        for each in workers:
            each.close()
        if clocks is not None:
            clocks.join()

    def _watch_clocks(self) -> None:
        """Query the clocks of all workers periodically."""
        while not self._closed.wait(CLOCK_S):
            with self._lock:
                workers = [worker for worker in self._workers.values() if worker.error is None]
            for worker in workers:
                # the next user of this worker gets the error
                with suppress(HostLost, DeviceTimeout):
                    worker.measure_clock()

    def state_name(self, key: object) -> str:
        """Return the name of a state in messages."""
        with self._lock:
            if key not in self._state_names:
                self._state_names[key] = f"s{next(self._names)}"
            return self._state_names[key]

    def forget_state(self, key: object) -> None:
        """Forget a state that no device holds any more."""
        with self._lock:
            devices = [device for worker in self._workers.values() for device in worker.devices]
            if not any(device.states.holds(key) for device in devices):
                self._state_names.pop(key, None)

    def _channel_to(self, host: str) -> Channel:
        with self._lock:
            worker = self._workers.get(host)
        if worker is None:
            raise HostLost(f"[cluster] there is no worker {host}")
        return worker.channel


@dataclass(slots=True)
class _Run:
    """A run in progress on a worker. error: reason of its failure there."""

    failed: Callable[[BaseException], None]
    is_ready: bool = False
    stats: RunStats | None = None
    events: tuple[Event, ...] = ()
    error: BaseException | None = None
    torn: frozenset[int] | None = None


class _Prepared(NamedTuple):
    part: HostPlan
    reporter: ProgressReporter
    keys: frozenset[tuple[str, object]]


class RemoteWorker:
    """A connected worker, from `RemoteWorkers.connect`. It implements `protocols.Worker`."""

    def __init__(self, workers: RemoteWorkers, name: str, address: str) -> None:
        self.name, self.address = name, address
        self.incarnation = secrets.token_bytes(16)
        """Identifies this connection; random and secret."""
        self._workers = workers
        self._channel: Channel | None = None
        self._error: HostLost | None = None
        self._changed = threading.Condition()
        self._runs: dict[RunKey, _Run] = {}
        self._prepared: dict[int, _Prepared] = {}
        self._device_infos: dict[str, RemoteDeviceInfo] = {}
        self._stale, self._asked_s = True, 0.0
        self._clock = RemoteClock()
        self.devices: tuple[RemoteDevice, ...] = ()

    def begin(self, channel: Channel) -> None:
        """Start the channel and request the devices."""
        self._channel = channel
        channel.start()
        try:
            self._ask_specs()
            for _ in range(CLOCK_TRIES):
                self.measure_clock()
        except BaseException:
            self.close()
            raise
        self.devices = tuple(RemoteDevice(self, name, self._workers) for name in self._device_infos)

    @property
    def channel(self) -> Channel:
        if self._channel is None or self._error is not None:
            raise (
                copy_error(self._error)
                if self._error
                else HostLost(f"[cluster] {self.name} is gone")
            )
        return self._channel

    @property
    def error(self) -> HostLost | None:
        """The reason why the worker is lost, or None while it is connected."""
        return self._error

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()

    def measure(self) -> Link:
        """Measure the link from the driver's memory. Raise HostLost or DeviceTimeout on failure."""
        return measure_link(self.channel)

    def measure_to(self, host: str) -> Link:
        """Measure the link to another worker's memory. Raise HostLost on failure."""
        found = self._request_device(host, "measure", PREPARE_S).fields
        try:
            return link_of(found["bytes_per_s"], found["latency_s"])
        except SchemaError as error:
            raise self._mark_lost(f"it sent an invalid message: {error}") from error

    def _mark_lost(self, why: str) -> HostLost:
        """Close the connection and return the error that reports it."""
        channel = self.channel
        channel.mark_lost(why)
        assert channel.error is not None
        return copy_error(channel.error)

    def reach(self, host: str) -> None:
        """Connect this worker to another one if necessary. Raise HostLost on failure."""
        self._request_device(host, "reach", ANSWER_S)

    def _request_device(self, host: str, kind: str, timeout_s: float) -> Message:
        fields = {"host": host, "hosts": self._workers.hosts(self, [host])}
        try:
            return self.channel.ask(kind, fields, (), timeout_s)
        except HostLost as error:
            if self._error is None:  # the error is about the requested host
                error.host, error.device = host, ""
            raise

    # -- protocols.Worker --------------------------------------------------------------------------

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
        if number in self._prepared:
            raise DeviceError(f"[cluster] plan {number} is prepared already")
        workers, graph = self._workers, part.plan.graph
        text, weights = workers.documents.write(part, workers.state_name)
        steps = list(part.walk())
        sent = [step for step in steps if isinstance(step, Send) and not step.host]
        awaited = {step.value: (self.name, graph.nodes[step.value].type) for step in sent}
        workers.transport.expect(number, part.plan.copies, awaited)
        keys = frozenset(
            (spec.name, graph.keys[node_id])
            for spec, memory in zip(part.plan.topology.devices, part.plan.memory, strict=True)
            for node_id in memory.weights
        )
        reporter = ProgressReporter(progress)
        self._prepared[number] = _Prepared(part, reporter, keys)
        try:
            with refusing(self.name):
                send_weights(self.channel, number, graph, weights, PREPARE_S)
            hosts = json.dumps(workers.hosts(self, {step.host for step in steps})).encode()
            fields = {"plan": number, "hosts_bytes": len(hosts)}
            with reporter, refusing(self.name):
                self.channel.ask("prepare", fields, [hosts, text], PREPARE_S)
        except BaseException:
            self.release_plan(number)
            raise
        finally:
            self._stale = True

    def start(
        self,
        run: RunKey,
        feeds: Mapping[int, NDArray],
        failed: Callable[[BaseException], None],
        traced: bool = False,
    ) -> None:
        part = self._prepared[run.plan].part
        types = part.plan.graph.nodes
        pairs = [(feeds[node_id], types[node_id].type) for node_id in part.inputs]
        with self._changed:
            channel = self.channel
            self._runs[run] = _Run(failed)
        try:
            fields = {**run._asdict(), "traced": traced}
            channel.notify("start", fields, list(typed_payload(pairs)))
        except BaseException:
            with self._changed:
                self._runs.pop(run, None)
            raise

    def ready(self, run: RunKey, timeout_s: float) -> None:
        self._wait(run, lambda found: found.is_ready or found.stats is not None, timeout_s, "ready")

    def commit(self, run: RunKey) -> None:
        self.channel.notify("commit", run._asdict())

    def finish(self, run: RunKey, timeout_s: float) -> WorkerRunResult:
        found = self._wait(run, lambda found: found.stats is not None, timeout_s, "done")
        with self._changed:
            self._runs.pop(run, None)
        assert found.stats is not None
        now_s = self._workers.clock.now()
        estimate = self._clock.estimate(now_s)
        stats = stats_to_local_clock(found.stats, self.name, estimate.to_local_s)
        events = events_to_local_clock(found.events, estimate.to_local_s)
        return WorkerRunResult(stats, events, estimate.error_s(stats.start_s, now_s))

    def abort(self, run: RunKey) -> None:
        try:
            self.channel.notify("abort", run._asdict())
        except HostLost:  # wakes the thread that waits for the run
            return

    def release_plan(self, number: int) -> None:
        self._prepared.pop(number, None)
        self._workers.transport.forget(number)
        self._stale = True
        try:
            self.channel.notify("release_plan", {"plan": number})
        except HostLost:  # the worker frees all of it
            return

    def _wait(self, run: RunKey, over: Callable[[_Run], bool], timeout_s: float, what: str) -> _Run:
        with self._changed:
            found = self._runs.get(run)
            if found is None:
                if self._error is not None:
                    raise copy_error(self._error)
                raise RunAborted(f"[run] expected a run under way on {self.name}, got {run}")
            if not self._changed.wait_for(lambda: bool(found.error) or over(found), timeout_s):
                raise DeviceTimeout(
                    f"[cluster] expected {self.name} to be {what} within {timeout_s:g} s, and it "
                    "said nothing"
                )
            if found.error is not None:
                self._runs.pop(run, None)
                _raise(found.error, found.torn)
            return found

    # -- channel handler ---------------------------------------------------------------------------

    def place(self, message: Message, size: int) -> memoryview | None:
        transport = self._workers.transport if message.kind == "value" else None
        return None if transport is None else transport.place(message, size, self.name)

    def received(self, channel: Channel, message: Message) -> None:
        fields = message.fields
        if message.kind == "value":
            self._workers.transport.arrived(message, self.name)
        elif message.kind == "progress":
            prepared = self._prepared.get(fields["plan"])
            if prepared is not None:
                prepared.reporter.put(fields["what"], fields["done"], fields["total"])
        elif message.kind == "ready":
            self._note(run_of(fields), is_ready=True)
        elif message.kind == "done":
            run, (stats, events) = run_of(fields), decode_run_stats(bytes(message.payload or b""))
            prepared = self._prepared.get(run.plan)
            if prepared is not None:
                require_of(prepared.part, stats, events)
            self._note(run, stats=stats, events=events)
        elif message.kind == "failed":
            torn = None if fields["torn"] is None else frozenset(fields["torn"])
            error = error_of(fields, self.name)
            if isinstance(error, DeviceError) and error.host:
                # `FirstError` judges errors about other hosts
                error.host = fields["host"] or self.name
            self._note(run_of(fields), error=error, torn=torn)
        else:
            raise SchemaError(f"a worker must not send {message.kind}")

    def _note(self, run: RunKey, **what: object) -> None:
        with self._changed:
            found = self._runs.get(run)
            if found is None:
                return
            for name, value in what.items():
                setattr(found, name, value)
            self._changed.notify_all()
        if found.error is not None:
            found.failed(found.error)

    def lost(self, channel: Channel, error: HostLost) -> None:
        self._workers.transport.mark_lost(self.name, error)  # before a reconnect is possible
        with self._changed:
            self._error = error
            runs = [each for each in self._runs.values() if each.error is None and not each.stats]
            for each in runs:
                each.error = copy_error(error)
            self._changed.notify_all()
        for each in runs:
            assert each.error is not None
            each.failed(each.error)

    # -- devices -----------------------------------------------------------------------------------

    def device_info(self, name: str) -> RemoteDeviceInfo:
        """Return the worker's description of a device.

        It is requested again after this driver's plans or states change, and after FRESH_S, because
        other drivers allocate memory too.
        """
        old = time.monotonic() - self._asked_s > FRESH_S
        if (self._stale or old) and self._error is None:
            try:
                self._ask_specs()
            except (HostLost, DeviceTimeout):  # the last description; runs will raise the error
                pass
        return self._device_infos[name]

    def changed(self) -> None:
        self._stale = True

    def holds(self, device: str, key: object) -> bool:
        """Return True if a weight of a plan is on a device."""
        return any((device, key) in each.keys for each in list(self._prepared.values()))

    def _ask_specs(self) -> None:
        self._stale, self._asked_s = False, time.monotonic()
        answer = self.channel.ask("specs", {}, (), ANSWER_S)
        try:
            devices = decode_devices(bytes(answer.payload or b""), self.name)
        except DeviceError as error:  # else each plan would request it again and fail
            raise self._mark_lost(str(error)) from error
        infos = {each.spec.name: each for each in devices}
        kinds = {name: each.spec.kind for name, each in infos.items()}
        gone = [n for n, old in self._device_infos.items() if kinds.get(n) != old.spec.kind]
        if gone:
            self.channel.mark_lost(f"it no longer reports {', '.join(gone)}, which it had")
            return
        self._device_infos = infos

    def measure_clock(self) -> None:
        """Query the worker's clock. Raise HostLost or DeviceTimeout if it does not answer."""
        before_s = self._workers.clock.now()
        there = self.channel.ask("clock", {}, (), ANSWER_S).fields
        after_s = self._workers.clock.now()
        self._clock.note(before_s, there["came_s"], there["left_s"], after_s)


def _raise(error: BaseException, torn: frozenset[int] | None) -> NoReturn:
    if torn is not None:
        raise CommitFailed(error, RunResult(()), torn) from error
    raise error
