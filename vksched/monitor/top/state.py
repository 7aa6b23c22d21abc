"""State: selections of the user in the view, and their changes by keys.

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
"""Sort keys of devices; the sort is stable."""


@dataclass(frozen=True, slots=True)
class State:
    """order: one of ORDERS. selected_pid: selected process, or None. solo: show only its devices.
    first: number of devices scrolled off the top.
    """

    order: str = "name"
    is_paused: bool = False
    show_help: bool = False
    selected_pid: int | None = None
    solo: bool = False
    first: int = 0
    done: bool = False


def press(state: State, key: str, pids: Sequence[int]) -> State:
    """Return the state after a key press."""
    if state.show_help and key != "quit":
        return replace(state, show_help=False)
    if key == "quit":
        return replace(state, done=True)
    if key == "pause":
        return replace(state, is_paused=not state.is_paused)
    if key == "help":
        return replace(state, show_help=True)
    if key == "sort":
        orders = list(ORDERS)
        following = orders[(orders.index(state.order) + 1) % len(orders)]
        return replace(state, order=following, first=0)
    if key in ("up", "down"):
        return replace(state, selected_pid=_neighbor(state.selected_pid, key, pids), first=0)
    if key == "solo":
        chosen = state.selected_pid if state.selected_pid in pids else next(iter(pids), None)
        return replace(state, selected_pid=chosen, solo=not state.solo, first=0)
    if key in ("further", "back"):
        return replace(state, first=max(0, state.first + (1 if key == "further" else -1)))
    return state


def _neighbor(chosen: int | None, key: str, pids: Sequence[int]) -> int | None:
    if not pids:
        return None
    if chosen not in pids:
        return pids[0] if key == "down" else pids[-1]
    return pids[(pids.index(chosen) + (1 if key == "down" else -1)) % len(pids)]


def arrange(state: State, processes: Sequence[ProcessNow]) -> list[Row]:
    """Return the devices to show, in the selected order."""
    shown = [p for p in processes if not state.solo or p.pid == state.selected_pid]
    rows = [Row(p, scheduler, device) for p in shown for scheduler, device in p.devices]
    return sorted(rows, key=ORDERS[state.order])  # type: ignore[arg-type]
