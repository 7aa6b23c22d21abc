"""Policies: one small file each, from a problem to a device for each task and an order of tasks."""

from __future__ import annotations

from collections.abc import Callable

from ..model.problem import Problem
from ..model.simulate_tasks import TaskPlacement
from .cpop import cpop
from .dls import dls
from .etf import etf
from .fcp import fcp
from .flb import flb
from .heft import heft
from .lookahead import lookahead
from .max_min import max_min
from .mct import mct
from .min_min import min_min
from .peft import peft
from .priority import priority
from .single import fastest, single
from .sufferage import sufferage

__all__ = ["POLICIES", "Policy", "fastest", "heft", "single"]

Policy = Callable[[Problem], TaskPlacement]

POLICIES: dict[str, Policy] = {
    "priority": priority,
    "heft": heft,
    "cpop": cpop,
    "peft": peft,
    "lookahead": lookahead,
    "etf": etf,
    "dls": dls,
    "min-min": min_min,
    "max-min": max_min,
    "sufferage": sufferage,
    "mct": mct,
    "fcp": fcp,
    "flb": flb,
}
"""By name, without `single:<device>` and `auto`."""
