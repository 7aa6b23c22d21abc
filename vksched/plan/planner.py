"""Planner: a Graph and a Machine in, a verified Plan out.

    "auto": candidates -> simulated runs -> wishes
                                              v
    placement -> splits -> memory -> does each device fit? --no--> lower its cap, once more
                                          | yes
                               copies that fit beside the model -> barriers -> plan

Complexity: that of the stages, times a few tries for each device that is too small. Examples:
tests/plan/test_plan.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..errors import PlanError
from ..graph import Graph
from ..machine.spec import Machine
from .check.verify import verify_plan
from .make.by_cost import choose
from .make.collector import resting_collector
from .make.draft import Draft, finish, make_draft
from .make.fit import check_host, fit, most_copies
from .make.placement import Caps, Overrides, place
from .plan import Plan
from .support import Support

POLICIES = ("priority", "auto")
"""priority: devices are filled in the order given. auto: what a simulated run finds fastest."""


def plan_graph(
    graph: Graph,
    machine: Machine,
    *,
    policy: str = "priority",
    overrides: Overrides = (),
    copies: int | str = 1,
    resident: Mapping[int, frozenset[int]] | None = None,
    observed: Collection[int] = (),
    with_cpu: bool = False,
) -> Plan:
    """Returns a verified plan that keeps every device within its memory.

    policy: one of POLICIES. overrides: (node id or name pattern, device name); exact ids win, later
    patterns win over earlier. copies: slots, sets of activations and windows, so that as many runs
    can be under way; fewer where the model leaves no room for them; "auto" means two where the
    graph spans several devices, else one; one where it writes states, as each run reads what the
    one before it wrote.
    resident: for a device the weights, constants and states, by node id, that are there already.
    observed: node ids of computed values that are handed out as soon as they are there; what comes
    after them waits. with_cpu: with "auto" the CPU competes with the others; else it takes only
    what they cannot.

    Raises:
        PlanError: unknown policy, or a pattern that matches nothing. DeviceError: unknown device.
        OutOfMemory: what is left for the CPU is more than it has free.
    """
    if policy not in POLICIES:
        raise PlanError(f"[plan] expected a policy of {', '.join(POLICIES)}, got {policy!r}")
    if copies != "auto" and (not isinstance(copies, int) or copies < 1):
        raise PlanError(f'[plan] expected "auto" or at least 1 copy, got {copies!r}')
    machine.verify()
    support = Support(graph, machine, resident, observed)

    def try_caps(caps: Caps) -> Draft:
        placements, notes = place(support, overrides, caps, chosen.wishes if chosen else None)
        draft = make_draft(support, placements, notes)
        if all(map(draft.fits, machine.pools)):
            return draft
        return make_draft(support, placements, notes, tight=True)

    with resting_collector(len(graph.nodes)):
        chosen = choose(support, overrides, with_cpu) if policy == "auto" else None
        draft, spills = fit(support, try_caps)
        check_host(draft)
        count, why = most_copies(draft, copies)
        about = (chosen.note,) if chosen and chosen.note else ()
        notes = (*about, *draft.notes, *spills, *why, *_slow(machine))
        return verify_plan(finish(draft, policy, count, notes))


def _slow(machine: Machine) -> list[str]:
    return [
        f"{spec.name} takes {spec.slowdown:.3g} times as long as first thought, as measured: "
        "its submissions are shorter"
        for spec in machine.devices
        if spec.slowdown > 1
    ]
