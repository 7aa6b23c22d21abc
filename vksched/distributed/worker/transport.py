"""ChannelTransport: `protocols.TensorTransport` over channels, with an inbox for received values.

    part --send--> channel of the host     inbox <-- channels of all hosts     part <--take-- inbox

Examples: tests/distributed/test_node_server.py.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from ...common.dtypes import NDArray
from ...common.errors import DeviceError, HostLost, RunAborted, VkschedError
from ...common.schema import SchemaError
from ..protocols import RunKey
from ..wire.channel import Channel
from ..wire.handshake import exchange, hello, require_equal
from ..wire.messages import Message
from ..wire.peer_list import PeerList
from ..wire.quota import Quota
from ..wire.stream import ConnectionClosed
from ..wire.tls import Security, place_of
from .inbox import Inbox

CONNECT_S = 5.0
MAX_ECHOES = 8
"""Maximum number of pending echoes of a channel."""
MAX_ECHO_BYTES = 1 << 27
"""Maximum size of these together."""
MAX_HOSTS = 1 << 12
"""Maximum number of hosts of one driver."""
REMEDY = (
    "try whether it runs there, with the same key, security and version, and whether the addresses "
    "that `vksched worker --peers` names are right"
)
LOG = logging.getLogger("vksched")


class ChannelTransport(Inbox):
    """channel_to: returns the channel to a host, or raises HostLost."""

    def __init__(self, channel_to: Callable[[str], Channel]) -> None:
        super().__init__()
        self._channel_to = channel_to

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        if self.is_aborted(run):
            raise RunAborted(f"[cluster] run {run.sequence_number} of plan {run.plan} was given up")
        self._channel_to(host).notify("value", {**run._asdict(), "node": value}, [array])


class PeerHandler:
    """Handle the channel of another worker: receive its values and answer echoes.

    is_current: returns True if the peer is the worker that the driver means, in its current
    incarnation. Values are accepted only from it; the loss of an earlier incarnation is ignored.
    """

    def __init__(self, inbox: Inbox, host: str, is_current: Callable[[], bool]) -> None:
        self._inbox, self._host, self._is_current = inbox, host, is_current
        self._echoes = EchoThread()
        if is_current():
            inbox.mark_recovered(host)

    def place(self, message: Message, size: int) -> memoryview | None:
        if message.kind == "echo":
            self._echoes.quota.take_bytes(size)
            return None
        self._require_value(message)
        return self._inbox.place(message, size, self._host)

    def received(self, channel: Channel, message: Message) -> None:
        if message.kind == "echo":
            self._echoes.answer(channel, message)
            return
        self._require_value(message)
        self._inbox.arrived(message, self._host)

    def _require_value(self, message: Message) -> None:
        if message.kind != "value":
            raise SchemaError(f"a worker sends {message.kind} to drivers only")
        if not self._is_current():
            raise SchemaError(
                f"a value came from a peer other than {self._host} as the driver means it"
            )

    def lost(self, channel: Channel, error: HostLost) -> None:
        self._echoes.close()
        if self._is_current():
            self._inbox.mark_lost(self._host, error)


class EchoThread:
    """Answer the echoes of one channel sequentially on a thread: a response may block until the
    peer reads, and a peer that reads none gets no more.
    """

    def __init__(self) -> None:
        self.quota = Quota(MAX_ECHOES, MAX_ECHO_BYTES)
        self._pool: ThreadPoolExecutor | None = None

    def answer(self, channel: Channel, message: Message) -> None:
        self.quota.take()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "vksched-echo")
        self._pool.submit(self._answer, channel, message)

    def _answer(self, channel: Channel, message: Message) -> None:
        with suppress(HostLost):
            channel.answer(message, {}, echo_of(message))
        self.quota.release(len(message.payload or b""))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def echo_of(message: Message) -> list[NDArray | bytes]:
    """Return the payload of an echo: the received bytes."""
    return [] if message.payload is None else [np.frombuffer(message.payload, np.uint8)]


class Peers:
    """The channels to other workers of one driver, opened on first use.

    name: name of this worker. driver: name in its HELLO. inbox: inbox of received values. allowed:
    the only addresses that it connects to; None allows all.
    """

    def __init__(
        self,
        name: str,
        driver: str,
        security: Security,
        inbox: Inbox,
        allowed: PeerList | None = None,
    ) -> None:
        self._name, self._driver = name, driver
        self._security, self._inbox, self._allowed = security, inbox, allowed
        self._hosts: dict[str, tuple[str, str]] = {}
        """Address and pair secret of each worker."""
        self._channels: dict[str, Channel] = {}
        self._taken: list[Channel] = []
        self._closed = False
        self._locks: dict[str, threading.Lock] = {}
        self._logged: dict[str, str] = {}
        """Logged reasons why workers could not be reached."""
        self._lock = threading.Lock()

    def know(self, hosts: Mapping[str, Sequence[str]]) -> None:
        """Update the addresses of other workers.

        The driver decides which workers are alive: a worker that was lost from here may be
        reachable again, and the next send finds out. Raise DeviceError if there are too many.
        """
        with self._lock:
            if len(self._hosts.keys() | hosts.keys()) > MAX_HOSTS:
                raise DeviceError(f"[cluster] expected at most {MAX_HOSTS} nodes of a driver")
        for host, (address, pair) in hosts.items():
            self._inbox.mark_recovered(host)  # as its driver names it
            with self._lock:
                _, before = self._hosts.get(host, ("", pair))
                self._hosts[host] = address, pair
                old = self._channels.pop(host, None) if before != pair else None
            if old is not None:
                old.close()

    def handler(self, host: str, pair: str) -> PeerHandler:
        """Return the handler of a channel to the worker with this pair secret."""
        return PeerHandler(self._inbox, host, lambda: self._is_pair_secret(host, pair))

    def _is_pair_secret(self, host: str, pair: str) -> bool:
        with self._lock:
            _, known = self._hosts.get(host, ("", ""))
        return bool(known) and hmac.compare_digest(known.encode(), pair.encode())

    def channel(self, host: str) -> Channel:
        """Return a channel to a worker. Raise HostLost if it cannot be reached."""
        with self._lock:
            address, pair = self._hosts.get(host, ("", ""))
            if not address:
                raise self._lost(host, "its address is unknown")
            lock = self._locks.setdefault(host, threading.Lock())
        with lock:
            found = self._channels.get(host)
            if found is None or found.error is not None:
                found = self._channels[host] = self._connect(host, address, pair)
            return found

    def take_in(self, channel: Channel) -> None:
        """Accept the channel of another worker until `close`; close it if there are too many."""
        with self._lock:
            self._taken = [each for each in self._taken if each.error is None] + [channel]
            ended = self._closed or len(self._taken) > MAX_HOSTS
        channel.start()
        if ended:
            channel.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            channels = [*self._channels.values(), *self._taken]
        for each in channels:
            each.close()

    def _connect(self, host: str, address: str, pair: str) -> Channel:
        """Connect to a worker. Errors are logged here only: drivers must not probe the network."""
        mine = hello("worker", self._name, self._driver, pair)
        try:
            place = place_of(address)
            if self._allowed is not None and not self._allowed.allows(place):
                raise DeviceError(f"[cluster] {address} is none of the peers of this worker")
            stream = self._security.connect(place, CONNECT_S)
            try:
                theirs = exchange(stream, mine)
                require_equal(mine, theirs, host)
                if theirs["name"] != host:
                    raise DeviceError(
                        f"[cluster] expected {host} at {address}, got {theirs['name']}"
                    )
            except BaseException:
                stream.close()
                raise
            return self._confirmed(Channel(stream, host, self.handler(host, pair)))
        except (VkschedError, ConnectionClosed) as error:
            if self._logged.get(host) != str(error):  # with names and texts of others; logged once
                self._logged[host] = str(error)
                LOG.warning("%r cannot be reached: %r", host, str(error))
            raise self._lost(host, REMEDY) from error

    def _lost(self, host: str, why: str) -> HostLost:
        lost = HostLost(f"[cluster] {host} cannot be reached from {self._name}: {why}")
        lost.host = host
        return lost

    def _confirmed(self, channel: Channel) -> Channel:
        """Return a channel once the other worker has accepted it too.

        Otherwise that worker would not detect its loss, and would wait for values sent on it.
        """
        channel.start()
        try:
            channel.ask("echo", {}, timeout_s=CONNECT_S)
        except DeviceError:
            channel.close()
            raise
        return channel
