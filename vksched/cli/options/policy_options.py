"""The options --policy and --objective of commands that plan, as for `vs.Scheduler`.

Invalid combinations are refused before anything is loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

POLICIES = ("auto", "priority", "earliest-finish", "work-stealing")


@dataclass(frozen=True, slots=True)
class PlanningOptions:
    """Values of --policy and --objective, with the scheduler's defaults."""

    policy: str = "auto"
    objective: str = "latency"

    def as_dict(self) -> dict[str, str]:
        """Return both as plain data."""
        return {"policy": self.policy, "objective": self.objective}


DEFAULT = PlanningOptions()


def with_planning_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options --policy and --objective to a command, as its argument `planning`."""

    @click.option(
        "--policy",
        type=click.Choice(POLICIES),
        default=DEFAULT.policy,
        show_default=True,
        help=(
            "auto: the best of simulated plans. priority: devices in their order. "
            "earliest-finish, work-stealing: dynamic scheduling in each run; the plan is a "
            "prediction."
        ),
    )
    @click.option(
        "--objective",
        default=DEFAULT.objective,
        show_default=True,
        metavar="WORD",
        help=(
            "Objective of --policy auto: latency, throughput, memory, energy, or a weighted "
            "mix: latency=1,energy=0.5."
        ),
    )
    @functools.wraps(command)
    def asked(*args: Any, policy: str, objective: str, **options: Any) -> None:
        planning = PlanningOptions(policy, objective)
        if planning != DEFAULT:
            from ...planner.planner import check_objective

            check_objective(objective, policy, "command")
        command(*args, planning=planning, **options)

    return asked
