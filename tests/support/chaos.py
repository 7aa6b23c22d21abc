"""What may go wrong between a driver and two nodes, and what must hold whatever does.

    Lab: driver --Wire--> node1 --Wire--> node2 <--Wire-- driver, each node a process
    converse: connect, prepare, three runs; a Fault comes before frame `at`

Right results, or one clear error; nothing takes longer than it may; nothing is left.
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import clusters
import numpy as np
from counted_transport import Counter, Wire
from forked_nodes import BRIEF, TICK_S, Forked, ForkedNode

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import DeviceError, StateLost, VkschedError
from vksched.distributed.driver import client
from vksched.distributed.driver.client import RemoteWorker, RemoteWorkers
from vksched.distributed.wire import link_benchmark

NAMES = ("node1", "node2")
LIMIT_S = 10.0
"""Of each step of a conversation, and until all is free."""
SHAPE = (16, 1024)
RUNS = 3
SLOW_BYTES = 100_000
"""Of a slow way, before it is fast again: a value and a half."""
STATES = ("none", "plain", "backup")
PLACES = {"a": "node1/cpu", "total": "node2/cpu", "after": "node2/cpu", "out": "node2/cpu"}

LABS: dict[str, Lab] = {}
"""By the addresses of its wires: whose addresses a driver tells to nodes."""


class Lab:
    """Two nodes behind wires. states: one of STATES. how: as `Forked.start` has it."""

    def __init__(self, forked: Forked, states: str, counter: Counter, **how: object) -> None:
        self.states, self.forked, self._begun = states, forked, threading.Lock()
        self.nodes: dict[str, ForkedNode] = {n: forked.start(n, brief=True, **how) for n in NAMES}
        targets = {name: node.address for name, node in self.nodes.items()}
        self.own = {n: Wire(f"driver-{n}", targets[n], counter) for n in NAMES}
        self.peers = {n: Wire(f"peer-{n}", targets[n], counter) for n in NAMES}

        LABS.update((wire.address, self) for wire in self.own.values())

        self.driver: ForkedNode | None = None

    def begin_caller(self) -> None:
        """Has a process converse with the nodes, until it ends or something happens to it."""
        with self._begun:
            about = {"addresses": self.addresses, "peers": self.peer_addresses}
            self.driver = self.forked.start("driver", states=self.states, **about)
        while self.driver.alive and not is_stopped(self.driver):
            time.sleep(TICK_S)

    def signal_caller(self, number: int) -> None:
        with self._begun:
            assert self.driver is not None
            self.driver.signal(number)

    @property
    def addresses(self) -> list[str]:
        """Where the driver reaches the nodes."""
        return [self.own[name].address for name in NAMES]

    @property
    def peer_addresses(self) -> dict[str, str]:
        """Where the nodes reach each other."""
        return {name: wire.address for name, wire in self.peers.items()}

    @property
    def wires(self) -> list[Wire]:
        return [*self.own.values(), *self.peers.values()]

    def replace(self, name: str, **how: object) -> None:
        """Has another node take the place of one."""
        self.nodes[name].signal(signal.SIGKILL)
        self.nodes[name] = self.forked.start(name, brief=True, **how)
        for wires in (self.own, self.peers):
            wires[name].target = self.nodes[name].address

    def close(self) -> list[str]:
        """End it, and returns what did not end in time. Each node is free of drivers before its
        network is whole again.
        """
        found: list[str] = []
        nodes = self.nodes.values()
        found += [w for n in nodes if not is_stopped(n) for w in n.wrong_in(n.wait_free, LIMIT_S)]
        for wire in self.wires:
            wire.cut, wire.slow_bytes, wire.delay_s = False, 0, 0.0
        found += [wrong for node in nodes for wrong in node.wrong_in(node.end, LIMIT_S)]
        if self.driver is not None and self.driver.alive:
            self.driver.signal(signal.SIGCONT)
            found += self.driver.wrong_in(self.driver.wait_free, LIMIT_S)
        for wire in self.wires:
            wire.close()
        return found


def is_stopped(node: ForkedNode) -> bool:
    """Return True if it neither runs nor has ended."""
    with suppress(OSError):  # it has ended
        return Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False


Fault = Callable[[Lab], None]


def _set(wires: Callable[[Lab], list[Wire]], **what: object) -> Fault:
    def fault(lab: Lab) -> None:
        for wire in wires(lab):
            for name, value in what.items():
                setattr(wire, name, value)

    return fault


def _of(name: str) -> dict[str, Fault]:
    """What may go wrong with one node."""
    return {
        f"kill {name}": lambda lab: lab.nodes[name].signal(signal.SIGKILL),
        f"stop {name}": lambda lab: lab.nodes[name].signal(signal.SIGSTOP),
        f"cut {name} off": _set(lambda lab: [lab.own[name], lab.peers[name]], cut=True),
        f"cut {name} off the driver": _set(lambda lab: [lab.own[name]], cut=True),
        f"restart {name}": lambda lab: lab.replace(name),
        f"another version of {name}": lambda lab: lab.replace(name, version="0"),
        f"slow way to {name}": _set(lambda lab: [lab.own[name]], slow_bytes=SLOW_BYTES),
    }


FAULTS: dict[str, Fault] = {
    **_of("node1"),
    **_of("node2"),
    "cut nodes off each other": _set(lambda lab: list(lab.peers.values()), cut=True),
    "slow way between nodes": _set(lambda lab: list(lab.peers.values()), slow_bytes=SLOW_BYTES),
    "long way everywhere": _set(lambda lab: lab.wires, delay_s=0.1),
}
OF_CALLERS: dict[str, Fault] = {
    "kill driver": lambda lab: lab.signal_caller(signal.SIGKILL),
    "stop driver": lambda lab: lab.signal_caller(signal.SIGSTOP),
}
FAULTS.update(OF_CALLERS)
HARMLESS = ("slow", "long")
"""What faults begin with that no computer may be taken for lost by."""


@dataclass
class Conversation:
    """The outcome of one. seconds: time of each step."""

    outputs: list[NDArray] = field(default_factory=list)
    error: VkschedError | None = None
    step: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    plans: int = 0
    failed_devices: dict[str, str] = field(default_factory=dict)


def graph(states: str) -> tuple[dict[str, vs.Tensor], dict[vs.Tensor, vs.Tensor]]:
    a = vs.add(vs.input("x", SHAPE), vs.weight(weight(), name="w"), name="a")
    if states == "none":
        return {"out": vs.mul(vs.mul(a, 2.0, name="after"), a, name="out")}, {}
    total = vs.state(np.zeros(SHAPE, np.float32), name="total", backup=states == "backup")
    after = vs.add(total, a, name="after")
    return {"out": vs.mul(after, a, name="out")}, {total: after}


def compiled(sched: vs.Scheduler, states: str) -> vs.CompiledGraph:
    outputs, updates = graph(states)
    places = {name: at for name, at in PLACES.items() if updates or name != "total"}
    return sched.compile(outputs, places, updates=updates)


def on_nodes(addresses: Sequence[str], security: str = "plain") -> vs.Scheduler:
    cluster = vs.Cluster(addresses, clusters.make_credentials(), security)
    return vs.Scheduler([f"{name}/cpu" for name in NAMES], cluster=cluster, optimize=False)


def weight() -> NDArray:
    return np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE) / 1024


def fed(number: int) -> NDArray:
    """What a run is given."""
    return np.full(SHAPE, number, np.float32)


def expected(states: str) -> list[NDArray]:
    total, out = np.zeros(SHAPE, np.float32), []
    for number in range(RUNS):
        a = fed(number) + weight()
        total = total + a
        out.append((a * np.float32(2) if states == "none" else total) * a)
    return out


def converse(addresses: list[str], states: str, security: str = "plain") -> Conversation:
    """Connects, prepares and runs, as a user does, until an error comes."""
    done = Conversation()

    @contextmanager
    def step(name: str) -> Iterator[None]:
        done.step, begin_s = name, time.monotonic()
        try:
            yield
        finally:
            done.seconds[name] = time.monotonic() - begin_s

    sched = None
    try:
        with step("connect"):
            sched = on_nodes(addresses, security)
        with step("prepare"):
            run = compiled(sched, states)
        for number in range(RUNS):
            with step(f"run {number + 1}"):
                done.outputs.append(run(x=fed(number))["out"])
                done.plans = len(run.plan_numbers)
    except VkschedError as error:
        done.error, failed = error, done.step
    finally:
        if sched is not None:
            done.failed_devices = dict(sched.failed_devices)
            with step("close"):
                sched.close()
    done.step = failed if done.error else ""
    return done


def wrong(done: Conversation, states: str, fault: str, limit_s: float = LIMIT_S) -> list[str]:
    """Return the errors of a conversation in which a fault came."""
    found = [f"{step} took {took:.1f} s" for step, took in done.seconds.items() if took > limit_s]
    for number, (one, other) in enumerate(zip(done.outputs, expected(states), strict=False)):
        if not np.array_equal(one, other):
            found.append(f"run {number + 1} gave other numbers")
    error, harmless = done.error, not fault or fault.startswith(HARMLESS)
    if error is None and len(done.outputs) != RUNS:
        found.append(f"{len(done.outputs)} runs ended, without an error")
    if error is not None:
        lost = done.step.startswith("run") and isinstance(error, StateLost)
        begun = done.step == "connect" and isinstance(error, DeviceError)
        if harmless or not (begun or (lost and states == "plain")):
            found.append(f"{done.step}: {type(error).__name__}: {error}")
        elif not any(text in str(error) for text in (*NAMES, "127.0.0.1", "10.")):
            found.append(f"{done.step}: an error that names nobody: {error}")
    if done.plans > len(NAMES) + 2:
        found.append(f"{done.plans} plans were made")
    if harmless and done.failed_devices:
        found.append(f"out of use: {done.failed_devices}")
    return found


def left_behind() -> list[str]:
    """Return the threads of connections that do not end; some do so a moment after these."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        own = [t.name for t in threading.enumerate() if t.name.startswith(("vksched-", "wire-"))]
        if not own or time.monotonic() > end_s:
            return own
        time.sleep(TICK_S)


