"""Replay runs: executes runs of a tape on meta devices, and finds the first event that differs.

The plan alone determines the order, devices and bytes of a run, so one run on meta devices stands
for all runs of a plan. A run that failed is a prefix of it. A run that began before the oldest
event of the tape is a suffix.

    tape     copy x in | submit 0 | wait 0 | copy h out | ... | run     which event is the first
    replay   copy x in | submit 0 | wait 0 | copy h out | ... | run     that differs?

Complexity: O(events). Examples: tests/trace/test_replay.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...common.errors import PlanError
from ...plan.plan import Plan
from ...runtime.executors.executor_context import ExecutorContext
from ...runtime.executors.plan_executor import PlanExecutor
from ...runtime.simulated.meta_device import MetaDevice, meta_array
from ...runtime.simulated_clock import SimulatedClock
from ...trace import Event, Tape, Trace
from ...trace.event_fields import fields_of
from .replay_plans import Difference

ORDERED = ("copy", "submit", "wait", "split", "run")
"""The events whose order the plan determines."""
PLANNED_FIELDS = ("split", "node", "way", "bytes", "needed_by")
"""The fields of these events that the plan determines."""
TOTALS = ("waits", "fence_waits", "transfer_bytes", "input_bytes", "output_bytes")
"""The fields of run stats that the plan determines."""
MAX_BYTES = 1 << 31
"""The maximum bytes of all results of a run, which are allocated as zeros."""


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """The part of an event that the plan determines."""

    name: str
    device: str
    fields: tuple[tuple[str, object], ...]

    def text(self, names: Sequence[str]) -> str:
        """Return it as text."""
        shown = dict(self.fields)
        if self.name == "run":
            return ", ".join(f"{key} {value}" for key, value in shown.items())
        where = f"{self.name} of split {shown['split']} on {self.device}"
        node = shown.get("node")
        if isinstance(node, int):
            name = names[node] if 0 <= node < len(names) else f"node {node}"
            where = f"copy {shown['way']} of {name}, {shown['bytes']} bytes, split {shown['split']}"
            where += f" on {self.device}"
        needed_by = shown.get("needed_by", -1)
        return where if needed_by == -1 else f"{where}, for split {needed_by}"


def deed_of(event: Event) -> PlannedEvent:
    """Return the part of an event that the plan determines."""
    fields: Mapping[str, object] = event.fields
    keys: Sequence[str] = PLANNED_FIELDS
    if event.name == "run":
        stats = fields_of(event).get("stats")
        fields, keys = (stats if isinstance(stats, Mapping) else {}), TOTALS
    shown = tuple((key, fields[key]) for key in keys if key in fields)
    return PlannedEvent(event.name, event.device, shown)


def order_of(plan: Plan, observed: Mapping[int, int]) -> list[PlannedEvent]:
    """Return the events of a run of a plan, executed on meta devices. observed: the number of
    observers by node.

    Raises
    ------
    PlanError
        The results are too large to allocate.
    """
    graph, topology = plan.graph, plan.topology
    shown = [node for node, count in observed.items() for _ in range(count)]
    results = [*(node for _, node in graph.outputs), *graph.backed_up_states, *shown]
    if sum(graph.nodes[node].type.host_bytes for node in results) > MAX_BYTES:
        raise PlanError(f"[replay] expected results of at most {MAX_BYTES} bytes, got more")
    clock, tape = SimulatedClock(), Tape(None)
    devices = [MetaDevice(spec, clock) for spec in topology.devices]
    context = ExecutorContext(devices, Trace(clock, [tape]), float("inf"), plan_number=0)
    executor = PlanExecutor(plan, context)
    try:
        feeds = {node.id: meta_array(node.type) for node in graph.inputs}
        executor.run(feeds, {n: [lambda *_: None] * count for n, count in observed.items()})
    finally:
        executor.close()
    return [deed_of(event) for event in tape.events if event.name in ORDERED]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run on a tape: its number, its events with their indices, and whether it failed. whole:
    False if its first event may have been dropped.
    """

    number: int
    events: Sequence[tuple[int, Event]]
    failed: bool
    whole: bool


def first_difference(
    run: RecordedRun, order: Sequence[PlannedEvent], names: Sequence[str], where: str
) -> tuple[int, Difference] | None:
    """Return the index and the difference of the first event of a run that does not match its
    plan.
    """
    deeds = [(at, deed_of(event)) for at, event in run.events]
    ended = bool(deeds) and deeds[-1][1].name == "run"
    if not run.whole and ended and len(deeds) < len(order):
        order = order[len(order) - len(deeds) :]
    for number, (at, deed) in enumerate(deeds):
        expected = order[number] if number < len(order) else None
        if deed != expected:
            expected_text = expected.text(names) if expected is not None else "no more events"
            what = f"event {number} of {len(order)}"
            return at, Difference(where, what, deed.text(names), expected_text)
    if len(deeds) < len(order) and not run.failed and ended:
        at, missing = deeds[-1][0], order[len(deeds)]
        return at, Difference(where, f"event {len(deeds)}", "no more events", missing.text(names))
    return None
