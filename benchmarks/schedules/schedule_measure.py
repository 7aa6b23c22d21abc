"""What each scheduler makes of an instance, checked and timed, and what all instances say together.

    Instance --+--> each policy of vksched.schedule ----> Plan.verify() --+--> Row --> Standing
               '--> each scheduler of saga --> plan_of() --> verify() ----'

A plan counts only if `verify` of vksched.schedule takes it, whoever made it; a plan of saga becomes
a plan of ours first, with saga's own starts and ends. Times are CPU time of the call alone: making
the instance does not count, on either side. Makespans are compared with the best of saga's; within
a part in `SAME`, two are the same.

A scheduler of saga that ran over the limit is not asked again for instances of that family with as
many tasks or more, nor for any instance where the growth of its own times says that it would run
over it `HOPELESS` times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, median

from schedule_instances import Instance, device_name
from schedule_judge import MAX_TASKS, PROVEN, judge
from schedule_peers import Answer, Peers

from vksched.common.errors import VkschedError
from vksched.schedule import Schedule, Transfer, policies, schedule
from vksched.schedule.model.objectives import Metrics
from vksched.schedule.model.problem import make_problem
from vksched.schedule.model.simulate_tasks import TaskPlacement
from vksched.schedule.schedule import make_schedule

OURS, SAGA, JUDGE = "vksched", "saga", "CP-SAT"
AUTO = "auto"
SINGLE = "best single device"
SAME = 1e-9
HOPELESS = 4.0


@dataclass(frozen=True)
class Run:
    """The plan of one scheduler. by: `OURS`, `SAGA` or `JUDGE`; makespan_s: None if there is no
    valid plan, and why; seconds: CPU time that it took; bound_s: lower bound that the judge proved.
    """

    by: str
    policy: str
    makespan_s: float | None = None
    seconds: float = 0.0
    why: str = ""
    bound_s: float = 0.0

    @property
    def counted_s(self) -> float:
        """Its seconds; infinity if it ran over the limit, or was not asked as it would have."""
        return float("inf") if self.why.startswith(("over", "not asked")) else self.seconds


@dataclass(frozen=True)
class Row:
    """All runs of an instance, and what it is."""

    family: str
    tasks: int
    devices: int
    heterogeneity: float
    ratio: float
    consistent: bool
    lower_bound_s: float
    runs: tuple[Run, ...]

    def best_of(self, by: str) -> float | None:
        """Return the least makespan of a side, in seconds; None if it has no plan."""
        return min(
            (r.makespan_s for r in self.runs if r.by == by and r.makespan_s is not None),
            default=None,
        )

    @property
    def reference_s(self) -> float:
        """The best of saga; where saga was not asked, the best of ours."""
        found = self.best_of(SAGA) or self.best_of(OURS)
        assert found is not None
        return found

    def run_of(self, by: str, policy: str) -> Run | None:
        """Return the run of a scheduler, None if it was not asked."""
        return next((r for r in self.runs if (r.by, r.policy) == (by, policy)), None)

    @property
    def gap(self) -> float | None:
        """What `auto` is longer than the best known one, as a share; None if nobody judged it."""
        auto, best = self.run_of(OURS, AUTO), self.best_of(JUDGE)
        if auto is None or auto.makespan_s is None or best is None:
            return None
        return max(0.0, auto.makespan_s / best - 1) if best else 0.0

    @property
    def proven(self) -> bool:
        """Return True if the judge's makespan is the least possible one."""
        return any(
            run.makespan_s is not None and run.bound_s >= run.makespan_s * (1 - PROVEN)
            for run in self.runs
            if run.by == JUDGE
        )

    @property
    def slow_half_s(self) -> float | None:
        """The median of the times of saga's schedulers: the slower half takes as long or longer."""
        times = [r.counted_s for r in self.runs if r.by == SAGA]
        return median(times) if times else None


@dataclass(frozen=True)
class Standing:
    """How a scheduler stands over all rows. ratios are to the best of saga.

    best: rows where it is at least as good as that; plans: rows with a valid plan; asked: rows.
    """

    by: str
    policy: str
    best: int
    plans: int
    asked: int
    mean: float
    worst: float
    median_s: float
    total_s: float