def tried(forked: Forked, fault: str, states: str, at: int) -> tuple[list[str], list[str]]:
    """Has a fault come before a frame; returns what is wrong then, and the frames that came. at: -1
    for no fault. Inside of `chaotic` alone.
    """
    counter = Counter(at, lambda: FAULTS[fault](lab))
    lab = Lab(forked, states, counter)
    if fault in OF_CALLERS:
        lab.begin_caller()
        found: list[str] = []
    else:
        found = wrong(converse(lab.addresses, states), states, fault)
    return found + lab.close(), counter.frames


def _hosts(nodes: RemoteWorkers, at: RemoteWorker, names: Iterable[str]) -> dict[str, list[str]]:
    first = next(iter(nodes._workers.values()))
    return hosts_behind(LABS[first.address].peer_addresses, nodes, at, names)


def hosts_behind(
    peers: Mapping[str, str], nodes: RemoteWorkers, at: RemoteWorker, names: Iterable[str]
) -> dict[str, list[str]]:
    """Return the options of nodes that find the others at these addresses."""
    known = {name: nodes._workers[name] for name in names if name in nodes._workers}
    return {name: [peers[name], nodes._pair(at, node)] for name, node in known.items()}


@contextmanager
def chaotic(hosts: Callable[..., dict[str, list[str]]] = _hosts) -> Iterator[None]:
    """Drivers of this process use wires, few messages before plans, and say nothing of losses."""
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(patch.object(RemoteWorkers, "hosts", hosts))
        stack.enter_context(patch.dict(link_benchmark.TRIES, BRIEF, clear=True))
        stack.enter_context(patch.object(client, "CLOCK_TRIES", 1))
        yield
    assert left_behind() == []
