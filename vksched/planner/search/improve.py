"""Improve: local search on a candidate with the simulator that evaluates all candidates.

Problem: a schedule of node groups passes on each result when it is computed, over parallel links; a
split passes on its results at its end, through one host. So the best schedule is not the best plan.
Method: descent. A node, or a chain of nodes, moves to another device, or two devices swap all their
nodes. The graph is placed, split and simulated, and a move that saves time is accepted. Moves are
tried in the order of a rough estimate: the load of the most loaded device, and transfers.

    on a: n0 n1 n2 n3    on b: n4        estimate: {n1 n2} to b saves 2 ms, n3 to b saves 1 ms, ...
    try {n1 n2} to b: 5.6 ms, was 5.9 --> accepted; estimate again
    try n3 to b: 6.1 ms --> rejected; the next move, until no tries are left

Complexity: O(edges * devices) for each estimate, and a split and a simulation for each try; larger
graphs get fewer tries. Examples: tests/planner/test_improve_plan.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations

from ...common.dtypes import WORD_BYTES
from .candidates import Candidates, Strategy
from .evaluate import Evaluated, Evaluator
from .task_graph import RULE

TRIES, NODE_TRIES = 24, 1_600
"""Maximum tries for a graph, and maximum product of tries and nodes."""
RUNS = (1, 2, 3, 4, 6, 8)
"""Lengths of chains of nodes that move together."""
OWN_WORK = 0.25
"""Weight of the change of compute time of moved nodes in the estimate, besides the load."""
ACCEPTED_RATIO = 1 - 1e-9
"""A move is accepted if the time is at most this fraction of the time before."""

MAX_SWAP_DEVICES = 4
"""Maximum number of devices with work for which swaps of two devices are tried."""

On = Mapping[int, int]
"""The device of each free node, by id."""
Change = tuple[tuple[int, int], ...]
"""Nodes with their new devices."""


def improve(
    found: Sequence[Evaluated], strategies: Candidates, evaluator: Evaluator
) -> list[Evaluated]:
    """Return improved versions of the best candidate and of the best single device.

    Parameters
    ----------
    found
        Candidates that were evaluated without their memory, at least one.
    strategies
        The candidates of the graph.
    evaluator
        The evaluator of the candidates.
    """
    tries = min(TRIES, NODE_TRIES // max(1, len(strategies.support.computed)))
    singles = [each for each in found if each.strategy.device is not None]
    best = [min(each, key=_seconds) for each in (found, singles) if each]
    starts = list({id(each): each for each in best}.values())
    descents = [
        _Descent(each, strategies, evaluator, tries // len(starts)) for each in starts if tries
    ]
    return [each for each in (descent.run() for descent in descents) if each is not None]


class _Descent:
    """One descent; `tries` is the maximum number of moves to evaluate."""

    def __init__(
        self, start: Evaluated, strategies: Candidates, evaluator: Evaluator, tries: int
    ) -> None:
        self._best, self._strategies, self._evaluator = start, strategies, evaluator
        self._left = tries
        self._support = strategies.support
        self._hints = start.strategy.hints
        devices = evaluator.devices_of(start.strategy)
        self._free = [n.id for n in strategies.free_nodes()]
        self._on: On = {n: devices[n] for n in self._free}
        self._known = {tuple(self._on.values())}
        words = self._support.graph.words
        self._bytes = {n: words[n] * WORD_BYTES for n in self._free}
        self._name = f"{start.candidate.name.replace(':', ' ')}, improved"

        @lru_cache(1 << 14)
        def crossing_s(a: int, b: int, size_bytes: int) -> float:
            return strategies.topology.route(a, b).seconds(size_bytes) if a != b else 0.0

        self._crossing_s = crossing_s

    def run(self) -> Evaluated | None:
        start = self._best
        while self._left and self._step():
            pass
        return None if self._best is start else self._best

    def _step(self) -> bool:
        """Try moves, the most promising first, until one is accepted; return True if one was."""
        load = self._load(self._on)
        for _, change in sorted([*self._swaps(load), *self._moves(load)]):
            on = {**self._on, **dict(change)}
            key = tuple(on.values())
            if key in self._known:
                continue
            if not self._left:
                return False
            self._known.add(key)
            self._left -= 1
            strategy = Strategy(self._name, replace(self._hints, on=on, reason=RULE))
            for found in self._evaluator.evaluate([strategy]):
                if _seconds(found) < ACCEPTED_RATIO * _seconds(self._best):
                    self._best, self._on = found, on
                    return True
        return False

    def _load(self, on: On) -> dict[int, float]:
        """Return the seconds of the nodes of each device."""
        load: dict[int, float] = {}
        for n in self._free:
            load[on[n]] = load.get(on[n], 0.0) + self._support.node_seconds(n, on[n])
        return load

    def _swaps(self, load: Mapping[int, float]) -> Iterator[tuple[float, Change]]:
        """Yield the changes that swap all nodes of two devices."""
        candidate_devices = self._strategies.candidate_devices
        for a, b in combinations(sorted(load), 2) if len(load) <= MAX_SWAP_DEVICES else ():
            other = {a: b, b: a}
            change = tuple((n, other[d]) for n, d in self._on.items() if d in other)
            if all(device in candidate_devices(n) for n, device in change):
                after = self._load({**self._on, **dict(change)})
                yield max(after.values()) - max(load.values()), change

    def _moves(self, load: Mapping[int, float]) -> Iterator[tuple[float, Change]]:
        """Yield the estimated additional seconds of moves of chains, with the changes."""
        on, strategies, seconds = self._on, self._strategies, self._support.node_seconds
        most_s = max(load.values())
        idle = min(strategies.devices, key=lambda d: (load.get(d, 0.0), d))
        for first in self._free:
            near = {idle, *(on[n] for n in self._neighbours(first))} - {on[first]}
            targets = [d for d in sorted(near) if d in strategies.candidate_devices(first)]
            for run in self._runs(first) if targets else ():
                now_s = sum(seconds(n, on[n]) for n in run)
                for device in targets:
                    if any(device not in strategies.candidate_devices(n) for n in run):
                        continue
                    then_s = sum(seconds(n, device) for n in run)
                    moved = {on[first]: load[on[first]] - now_s}
                    moved[device] = load.get(device, 0.0) + then_s
                    fullest_s = max({**load, **moved}.values())
                    added_s = fullest_s - most_s + OWN_WORK * (then_s - now_s)
                    added_s += self._crossing_more_s(run, device)
                    yield added_s, tuple((n, device) for n in run)

    def _neighbours(self, node: int) -> Iterator[int]:
        """Yield the free nodes that a node reads, and those that read it."""
        for n in (*self._support.operands[node], *self._support.readers[node]):
            if n in self._on:
                yield n

    def _runs(self, first: int) -> Iterator[tuple[int, ...]]:
        """Yield the chains of a node on its device; each next node is the first reader."""
        on, run = self._on, [first]
        while True:
            if len(run) in RUNS:
                yield tuple(run)
            readers = self._support.readers[run[-1]]
            after = next((n for n in readers if on.get(n) == on[first]), None)
            if after is None or len(run) == RUNS[-1]:
                return
            run.append(after)

    def _crossing_more_s(self, run: tuple[int, ...], device: int) -> float:
        """Return the additional seconds of transfers after moving a chain to a device."""
        on, size_bytes, crossing_s = self._on, self._bytes, self._crossing_s
        more_s = 0.0
        for n in run:
            for operand in self._support.operands[n]:
                if operand in on and operand not in run:
                    size, at = size_bytes[operand], on[operand]
                    more_s += crossing_s(at, device, size) - crossing_s(at, on[n], size)
            for reader in self._support.readers[n]:
                if reader in on and reader not in run:
                    size, at = size_bytes[n], on[reader]
                    more_s += crossing_s(device, at, size) - crossing_s(on[n], at, size)
        return more_s


def _seconds(each: Evaluated) -> float:
    return each.candidate.metrics.latency_s
