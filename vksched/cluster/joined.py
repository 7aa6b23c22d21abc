"""Joined: the nodes of a cluster that one scheduler is connected to.

    Cluster --join--> Joined --devices, hosts, post, links--> engine
                        '-- a thread looks after nodes that are lost, and tells of those that return

Examples: tests/cluster/test_schedulers.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..errors import DeviceError, DeviceTimeout, HostLost, VkschedError
from ..machine.hosts import CALLER, CPU, on
from ..machine.links import Link
from ..plan.documents.parts import PartDocuments
from ..runtime.remote.client import Node, Nodes
from ..runtime.remote.devices import RemoteDevice
from ..runtime.remote.ports import Post
from ..runtime.remote.secure import Security
from ..trace import warn
from ..trace.events import Clock

LOOK_S = 1.0
"""How long a node is lost at least before it is looked for, and between two looks."""
LOOK_TIMEOUT_S = 2.0
MOST_MEASURED = 8
"""Of so many nodes each pair is measured; of more, only the ways from and to the caller."""


class Joined:
    """Connections to nodes; see `Hosts` in engine/hosts.py.

    Raises:
        DeviceError: one cannot be reached; there is no connection left then.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        clock: Clock,
        locate: Callable[[str], str | None] | None = None,
    ) -> None:
        self._locate = locate
        self._nodes = Nodes(security, PartDocuments(), clock)
        self._by_name: dict[str, Node] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._turn = threading.Lock()
        """Held while a lost node is connected anew."""
        try:
            with ThreadPoolExecutor(len(addresses), "vksched-join") as threads:
                for node in threads.map(self._nodes.connect, addresses):
                    self._by_name[node.name] = node
            self._measure(self._by_name)
        except BaseException:
            self._nodes.close()
            raise

    @property
    def devices(self) -> Sequence[RemoteDevice]:
        return [device for node in self._by_name.values() for device in node.devices]

    @property
    def hosts(self) -> Mapping[str, Node]:
        return self._by_name

    @property
    def post(self) -> Post:
        return self._nodes.mail

    def links(self) -> tuple[tuple[str, str, Link], ...]:
        return tuple((on(a, CPU), on(b, CPU), link) for (a, b), link in self._links.items())

    def rejoin(self, host: str) -> Sequence[RemoteDevice]:
        with self._turn:
            node = self._by_name[host]
            if self._ended.is_set():
                raise DeviceError("[cluster] expected an open scheduler, got a closed one")
            if node.error is not None:
                address = self._locate(host) if self._locate else node.address
                if address is None:
                    raise DeviceError(f"[cluster] expected {host} to run somewhere, it does not")
                node = self._nodes.connect(address, LOOK_TIMEOUT_S)
                self._by_name[host] = node
                try:
                    self._measure([host])
                except BaseException:
                    node.close()  # so that it is looked for again
                    raise
            return node.devices

    def watch(self, returned: Callable[[str], None]) -> None:
        self._watcher = threading.Thread(
            target=self._look, args=(returned,), name="vksched-rejoin", daemon=True
        )
        self._watcher.start()

    def close(self) -> None:
        self._ended.set()
        self._nodes.close()
        with self._turn:  # of what was connected meanwhile; nothing is from now on
            self._nodes.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    def _look(self, returned: Callable[[str], None]) -> None:
        missing: set[str] = set()
        while not self._ended.wait(LOOK_S):
            lost = {name for name, node in self._by_name.items() if node.error is not None}
            for name in sorted(lost & missing):
                try:
                    returned(name)
                except VkschedError:  # it is not there yet
                    continue
                except Exception as error:  # of `locate`; others may come back all the same
                    warn(f"[cluster] looking for {name} failed: {error!r}")
            missing = lost

    def _measure(self, names: Sequence[str] | Mapping[str, Node]) -> None:
        """Measures the links of some nodes, one after the other, so that none disturbs another."""
        for name in names:
            node = self._by_name[name]
            self._links[CALLER, name] = node.measure()
            others = [other for other in self._by_name if other != name]
            for other in others if len(self._by_name) <= MOST_MEASURED else ():
                if (other, name) in self._links and self._by_name[other].error is not None:
                    continue
                with suppress(HostLost, DeviceTimeout):  # who is lost now is found out by a run
                    self._links[name, other] = node.measure_to(other)
