"""Planner: a Graph and a Topology in, a verified Plan out.

    "auto": candidates -> simulated runs -> hints
                                              v
    placement -> splits -> memory -> does each device fit? --no--> lower its cap, once more
                                          | yes
                          copies that fit into the free memory -> barriers -> plan

Complexity: that of the stages, times a few tries for each device that is too small. Examples:
tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ..common.errors import PlanError
from ..common.formatting import count_of, format_seconds
from ..common.gc_pause import resting_collector
from ..ir.graph import Graph
from ..plan.costs.op_support import OpSupport
from ..plan.dynamic import dispatcher as dynamic
from ..plan.dynamic.plan_of_run import plan_of
from ..plan.dynamic.simulate_options import simulate_options
from ..plan.plan import Plan
from ..plan.serialize.plan_request import PlanRequest
from ..plan.types.decision import Tradeoffs
from ..plan.types.placement_overrides import Overrides
from ..plan.verify.verify_plan import verify_plan
from ..schedule import Objective
from ..schedule.model.objectives import LATENCY
from ..topology.topology import Topology
from .build_options import make_options
from .memory.draft import finish
from .memory.fit import AHEAD, AUTO, LEAST, most_copies
from .search.evaluate import fitted
from .search.select import ChosenPlan, choose, compare

STATIC = ("priority", "auto")
""""priority" fills devices in the given order; "auto" takes the best of simulated candidates."""
POLICIES = (*STATIC, *dynamic.POLICIES)
""""earliest-finish" and "work-stealing" schedule dynamically; plans describe the expected run."""


def plan_graph(
    graph: Graph,
    topology: Topology,
    *,
    policy: str = "priority",
    objective: str | Mapping[str, float] | Objective = LATENCY,
    overrides: Overrides = (),
    copies: int | str | None = None,
    resident: Mapping[int, frozenset[int]] | None = None,
    observed: Collection[int] = (),
    with_cpu: bool = False,
    pipeline_order: Mapping[str, int] | None = None,
) -> Plan:
    """Return a verified plan that fits the memory of every device.

    Parameters
    ----------
    graph, topology
        The graph, and the machine to run it on.
    policy
        One of POLICIES. "earliest-finish" and "work-stealing" return a DynamicPlan, which describes
        the expected run.
    objective
        The metric that "auto" minimizes: "latency" of one run, "throughput" (the time between two
        results of a stream), "memory" (the bytes on the device that holds most), "energy" of one
        run, or a mapping of these names to weights.
    overrides
        Pairs (node id or name pattern, device name). Exact ids take precedence over patterns, and
        later patterns over earlier ones.
    copies
        Number of sets of activations and staging buffers, hence of runs in flight. Fewer are used
        if memory is short. "auto" chooses by the objective: for latency two if the graph spans
        several devices, else one; one if the graph writes states, because each run reads the states
        that the previous one wrote. "least": one for each device that takes whole runs. None:
        "auto" for throughput, else 1.
    resident
        By device, the node ids of weights, constants and states that it holds already.
    observed
        Node ids of computed values that are returned as soon as they are computed; later work
        waits.
    with_cpu
        With "auto", let the CPU compete with other devices; else it runs only what they cannot.
    pipeline_order
        Positions of nodes by name, in an order that each device keeps as far as dependencies allow;
        only for static policies.

    Returns
    -------
    Plan
        The verified plan.

    Raises
    ------
    PlanError
        An unknown policy or objective, an objective for a policy that ignores objectives, or a
        pattern that matches nothing.
    DeviceError
        An unknown device.
    OutOfMemory
        The CPU has too little memory for the ops that only it can run.
    """
    goal = check_objective(objective, policy, "plan")
    if copies is None:
        copies = AUTO if goal.asks("throughput") else 1
    _check_copies(copies)
    topology.verify()
    if pipeline_order and policy not in STATIC:
        raise PlanError(
            f"[plan] expected a policy of {', '.join(STATIC)} for a pipeline order, got "
            f"{policy}, which schedules dynamically"
        )
    support = OpSupport(graph, topology, resident, observed, pipeline_order)
    with resting_collector(len(graph.nodes)):
        if policy not in STATIC:
            return verify_plan(_expect(support, policy, overrides, with_cpu, copies))
        chosen = ChosenPlan()
        if policy == "auto":
            chosen = choose(support, overrides, with_cpu, goal, copies)
        draft, spills = chosen.fitted or fitted(support, overrides, None)
        count, why = most_copies(draft, copies, chosen.copies)
        notes = (*chosen.notes, *draft.notes, *spills, *why, *_slow(topology))
        plan = finish(draft, policy, count, notes, chosen.decision)
        replicas: list[Plan] = []
        for (other, spilled), wanted in chosen.replicas:
            count, why = most_copies(other, copies, wanted)
            replicas.append(finish(other, policy, count, (*other.notes, *spilled, *why)))
        return verify_plan(replace(plan, replicas=tuple(replicas)))


def answer(request: PlanRequest, graph: Graph, topology: Topology) -> Plan:
    """Return the plan that a request asks for; errors are those of `plan_graph`."""
    return plan_graph(
        graph,
        topology,
        policy=request.policy,
        objective=request.objective,
        overrides=request.overrides,
        copies=request.copies,
        resident=request.resident,
        observed=request.observed.keys(),
        with_cpu=request.with_cpu,
        pipeline_order=request.pipeline_order,
    )


def check_objective(
    objective: str | Mapping[str, float] | Objective, policy: str, where: str
) -> Objective:
    """Return an objective after checking that the policy supports it.

    Raises
    ------
    PlanError
        An unknown policy or objective, or an objective other than latency for a policy
        that ignores objectives.
    """
    if policy not in POLICIES:
        raise PlanError(f"[{where}] expected a policy of {', '.join(POLICIES)}, got {policy!r}")
    goal = Objective.of(objective, where)
    if policy != "auto" and goal != LATENCY:
        raise PlanError(
            f"[{where}] expected no objective with the policy {policy}, which ignores objectives, "
            f'got {goal.name}; try policy="auto"'
        )
    return goal


def compare_objectives(
    graph: Graph,
    topology: Topology,
    *,
    overrides: Overrides = (),
    copies: int | str = "auto",
    with_cpu: bool = False,
) -> Tradeoffs:
    """Return the candidates that `plan_graph` would evaluate for all objectives.

    The result holds the metrics of each candidate, the Pareto front first, and the candidate that
    each objective would choose.

    Raises
    ------
    PlanError, DeviceError, OutOfMemory
        As in `plan_graph`.
    """
    _check_copies(copies)
    topology.verify()
    support = OpSupport(graph, topology)
    with resting_collector(len(graph.nodes)):
        return compare(support, overrides, with_cpu, copies)


def _check_copies(copies: int | str) -> None:
    """Raise PlanError unless `copies` is "auto", "least", "ahead" or a positive int."""
    count = isinstance(copies, int) and not isinstance(copies, bool) and copies >= 1
    if copies not in (AUTO, LEAST, AHEAD) and not count:
        raise PlanError(f'[plan] expected "auto" or at least 1 copy, got {copies!r}')


def _expect(
    support: OpSupport, policy: str, overrides: Overrides, with_cpu: bool, copies: int | str
) -> Plan:
    """Return the expected plan of a dynamically scheduled run."""
    options = make_options(support, overrides, with_cpu)
    expected = simulate_options(options, policy)
    several = sum(len(piece.seconds) > 1 for piece in options.pieces)
    notes = [
        f"{policy}: each run decides again; {several} of {count_of(len(options.pieces), 'piece')} "
        "may go to several devices; a run that decides takes about "
        f"{format_seconds(expected.seconds)} by simulation"
    ]
    if isinstance(copies, int) and copies > 1:
        notes.append(f"copies: {copies} asked for, 1 made, because each run uses all devices alone")
    return plan_of(options, expected.tape, policy, (*notes, *_slow(support.topology)))


def _slow(topology: Topology) -> list[str]:
    return [
        f"{spec.name} takes {spec.slowdown:.3g} times as long as first thought, as measured: "
        "its submissions are shorter"
        for spec in topology.devices
        if spec.slowdown > 1
    ]
