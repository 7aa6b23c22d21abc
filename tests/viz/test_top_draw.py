"""The page of `vksched top`: it fits every window, and says with words what colours say."""

from __future__ import annotations

import io

import pytest
from monitored import device_now, process_now
from rich.cells import cell_len
from rich.console import Console

from vksched.monitor.top.bars import bar, graph
from vksched.monitor.top.render import HELP, Window, page
from vksched.monitor.top.snapshot import ProcessNow
from vksched.monitor.top.state import State

SIZES = [(80, 24), (60, 10), (132, 50), (40, 5), (20, 2), (200, 24), (1, 1)]
WIDE = device_now("vulkan:1", label="カード " * 30, now="長い" * 40)


def shown(
    processes: list[ProcessNow],
    state: State | None = None,
    window: Window | None = None,
    **more: str,
) -> list[str]:
    window = window or Window(80, 24)
    file = io.StringIO()
    console = Console(file=file, width=window.columns, height=window.lines, color_system=None)
    console.print(page(state or State(), processes, window, **more))
    return file.getvalue().splitlines()


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize("count", [0, 1, 3, 40])
@pytest.mark.parametrize("show_help", [False, True])
def test_it_is_never_larger_than_the_window(
    columns: int, lines: int, count: int, show_help: bool
) -> None:
    processes = [process_now(pid, device_now(), WIDE, device_now("cpu")) for pid in range(count)]
    for state in (
        State(show_help=show_help),
        State(show_help=show_help, selected_pid=count - 1, first=7),
    ):
        found = shown(processes, state, Window(columns, lines))
        assert len(found) <= lines
        assert max(map(cell_len, found), default=0) <= columns


def test_all_that_is_reported_a_device_is_there() -> None:
    text = "\n".join(shown([process_now()]))
    for part in (
        *("vulkan:0", "A Card", "50 %", "3.0 MiB of 4.0 MiB, own 1.0 MiB", "41 °C", "queue 1"),
        *("1.5 runs/s", "3 copies/s 3.0 MiB/s", "run 3, split 0: matmul (2 nodes)", "stream.py"),
        *("4711", "0 faults", "q quit"),
    ):
        assert part in text, part


@pytest.mark.parametrize("lines", [24, 12, 9])
@pytest.mark.parametrize("processes", [1, 2])
def test_devices_of_other_computers_are_distinguished(lines: int, processes: int) -> None:
    computers = ("node1", "computer-of-many-letters-1", "computer-of-many-letters-2")
    names = [f"{computer}/vulkan:{at}" for computer in computers for at in range(2)]
    window, reported = Window(80, lines), set()
    for first in range(processes * len(names)):
        found = shown(
            [process_now(4711 + at, *map(device_now, names)) for at in range(processes)],
            State(selected_pid=4711, solo=True, first=first),
            window,
        )
        reported |= {word for line in found for word in line.split() if "/vulkan:" in word}
    assert len(reported) == len(names)
    assert all(
        word.startswith(("node1/", "comp")) and word[-3:] in ("n:0", "n:1") for word in reported
    )


def test_what_nobody_tells_is_not_shown() -> None:
    device = device_now(
        memory_used_bytes=None, memory_total_bytes=None, temperature_c=None, now="", queue=0
    )
    text = "\n".join(shown([process_now(1, device)]))
    assert "memory not told" in text and "°C" not in text and "idle" in text


def test_faults_and_devices_out_of_use_are_reported_with_words_and_marks() -> None:
    device = device_now(faults=2, problem="DeviceLost: it is gone", now="")
    text = "\n".join(shown([process_now(1, device)]))
    assert "! 2 faults" in text and "! out of use: DeviceLost: it is gone" in text


def test_a_pause_and_the_order_are_reported() -> None:
    text = "\n".join(shown([process_now()], State(is_paused=True, order="memory")))
    assert "PAUSED" in text and "s sort: memory" in text


@pytest.mark.parametrize("columns", [80, 79, 60, 40, 30])
def test_figures_of_the_title_are_whole_or_not_there(columns: int) -> None:
    window, device = Window(columns, 24), device_now(copied_bytes_per_s=40e6)
    processes = [process_now(1, device), process_now(2, device)]
    whole = shown(processes, State(is_paused=True), Window(132, 24))[0].partition(" PAUSED")[0]
    text = shown(processes, State(is_paused=True), window)[0].partition(" PAUSED")[0].split("  ")
    assert len(text) >= 1 and text[0].strip() == "vksched top"
    assert {each.strip() for each in text} <= {each.strip() for each in whole.split("  ")}


def test_problems_take_the_place_of_the_keys() -> None:
    assert shown([], problem="process 11: it talks nonsense")[-1].startswith(" ! process 11")


def test_more_devices_than_fit_are_reported_and_reached() -> None:
    devices = [device_now(f"vulkan:{i}") for i in range(30)]
    first = shown([process_now(1, *devices)])
    assert any("of 30; j and k scroll" in line for line in first)
    last = shown([process_now(1, *devices)], State(first=99))
    assert any("vulkan:29" in line for line in last)


def test_each_row_says_whose_device_it_is_where_there_are_several() -> None:
    text = "\n".join(shown([process_now(1), process_now(2)]))
    assert "process 1, scheduler 1" in text and "process 2, scheduler 1" in text
    assert "scheduler" not in "\n".join(shown([process_now(1)]))


def test_the_marked_process_has_a_mark_and_stays_in_sight() -> None:
    processes = [process_now(pid) for pid in range(100, 120)]
    lines = shown(processes, State(selected_pid=117))
    assert any(line.startswith(">     117") for line in lines)


def test_help_names_every_figure() -> None:
    text = "\n".join(shown([], State(show_help=True)))
    assert all(key in text for key, _ in HELP)


def test_without_processes_it_says_how_to_start_one() -> None:
    text = "\n".join(shown([]))
    assert "VKSCHED_MONITOR=1" in text and "monitor=True" in text


def test_terminals_without_such_characters_get_ascii() -> None:
    for state in (State(), State(show_help=True)):
        text = "\n".join(shown([process_now(1, WIDE)], state, Window(80, 24, ascii_only=True)))
        assert text.isascii()


@pytest.mark.parametrize(
    ("share", "text"), [(0, "...."), (0.001, "#..."), (0.5, "##.."), (0.99, "####"), (1, "####")]
)
def test_a_bar_shows_that_a_little_is_not_nothing(share: float, text: str) -> None:
    assert bar(share, 4, ascii_only=True) == text


def test_a_graph_shows_means_of_equal_stretches() -> None:
    assert graph((0, 0, 50, 50, 100, 100), 3) == " ▄█"
    assert graph((0, 100), 5) == "    █"[:3] + " █"
    assert graph((), 4) == "    "
    assert graph((1,), 1) == "▁"
