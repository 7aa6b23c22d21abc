"""State: what the user of the view has chosen, and what a key makes of that.

    State --press("s")--> State with the next order            arrange: processes --> rows

Examples: tests/viz/test_top_state.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .snapshot import DeviceNow, ProcessNow, SchedulerNow

Key = Callable[["Row"], object]


@dataclass(frozen=True, slots=True)
class Row:
    """One device of one scheduler of one process."""

    process: ProcessNow
    scheduler: SchedulerNow
    device: DeviceNow


ORDERS: Mapping[str, Key] = {
    "name": lambda row: (row.process.pid, row.scheduler.number, row.device.kind == "cpu"),
    "busy": lambda row: -row.device.busy,
    "memory": lambda row: -(row.device.memory_own_bytes or 0),
    "copies": lambda row: -row.device.copied_bytes_per_s,
    "runs": lambda row: -row.device.runs_per_s,
    "faults": lambda row: -row.device.faults,
}
"""By what devices are sorted; of equals the first stays first."""


@dataclass(frozen=True, slots=True)
class State:
    """order: one of ORDERS. chosen: the process that is marked, or None. alone: whether only its
    devices are shown. first: so many devices are scrolled over.
    """

    order: str = "name"
    paused: bool = False
    helping: bool = False
    chosen: int | None = None
    alone: bool = False
    first: int = 0
    ended: bool = False


def press(state: State, key: str, pids: Sequence[int]) -> State:
    """Returns the state after a key, given the processes that are there."""
    if state.helping and key != "quit":
        return replace(state, helping=False)
    if key == "quit":
        return replace(state, ended=True)
    if key == "pause":
        return replace(state, paused=not state.paused)
    if key == "help":
        return replace(state, helping=True)
    if key == "sort":
        orders = list(ORDERS)
        following = orders[(orders.index(state.order) + 1) % len(orders)]
        return replace(state, order=following, first=0)
    if key in ("up", "down"):
        return replace(state, chosen=_beside(state.chosen, key, pids), first=0)
    if key == "alone":
        chosen = state.chosen if state.chosen in pids else next(iter(pids), None)
        return replace(state, chosen=chosen, alone=not state.alone, first=0)
    if key in ("further", "back"):
        return replace(state, first=max(0, state.first + (1 if key == "further" else -1)))
    return state


def _beside(chosen: int | None, key: str, pids: Sequence[int]) -> int | None:
    if not pids:
        return None
    if chosen not in pids:
        return pids[0] if key == "down" else pids[-1]
    return pids[(pids.index(chosen) + (1 if key == "down" else -1)) % len(pids)]


def arrange(state: State, processes: Sequence[ProcessNow]) -> list[Row]:
    """Returns the devices to show, in the order that was chosen."""
    shown = [p for p in processes if not state.alone or p.pid == state.chosen]
    rows = [Row(p, scheduler, device) for p in shown for scheduler, device in p.devices]
    return sorted(rows, key=ORDERS[state.order])  # type: ignore[arg-type]
