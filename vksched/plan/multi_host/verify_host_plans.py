"""Verify of parts: does each keep its promises, and do all of them fit together?

    verify_part    what a host asks of a part that a stranger sent: its plan and its steps
    fit_together   what the caller asks of all: each value is sent once to who takes it, after it
                   was made; hosts that walk their steps as far as they can all reach their ends

Complexity: O(steps) beside `verify_plan`. Examples: tests/planner/test_parts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...common.errors import PlanError
from ..types.plan_types import HOST
from ..verify.verify_plan import verify_plan
from .host_plan import Part, Send, Take


def verify_part(part: Part) -> Part:
    """Returns a part when it is sound by itself.

    Raises:
        PlanError: the first promise that is broken.
    """
    plan = verify_plan(part.plan)
    last = len(plan.splits) - len(plan.commits)
    if len(part.numbers) != len(plan.splits):
        raise _fail(part, f"has {len(part.numbers)} numbers for {len(plan.splits)} splits")
    if part.splits < len(plan.splits) or not all(0 <= n < part.splits for n in part.numbers):
        raise _fail(part, f"has numbers {part.numbers} of {part.splits} splits")
    if not 0 <= part.results <= len(plan.graph.outputs):
        raise _fail(part, f"has {part.results} results of {len(plan.graph.outputs)} outputs")
    if not all(0 <= at <= last for at in part.steps):
        raise _fail(part, f"has steps at {sorted(part.steps)}, expected 0 to {last}")
    there = set(part.inputs)
    for at in range(last + 1):
        for step in part.steps.get(at, ()):
            _check_step(part, step, at)
            if isinstance(step, Take):
                there.add(step.value)
        if at < last:
            _check_there(part, at, there)
    for at in range(last, len(plan.splits)):
        _check_there(part, at, there)
    return part


def _check_step(part: Part, step: Send | Take, at: int) -> None:
    graph, splits = part.plan.graph, part.plan.splits
    if step.host == part.host or not 0 <= step.value < len(graph.nodes):
        raise _fail(part, f"has a step of value {step.value} with {step.host!r}")
    name = graph.nodes[step.value].name
    if isinstance(step, Take):
        if graph.nodes[graph.view_base(step.value)].op != "input":
            raise _fail(part, f"takes {name}, which it makes itself")
        if not set(step.shown) <= set(range(len(graph.nodes))):
            raise _fail(part, f"shows {step.shown} with {name}, of {len(graph.nodes)} nodes")
    elif not 0 <= step.split < at:
        raise _fail(part, f"sends {name} before split {step.split} is submitted")
    elif all(copy.node != step.value for copy in splits[step.split].copies_out):
        raise _fail(part, f"sends {name}, which split {step.split} does not give out")


def _check_there(part: Part, split: int, there: set[int]) -> None:
    for copy in part.plan.splits[split].copies_in:
        if copy.source == HOST and copy.node not in part.plan.graph.data:
            if copy.node not in there:
                name = part.plan.graph.nodes[copy.node].name
                raise _fail(part, f"needs {name} in split {split}, which nobody gives it before")


def verify_parts(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Returns the parts of a plan when each is sound and none waits for ever.

    Raises:
        PlanError: the first promise that is broken.
    """
    return fit_together(tuple(map(verify_part, parts)))


def fit_together(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Returns the parts of a plan when none waits for ever, whatever each is by itself.

    Raises:
        PlanError: what they wait for, or send in vain.
    """
    left = {part.host: _walk(part) for part in parts}
    if len(left) != len(parts):
        raise PlanError(f"[parts] expected one part for each host, got {len(parts)}")
    sent: set[tuple[str, int, str]] = set()
    at = {host: next(steps, None) for host, steps in left.items()}
    moved = True
    while moved:
        moved = False
        for host, steps in left.items():
            while (step := at[host]) is not None and _goes_on(host, step, sent):
                at[host], moved = next(steps, None), True
    stuck = [f"{host or 'the caller'} at {step}" for host, step in at.items() if step is not None]
    if stuck:
        raise PlanError(f"[parts] hosts wait for what nobody sends before: {', '.join(stuck)}")
    if sent:
        raise PlanError(f"[parts] values are sent that nobody takes: {sorted(sent)}")
    return tuple(parts)


def _walk(part: Part) -> Iterator[Send | Take]:
    for at in range(len(part.plan.splits) + 1):
        yield from part.steps.get(at, ())


def _goes_on(host: str, step: Send | Take, sent: set[tuple[str, int, str]]) -> bool:
    """Whether a step need not wait; a value that is taken is on its way no more."""
    if isinstance(step, Take):
        key = step.host, step.value, host
        found = key in sent
        sent.discard(key)
        return found
    key = host, step.value, step.host
    if key in sent:
        raise PlanError(f"[parts] {host} sends value {step.value} to {step.host} twice")
    sent.add(key)
    return True


def _fail(part: Part, message: str) -> PlanError:
    return PlanError(f"[parts] the part of {part.host or 'the caller'} {message}")
