"""Verification of host plans: each on its own, and all of them together.

    verify_host_plan    on a worker, for an untrusted host plan: its plan and its steps
    fit_together        on the driver, for all: each value is sent once to its receiver, after it
                        was produced; hosts that run their steps as far as possible reach the end

Complexity: O(steps), plus `verify_plan`. Examples: tests/planner/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...common.errors import PlanError
from ..types.plan_types import HOST
from ..verify.verify_plan import verify_plan
from .host_plan import HostPlan, Recv, Send


def verify_host_plan(host_plan: HostPlan) -> HostPlan:
    """Return a host plan if it is valid on its own.

    Raises
    ------
    PlanError
        The first broken invariant.
    """
    plan = verify_plan(host_plan.plan)
    last = len(plan.splits) - len(plan.commits)
    if len(host_plan.numbers) != len(plan.splits):
        raise _fail(
            host_plan, f"has {len(host_plan.numbers)} numbers for {len(plan.splits)} splits"
        )
    if host_plan.splits < len(plan.splits) or not all(
        0 <= n < host_plan.splits for n in host_plan.numbers
    ):
        raise _fail(host_plan, f"has numbers {host_plan.numbers} of {host_plan.splits} splits")
    if not 0 <= host_plan.results <= len(plan.graph.outputs):
        raise _fail(
            host_plan, f"has {host_plan.results} results of {len(plan.graph.outputs)} outputs"
        )
    if not all(0 <= at <= last for at in host_plan.steps):
        raise _fail(host_plan, f"has steps at {sorted(host_plan.steps)}, expected 0 to {last}")
    present = set(host_plan.inputs)
    for at in range(last + 1):
        for step in host_plan.steps.get(at, ()):
            _check_step(host_plan, step, at)
            if isinstance(step, Recv):
                present.add(step.value)
        if at < last:
            _check_present(host_plan, at, present)
    for at in range(last, len(plan.splits)):
        _check_present(host_plan, at, present)
    return host_plan


def _check_step(host_plan: HostPlan, step: Send | Recv, at: int) -> None:
    graph, splits = host_plan.plan.graph, host_plan.plan.splits
    if step.host == host_plan.host or not 0 <= step.value < len(graph.nodes):
        raise _fail(host_plan, f"has a step of value {step.value} with {step.host!r}")
    name = graph.nodes[step.value].name
    if isinstance(step, Recv):
        if graph.nodes[graph.view_base(step.value)].op != "input":
            raise _fail(host_plan, f"receives {name}, which it computes itself")
        if not set(step.shown) <= set(range(len(graph.nodes))):
            raise _fail(host_plan, f"shows {step.shown} with {name}, of {len(graph.nodes)} nodes")
    elif not 0 <= step.split < at:
        raise _fail(host_plan, f"sends {name} before split {step.split} is submitted")
    elif all(copy.node != step.value for copy in splits[step.split].downloads):
        raise _fail(host_plan, f"sends {name}, which split {step.split} does not give out")


def _check_present(host_plan: HostPlan, split: int, present: set[int]) -> None:
    for copy in host_plan.plan.splits[split].uploads:
        if copy.source == HOST and copy.node not in host_plan.plan.graph.data:
            if copy.node not in present:
                name = host_plan.plan.graph.nodes[copy.node].name
                raise _fail(
                    host_plan, f"needs {name} in split {split}, which no earlier step provides"
                )


def verify_host_plans(host_plans: Sequence[HostPlan]) -> tuple[HostPlan, ...]:
    """Return the host plans of a plan if each is valid and they have no deadlock.

    Raises
    ------
    PlanError
        The first broken invariant.
    """
    return fit_together(tuple(map(verify_host_plan, host_plans)))


def fit_together(host_plans: Sequence[HostPlan]) -> tuple[HostPlan, ...]:
    """Return the host plans of a plan if they have no deadlock, whether or not each is valid on its
    own.

    Raises
    ------
    PlanError
        The values that hosts wait for, or that no host receives.
    """
    left = {host_plan.host: _walk(host_plan) for host_plan in host_plans}
    if len(left) != len(host_plans):
        raise PlanError(f"[host plan] expected one for each host, got {len(host_plans)}")
    sent: set[tuple[str, int, str]] = set()
    at = {host: next(steps, None) for host, steps in left.items()}
    moved = True
    while moved:
        moved = False
        for host, steps in left.items():
            while (step := at[host]) is not None and _proceeds(host, step, sent):
                at[host], moved = next(steps, None), True
    stuck = [f"{host or 'the caller'} at {step}" for host, step in at.items() if step is not None]
    if stuck:
        raise PlanError(
            f"[host plan] deadlock: hosts wait for values that are never sent: {', '.join(stuck)}"
        )
    if sent:
        raise PlanError(f"[host plan] values are sent that no host receives: {sorted(sent)}")
    return tuple(host_plans)


def _walk(host_plan: HostPlan) -> Iterator[Send | Recv]:
    for at in range(len(host_plan.plan.splits) + 1):
        yield from host_plan.steps.get(at, ())


def _proceeds(host: str, step: Send | Recv, sent: set[tuple[str, int, str]]) -> bool:
    """Return True if a step need not wait, and remove a received value from `sent`."""
    if isinstance(step, Recv):
        key = step.host, step.value, host
        found = key in sent
        sent.discard(key)
        return found
    key = host, step.value, step.host
    if key in sent:
        raise PlanError(f"[host plan] {host} sends value {step.value} to {step.host} twice")
    sent.add(key)
    return True


def _fail(host_plan: HostPlan, message: str) -> PlanError:
    return PlanError(f"[host plan] that of {host_plan.host or 'the caller'} {message}")
