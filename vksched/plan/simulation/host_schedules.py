"""Host schedules: the waits, sends and receives of each host, in the order of the whole plan.

Problem: over several hosts no single thread waits, copies and submits. Method: each host runs its
own splits in the order of the plan. If a split needs a value of another host, its host receives it
first. A host sends the values that others need as soon as it finds them complete, at the latest
before it waits for another host. A waiting host has therefore sent all results of its earlier
splits, each wait is for an earlier point of the common order, and no wait is infinite. A value goes
to a host once.

    plan    0 @ node1   1 @ node2 reads 0   2 @ node1 reads 1   the caller wants 2
    node1   submit 0 | wait 0, send ------> | take 1, submit 2 | wait 2, send
    node2              take 0, submit 1, wait 1, send ----^             |
    caller  start both                                                  '-> take 2

At the end each host reports to the driver that it is done. If states are written, all first report
that they are ready to write, and the driver then lets all proceed.

Complexity: O(splits * hosts in use + transfers). Examples: tests/plan/test_host_schedules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ...ir.graph import Graph
from ...topology.host_names import DRIVER
from ...topology.topology import Topology
from ..types.plan_types import HOST
from ..types.split_draft import SplitDraft

Wire = tuple[int, int]
"""The link from one host to another, or the port of one of them, with -1 for the other."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message from one host to another.

    what: a value, or "start", "ready", "commit", "done". source, target: hosts by number. value,
    split, device: the value, the split that produced it, and its device. copied_s: seconds of the
    source to copy it from the device. wires: the carriers, in order: a link of its own, or the
    ports of both hosts. wire_s: seconds that the wires are busy with it. latency_s: seconds from
    then until it arrives.
    """

    what: str
    source: int
    target: int
    value: int = HOST
    split: int | None = None
    device: int = 0
    copied_s: float = 0.0
    wires: tuple[Wire, ...] = ()
    wire_s: float = 0.0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Walks:
    """The steps of the hosts of one plan besides their splits.

    on: the host of each device, by number. own: the splits of each host. caller: the number of the
    driver. run_s: for each host, its fixed seconds per run. starts: messages with the inputs and
    the start of the run. waits: for each split, the splits of its own host that it waits for.
    takes: for each split, the messages that its host receives for it. sends: for each split, the
    messages with values that others need. ends: for each host, the messages that it receives after
    its splits: for the splits that write states or, on the driver, as results. ready: for each
    host, the splits that it then waits for. last: the splits that it waits for after states are
    written. tells: "ready" if states are written, otherwise "done". commits, done: if states are
    written, the messages that all are ready, and done.
    """

    on: tuple[int, ...]
    own: tuple[tuple[int, ...], ...]
    caller: int
    run_s: tuple[float, ...]
    starts: tuple[Message, ...]
    waits: tuple[tuple[int, ...], ...]
    takes: tuple[tuple[Message, ...], ...]
    sends: tuple[tuple[Message, ...], ...]
    ends: tuple[tuple[Message, ...], ...]
    ready: tuple[tuple[int, ...], ...]
    last: tuple[tuple[int, ...], ...]
    tells: tuple[Message, ...]
    commits: tuple[Message, ...] = ()
    done: tuple[Message, ...] = ()


def make_walks(
    graph: Graph,
    topology: Topology,
    splits: Sequence[SplitDraft],
    commits: int,
    results: Iterable[tuple[int, int]],
    copied_s: Callable[[int, int], float],
) -> Walks | None:
    """Return the schedules of the hosts of a plan, or None if the driver's host runs all splits.

    commits: the number of final splits that write states. results: values that the caller gets,
    each with the split that produces it. copied_s: a function that returns the seconds of a host to
    copy a value from a device.
    """
    working = {topology.host_of(split.device) for split in splits} | {DRIVER}
    if len(working) == 1:
        return None
    builder = _ScheduleBuilder(graph, topology, splits, sorted(working), copied_s)
    return builder.make(commits, results)


class Turns:
    """The order in which hosts get the values of a split: by the longest path from the reading
    split to the end. Among equals, each sender begins with the host after itself, so that the sends
    to one host are spread over time.

    live_in: for each split, its inputs, as in `Flow`. hosts: the number of hosts.
    """

    def __init__(self, live_in: Sequence[Iterable[tuple[int, int]]], hosts: int) -> None:
        self._hosts = hosts
        self._left = [0] * len(live_in)
        """For each split, the length of the longest chain of splits after it."""
        for split in reversed(range(len(live_in))):
            for _, source in live_in[split]:
                if source != HOST:
                    self._left[source] = max(self._left[source], 1 + self._left[split])

    def turn(self, source: int, target: int, reader: int) -> tuple[int, int]:
        """Return a sort key for sending a value to a host, the smallest first. reader: HOST for the
        caller.
        """
        left = -1 if reader == HOST else self._left[reader]
        return -left, (target - source) % self._hosts


class _ScheduleBuilder:
    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        splits: Sequence[SplitDraft],
        hosts: Sequence[str],
        copied_s: Callable[[int, int], float],
    ) -> None:
        self._graph = graph
        self._topology = topology
        self._splits = splits
        self._names = hosts
        number = {host: at for at, host in enumerate(hosts)}
        self._on = tuple(
            number.get(topology.host_of(device), -1) for device in range(len(topology.devices))
        )
        self._caller = number[DRIVER]
        self._copied_s = copied_s
        self._scheduled: set[tuple[int, int]] = set()
        self._input_bytes: list[int] = [0] * len(hosts)
        self._turns = Turns([split.live_in for split in splits], len(hosts))
        self._sends: list[list[tuple[tuple[int, int], Message]]] = [[] for _ in splits]

    def make(self, commits: int, results: Iterable[tuple[int, int]]) -> Walks:
        splits, run, others = self._splits, len(self._splits) - commits, self._others
        takes = [tuple(self._received(split)) for split in range(run)]
        ends: list[list[Message]] = [[] for _ in self._names]
        for split in range(run, len(splits)):
            ends[self._on[splits[split].device]] += self._received(split)
        for value, split in results:
            ends[self._caller] += self._send_value(value, split, self._caller, HOST)
        return Walks(
            on=self._on,
            own=tuple(
                tuple(n for n, split in enumerate(splits) if self._on[split.device] == host)
                for host in range(len(self._names))
            ),
            caller=self._caller,
            run_s=self._run_s(),
            starts=tuple(
                self._message("start", self._caller, host, self._input_bytes[host])
                for host in others
            ),
            waits=(*map(self._own_waits, splits[:run]), *[()] * commits),
            takes=(*takes, *[()] * commits),
            sends=tuple(
                tuple(message for _, message in sorted(each, key=lambda sent: sent[0]))
                for each in self._sends
            ),
            ends=tuple(map(tuple, ends)),
            ready=self._last_of(range(run)),
            last=self._last_of(range(len(splits))),
            tells=self._from(others, "ready" if commits else "done"),
            commits=tuple(self._message("commit", self._caller, h) for h in others if commits),
            done=self._from(others, "done") if commits else (),
        )

    def _run_s(self) -> tuple[float, ...]:
        """Return the fixed seconds per run of each host."""
        out = [0.0] * len(self._names)
        for split in self._splits:
            here = self._on[split.device]
            out[here] = max(out[here], self._topology.devices[split.device].costs.run_s)
        return tuple(out)

    @property
    def _others(self) -> list[int]:
        return [host for host in range(len(self._names)) if host != self._caller]

    def _from(self, hosts: Iterable[int], what: str) -> tuple[Message, ...]:
        return tuple(self._message(what, host, self._caller) for host in hosts)

    def _received(self, split: int) -> Iterator[Message]:
        """Yield the messages that a split receives from other hosts."""
        here = self._on[self._splits[split].device]
        for value, source in self._splits[split].live_in:
            if source != HOST:
                yield from self._send_value(value, source, here, split)
            elif value not in self._graph.data and (value, here) not in self._scheduled:
                self._scheduled.add((value, here))
                self._input_bytes[here] += self._graph.nodes[value].type.device_bytes

    def _send_value(self, value: int, split: int, target: int, reader: int) -> Iterator[Message]:
        """Schedule the send of a value by its producer, once for each host that needs it."""
        device = self._splits[split].device
        source = self._on[device]
        if source == target or (value, target) in self._scheduled:
            return
        self._scheduled.add((value, target))
        size_bytes = self._graph.nodes[value].type.device_bytes
        message = self._message("value", source, target, size_bytes)
        copied_s = self._copied_s(value, device)
        sent = replace(message, value=value, split=split, device=device, copied_s=copied_s)
        self._sends[split].append((self._turns.turn(source, target, reader), sent))
        yield sent

    def _own_waits(self, split: SplitDraft) -> tuple[int, ...]:
        """Return the splits of its own host that a split waits for."""
        here = self._on[split.device]
        return tuple(n for n in split.waits if self._on[self._splits[n].device] == here)

    def _last_of(self, splits: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """Return, for each host, the last of some splits on each device."""
        latest = {self._splits[split].device: split for split in splits}
        out: list[list[int]] = [[] for _ in self._names]
        for device, split in latest.items():
            out[self._on[device]].append(split)
        return tuple(tuple(sorted(each)) for each in out)

    def _message(self, what: str, source: int, target: int, size_bytes: int = 0) -> Message:
        names = self._names[source], self._names[target]
        link = self._topology.link_between(*names)
        own = self._topology.links.named(*map(self._topology.memory_of, names))
        wires: tuple[Wire, ...] = ((source, target),) if own else ((source, -1), (-1, target))
        return Message(
            what,
            source,
            target,
            device=self._on.index(source),
            wires=wires if size_bytes else (),
            wire_s=size_bytes / link.bytes_per_s,
            latency_s=link.latency_s,
        )
