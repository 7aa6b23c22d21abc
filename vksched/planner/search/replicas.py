"""Replicas: serve a stream by several devices that each run whole requests.

Problem: a graph of few large ops, or one with large transfers everywhere, has no split that keeps
two unequal devices busy. Method: each device gets a plan for the whole graph. Their rates add up,
because they share nothing: the period is 1 / (sum of 1 / period of each).

    gpu:0   run 0 | run 1 | run 3 | run 4 | ...       10 ms each
    gpu:1   run 2         | run 5         | ...       20 ms each: together a result every 6.7 ms

A device is used if it adds a minimum share of the rate, has memory and cores of its own, and can
run the whole graph. Each device holds all weights, so stages win if they are nearly as good. Graphs
with states or with user placements have no replicas, because a state has one device and placed
nodes stay there; neither have plans with a requested number of copies.

Complexity: O(candidates). Examples: tests/planner/test_replicas.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...plan.simulation.plan_metrics import join_replicas
from ...plan.types.decision import Candidate
from ...topology.host_names import DRIVER
from .candidates import Strategy
from .evaluate import CLOSE, Evaluated, Evaluator

MIN_SHARE = 0.05
"""Minimum rate of a device as a fraction of the rate of the devices before it."""
NAME = "replicas"


@dataclass(frozen=True, slots=True, eq=False)
class Replicated(Evaluated):
    """A candidate of several single devices; `replicas` are all but the first one."""

    replicas: tuple[Evaluated, ...] = ()


def replicate(singles: Sequence[Evaluated], evaluator: Evaluator) -> list[Evaluated]:
    """Return the candidate that gives whole runs to several devices, if there is one.

    Parameters
    ----------
    singles
        Evaluated single devices, each with its memory allocated.
    evaluator
        The evaluator of the candidates.
    """
    support = evaluator.support
    if isinstance(evaluator.copies, int) or evaluator.overrides or support.graph.states:
        return []
    chosen, rate = list[Evaluated](), 0.0
    for each in _fastest_first(singles, evaluator):
        own_rate = 1 / each.candidate.metrics.period_s
        if chosen and own_rate < MIN_SHARE * rate:
            break
        if not any(_share(each, other, evaluator) for other in chosen):
            chosen.append(each)
            rate += own_rate
    if len(chosen) < 2:
        return []
    first, *others = chosen
    candidate = Candidate(
        NAME,
        tuple(device for each in chosen for device in each.candidate.devices),
        sum(each.candidate.copies for each in chosen),
        join_replicas([each.candidate.metrics for each in chosen]),
    )
    strategy = Strategy(NAME, first.strategy.hints)
    return [Replicated(strategy, candidate, first.fitted, tuple(others))]


def _fastest_first(singles: Sequence[Evaluated], evaluator: Evaluator) -> list[Evaluated]:
    """Return, for each device that can run everything, its candidate with the fewest copies close
    to the shortest period, the fastest device first.
    """
    topology, by_device = evaluator.support.topology, dict[str, list[Evaluated]]()
    for each in singles:
        names, metrics = each.candidate.devices, each.candidate.metrics
        here = len(names) == 1 and topology.host_of(topology.index(names[0])) == DRIVER
        if here and each.fitted is not None and metrics.period_s > 0:
            by_device.setdefault(names[0], []).append(each)
    best: list[Evaluated] = []
    for found in by_device.values():
        close = CLOSE * min(_period_s(each) for each in found)
        best.append(
            min((e for e in found if _period_s(e) <= close), key=lambda e: e.candidate.copies)
        )
    return sorted(best, key=_period_s)


def _period_s(each: Evaluated) -> float:
    return each.candidate.metrics.period_s


def _share(one: Evaluated, other: Evaluated, evaluator: Evaluator) -> bool:
    """Return True if two devices share a memory, such as one card opened twice, or cores."""
    topology = evaluator.support.topology
    a, b = (topology.index(each.candidate.devices[0]) for each in (one, other))
    return b in topology.memory_peers(a) or topology.queues[a] == topology.queues[b]
