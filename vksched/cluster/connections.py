"""ClusterConnections: the connections of one scheduler to the workers of a cluster.

    Cluster --join--> ClusterConnections --devices, hosts, transport, links--> engine
                        '-- a thread reconnects lost workers and reports their return

Examples: tests/cluster/test_schedulers.py.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..common.errors import DeviceError, DeviceTimeout, HostLost, VkschedError
from ..common.user_warning import warn
from ..distributed.driver.client import RemoteWorker, RemoteWorkers
from ..distributed.driver.remote_device import RemoteDevice
from ..distributed.protocols import TensorTransport
from ..distributed.wire.tls import Security
from ..plan.multi_host.host_plan_codec import HostPlanCodec
from ..topology.host_names import CPU, DRIVER, on
from ..topology.links import Link
from ..trace.events import Clock

LOOK_S = 1.0
"""Seconds from the loss of a worker to the first attempt to reconnect, and between attempts."""
LOOK_TIMEOUT_S = 2.0
LOOK_LESS = 64
"""Maximum backoff, in attempts, for a worker that fails repeatedly."""
MAX_MEASURED = 8
"""Up to this number of workers all pairs are measured; above it, only the links of the driver."""

MAX_CONCURRENT = 64
"""Maximum number of worker-to-worker links that are tried concurrently."""


class ClusterConnections:
    """Connections to workers; see `Hosts` in engine/remote_hosts.py.

    Raises
    ------
    DeviceError
        A worker cannot be reached. All connections are closed.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: Security,
        clock: Clock,
        locate: Callable[[str], str | None] | None = None,
    ) -> None:
        self._locate = locate
        self._workers = RemoteWorkers(security, HostPlanCodec(), clock)
        self._by_name: dict[str, RemoteWorker] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._waits: dict[str, int] = {}
        """The backoff of each connected worker that failed before, in attempts."""
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._turn = threading.Lock()
        """Held while a lost worker is reconnected."""
        try:
            with ThreadPoolExecutor(len(addresses), "vksched-join") as threads:
                for worker in threads.map(self._workers.connect, addresses):
                    self._by_name[worker.name] = worker
            self._measure(self._by_name)
        except BaseException:
            self._workers.close()
            raise

    @property
    def devices(self) -> Sequence[RemoteDevice]:
        return [device for worker in self._by_name.values() for device in worker.devices]

    @property
    def hosts(self) -> Mapping[str, RemoteWorker]:
        return self._by_name

    @property
    def transport(self) -> TensorTransport:
        return self._workers.transport

    def links(self) -> tuple[tuple[str, str, Link], ...]:
        known = list(self._links.items())  # the reconnect thread may add entries
        return tuple((on(a, CPU), on(b, CPU), link) for (a, b), link in known)

    def rejoin(self, host: str) -> Sequence[RemoteDevice]:
        with self._turn:
            worker = self._by_name[host]
            if self._ended.is_set():
                raise DeviceError("[cluster] expected an open scheduler, got a closed one")
            if worker.error is not None:
                address = self._locate(host) if self._locate else worker.address
                if address is None:
                    raise DeviceError(f"[cluster] expected {host} to run somewhere, it does not")
                worker = self._workers.connect(address, LOOK_TIMEOUT_S)
                self._by_name[host] = worker
                try:
                    self._measure([host])
                except BaseException:
                    worker.close()  # makes the reconnect thread look for it again
                    raise
            return worker.devices

    def watch(
        self, returned: Callable[[str], None], left_out: Callable[[], Collection[str]]
    ) -> None:
        self._watcher = threading.Thread(
            target=self._reconnect, args=(returned, left_out), name="vksched-rejoin", daemon=True
        )
        self._watcher.start()

    def close(self) -> None:
        self._ended.set()
        self._workers.close()
        with self._turn:  # closes connections opened meanwhile; no others follow
            self._workers.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    def _reconnect(
        self, returned: Callable[[str], None], left_out: Callable[[], Collection[str]]
    ) -> None:
        missing: set[str] = set()
        for turn in itertools.count():
            if self._ended.wait(LOOK_S):
                return
            lost = {name for name, worker in self._by_name.items() if worker.error is not None}
            here = {name for name in left_out() if not turn % self._waits.get(name, 1)} - lost
            for name in [*sorted(lost & missing), *filter(self._is_reached, sorted(here))]:
                try:
                    returned(name)
                except VkschedError:  # it is not running yet
                    continue
                except Exception as error:  # an error of `locate`; other workers may still return
                    warn(f"[cluster] looking for {name} failed: {error!r}")
            missing = lost

    def _measure(self, names: Sequence[str] | Mapping[str, RemoteWorker]) -> None:
        """Measure the links of some workers sequentially, so that measurements do not disturb each
        other.
        """
        others = self._here() if len(self._by_name) <= MAX_MEASURED else ()
        pairs = [(a, b) for a in names for b in others if a != b]
        apart = self._unreachable_pairs(pairs)
        for (a, b), error in apart.items():
            if {a, b} <= self._here() and (a < b or (b, a) not in apart):
                warn(
                    f"[cluster] {a} does not reach {b}: {error}; runs that send values from one to "
                    f"the other will fail; try opening the ports of both"
                )
        for name in names:
            self._links[DRIVER, name] = self._by_name[name].measure()
        for a, b in pairs:
            if apart.keys().isdisjoint({(a, b), (b, a)}):
                try:
                    self._links[a, b] = self._by_name[a].measure_to(b)
                except (HostLost, DeviceTimeout) as error:  # the next run detects the lost peer
                    apart[a, b] = error

    def _here(self) -> set[str]:
        return {name for name, worker in self._by_name.items() if worker.error is None}

    def _is_reached(self, name: str) -> bool:
        """Return True if a worker and all connected workers reach each other."""
        others = self._here() - {name}
        reached = not self._unreachable_pairs(
            [p for each in others for p in ((name, each), (each, name))]
        )
        if reached:  # but without the effects of a run's traffic if it returns soon
            self._waits[name] = min(self._waits.get(name, 1) * 2, LOOK_LESS)
        return reached

    def _unreachable_pairs(
        self, pairs: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], DeviceError]:
        """Return the pairs of workers that cannot reach each other, with reasons.

        All pairs are tried concurrently, because each failure takes seconds.
        """

        def try_it(pair: tuple[str, str]) -> DeviceError | None:
            try:
                self._by_name[pair[0]].reach(pair[1])
            except DeviceError as error:
                return error
            return None

        with ThreadPoolExecutor(
            max(1, min(len(pairs), MAX_CONCURRENT)), "vksched-reach"
        ) as threads:
            found = dict(zip(pairs, threads.map(try_it, pairs), strict=True))
        return {pair: error for pair, error in found.items() if error is not None}
