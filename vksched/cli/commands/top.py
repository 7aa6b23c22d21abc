"""`vksched top`: live monitor of processes and their devices in the terminal."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from ...common.errors import VkschedError

if TYPE_CHECKING:
    from ...common.console import PrintableConsole
    from ...monitor.client import Client
    from ...monitor.top.render import Window
    from ...monitor.top.snapshot import ProcessNow

ANSWER_S = 3.0
"""Maximum wait of --once and --json for processes, in seconds."""
REDRAW_S = 0.5
LOOK_S = 1.0
"""Interval of the search for new processes, in seconds."""


@click.command()
@click.option("--pid", type=click.IntRange(1), help="Show only this process.")
@click.option("--once", is_flag=True, help="Print one snapshot and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print one snapshot as JSON and exit.")
def top(pid: int | None, once: bool, as_json: bool) -> None:
    """Show a live monitor of this user's processes: device utilization, memory, copies, runs.

    A process is visible if VKSCHED_MONITOR=1 is set, or with vs.Scheduler(monitor=True).
    """
    from ...monitor.client import Client

    client = Client(pid)
    try:
        if once or as_json:
            _tell(client, client.wait_for_all(ANSWER_S), as_json)
            return
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise VkschedError("[top] expected a terminal, got none; try --once or --json")
        client.look_for_new()
        _watch(client)
    finally:
        client.close()


def _tell(client: Client, processes: Sequence[ProcessNow], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(process) for process in processes], indent=2))
    else:
        from ...common.console import PrintableConsole
        from ...monitor.top.render import Window, page
        from ...monitor.top.state import State

        console = PrintableConsole()
        lines = 2 + 2 * len(processes) + 5 * sum(len(p.devices) for p in processes)
        window = Window(console.width, max(lines, 5), console.options.ascii_only, live=False)
        console.print(page(State(), processes, window))
    for problem in client.problems:
        click.echo(problem, err=True)


def _watch(client: Client) -> None:
    """Draw until the user quits, or the only process ends."""
    import selectors

    from rich.live import Live

    from ...common.console import PrintableConsole
    from ...common.terminal import printable_streams
    from ...monitor.top.keys import parse, single_keys, typed
    from ...monitor.top.render import page
    from ...monitor.top.state import State, press

    console = PrintableConsole()
    state = State()
    shown: Sequence[ProcessNow] = ()
    looked_s = drawn_s = 0.0
    drawn: object = None
    shows = Live(console=console, screen=True, auto_refresh=False)
    with single_keys() as number, shows as live, printable_streams():
        client.selector.register(number, selectors.EVENT_READ)
        while not state.done:
            now_s = time.monotonic()
            if now_s - looked_s >= LOOK_S:
                client.look_for_new()
                looked_s = now_s
            if not state.is_paused:
                shown = client.processes()
            window = _window(console)
            if now_s - drawn_s >= REDRAW_S or (state, window) != drawn:
                problem = client.problems[-1] if client.problems else ""
                live.update(page(state, shown, window, problem), refresh=True)
                drawn_s, drawn = now_s, (state, window)
            if client.read(REDRAW_S / 2):
                typed_bytes = typed(number)
                if typed_bytes is None:
                    return
                for key in parse(typed_bytes):
                    state = press(state, key, [process.pid for process in shown])


def _window(console: PrintableConsole) -> Window:
    """Return the current size of the terminal; COLUMNS and LINES are outdated after a resize."""
    from rich.console import ConsoleDimensions

    from ...monitor.top.render import Window

    columns, lines = os.get_terminal_size(sys.stdout.fileno())
    console.size = ConsoleDimensions(columns or 80, lines or 24)
    return Window(console.width, console.height, console.options.ascii_only)
