"""Walks: what each host of a plan waits for, sends and takes, in the order of the whole plan.

Problem: over several hosts no single thread waits, copies and submits. Method: each host walks its
own splits in the order of the plan. Where a split of another host needs a value of its own, it
waits for that value, copies it from its device and sends it. Where one of its own needs a value of
another host, it takes that. Each step waits only for what comes earlier in the one order, so none
waits for ever. A value goes to a host once.

    plan    0 @ node1   1 @ node2 reads 0   2 @ node1 reads 1   the caller wants 2
    node1   submit 0 | wait 0, send ------> | take 1, submit 2 | wait 2, send
    node2              take 0, submit 1, wait 1, send ----^             |
    caller  start both                                                  '-> take 2

At the end each host tells the caller that it is done. Where states are written, all tell him first
that they are ready for it, and he tells all to go on.

Complexity: O(splits * hosts in use + crossings). Examples: tests/plan/test_walks.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..machine.hosts import CALLER
from ..machine.spec import Machine
from .value import HOST

Wire = tuple[int, int]
"""The link from one host to another, or the port of one of them, with -1 for the other."""
Flow = tuple[int, Sequence[tuple[int, int]], tuple[int, ...]]
"""Of a split its device, the values that enter it with the split that makes each, or HOST, and the
splits that it waits for.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """What one host tells another: a value, or only that splits are complete.

    source, target: hosts by number. split, device: that made the value, and where it is. waits:
    splits that the source waits for first. copied_s: it copies the value from the device. wires:
    what carries one message after the other, a link of its own or the ports of both hosts. wire_s:
    they are busy with it. latency_s: it arrives so long after that.
    """

    source: int
    target: int
    split: int | None
    device: int
    waits: tuple[int, ...]
    copied_s: float
    wires: tuple[Wire, ...]
    wire_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Walks:
    """What the hosts of one plan do beside their splits.

    on: the host of each device, by number. caller: the caller's own. run_s: what a run takes each
    host, whatever it submits. starts: inputs, and that the run begins. waits: of each split those
    of its own host that it waits for. takes: of each split what its host takes for it. results:
    what the caller takes at the end, and that others are ready, behind what splits take that write
    states. ready: splits that the caller waits
    for then. commits: that all are ready. done, last: as `results` and `ready`, once states are
    written.
    """

    on: tuple[int, ...]
    hosts: int
    caller: int
    run_s: tuple[float, ...]
    starts: tuple[Message, ...]
    waits: tuple[tuple[int, ...], ...]
    takes: tuple[tuple[Message, ...], ...]
    results: tuple[Message, ...]
    ready: tuple[int, ...]
    commits: tuple[Message, ...] = ()
    done: tuple[Message, ...] = ()
    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Values:
    """What is known of values. size_bytes: of one. copied_s: what a host takes to copy one from a
    device. weights: values that each host has from the start.
    """

    size_bytes: Callable[[int], int]
    copied_s: Callable[[int, int], float]
    weights: Mapping[int, object]


def make_walks(
    machine: Machine,
    flows: Sequence[Flow],
    commits: int,
    final_waits: Sequence[int],
    results: Iterable[tuple[int, int]],
    values: Values,
) -> Walks | None:
    """Returns the walks of a plan; None where the caller's host does all of it.

    commits: how many splits, at the end, write states. results: values that the caller gets, each
    with the split that makes it.
    """
    working = {machine.host_of(device) for device, _, _ in flows} | {CALLER}
    if len(working) == 1:
        return None
    return _Maker(machine, flows, sorted(working), values).make(commits, final_waits, results)


