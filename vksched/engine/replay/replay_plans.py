"""Replay plans: rebuilds a plan of a tape, and describes the first part that differs.

    plan request + graph + topology --current planner--> plan  =?  plan on the tape

Parts are compared in the order of their dependencies, so that the first difference is a cause
rather than an effect. Notes are not compared, because replanning adds to them. Complexity: that of
planning. Examples: tests/trace/test_replay.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.errors import DECODE_ERRORS
from ...common.formatting import count_of
from ...plan.plan import Plan
from ...plan.serialize.plan_codec import PlanRecord, decode_plan_inputs, replica_of
from ...planner.planner import answer

PLAN_FIELDS = ("policy", "copies", "decides")
"""The fields of a plan before its splits."""
SPLIT_FIELDS = (
    "device",
    "nodes",
    "waits",
    "uploads",
    "downloads",
    "observed",
    "in_place",
    "async_transfers",
    "stage_deps",
    "deferred_downloads",
    "refills",
    "barriers",
    "depth",
    "inner_barriers",
)
FINAL_FIELDS = ("placements", "final_waits", "memory", "locations")
"""The fields of a plan after its splits."""
PREDICTED_FIELDS = ("fixed_s", "seconds", "measured")
"""The predicted fields of a split."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a tape and its replay. where: the plan and, if known, the run. what: the
    part that differs. tape, replay: both sides as text.
    """

    where: str
    what: str
    tape: str
    replay: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}: the tape has {self.tape}, the replay {self.replay}"


@dataclass(frozen=True, slots=True)
class RebuiltPlan:
    """A rebuilt plan of a tape. difference: None if both are equal. plan: None if planning
    failed.
    """

    plan: Plan | None
    observed: Mapping[int, int]
    difference: Difference | None


def rebuild_plan(graph: Mapping[str, Any], document: Mapping[str, Any], where: str) -> RebuiltPlan:
    """Return a plan of a tape, rebuilt by the current planner.

    Raises
    ------
    PlanError
        The documents are not a valid graph, topology or plan request.
    """
    question, rewritten, topology = decode_plan_inputs(graph, document)
    replica, none = replica_of(document), ""
    try:
        plan = answer(question, rewritten, topology)
        every = plan, *plan.replicas
        if replica in range(len(every)):
            plan = every[replica]
        else:
            none = f"none of its {count_of(len(plan.replicas), 'replica')}"
    except DECODE_ERRORS as error:
        none = f"none: {error or type(error).__name__}"
    if none:
        of = f"replica {replica}" if replica else "the plan"
        return RebuiltPlan(None, question.observed, Difference(where, of, "one", none))
    planned = PlanRecord(plan, question, document["cause"], document["decides"], replica)
    names = [node["name"] for node in graph["nodes"]]
    found = next(_differences(document, planned.as_document()[1], names, where), None)
    return RebuiltPlan(plan, question.observed, found)


def _differences(
    tape: Mapping[str, Any], replay: Mapping[str, Any], names: Sequence[str], where: str
) -> Iterator[Difference]:
    devices = [device["name"] for device in replay["topology"]["devices"]]

    def parts(of: str, keys: Sequence[str], one: Any, other: Any) -> Iterator[Difference]:
        for key in keys:
            both = one.get(key), other.get(key)  # fields of asynchronous transfers are optional
            if both[0] != both[1]:
                rows = json.loads(json.dumps(both))  # as in the file
                pair = [_text(key, each, names, devices) for each in rows]
                yield Difference(where, f"{of}{key}", *_from_first_difference(*pair))

    yield from parts("", PLAN_FIELDS, tape, replay)
    pairs = [*zip(tape["splits"], replay["splits"], strict=False)]
    for number, (one, other) in enumerate(pairs):
        yield from parts(f"split {number}: ", SPLIT_FIELDS, one, other)
    if len(tape["splits"]) != len(replay["splits"]):
        counts = (f"{len(each['splits'])} splits" for each in (tape, replay))
        yield Difference(where, "the number of splits", *counts)
    yield from _placements(tape, replay, names, devices, where)
    yield from parts("", FINAL_FIELDS, tape, replay)
    for number, (one, other) in enumerate(pairs):
        yield from parts(f"split {number}: predicted ", PREDICTED_FIELDS, one, other)
    yield from parts("predicted ", ("seconds", "spans"), tape, replay)


def _placements(
    tape: Mapping[str, Any],
    replay: Mapping[str, Any],
    names: Sequence[str],
    devices: Sequence[str],
    where: str,
) -> Iterator[Difference]:
    """Yield nodes with another device or reason; reasons are numbered in each plan."""
    for at, name in enumerate(names):
        one, other = (
            f"{devices[device]}, as {plan['reasons'][reason]}"
            for plan in (tape, replay)
            for device, reason in [plan["placements"][at]]
        )
        if one != other:
            yield Difference(where, f"the place of {name}", one, other)


def _text(key: str, value: Any, names: Sequence[str], devices: Sequence[str]) -> str:
    """Return a part of a plan as text, with names of nodes and devices."""
    if key == "device":
        return str(devices[value])
    if key in ("nodes", "observed"):
        return ", ".join(names[node] for node in value) or "none"
    if key in ("uploads", "downloads"):
        return "; ".join(f"{names[node]} {rest}" for node, *rest in value) or "none"
    return str(value)


MAX_CHARS = 120
"""The maximum characters of each side."""


def _from_first_difference(one: str, other: str) -> tuple[str, str]:
    """Return two texts from shortly before their first difference."""
    same = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    same = min(len(one), len(other)) if same is None else same
    start = 0 if max(len(one), len(other)) <= MAX_CHARS else max(0, same - MAX_CHARS // 3)
    return _cut(one, start), _cut(other, start)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + MAX_CHARS]
    return f"{'...' * (start > 0)}{shown}{'...' * (start + MAX_CHARS < len(text))}" or "nothing"
