"""Hosts in this process: parts with devices and threads of their own, values handed over in memory.

What they implement of `distributed/protocols.py` is what computers do over a network; a host may be
lost, or say nothing any more, at a message that a test chooses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray, Progress
from vksched.common.errors import DeviceTimeout, HostLost, RunAborted
from vksched.distributed.driver.cluster_executor import ClusterExecutor
from vksched.distributed.protocols import RunKey, WorkerRunResult
from vksched.distributed.worker.worker import PlanRunner
from vksched.plan.multi_host.host_plan import HostPlan
from vksched.plan.multi_host.host_plan_codec import HostPlanCodec
from vksched.plan.plan import Plan
from vksched.runtime.device import Device
from vksched.runtime.executors.executor_context import ExecutorContext
from vksched.runtime.run_stats import RunStats
from vksched.runtime.state_store import CpuStates
from vksched.topology.host_names import device_of, host_of
from vksched.trace import Event


def lost(host: str) -> HostLost:
    error = HostLost(f"[cluster] {host} is lost (injected)")
    error.host = host
    return error


class Network:
    """All values on their way, and which hosts are lost."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.values: dict[tuple[RunKey, str, str, int], NDArray] = {}
        self.aborted: set[tuple[RunKey, str]] = set()
        self.ended: dict[tuple[int, int, str], int] = {}
        self.lost: set[str] = set()
        self.messages: list[tuple[str, str, int]] = []
        """(from, to, value) of each value that was sent."""
        self.fails_at: tuple[str, int] | None = None
        """A host, and which of the values that it sends it is lost at."""

    def mark_lost(self, host: str) -> None:
        with self.changed:
            self.lost.add(host)
            self.changed.notify_all()


class MemoryPost:
    """The values of one host."""

    def __init__(self, network: Network, host: str) -> None:
        self._network = network
        self._host = host

    def send(self, run: RunKey, value: int, host: str, array: NDArray) -> None:
        network = self._network
        with network.changed:
            if network.fails_at is not None and network.fails_at[0] == self._host:
                sent = sum(source == self._host for source, _, _ in network.messages)
                if sent >= network.fails_at[1]:
                    network.lost.add(self._host)
                    network.changed.notify_all()
            if host in network.lost or self._host in network.lost:
                raise lost(self._host if self._host in network.lost else host)
            if (run, self._host) in network.aborted:
                raise RunAborted("[run] given up")
            network.messages.append((self._host, host, value))
            if run.sequence_number > network.ended.get((run.plan, run.slot, host), -1):
                network.values[run, self._host, host, value] = np.array(array, order="C")
            network.changed.notify_all()

    def recv(self, run: RunKey, value: int, host: str, timeout_s: float) -> NDArray:
        network, key = self._network, (run, host, self._host, value)
        until_s = time.monotonic() + timeout_s
        with network.changed:
            while key not in network.values:
                if (run, self._host) in network.aborted:
                    raise RunAborted("[run] given up")
                if host in network.lost:
                    raise lost(host)
                if not network.changed.wait(until_s - time.monotonic()):
                    error = DeviceTimeout(f"[run] nothing came from {host}")
                    error.host = host
                    raise error
            return network.values.pop(key)

    def has_arrived(self, run: RunKey, value: int, host: str) -> bool:
        return (run, host, self._host, value) in self._network.values

    def abort(self, run: RunKey) -> None:
        with self._network.changed:
            if run.sequence_number > self._network.ended.get((run.plan, run.slot, self._host), -1):
                self._network.aborted.add((run, self._host))
            self._network.changed.notify_all()

    def end(self, run: RunKey) -> None:
        network = self._network
        with network.changed:
            network.ended[run.plan, run.slot, self._host] = run.sequence_number
            network.aborted.discard((run, self._host))
            for key in [k for k in network.values if k[2] == self._host and k[0] == run]:
                del network.values[key]


@dataclass
class _Outcome:
    failed: Callable[[BaseException], None]
    is_ready: bool = False
    stats: RunStats | None = None
    events: Sequence[Event] = ()
    error: BaseException | None = None