@dataclass
class MeasureOptions:
    """Schedulers to ask, and their limits. policies: ours; peers: None leaves saga out; budget_s:
    time budget of `auto`, None leaves it to vksched.schedule.
    """

    policies: Sequence[str]
    peers: Peers | None
    schedulers: Sequence[str] = ()
    budget_s: float | None = None
    seed: int = 0
    judge_s: float = 0.0
    """Seconds of CP-SAT for each instance that is small enough."""
    show_progress: Callable[[str], None] = lambda text: None
    known: Sequence[Row] = ()
    """Rows of an earlier run, whose runs of saga and of the judge are taken as they are."""
    over: dict[tuple[str, str], int] = field(default_factory=dict)
    """By scheduler and family: with how many tasks it ran over the limit."""
    slowest: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By scheduler: tasks times devices of its longest call, and its seconds."""


def default_policies() -> list[str]:
    """Return our schedulers: all policies, and the best single device."""
    return [*policies(), SINGLE]


def measure(instance: Instance, options: MeasureOptions) -> Row:
    """Ask all schedulers for a plan of the instance."""
    runs, bound = [], 0.0
    for policy in options.policies:
        options.show_progress(policy)
        plan, run = _ours(instance, policy, options)
        runs.append(run)
        bound = max(bound, plan.lower_bound_s) if plan is not None else bound
        if plan is not None and policy == AUTO and options.judge_s and len(plan.tasks) <= MAX_TASKS:
            options.show_progress("CP-SAT")
            began = time.process_time()
            best, least_s = judge(plan, options.judge_s, options.seed)
            seconds = time.process_time() - began
            best.verify()
            runs.append(Run(JUDGE, "best known", best.makespan_s, seconds, bound_s=least_s))
    known = [row for row in options.known if _same(row, instance)]
    if known:
        runs += [run for run in known[0].runs if run.by in (SAGA, JUDGE)]
    elif options.peers is not None and instance.factor is None:
        problem = instance.problem()
        for name in options.schedulers:
            options.show_progress(f"saga {name}")
            why = _hopeless(instance, name, options)
            found = Answer(why=why) if why else options.peers.ask(name, problem)
            _remember(instance, name, found, options)
            runs.append(checked(instance, name, found))
    return Row(
        instance.family,
        len(instance.shape.names),
        len(instance.speed),
        instance.heterogeneity,
        instance.ratio,
        instance.factor is None,
        bound,
        tuple(runs),
    )


def _same(row: Row, instance: Instance) -> bool:
    """Return whether a row is of an instance; numbers that were drawn tell them apart."""
    drawn = (row.family, row.heterogeneity, row.ratio, row.consistent)
    return drawn == (
        instance.family,
        instance.heterogeneity,
        instance.ratio,
        instance.factor is None,
    )


def _ours(instance: Instance, policy: str, options: MeasureOptions) -> tuple[Schedule | None, Run]:
    if policy == SINGLE:
        return _single(instance, options)
    graph, where = instance.graph(), instance.where()
    ask = schedule if options.budget_s is None else partial(schedule, budget_s=options.budget_s)
    began = time.process_time()
    try:
        plan = ask(graph, where, policy=policy, seed=options.seed)
    except VkschedError as error:
        return None, Run(OURS, policy, why=str(error))
    seconds = time.process_time() - began
    plan.verify()
    return plan, Run(OURS, policy, plan.makespan_s, seconds)


def _single(instance: Instance, options: MeasureOptions) -> tuple[Schedule | None, Run]:
    """Put everything on one device, on each in turn, and keeps the best."""
    best: tuple[Schedule | None, Run] = (None, Run(OURS, SINGLE, why="no device can run all"))
    for i in range(len(instance.speed)):
        plan, run = _ours(instance, f"single:{device_name(i)}", options)
        least = best[1].makespan_s
        if run.makespan_s is not None and (least is None or run.makespan_s < least):
            best = plan, Run(OURS, SINGLE, run.makespan_s, run.seconds)
    return best


def _hopeless(instance: Instance, name: str, options: MeasureOptions) -> str:
    """Return why a scheduler is not asked; "" if it is."""
    assert options.peers is not None
    least = options.over.get((name, instance.family))
    if least is not None and len(instance.shape.names) >= least:
        return "not asked: smaller ones of the family took too long"
    if name in options.slowest:
        size, seconds = options.slowest[name]
        growth = len(instance.shape.names) * len(instance.speed) / size
        if growth > 1 and seconds * growth**2 > HOPELESS * options.peers.limit_s:
            return "not asked: it would take too long"
    return ""


def _remember(instance: Instance, name: str, found: Answer, options: MeasureOptions) -> None:
    tasks = len(instance.shape.names)
    if found.why.startswith("over"):
        key = name, instance.family
        options.over[key] = min(tasks, options.over.get(key, tasks))
    elif not found.why and found.seconds >= options.slowest.get(name, (0, 0.0))[1]:
        options.slowest[name] = tasks * len(instance.speed), found.seconds


def checked(instance: Instance, name: str, found: Answer) -> Run:
    if found.why:
        return Run(SAGA, name, seconds=found.seconds, why=found.why)
    plan = plan_of(instance, name, found)
    try:
        plan.verify()
    except VkschedError as error:
        return Run(SAGA, name, seconds=found.seconds, why=f"no valid plan: {error}")
    return Run(SAGA, name, plan.makespan_s, found.seconds)


def plan_of(instance: Instance, name: str, found: Answer) -> Schedule:
    """Return a plan of saga as one of ours, with saga's own starts and ends.

    A transfer starts when its producer ends.
    """
    names = instance.shape.names
    graph, where = instance.graph(), instance.where()
    transfers = []
    for a, b, size in instance.shape.edges:
        source, target = device_name(found.node[a]), device_name(found.node[b])
        if source != target:
            begun = found.finish_s[a]
            took = where.link(source, target).seconds(size)
            transfers.append(
                Transfer(names[a], names[b], source, target, size, begun, begun + took)
            )
    device = {name: device_name(node) for name, node in zip(names, found.node, strict=True)}
    load = dict.fromkeys(where.devices, 0.0)
    for task in graph:
        load[device[task.name]] += task.cost_s[device[task.name]]
    metrics = Metrics(max(found.finish_s), max(load.values()))
    return Schedule(
        tasks=graph,
        where=where,
        links="parallel",
        policy=f"saga {name}",
        objective="latency",
        device=device,
        start_s=dict(zip(names, found.start_s, strict=True)),
        finish_s=dict(zip(names, found.finish_s, strict=True)),
        transfers=tuple(transfers),
        makespan_s=metrics.latency_s,
        period_s=metrics.period_s,
        metrics=metrics,
        least=metrics.values,
        _problem=make_problem(graph, where),
    )


def replayed(instance: Instance, found: Answer) -> Schedule:
    """Return the schedule that our simulator derives from saga's devices and orders."""
    numbers = range(len(found.node))
    problem = make_problem(instance.graph(), instance.where())
    rank = {task: at for at, task in enumerate(problem.order)}
    order = sorted(numbers, key=lambda i: (found.start_s[i], found.finish_s[i], rank[i]))
    return make_schedule(problem, TaskPlacement(list(found.node), order), "replayed", "latency")


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Return how each scheduler stands, ours first, by the mean of its ratios."""
    found = []
    for by, policy in dict.fromkeys((r.by, r.policy) for row in rows for r in row.runs):
        asked = [(row, run) for row in rows if (run := row.run_of(by, policy)) is not None]
        ratios = ratios_of(rows, by, policy)
        if not ratios:
            continue
        times = [run.seconds for _, run in asked if run.makespan_s is not None]
        found.append(
            Standing(
                by,
                policy,
                sum(ratio <= 1 + SAME for ratio in ratios),
                len(ratios),
                len(asked),
                fmean(ratios),
                max(ratios),
                median(times),
                sum(times),
            )
        )
    return sorted(found, key=lambda s: (s.by != OURS, s.mean))


def ratios_of(rows: Iterable[Row], by: str, policy: str) -> list[float]:
    """Return the ratios of a scheduler's makespans to the best of saga."""
    return [
        run.makespan_s / row.reference_s
        for row in rows
        if (run := row.run_of(by, policy)) is not None and run.makespan_s is not None
    ]


