"""CP-SAT of OR-Tools as the judge of schedules: the least makespan that it finds, and a bound.

    Problem --whole numbers, rounded down--> CP-SAT --+--> bound: no schedule is shorter
      '--> auto, as a hint ------------------'        '--> devices, order --simulate--> Schedule

A second becomes so many whole numbers that the makespan of `auto` has `STEPS` of them. Costs and
transfers are rounded down, and the model's bound stays a bound of the real problem. The judge's
schedule is simulated with the real numbers. The judge starts from the schedule of `auto`: the
better of both is the best known.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from vksched.schedule import Schedule
from vksched.schedule.model.problem import Problem, make_problem
from vksched.schedule.model.simulate_tasks import TaskPlacement
from vksched.schedule.schedule import make_schedule

STEPS = 1_000_000
PROVEN = 1e-4
"""The share of a makespan that rounding down takes at most: two steps for each of 40 tasks."""
MAX_TASKS = 40
"""Instances with more tasks are not judged: in a minute CP-SAT proves little of them."""


def has_judge() -> bool:
    """Return whether OR-Tools is installed."""
    return importlib.util.find_spec("ortools") is not None


def judge(auto: Schedule, limit_s: float, seed: int = 0) -> tuple[Schedule, float]:
    """Return the better one of the schedule of `auto` and that of CP-SAT, and a lower bound of
    makespans in seconds.

    limit_s: seconds that CP-SAT may take, on all cores.
    """
    if not auto.makespan_s:
        return auto, 0.0
    problem = make_problem(auto.tasks, auto.where, "parallel")
    model = _Model(problem, auto)
    placed, bound_s = model.solve(limit_s, seed)
    if placed is None:
        return auto, bound_s
    proven = make_schedule(problem, placed, "CP-SAT", "latency")
    return min(auto, proven, key=lambda each: each.makespan_s), bound_s


class _Model:
    """The problem in whole numbers: an optional interval for each task and device."""

    def __init__(self, problem: Problem, auto: Schedule) -> None:
        from ortools.sat.python import cp_model

        self.problem, self.per_s = problem, STEPS / auto.makespan_s
        self.model: Any = cp_model.CpModel()
        self.start = [self.model.new_int_var(0, STEPS, f"s{t}") for t in range(problem.n)]
        self.on: list[dict[int, Any]] = []
        self.span = self.model.new_int_var(0, STEPS, "makespan")
        lanes: list[list[Any]] = [[] for _ in range(problem.m)]
        for t in range(problem.n):
            able = [d for d in range(problem.m) if math.isfinite(problem.cost[t][d])]
            self.on.append({d: self.model.new_bool_var(f"{t}on{d}") for d in able})
            self.model.add_exactly_one(self.on[t].values())
            for d, here in self.on[t].items():
                took = self._down(problem.cost[t][d])
                lanes[d].append(
                    self.model.new_optional_fixed_size_interval_var(
                        self.start[t], took, here, f"{t}at{d}"
                    )
                )
        for lane in lanes:
            self.model.add_no_overlap(lane)
        self._take = [
            sum(self._down(problem.cost[t][d]) * here for d, here in self.on[t].items())
            for t in range(problem.n)
        ]
        for t in range(problem.n):
            self.model.add(self.start[t] + self._take[t] <= self.span)
            for p, size in problem.before[t]:
                self._follows(p, t, size)
        self.model.minimize(self.span)
        self._hint(auto)

    def _down(self, seconds: float) -> int:
        return math.floor(seconds * self.per_s)

    def _follows(self, p: int, t: int, size: float) -> None:
        """A task waits for its producer, and for the transfer between two devices."""
        ended = self.start[p] + self._take[p]
        self.model.add(self.start[t] >= ended)
        for s, there in self.on[p].items():
            for d, here in self.on[t].items():
                late = self._down(self.problem.transfer_s(size, s, d)) if s != d else 0
                if late:
                    took = self._down(self.problem.cost[p][s])
                    self.model.add(self.start[t] >= self.start[p] + took + late).only_enforce_if(
                        there, here
                    )

    def _hint(self, auto: Schedule) -> None:
        names, devices = self.problem.tasks, self.problem.where.devices
        for t, task in enumerate(names):
            self.model.add_hint(self.start[t], self._down(auto.start_s[task.name]))
            for d, here in self.on[t].items():
                self.model.add_hint(here, auto.device[task.name] == devices[d])

    def solve(self, limit_s: float, seed: int) -> tuple[TaskPlacement | None, float]:
        """Return the best placement, None without one, and seconds that no schedule is shorter
        than.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.random_seed = seed
        status = solver.solve(self.model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None, solver.best_objective_bound / self.per_s
        device = [next(d for d, on in each.items() if solver.value(on)) for each in self.on]
        rank = {t: i for i, t in enumerate(self.problem.order)}
        starts = [solver.value(each) for each in self.start]
        order = sorted(range(self.problem.n), key=lambda t: (starts[t], rank[t]))
        return TaskPlacement(device, order), solver.best_objective_bound / self.per_s
