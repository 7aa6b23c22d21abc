"""Reinsertion: a schedule whose tasks are removed one by one and inserted at their best slot.

    up[t]    longest path from the start to t's end  p0 |a|--|b|      the makespan is the largest
    down[t]  longest path from t's start to the end  p1    |c|  |d|   up + down - seconds

One order of all tasks contains both the graph's order and each device's. Remove task v. For each
slot between two tasks x, y of a device, the longest path through v is

    max(end of x, arrival of v's data) + seconds of v + max(down of y, down of v's consumers)

This is exact as long as v stays after its producers and before its consumers in the order: then x
does not depend on v, nor v on y. The evaluation of all slots of all devices therefore costs as much
as one simulation. The new makespan is the maximum of this and the makespan without v.

Source: Mastrolilli, Gambardella, "Effective neighbourhood functions for the flexible job shop
problem", Journal of Scheduling 3(1), 2000; here with transfers, and slots of one order, so that no
choice can create a cycle.
Complexity: tasks + edges for each moved task. Examples: tests/schedule/test_improve.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ..model.problem import INFINITY, Problem
from ..model.simulate_tasks import TaskPlacement
from .chains import Chains


class Local:
    """A schedule whose tasks can be moved one by one. Transfers do not wait for each other."""

    def __init__(self, problem: Problem, placed: TaskPlacement) -> None:
        self.problem = problem
        self.order: list[int] = []
        self.device: list[int] = []
        self.place = [0] * problem.n
        self.up = [0.0] * problem.n
        self.down = [0.0] * problem.n
        self.room: list[float] = []
        self.makespan = 0.0
        self.steps = 0.0
        """Steps so far, each about a microsecond of a slow core; see step_budget.py."""
        self._each = 0.45 + 0.17 * problem.edges / max(problem.n, 1)
        self.load(placed)

    def load(self, placed: TaskPlacement) -> None:
        """Continue with another schedule."""
        self.order = list(placed.order)
        self.device = list(placed.device)
        self.room = list(self.problem.room)
        if self.problem.limited:
            for t, d in enumerate(self.device):
                self.room[d] -= self.problem.size[t]
        self.refresh(0, self.problem.n)

    def placed(self) -> TaskPlacement:
        """Return the current schedule."""
        return TaskPlacement(list(self.device), list(self.order))

    def refresh(self, low: int, high: int) -> None:
        """Recompute `up` from a position of the order on, and `down` before another one; others are
        valid.
        """
        order, device, up, down, place = self.order, self.device, self.up, self.down, self.place
        n, m = self.problem.n, self.problem.m
        free = [0.0] * m
        for t in order[:low]:
            free[device[t]] = up[t]
        self._forward(order[low:], free, up)
        self.makespan = max(free)
        need = [0.0] * m
        for t in order[: high - 1 : -1] if high else reversed(order):
            need[device[t]] = down[t]
        self._backward(order[:high], need, down)
        for at in range(n):
            place[order[at]] = at
        self.steps += (n + high - low) * self._each + 0.1 * n + 0.05 * m

    def _forward(self, tasks: list[int], free: list[float], up: list[float]) -> None:
        problem, device = self.problem, self.device
        cost, before = problem.cost, problem.before
        latency, inverse = problem.latency, problem.inverse
        for t in tasks:
            d = device[t]
            ready = free[d]
            for p, size in before[t]:
                s = device[p]
                end = up[p]
                if s != d:
                    end += latency[s][d] + size * inverse[s][d]
                if end > ready:
                    ready = end
            free[d] = up[t] = ready + cost[t][d]

    def _backward(self, tasks: list[int], need: list[float], down: list[float]) -> None:
        problem, device = self.problem, self.device
        cost, after = problem.cost, problem.after
        latency, inverse = problem.latency, problem.inverse
        for t in reversed(tasks):
            d = device[t]
            rest = need[d]
            late, each = latency[d], inverse[d]
            for c, size in after[t]:
                s = device[c]
                more = down[c]
                if s != d:
                    more += late[s] + size * each[s]
                if more > rest:
                    rest = more
            need[d] = down[t] = rest + cost[t][d]

    def through(self, v: int) -> float:
        """Return the longest path through a task."""
        return self.up[v] + self.down[v] - self.problem.cost[v][self.device[v]]

    def critical(self) -> list[int]:
        """Return the tasks on longest paths."""
        least = self.makespan * (1 - 1e-12)
        self.steps += 0.14 * self.problem.n
        up, down, cost, device = self.up, self.down, self.problem.cost, self.device
        return [t for t in self.order if up[t] + down[t] - cost[t][device[t]] >= least]

    @cached_property
    def chains(self) -> Chains:
        """The chains of the problem."""
        self.steps += 0.5 * self.problem.n + 0.2 * self.problem.edges
        return Chains(self.problem)

    def trial(self, tasks: Sequence[int], d: int) -> float:
        """Return the makespan if some tasks were on another device in an unchanged order.

        Tasks that cannot run there stay. Memory is ignored.
        """
        problem, device, order, up = self.problem, self.device, self.order, self.up.copy()
        low = min(self.place[t] for t in tasks)
        homes = [device[t] for t in tasks]
        free = [0.0] * problem.m
        for t in order[:low]:
            free[device[t]] = up[t]
        for t in tasks:
            if problem.cost[t][d] < INFINITY:
                device[t] = d
        self._forward(order[low:], free, up)
        for t, home in zip(tasks, homes, strict=True):
            device[t] = home
        self.steps += 1 + (problem.n - low) * self._each + 0.1 * problem.n + 0.05 * problem.m
        return max(free)

    def shift(self, v: int, d: int) -> bool:
        """Move a task to another device without a change of the order, if it can run and fits
        there.

        Call `refresh` after the last move.
        """
        problem, home = self.problem, self.device[v]
        if d == home or problem.cost[v][d] == INFINITY or d not in problem.candidate_devices[v]:
            return False
        if problem.limited:
            if problem.size[v] > self.room[d]:
                return False
            self.room[home] += problem.size[v]
            self.room[d] -= problem.size[v]
        self.device[v] = d
        return True

    def move(self, v: int) -> bool:
        """Move a task to the slot with the shortest longest path through it, if that is an
        improvement.

        The makespan never grows. Return True if the task was moved.
        """
        problem, device, place = self.problem, self.device, self.place
        before, after, cost = problem.before[v], problem.after[v], problem.cost[v]
        at, home, m = place[v], device[v], problem.m
        latency, inverse = problem.latency, problem.inverse
        limit = self.through(v) * (1 - 1e-9)
        candidate_devices = problem.candidate_devices[v]
        if problem.limited and problem.size[v]:
            candidate_devices = tuple(
                d for d in candidate_devices if d == home or self.room[d] >= problem.size[v]
            )
        # the earliest end of v by its producers, and the time needed by its consumers
        arrive, leave = [INFINITY] * m, [0.0] * m
        up, down = self.up, self.down
        ends = [(up[p], latency[s := device[p]], inverse[s], size) for p, size in before]
        rest_of = [(down[c], device[c], size) for c, size in after]
        hopeful: list[int] = []
        for d in candidate_devices:
            ready = 0.0
            for end, late, each, size in ends:
                end += late[d] + size * each[d]
                if end > ready:
                    ready = end
            ready += cost[d]
            more, late, each = 0.0, latency[d], inverse[d]
            for end, s, size in rest_of:
                end += late[s] + size * each[s]
                if end > more:
                    more = end
            if ready + more < limit:
                arrive[d], leave[d] = ready, more
                hopeful.append(d)
        self.steps += (
            3 + len(candidate_devices) * (0.3 + 0.12 * (len(before) + len(after))) + 0.02 * m
        )
        if not hopeful:
            return False
        rest = self.order.copy()
        del rest[at]
        low = max((place[p] for p, _ in before), default=-1) + 1
        high = min((place[c] for c, _ in after), default=problem.n) - 1
        # free times and remaining needs of devices without v
        up, down = up.copy(), down.copy()
        free, need = [0.0] * m, [0.0] * m
        for t in rest[:low]:
            free[device[t]] = up[t]
        middle = free.copy()
        for t in rest[low:at]:
            middle[device[t]] = up[t]
        self._forward(rest[at:high], middle, up)
        for t in reversed(rest[high:]):
            need[device[t]] = down[t]
        middle = need.copy()
        for t in reversed(rest[at:high]):
            middle[device[t]] = down[t]
        self._backward(rest[low:at], middle, down)
        best, slot, target = limit, -1, home
        for k in range(low, high):
            t = rest[k]
            d = device[t]
            end = arrive[d]
            if end < best:
                begun = free[d] + cost[d]
                if begun > end:
                    end = begun
                more, follow = leave[d], down[t]
                end += follow if follow > more else more
                if end < best:
                    best, slot, target = end, k, d
            free[d] = up[t]
        for d in hopeful:
            begun, end = free[d] + cost[d], arrive[d]
            more, follow = leave[d], need[d]
            found = (begun if begun > end else end) + (follow if follow > more else more)
            if found < best:
                best, slot, target = found, high, d
        self.steps += 4 + (high - low) * (self._each + 0.2) + 0.05 * problem.n + 0.05 * m
        if slot < 0:
            return False
        rest.insert(slot, v)
        self.order = rest
        if target != home:
            device[v] = target
            if problem.limited:
                self.room[home] += problem.size[v]
                self.room[target] -= problem.size[v]
        self.up, self.down = up, down
        self.refresh(min(at, slot), max(at, slot) + 1)
        return True
