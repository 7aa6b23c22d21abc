"""Schedule: from tasks and a platform to a schedule.

    TaskGraph, Platform --> Problem --policy--> TaskPlacement --simulate--> times --+--> Schedule
                               '------------------------------- bounds ------'

Complexity: that of the policy. Examples: tests/schedule/test_make.py.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..common.errors import PlanError
from .auto import best_of_all
from .local_search.step_budget import default_budget
from .memory_aware import respecting_memory
from .model.objectives import Objective, least_of, metrics_of
from .model.problem import Problem, make_problem
from .model.simulate_tasks import TaskPlacement, Times, simulate
from .model.task_graph import AT_MOST, Platform, TaskGraph, is_amount
from .policies import POLICIES, single
from .schedule_result import ScheduleValue, Transfer
from .verify_schedule import verify

SINGLE = "single:"


@dataclass(frozen=True)
class Schedule(ScheduleValue):
    """The device and the times of each task, created by `schedule`."""

    def verify(self) -> Schedule:
        """Check all invariants of the schedule from its times alone, and return it.

        Raises
        ------
        PlanError
            The first broken invariant.
        """
        verify(self)
        return self

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule as a picture, with a row for each device.

        Raises
        ------
        PlanError
            The name does not end in .svg, or the file cannot be written.
        """
        from .gantt import save_gantt  # drawing is imported on demand

        save_gantt(self, path)


def policies() -> tuple[str, ...]:
    """Return the names of all policies except `single:<device>`."""
    return "auto", *POLICIES


def schedule(
    tasks: TaskGraph,
    where: Platform,
    policy: str = "auto",
    objective: str | Mapping[str, float] | Objective = "latency",
    budget_s: float | None = None,
    seed: int = 0,
    links: str = "parallel",
) -> Schedule:
    """Return the device and the times of each task.

    Parameters
    ----------
    policy
        One of `policies()`, or `single:<device>`.
    objective
        "latency", "throughput", "memory", "energy", or a mix of them as a mapping to weights; see
        objectives.py.
    budget_s
        The budget of `auto` in seconds. The default is 0.3 ms for each task times the square root
        of the number of devices, with 60 more tasks if there are 40 or fewer, from 5 ms to 0.2 s.
        It is counted in steps, at the speed of a slow core, so that equal seeds give equal
        schedules on every machine. Other policies have no budget.
    links
        "parallel", or "exclusive" if a link carries one transfer at a time.

    Raises
    ------
    PlanError
        No schedule exists, or an argument is unknown.
    """
    goal = Objective.of(objective)
    without = [name for name in where.devices if name not in where.watts]
    if goal.asks("energy") and without:
        raise PlanError(
            f"[schedule] expected watts of every device for the objective {goal.name}, got none of "
            f"{without[0]}; try "
            f"Platform(..., watts={{{without[0]!r}: DevicePower(busy, idle), ...}})"
        )
    if budget_s is not None and not is_amount(budget_s):  # an infinite budget would never end
        raise PlanError(
            f"[schedule] expected a budget of 0 or more seconds, {AT_MOST}, got {budget_s!r}; "
            "try 0.1"
        )
    problem = make_problem(tasks, where, links)
    if policy == "auto":
        if budget_s is None:
            budget_s = default_budget(problem.n, problem.m)
        name, placed, least = best_of_all(problem, goal, budget_s, seed)
    else:
        name, placed = policy, respecting_memory(problem, find_policy(problem, policy))
        least = None
    return make_schedule(problem, placed, name, goal, least)


def find_policy(problem: Problem, policy: str) -> Callable[[Problem], TaskPlacement]:
    """Return the function of a policy by name.

    Raises
    ------
    PlanError
        No policy has this name.
    """
    if isinstance(policy, str) and policy.startswith(SINGLE):
        device = policy[len(SINGLE) :]
        if device not in problem.where.devices:
            raise PlanError(_unknown("device", device, list(problem.where.devices)))
        number = problem.where.devices.index(device)
        return lambda graph: single(graph, number)
    if policy not in POLICIES:
        raise PlanError(_unknown("policy", policy, [*policies(), "single:<device>"]))
    return POLICIES[policy]


def _unknown(what: str, got: str, known: list[str]) -> str:
    close = difflib.get_close_matches(str(got), known, 1, 0.4)
    hint = close[0] if close else ", ".join(known[:16])
    return f"[schedule] expected a known {what}, got {got!r}; try {hint}"


def make_schedule(
    problem: Problem,
    placed: TaskPlacement,
    policy: str,
    objective: str | Objective,
    least: Mapping[str, float] | None = None,
) -> Schedule:
    """Return a schedule with names and times from the result of a policy.

    least: the reference of a mix; by default the schedule itself.
    """
    times = simulate(problem, placed)
    names = [task.name for task in problem.tasks]
    devices = problem.where.devices
    metrics = metrics_of(problem, placed, times)
    return Schedule(
        tasks=problem.tasks,
        where=problem.where,
        links="exclusive" if problem.exclusive else "parallel",
        policy=policy,
        objective=Objective.of(objective).name,
        device={name: devices[d] for name, d in zip(names, placed.device, strict=True)},
        start_s=dict(zip(names, times.start, strict=True)),
        finish_s=dict(zip(names, times.finish, strict=True)),
        transfers=_transfers(problem, placed, times),
        makespan_s=times.makespan,
        period_s=metrics.period_s,
        metrics=metrics,
        least=least_of([metrics.values]) if least is None else least,
        _problem=problem,
    )


def _transfers(problem: Problem, placed: TaskPlacement, times: Times) -> tuple[Transfer, ...]:
    """Return all transfers, by start."""
    names = [task.name for task in problem.tasks]
    devices = problem.where.devices
    out: list[Transfer] = []
    for t in problem.order:
        d = placed.device[t]
        for p, size in problem.before[t]:
            s = placed.device[p]
            if s != d:
                begun, at = times.transfers.get(
                    (p, t), (times.finish[p], times.finish[p] + problem.transfer_s(size, s, d))
                )
                out.append(Transfer(names[p], names[t], devices[s], devices[d], size, begun, at))
    return tuple(sorted(out, key=lambda found: (found.start_s, found.producer, found.consumer)))
