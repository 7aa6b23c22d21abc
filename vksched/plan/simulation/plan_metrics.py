"""Plan metrics: the cost of a plan by simulation, in the units of all objectives.

    latency_s    one run, from its inputs to its outputs, without concurrent runs
    period_s     time between two results of a steady stream, with as many concurrent runs as the
                 plan has copies
    peak_bytes   maximum memory of the plan on one device: weights, states, activations and
                 staging buffers of all copies; on the CPU without weights, which are the caller's
    energy_j     joules of that one run: for each device its busy watts while it works and its
                 idle watts for the rest of the time, with or without work. Copies of a host are
                 work of its CPU. A GPU that is opened twice is idle once.

Complexity: splits * runs. Examples: tests/plan/test_metrics.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...schedule import Metrics
from ...topology.power import watts_of
from ...topology.topology import Topology
from ..types.plan_types import PlanValue
from .sim_types import Program, Simulation
from .simulate_plan import program_of, run_program

WARM, FLOWING = 4, 6
"""Runs per copy until a stream is steady, and for the measurement of its period."""
STEPS = 20_000
"""Submissions beyond which a stream is shorter: one run per copy, and one more."""


def plan_metrics(plan: PlanValue) -> Metrics:
    """Return the metrics of a plan."""
    return measure_plan(plan)[0]


def measure_plan(plan: PlanValue) -> tuple[Metrics, Simulation]:
    """Return the metrics of a plan, and the simulated run."""
    one, each = run_program(program_of(plan)), list[Metrics]()
    for own in (plan, *plan.replicas):
        peak_bytes = max(memory.peak_bytes for memory in own.memory)
        known = one if own is plan else None
        each.append(evaluate_metrics(program_of(own), own.topology, own.copies, peak_bytes, known))
    return join_replicas(each), one


def join_replicas(each: Sequence[Metrics]) -> Metrics:
    """Return the joint metrics of plans that share a stream, each run on one of them: the rates add
    up, and a single run uses the first plan.
    """
    if len(each) == 1:
        return each[0]
    rate = sum(1 / metrics.period_s for metrics in each)
    peaks = [metrics.peak_bytes for metrics in each if metrics.peak_bytes is not None]
    energies = [m.energy_j / m.period_s for m in each if m.energy_j is not None]
    energy_j = sum(energies) / rate if len(energies) == len(each) else None
    peak_bytes = max(peaks, default=None)
    return replace(each[0], period_s=1 / rate, peak_bytes=peak_bytes, energy_j=energy_j)


def evaluate_metrics(
    program: Program,
    topology: Topology,
    copies: int,
    peak_bytes: float | None = None,
    one: Simulation | None = None,
) -> Metrics:
    """Return the metrics of a program.

    peak_bytes: None if its memory is not assigned. one: a simulated run of it, if known.
    """
    one = one or run_program(program)
    period_s = one.seconds if copies == 1 else period(program, copies)
    return Metrics(one.seconds, period_s, peak_bytes, energy(topology, one))


def period(program: Program, copies: int) -> float:
    """Return the time between two results of a steady stream."""
    short = len(program.steps) * (WARM + FLOWING) * copies > STEPS
    warm, flowing = (1, 1) if short else (WARM * copies, FLOWING * copies)
    # the last runs overlap with fewer others and do not count
    done = run_program(program, warm + max(flowing, copies) + copies, copies)
    return period_of(done.finish_s, copies, warm)


def period_of(finish_s: Sequence[float], copies: int, warm: int) -> float:
    """Return the period of a stream from the ends of its runs, without the first and the last ones.
    Ends may come in bursts of as many as there are copies, which count as one step.
    """
    ends = sorted(finish_s)[warm : len(finish_s) - copies + 1]
    count = (len(ends) - 1) // copies * copies
    return (ends[count] - ends[0]) / count


def energy(topology: Topology, one: Simulation) -> float:
    """Return the joules of a run."""
    busy_s = list(one.busy_s.values())
    copies: dict[int | None, list[float]] = {topology.cpu: []}
    for span in (span for span in one.spans if span.kind == "copy"):
        copies.setdefault(topology.cpu_of(span.device), []).append(span.finish_s - span.start_s)
    for cpu, seconds in copies.items():
        if cpu is not None:
            busy_s[cpu] = min(one.seconds, busy_s[cpu] + sum(seconds))
    watts = [watts_of(spec) for spec in topology.devices]
    idle = sum(watts[peers[0]].idle for peers in (*topology.memory_nodes, (topology.cpu,)))
    work_j = sum(each.more * seconds for each, seconds in zip(watts, busy_s, strict=True))
    return idle * one.seconds + work_j