@dataclass
class MemoryHost:
    """A host with devices of its own; parts come to it as documents, as over a network.

    mute: what it does not say any more, of "ready" and "done": then time is up for who waits.
    """

    name: str
    network: Network
    devices: Sequence[Device]
    timeout_s: float = 30.0
    mute: frozenset[str] = frozenset()
    prepared: list[HostPlan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._runs: dict[RunKey, _Outcome] = {}
        self._changed = self.network.changed
        transport, trace = MemoryPost(self.network, self.name), vs.Trace()
        self.parts = PlanRunner(self.devices, transport, _MemoryDriver(self), trace, self.timeout_s)

    def prepare(self, number: int, part: HostPlan, progress: Progress | None = None) -> None:
        self._require()
        text, weights = HostPlanCodec().write(part, lambda key: str(id(key)))
        states = {str(id(key)): key for key in part.plan.graph.keys.values()}

        def weight(digest: str) -> NDArray:
            return np.frombuffer(b"".join(p.tobytes() for p in weights[digest]), np.uint8)

        read = HostPlanCodec().read(text, weight, states.__getitem__)
        self.prepared.append(read)
        self.parts.prepare(number, read, progress)

    def start(
        self,
        run: RunKey,
        feeds: Mapping[int, NDArray],
        failed: Callable[[BaseException], None],
        traced: bool = False,
    ) -> None:
        self._require()
        with self._changed:
            self._runs[run] = _Outcome(failed)
        self.parts.start(run, feeds, traced)

    def ready(self, run: RunKey, timeout_s: float) -> None:
        self._wait(run, lambda outcome: outcome.is_ready, timeout_s)

    def commit(self, run: RunKey) -> None:
        if self.name not in self.network.lost:
            self.parts.commit(run)

    def finish(self, run: RunKey, timeout_s: float) -> WorkerRunResult:
        outcome = self._wait(run, lambda outcome: outcome.stats is not None, timeout_s)
        assert outcome.stats is not None
        return WorkerRunResult(outcome.stats, outcome.events)

    def abort(self, run: RunKey) -> None:
        self.parts.abort(run)

    def release_plan(self, number: int) -> None:
        if self.name in self.network.lost:  # which it sees by itself
            self.parts.close()
        self.parts.release_plan(number)

    def close(self) -> None:
        self.parts.close()
        for device in self.devices:
            device.close()

    def _require(self) -> None:
        if self.name in self.network.lost:
            raise lost(self.name)

    def _wait(self, run: RunKey, over: Callable[[_Outcome], bool], timeout_s: float) -> _Outcome:
        with self._changed:
            outcome = self._runs.get(run)
            if outcome is None:
                raise RunAborted("[run] not known")
            until_s = time.monotonic() + timeout_s
            while not over(outcome):
                if outcome.error is not None:
                    raise outcome.error
                self._require()
                if not self._changed.wait(until_s - time.monotonic()):
                    raise DeviceTimeout(f"[cluster] {self.name} says nothing")
            return outcome

    # -- ports.Driver ------------------------------------------------------------------------------

    def _note(self, run: RunKey, what: str, value: object) -> None:
        with self._changed:
            outcome = self._runs.get(run)
            if outcome is None or self.name in self.network.lost:
                return
            setattr(outcome, what, value)
            self._changed.notify_all()

    def tell_ready(self, run: RunKey) -> None:
        late = DeviceTimeout(f"[cluster] {self.name} says nothing")
        self._note(run, *(("error", late) if "ready" in self.mute else ("is_ready", True)))

    def done(self, run: RunKey, stats: RunStats, events: Sequence[Event]) -> None:
        self._note(run, "events", events)
        late = DeviceTimeout(f"[cluster] {self.name} says nothing")
        self._note(run, *(("error", late) if "done" in self.mute else ("stats", stats)))

    def failed(self, run: RunKey, error: BaseException) -> None:
        outcome = self._runs.get(run)
        self._note(run, "error", error)
        if outcome is not None and self.name not in self.network.lost:
            outcome.failed(error)


class _MemoryDriver:
    """`ports.Driver` of a host; `ready` means another thing on the other side."""

    def __init__(self, host: MemoryHost) -> None:
        self.ready, self.done, self.failed = host.tell_ready, host.done, host.failed


class Cluster:
    """A driver and its hosts. devices: all that a plan's machine has, in its order, named as there;
    those of other hosts are made anew by `make`, which is given their names there.
    """

    def __init__(
        self,
        plan: Plan,
        make: Callable[[str, str], Device],
        timeout_s: float = 30.0,
        trace: vs.Trace | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.network = Network()
        self.plan = plan
        self.real: list[Device] = []
        """The devices of the plan's machine, whosever they are."""
        self.hosts: dict[str, MemoryHost] = {}
        of: dict[str, list[Device]] = {}
        for spec, memory in zip(plan.topology.devices, plan.memory, strict=True):
            host = host_of(spec.name)
            device = make(host, device_of(spec.name))
            keys, initial = plan.graph.keys, plan.graph.initial
            device.states.add([(keys[state], initial[state]) for state in memory.states])
            self.real.append(device)
            of.setdefault(host, []).append(device)
        for host, devices in of.items():
            if host:
                if all(device.name != "cpu" for device in devices):
                    devices.append(make(host, "cpu"))
                self.hosts[host] = MemoryHost(host, self.network, devices, timeout_s)
        transport = MemoryPost(self.network, "")
        names = [spec.name for spec in plan.topology.devices]
        seen = [d if not host_of(n) else _Named(n) for n, d in zip(names, self.real, strict=True)]
        self.executor = ClusterExecutor(
            plan,
            self.hosts,
            transport,
            ExecutorContext(seen, trace or vs.Trace(), timeout_s, progress),
        )

    def run(self, feeds: Mapping[str, NDArray]) -> tuple[NDArray, ...]:
        """Run once with inputs by name."""
        ids = {n.id: feeds[n.name] for n in self.plan.graph.inputs if n.name in feeds}
        return self.executor.run(ids).outputs

    def close(self) -> None:
        self.executor.close()
        for host in self.hosts.values():
            host.close()
        for device in self.real:
            device.close()

    def state(self, name: str) -> NDArray:
        """Return the value of a state by name."""
        (node,) = (n for n in self.plan.graph.nodes if n.name == name and n.op == "state")
        device = self.real[self.plan.placements[node.id].device]
        return device.states.read(self.plan.graph.keys[node.id])

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Named:
    """Stands for a device of another host."""

    states = CpuStates()

    def __init__(self, name: str) -> None:
        self.name = name

    def holds(self, key: object) -> bool:
        return False

    def close(self) -> None:
        return None