@dataclass(frozen=True)
class Goal:
    """Results of `auto` in comparison to saga.

    share: part of the rows at least as good as the best of saga; mean: ratio to it. faster: part of
    the rows in less time than the slower half of saga's. total_s: time over all rows; slow_s: time
    of the fastest of saga's slower half, over all rows. to_bound: mean ratio to the lower bound.
    """

    share: float
    mean: float
    faster: float
    total_s: float
    slow_s: float
    to_bound: float


def goal_of(rows: Sequence[Row], policy: str = AUTO) -> Goal | None:
    """Return the results of a policy of ours on the rows that saga was asked for."""
    asked = [
        (row, run, slow)
        for row in rows
        if (run := row.run_of(OURS, policy)) is not None
        and run.makespan_s is not None
        and row.best_of(SAGA) is not None
        and (slow := row.slow_half_s) is not None
    ]
    if not asked:
        return None
    ratios = ratios_of([row for row, _, _ in asked], OURS, policy)
    totals: dict[str, float] = {}
    for row, _, _ in asked:
        for other in row.runs:
            if other.by == SAGA:
                totals[other.policy] = totals.get(other.policy, 0.0) + other.counted_s
    return Goal(
        fmean(ratio <= 1 + SAME for ratio in ratios),
        fmean(ratios),
        fmean(run.seconds < slow for _, run, slow in asked),
        sum(run.seconds for _, run, _ in asked),
        median(totals.values()),
        fmean((run.makespan_s or 0.0) / row.lower_bound_s for row, run, _ in asked),
    )


def losses(rows: Iterable[Row], policy: str = AUTO) -> list[tuple[float, Row, str]]:
    """Return where a policy of ours loses to saga, worst first: the ratio, the row, to whom."""
    found = []
    for row in rows:
        run, best = row.run_of(OURS, policy), row.best_of(SAGA)
        if run is None or run.makespan_s is None or best is None:
            continue
        if run.makespan_s > best * (1 + SAME):
            who = [r.policy for r in row.runs if r.by == SAGA and r.makespan_s == best]
            found.append((run.makespan_s / best, row, ", ".join(who)))
    return sorted(found, key=lambda x: -x[0])