class _Maker:
    def __init__(
        self, machine: Machine, flows: Sequence[Flow], hosts: Sequence[str], values: Values
    ) -> None:
        self._machine = machine
        self._flows = flows
        self._names = hosts
        number = {host: at for at, host in enumerate(hosts)}
        self._on = tuple(
            number.get(machine.host_of(device), -1) for device in range(len(machine.devices))
        )
        self._caller = number[CALLER]
        self._values = values
        self._known: dict[int, int] = {}
        """By device, the last split of which its own host knows that it is complete."""
        self._brought: set[tuple[int, int]] = set()
        self._given: list[int] = [0] * len(hosts)

    def make(
        self, commits: int, final_waits: Sequence[int], results: Iterable[tuple[int, int]]
    ) -> Walks:
        flows, run, others = self._flows, len(self._flows) - commits, self._others
        waits: list[tuple[int, ...]] = []
        takes: list[tuple[Message, ...]] = []
        for device, entering, waited in flows[:run]:
            takes.append(tuple(self._enter(device, entering, waited)))
            waits.append(self._need(waited, self._on[device]))
        told = [m for device, entering, _ in flows[run:] for m in self._enter(device, entering, ())]
        left = range(run) if commits else final_waits
        told += [self._tell(host, self._caller, self._need(left, host)) for host in others]
        told += [
            self._value(value, split, self._caller, ())
            for value, split in results
            if self._on[flows[split][0]] != self._caller
        ]
        ready = self._need(left, self._caller)
        ends = {host: self._need(final_waits, host) for host in (*others, self._caller)}
        return Walks(
            on=self._on,
            hosts=len(self._names),
            caller=self._caller,
            run_s=self._run_s(),
            starts=tuple(self._tell(self._caller, host, (), self._given[host]) for host in others),
            waits=(*waits, *[()] * commits),
            takes=(*takes, *[()] * commits),
            results=tuple(told),
            ready=ready,
            commits=tuple(self._tell(self._caller, h, ()) for h in others if commits),
            done=tuple(self._tell(h, self._caller, ends[h]) for h in others if commits),
            last=ends[self._caller],
        )

    def _run_s(self) -> tuple[float, ...]:
        """Returns what a run takes each host, whatever it submits."""
        out = [0.0] * len(self._names)
        for device, _, _ in self._flows:
            here = self._on[device]
            out[here] = max(out[here], self._machine.devices[device].costs.run_s)
        return tuple(out)

    @property
    def _others(self) -> list[int]:
        return [host for host in range(len(self._names)) if host != self._caller]

    def _enter(
        self, device: int, entering: Sequence[tuple[int, int]], waited: Sequence[int]
    ) -> Iterable[Message]:
        """Yields what a split takes from other hosts."""
        here, covered = self._on[device], set[int]()
        for value, source in entering:
            if source == HOST:
                if value not in self._values.weights:
                    self._give(value, here)
                continue
            maker = self._flows[source][0]
            if self._on[maker] == here:
                continue
            covered.add(source)
            if (value, here) not in self._brought:
                self._brought.add((value, here))
                yield self._value(value, source, here, self._need((source,), self._on[maker]))
        for split in waited:  # nothing comes from it, and yet it has to be complete
            maker = self._flows[split][0]
            if self._on[maker] != here and split not in covered:
                needed = self._need((split,), self._on[maker])
                yield self._tell(self._on[maker], here, needed)

    def _give(self, value: int, host: int) -> None:
        if (value, host) not in self._brought:
            self._brought.add((value, host))
            self._given[host] += self._values.size_bytes(value)

    def _need(self, splits: Iterable[int], host: int) -> tuple[int, ...]:
        """Returns those of some splits that a host has to wait for on its own devices."""
        latest: dict[int, int] = {}
        for split in splits:
            device = self._flows[split][0]
            if self._on[device] == host and split > self._known.get(device, -1):
                latest[device] = max(split, latest.get(device, -1))
        self._known.update(latest)
        return tuple(sorted(latest.values()))

    def _value(self, value: int, split: int, target: int, waits: tuple[int, ...]) -> Message:
        device, values = self._flows[split][0], self._values
        told = self._tell(self._on[device], target, waits, values.size_bytes(value))
        copied_s = values.copied_s(value, device)
        return replace(told, split=split, device=device, copied_s=copied_s)

    def _tell(
        self, source: int, target: int, waits: tuple[int, ...], size_bytes: int = 0
    ) -> Message:
        names = self._names[source], self._names[target]
        link = self._machine.link_between(*names)
        own = self._machine.links.named(*map(self._machine.memory_of, names))
        wires: tuple[Wire, ...] = ((source, target),) if own else ((source, -1), (-1, target))
        wires = wires if size_bytes else ()
        split = waits[-1] if waits else None
        device = self._on.index(source) if split is None else self._flows[split][0]
        wire_s = size_bytes / link.bytes_per_s
        return Message(source, target, split, device, waits, 0.0, wires, wire_s, link.latency_s)
