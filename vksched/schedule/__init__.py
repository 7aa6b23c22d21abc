"""Scheduling of tasks with costs on devices with links, as plain values.

    from vksched.schedule import Link, Task, TaskGraph, Platform, schedule

    work = [Task("a", {"p0": 1.0, "p1": 2.5}), Task("b", {"p1": 3.0})]
    tasks = TaskGraph(work, edges=[("a", "b", 4_000_000)])
    where = Platform(["p0", "p1"], {("p0", "p1"): Link(bandwidth=8e9, latency_s=20e-6)})
    plan = schedule(tasks, where)
    plan.device["a"], plan.makespan_s, plan.lower_bound_s

The package imports no tensors, graphs or drivers. docs/guides/scheduling.md describes each policy.
"""

from __future__ import annotations

from ..topology.links import Link
from ..topology.power import DevicePower
from .model.objectives import Metrics, Objective
from .model.task_graph import Platform, Task, TaskGraph
from .schedule import Schedule, policies, schedule
from .schedule_result import Transfer

__all__ = [
    "Link",
    "Metrics",
    "Objective",
    "Schedule",
    "Task",
    "TaskGraph",
    "Platform",
    "Transfer",
    "DevicePower",
    "policies",
    "schedule",
]
