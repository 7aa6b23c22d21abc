"""Rendering of `vksched top`, line by line, for any terminal size.

    title        totals of all processes
    processes    one line each, the selected one marked with >
    devices      five lines each; three, two or one if they would not fit
    keys

Colors only duplicate information. Examples: tests/viz/test_top_draw.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.text import Text

from ...common.formatting import count_of, format_bytes, format_number
from .bars import bar, graph
from .snapshot import ProcessNow
from .state import Row, State, arrange

KEYS = "q quit  s sort: {order}  p pause  ↑↓ process  enter only it  j k scroll  ? help"
HELP = (
    ("q, Ctrl-C", "quit"),
    ("s", "sort devices by name, busy share, memory, copies, runs or faults"),
    ("p, space", "stop and go on"),
    ("up, down", "mark a process"),
    ("enter", "show the devices of the marked process only, or of all"),
    ("j, k", "scroll devices"),
    ("?, h", "this page; any key leaves it"),
    ("", ""),
    ("busy", "the device's share at work of the last two seconds; graph: a minute"),
    ("memory", "of the device, by all programs; own: by this process"),
    ("copies", "values and bytes between device and host in a second"),
    ("queue", "splits that the device has got and that have not ended"),
    ("waiting", "runs that were asked for and have not begun"),
)
NOBODY = (
    "No process of this user tells of itself.",
    "",
    "Start one with VKSCHED_MONITOR=1, or with vs.Scheduler(monitor=True).",
)
PROCESSES = 6
"""Maximum number of lines of processes if there are devices to show."""
BUSY, WARM_C = 0.9, 85.0
"""Thresholds from which values are highlighted."""


@dataclass(frozen=True, slots=True)
class Window:
    """The terminal. ascii_only: it shows ASCII only. live: keys are handled, so a line lists
    them.
    """

    columns: int
    lines: int
    ascii_only: bool = False
    live: bool = True


def page(state: State, processes: Sequence[ProcessNow], window: Window, problem: str = "") -> Group:
    """Return the page, at most as large as the window."""
    lines = [_title(state, processes, window)]
    foot = [_keys(state, window, problem)] if window.live else []
    room = max(0, window.lines - len(lines) - len(foot))
    if state.show_help:
        body = [Text(f"  {key:<10} {what}") for key, what in HELP]
    elif not processes:
        body = [Text(), *(Text(f"  {line}") for line in NOBODY)]
    else:
        body = _process_lines(state, processes, window, room)
        body += _device_lines(state, processes, window, room - len(body))
    body = body[:room] + [Text()] * (room - len(body))
    return Group(*(_fit(line, window) for line in [*lines, *body, *foot][: window.lines]))


def _fit(line: Text, window: Window) -> Text:
    line.no_wrap, line.overflow = True, "crop"
    if window.ascii_only:
        plain = line.plain.replace("↑↓", "up down").replace("°", " ").replace("─", "-")
        line = Text(plain.encode("ascii", "replace").decode(), line.style, no_wrap=True)
    line.truncate(window.columns, overflow="crop")
    return line


def _title(state: State, processes: Sequence[ProcessNow], window: Window) -> Text:
    devices = [device for process in processes for _, device in process.devices]
    faults = sum(device.faults for device in devices)
    parts = [
        "vksched top",
        count_of(len(processes), "process").replace("processs", "processes"),
        f"{format_number(sum(p.runs_per_s for p in processes))} runs/s",
        f"copies {_rate(sum(d.copied_bytes_per_s for d in devices))}",
        count_of(faults, "fault"),
    ]
    newest = max((p.time_s for p in processes), default=time.time())
    clock = time.strftime("%H:%M:%S", time.localtime(newest))
    right = f"PAUSED  {clock} " if state.is_paused else f"{clock} "
    room = max(0, window.columns - len(right))
    while len(parts) > 1 and cell_len("  ".join(parts)) + 2 > room:
        parts.pop()
    left = set_cell_size(" " + "  ".join(parts), room)
    return Text(left + right, style="reverse bold" if state.is_paused else "reverse")


def _keys(state: State, window: Window, problem: str) -> Text:
    if problem:
        return Text(set_cell_size(f" ! {problem}", window.columns), style="bold red")
    return Text(" " + KEYS.format(order=state.order), style="dim")


# -- processes -------------------------------------------------------------------------------------


def _process_lines(
    state: State, processes: Sequence[ProcessNow], window: Window, room: int
) -> list[Text]:
    name = max(10, window.columns - 59)
    head = f"  {'PID':>7} {set_cell_size('PROGRAM', name)} {'RUNS/S':>7} {'COPIES/S':>11} "
    out = [Text(head + f"{'RUNNING':>7} {'WAITING':>7} {'FAULTS':>6}  ", style="bold")]
    most = min(PROCESSES, max(1, room // 3))
    pids = [process.pid for process in processes]
    at = pids.index(state.selected_pid) if state.selected_pid in pids else 0
    first = min(max(0, at - most + 1), max(0, len(pids) - most))
    for process in processes[first : first + most]:
        devices = [device for _, device in process.devices]
        chosen = process.pid == state.selected_pid
        copied = _rate(sum(device.copied_bytes_per_s for device in devices))
        out.append(
            Text(
                f"{'>' if chosen else ' '} {process.pid:>7} "
                f"{set_cell_size(process.program, name)} "
                f"{format_number(process.runs_per_s):>7} {copied:>11} "
                f"{sum(s.running for s in process.schedulers):>7} "
                f"{sum(s.waiting for s in process.schedulers):>7} "
                f"{sum(device.faults for device in devices):>6}",
                style="bold" if chosen else "",
            )
        )
    if len(pids) > most:
        out.append(Text(f"    {len(pids) - most} more; arrows reach them", style="dim"))
    return out


# -- devices ---------------------------------------------------------------------------------------


def _device_lines(
    state: State, processes: Sequence[ProcessNow], window: Window, room: int
) -> list[Text]:
    rows = arrange(state, processes)
    several = len(processes) > 1 or any(len(p.schedulers) > 1 for p in processes)
    heights = ((5, _tall), (3, _middle), (2, _short), (1, _flat))
    height, draw = next((h for h in heights if h[0] * len(rows) <= room), heights[-1])
    fit = max(1, room // height)
    if fit < len(rows):
        fit = max(1, (room - 1) // height)  # a line reports the omitted ones
    first = min(state.first, max(0, len(rows) - fit))
    out = [line for row in rows[first : first + fit] for line in draw(row, window, several)]
    if fit < len(rows):
        shown = f"devices {first + 1} to {first + fit} of {len(rows)}; j and k scroll"
        out.append(Text(f"  {shown}", style="dim"))
    return out


def _tall(row: Row, window: Window, several: bool) -> list[Text]:
    device = row.device
    wide = max(10, window.columns - 54)
    head = _head(row, window, several)
    busy = Text.assemble(
        "  busy   ",
        (bar(device.busy, 20, window.ascii_only), _busy_style(row)),
        f" {100 * device.busy:3.0f} %  ",
        (graph(device.history, wide, window.ascii_only), "cyan"),
        "  a minute",
    )
    used, total = device.memory_used_bytes, device.memory_total_bytes
    filled = used / total if used is not None and total else 0.0
    parts = [bar(filled, 20, window.ascii_only), _memory(row)]
    if device.temperature_c is not None:
        parts.append(f"{device.temperature_c:.0f} °C")
    memory = Text("  memory " + "  ".join(parts))
    return [head, busy, memory, _pace(row), _now(row)]


def _pace(row: Row) -> Text:
    """Return the throughput of a device and its number of failures."""
    device = row.device
    faults = f"  ! {count_of(device.faults, 'fault')}" if device.faults else ""
    return Text.assemble(
        f"  {format_number(device.runs_per_s)} runs/s  "
        f"{format_number(device.copies_per_s)} copies/s {_rate(device.copied_bytes_per_s)}  "
        f"queue {device.queue}",
        (faults, "bold red"),
    )


def _now(row: Row) -> Text:
    """Return the current work of a device, or the reason why it is disabled."""
    device = row.device
    if device.problem:
        return Text(f"  ! out of use: {device.problem}", style="bold red")
    return Text(f"  {device.now or 'idle'}", style="" if device.now else "dim")


def _middle(row: Row, window: Window, several: bool) -> list[Text]:
    return [
        _head(row, window, several),
        _figures(row, window),
        Text.assemble(_pace(row), _now(row)),
    ]


def _short(row: Row, window: Window, several: bool) -> list[Text]:
    line = Text.assemble(_figures(row, window), " ", _pace(row), _now(row))
    return [_head(row, window, several), line]


def _figures(row: Row, window: Window) -> Text:
    """Return utilization, memory use and temperature of a device."""
    device = row.device
    return Text.assemble(
        "  ",
        (bar(device.busy, 10, window.ascii_only), _busy_style(row)),
        f" {100 * device.busy:3.0f} % ",
        (graph(device.history, 15, window.ascii_only), "cyan"),
        f" {_memory(row)}{_warmth(row)}",
    )


def _flat(row: Row, window: Window, several: bool) -> list[Text]:
    device = row.device
    about = f"{row.process.pid} " if several else ""
    name = _cut(device.name, max(18, window.columns // 3) - cell_len(about))
    wide = max(20, cell_len(about) + cell_len(name) + 2)
    return [
        Text.assemble(
            (set_cell_size(f" {about}{name}", wide), "bold"),
            (bar(device.busy, 8, window.ascii_only), _busy_style(row)),
            f" {100 * device.busy:3.0f} % ",
            (graph(device.history, 10, window.ascii_only), "cyan"),
            f" {_memory(row, own=False)}{_warmth(row)} ",
            _pace(row),
            _now(row),
        )
    ]


def _head(row: Row, window: Window, several: bool) -> Text:
    device, scheduler = row.device, row.scheduler
    about = f"process {row.process.pid}, scheduler {scheduler.number}" if several else ""
    if scheduler.simulated:
        about = f"{about}  simulated".strip()
    name = _cut(device.name, max(11, window.columns // 3))
    wide = max(14, cell_len(name) + 3)
    label = set_cell_size(f" {device.label}", max(0, window.columns - wide - 1 - len(about)))
    return Text.assemble((set_cell_size(f"─ {name} ", wide), "bold"), label, (f"{about} ", "dim"))


def _cut(name: str, room: int) -> str:
    """Return the name of a device; a long one loses the middle of its host name, because trailing
    numbers distinguish hosts.
    """
    computer, slash, device = name.rpartition("/")
    if not slash or cell_len(name) <= room:
        return name
    stays = max(2, room - cell_len(device) - 3)
    return f"{computer[: stays // 2]}..{computer[-(stays - stays // 2) :]}/{device}"


def _busy_style(row: Row) -> str:
    return "bold yellow" if row.device.busy >= BUSY else "green"


def _memory(row: Row, own: bool = True) -> str:
    device = row.device
    if device.memory_total_bytes is None or device.memory_used_bytes is None:
        return "memory not told"
    text = f"{format_bytes(device.memory_used_bytes)} of {format_bytes(device.memory_total_bytes)}"
    if own and device.memory_own_bytes is not None:
        text += f", own {format_bytes(device.memory_own_bytes)}"
    return text


def _warmth(row: Row) -> str:
    return "" if row.device.temperature_c is None else f"  {row.device.temperature_c:.0f} °C"


def _rate(bytes_per_s: float) -> str:
    return f"{format_bytes(round(bytes_per_s))}/s"
