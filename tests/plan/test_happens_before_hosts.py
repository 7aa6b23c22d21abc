"""The happens-before checker over several hosts: silent on all parts that are cut, however their
hosts overtake each other, and loud where a host does not wait for what it needs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cut_plans import HOSTS, spread
from drawn_plans import draw_case
from graphs import NAMED, A, B, C, chain, make_plan, random_plan
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from selection import examples
from test_happens_before import state_plan

from vksched.plan.multi_host.happens_before_hosts import (
    check_part_events,
    check_parts,
    events_of_parts,
)
from vksched.plan.plan import Plan
from vksched.plan.verify.happens_before import Finding
from vksched.plan.verify.memory_events import Acquire, Event, RecvMsg, Release, SendMsg, Touch, Wait
from vksched.planner.partition.host_partition import cut

RANDOM = settings(deadline=None, max_examples=examples(25))
seeds = st.integers(0, 1 << 32)
some_hosts = st.lists(st.sampled_from(HOSTS), min_size=1, max_size=4)
TWO = ("node1", "node2")


def found(plan: Plan, events: list[Event]) -> list[Finding]:
    return check_part_events(plan, cut(plan), events)


def without(events: list[Event], kind: type[Event]) -> list[list[Event]]:
    """The events, each time without another one of a kind."""
    at = [i for i, event in enumerate(events) if isinstance(event, kind)]
    return [events[:i] + events[i + 1 :] for i in at]


# -- silence ---------------------------------------------------------------------------------------


@RANDOM
@given(seeds, st.integers(1, 30), some_hosts, st.integers(1, 3), st.integers(1, 6))
def test_parts_of_random_plans_are_in_order_however_hosts_overtake_each_other(
    seed: int, count: int, hosts: list[str], copies: int, runs: int
) -> None:
    plan = random_plan(seed, count, 4)
    assume(plan.splits)
    plan = spread(replace(plan, copies=copies), hosts)
    check_parts(plan, cut(plan), runs, seed)


@RANDOM
@given(seeds, some_hosts)
def test_parts_with_states_and_observers_are_in_order(seed: int, hosts: list[str]) -> None:
    for plan in (draw_case(seed).plan("priority"), state_plan(np.random.default_rng(seed))):
        if plan.splits:
            check_parts(spread(plan, hosts), cut(spread(plan, hosts)), 3, seed)


# -- planted faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["ladder of three", "exchange", "skip", "join on a third"])
def test_no_wait_and_no_message_is_spare(shape: str) -> None:
    plan = spread(make_plan(*NAMED[shape].build()), ("node1", "node2", ""))
    check_all(plan)


def test_no_wait_and_no_message_of_a_plan_with_states_is_spare() -> None:
    plan = state_plan(np.random.default_rng(3), 0, 1, 2)
    check_all(spread(plan, ("node1", "node2", "node3")))


def check_all(plan: Plan) -> None:
    events = events_of_parts(plan, cut(plan))
    assert not found(plan, events)
    kinds: tuple[type[Event], ...] = (Wait, RecvMsg, SendMsg)
    for kind in kinds:
        left = without(events, kind)
        assert left and all(found(plan, each) for each in left), kind


def test_a_value_that_is_sent_before_its_split_was_checked_is_found() -> None:
    plan = spread(make_plan(*chain([A, B])), TWO)
    events = events_of_parts(plan, cut(plan))
    wait = next(i for i, event in enumerate(events) if isinstance(event, Wait))
    posted = next(i for i, e in enumerate(events) if _is_touch(e, "sending n0"))
    early = events[:wait] + [events[posted]] + events[wait:posted] + events[posted + 1 :]
    assert [finding.kind for finding in found(plan, early)] == ["race"]


def test_a_value_that_is_used_before_it_was_taken_is_found() -> None:
    plan = spread(make_plan(*chain([A, B])), TWO)
    events = events_of_parts(plan, cut(plan))
    used = next(i for i, e in enumerate(events) if _is_touch(e, "reading n0"))
    heard = max(i for i, e in enumerate(events[:used]) if isinstance(e, RecvMsg))
    late = events[:heard] + events[heard + 1 : used + 1] + [events[heard]] + events[used + 1 :]
    assert "unwritten" in {finding.kind for finding in found(plan, late)}


def _is_touch(event: Event, name: str) -> bool:
    return isinstance(event, Touch) and event.item.name == name


def test_a_slot_that_is_used_again_before_a_host_is_done_with_it_is_found() -> None:
    plan = spread(make_plan(*chain([A, B, C])), (*TWO, ""))
    events = events_of_parts(plan, cut(plan), runs=2)
    assert not found(plan, events)
    thread = next(e.agent for e in events if isinstance(e, RecvMsg) and e.label[1] == "node1")
    ends, begins = (
        next(i for i, e in enumerate(events) if isinstance(e, kind) and (e.agent, e.run) == of)
        for kind, of in ((Release, (thread, 0)), (Acquire, (thread, 1)))
    )
    late = events[:ends] + events[ends + 1 : begins + 1] + [events[ends]] + events[begins + 1 :]
    assert "slot" in {finding.kind for finding in found(plan, late)}
