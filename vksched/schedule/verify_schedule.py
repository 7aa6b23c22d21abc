"""Verification of all invariants of a schedule, from its times alone.

    each task once, on a device that can run it, for its seconds there
    one task at a time per device       data arrives before a task starts
    memory within its limits            one transfer at a time on an exclusive link

The checks share no code with the simulator and the policies: they read the values of the user.
Times may differ by rounding.

Complexity: sorting tasks and transfers. Examples: tests/schedule/test_verify.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from ..common.errors import PlanError
from .schedule_result import ScheduleValue

SLACK = 1e-9
"""Tolerance for rounding, relative to the makespan."""


def verify(plan: ScheduleValue) -> None:
    """Raise a PlanError that names the first broken invariant."""
    slack = SLACK * max(abs(plan.makespan_s), max(plan.finish_s.values(), default=0.0))
    _check_tasks(plan, slack)
    _check_memory(plan)
    lanes: dict[str, list[tuple[float, float, str]]] = {}
    for name, device in plan.device.items():
        lanes.setdefault(device, []).append((plan.start_s[name], plan.finish_s[name], name))
    for device, spans in lanes.items():
        _check_alone(f"one task at a time on {device}", spans, slack)
    _check_transfers(plan, slack)
    latest = max(plan.finish_s.values(), default=0.0)
    if abs(latest - plan.makespan_s) > slack:
        _refuse(f"a makespan of {latest}", f"{plan.makespan_s}")
    if plan.value_s < plan.lower_bound_s * (1 - SLACK) - slack:
        _refuse(f"at least the lower bound of {plan.lower_bound_s}", f"{plan.value_s}")
    if plan.value < plan.lower_bound * (1 - SLACK) - slack:
        _refuse(f"at least the lower bound of {plan.lower_bound}", f"{plan.value}")


def _check_tasks(plan: ScheduleValue, slack: float) -> None:
    names = {task.name for task in plan.tasks}
    for found in (plan.device, plan.start_s, plan.finish_s):
        if set(found) != names:
            _refuse("a device and times for every task", f"{sorted(set(found) ^ names)[:3]}")
    for task in plan.tasks:
        device, start = plan.device[task.name], plan.start_s[task.name]
        if device not in plan.where.devices or device not in task.cost_s:
            _refuse(f"a device that can run {task.name!r}", repr(device))
        if start < -slack:
            _refuse(f"{task.name!r} not before the start", f"{start}")
        took = plan.finish_s[task.name] - start
        if not abs(took - task.cost_s[device]) <= slack:
            _refuse(f"{task.cost_s[device]} s of {task.name!r} on {device}", f"{took}")


def _check_memory(plan: ScheduleValue) -> None:
    used = dict.fromkeys(plan.where.devices, 0.0)
    for task in plan.tasks:
        used[plan.device[task.name]] += task.memory_bytes
    for device, room in plan.where.memory_bytes.items():
        if used[device] > room:
            _refuse(f"at most {room} bytes on {device}", f"{used[device]}")


def _check_alone(what: str, spans: Iterable[tuple[float, float, str]], slack: float) -> None:
    until, last = float("-inf"), ""
    for start, finish, name in sorted(spans):
        if start < until - slack and finish > start:
            _refuse(what, f"{last!r} until {until} and {name!r} from {start}")
        if finish > until:
            until, last = finish, name


def _check_transfers(plan: ScheduleValue, slack: float) -> None:
    sizes: dict[tuple[str, str], float] = {}
    for a, b, size in plan.tasks.edges:
        sizes[a, b] = sizes.get((a, b), 0.0) + size
    there = {(t.producer, t.consumer): t for t in plan.transfers}
    if len(there) < len(plan.transfers):
        _refuse("one transfer for each edge", "several")
    channels: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for (a, b), size in sizes.items():
        source, target = plan.device[a], plan.device[b]
        transfer = there.pop((a, b), None)
        ready = plan.finish_s[a]
        if source != target:
            if transfer is None:
                _refuse(f"a transfer from {a!r} to {b!r}", "none")
            assert transfer is not None
            ends = (transfer.source, transfer.target, transfer.size_bytes)
            if ends != (source, target, size):
                _refuse(f"{size} bytes from {source} to {target}", f"{ends}")
            if transfer.start_s < ready - slack:
                _refuse(f"a transfer after {a!r}, at {ready}", f"{transfer.start_s}")
            link = plan.where.link(source, target)
            took = link.latency_s + size / link.bytes_per_s
            if transfer.finish_s - transfer.start_s < took - slack:
                _refuse(f"{took} s for {size} bytes from {a!r} to {b!r}", f"{transfer}")
            ready = transfer.finish_s
            channel = plan.where.channel(source, target)
            channels.setdefault(channel, []).append(
                (transfer.start_s, transfer.finish_s, f"{a} to {b}")
            )
        elif transfer is not None:
            _refuse(f"no transfer from {a!r} to {b!r}, which share {source}", f"{transfer}")
        if plan.start_s[b] < ready - slack:
            _refuse(f"{b!r} after its data of {a!r}, at {ready}", f"{plan.start_s[b]}")
    if there:
        _refuse("transfers of edges only", f"{next(iter(there))}")
    if plan.links == "exclusive":
        for channel, spans in channels.items():
            _check_alone(f"one transfer at a time between {' and '.join(channel)}", spans, slack)


def _refuse(expected: str, got: str) -> NoReturn:
    raise PlanError(f"[schedule] expected {expected}, got {got}")
