"""What Perfetto gets of a tape: slices on lanes, arrows for copies and fences, counters."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from timelines import copying_tape, simulated_tape
from traced import save_two_runs

import vksched as vs
from vksched.trace.perfetto import perfetto_events


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    path = tmp_path_factory.mktemp("tape") / "t.json"
    simulated_tape().save(path)
    events: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["traceEvents"]
    return events


def slices(shown: list[dict[str, Any]], kind: str = "") -> list[dict[str, Any]]:
    return [e for e in shown if e["ph"] == "X" and kind in ("", e["cat"])]


def processes(shown: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in shown if e["name"] == "process_name"}


def test_each_device_and_the_host_have_named_lanes(shown: list[dict[str, Any]]) -> None:
    assert (
        list(processes(shown).values())
        == ["host", "gpu:0", "gpu:1", "cpu"][: len(processes(shown))]
    )
    threads: dict[str, list[str]] = defaultdict(list)
    for event in shown:
        if event["name"] == "thread_name":
            threads[processes(shown)[event["pid"]]].append(event["args"]["name"])
    assert threads["host"] == ["runs", "work", "predicted"]
    assert threads["gpu:0"] == threads["gpu:1"] == ["measured", "predicted"]
    named = {(e["pid"], e["tid"]) for e in shown if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices(shown)} == named


def test_slices_of_a_thread_do_not_overlap(shown: list[dict[str, Any]]) -> None:
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in slices(shown):
        assert event["dur"] > 0
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for found in threads.values():
        found.sort()
        for (_, end), (start, _) in zip(found, found[1:], strict=False):
            assert start >= end - 2e-3  # what takes no time is drawn with a thousandth of a us


def test_splits_have_names_categories_and_predictions_next_to(shown: list[dict[str, Any]]) -> None:
    names = {e["name"] for e in slices(shown, "split")}
    assert "split 0: a .. add" in names
    predicted = [e for e in slices(shown, "predicted") if e["name"] == "split 0: a .. add"]
    measured = [e for e in slices(shown, "split") if e["name"] == "split 0: a .. add"]
    assert len(predicted) == len(measured) == 2
    # Null devices take exactly what plans predict.
    for one, other in zip(predicted, measured, strict=True):
        assert one["dur"] == pytest.approx(other["dur"])
        assert one["ts"] == pytest.approx(other["ts"])


def test_what_is_for_no_split_has_a_name_too(shown: list[dict[str, Any]]) -> None:
    names = {e["name"] for e in slices(shown, "predicted")}
    assert "copy results" in names and not any(name.endswith("-1") for name in names)


def test_arrows_begin_and_end_in_slices_and_go_forward(shown: list[dict[str, Any]]) -> None:
    starts = {e["id"]: e for e in shown if e["ph"] == "s"}
    ends = {e["id"]: e for e in shown if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and starts
    kinds = set()
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] <= end["ts"] and end["bp"] == "e"
        sources, targets = holding(shown, start), holding(shown, end)
        found = {
            (start["cat"], source["cat"], target["cat"])
            for source in sources
            for target in targets
            if start["cat"] == "copy" or is_for(source, target)
        }
        assert found
        kinds |= found
    assert kinds >= {
        ("copy", "copy", "split"),
        ("copy", "split", "copy"),
        ("fence", "split", "wait"),
    }
    waits, copies = slices(shown, "wait"), slices(shown, "copy")
    assert len(starts) == len(waits) + len(copies)


def test_arrows_go_by_copy_queues_where_there_are_some(tmp_path: Path) -> None:
    copying_tape().save(tmp_path / "t.json")
    shown = json.loads((tmp_path / "t.json").read_text("utf-8"))["traceEvents"]
    ends = {e["id"]: e for e in shown if e["ph"] == "f"}
    kinds: dict[tuple[str, str], int] = defaultdict(int)
    for start in (e for e in shown if e["ph"] == "s" and e["cat"] == "copy"):
        end = ends[start["id"]]
        assert start["ts"] <= end["ts"]
        for source in holding(shown, start):
            for target in holding(shown, end):
                kinds[source["cat"], target["cat"]] += 1
    # two runs: copies in of four splits and out of two; x, p1 twice and p3 between host and queue
    assert kinds["transfer_queue", "split"] == 8 and kinds["split", "transfer_queue"] == 4
    assert kinds["copy", "transfer_queue"] >= 4 and kinds["transfer_queue", "copy"] >= 4
    assert len(slices(shown, "copy")) + len(slices(shown, "transfer_queue")) == sum(
        e["ph"] == "s" and e["cat"] == "copy" for e in shown
    )


def is_for(split: dict[str, Any], wait: dict[str, Any]) -> bool:
    return split["cat"] == "split" and wait["name"] == f"wait for {split['name'].partition(':')[0]}"


def holding(shown: list[dict[str, Any]], end: dict[str, Any]) -> list[dict[str, Any]]:
    """The slices in which an end of an arrow lies: two, where one follows the other at once."""
    return [
        e
        for e in slices(shown)
        if (e["pid"], e["tid"]) == (end["pid"], end["tid"])
        and e["ts"] <= end["ts"] <= e["ts"] + e["dur"]
    ]


def test_memory_is_a_counter_of_each_device_that_ends_at_nothing(
    shown: list[dict[str, Any]],
) -> None:
    counted: dict[str, list[int]] = defaultdict(list)
    for event in shown:
        if event["ph"] == "C":
            counted[processes(shown)[event["pid"]]].append(event["args"]["bytes"])
    assert {"gpu:0", "gpu:1"} <= counted.keys()
    for values in counted.values():
        assert max(values) > 0 and values[-1] == 0


def test_events_without_plans_are_shown_too() -> None:
    events = [
        vs.Event("split", "gpu:0", 1.0, 2.0, 0, {"split": 0, "ops": {"matmul": 1.0}}),
        vs.Event("split", "gpu:0", 1.5, 2.5, 1, {"split": 0}),
        vs.Event("wait", "gpu:0", 0.5, 2.0, 0, {"split": 0}),
        vs.Event("tune", "gpu:0", 3.0, 4.0, -1, {"op": "matmul"}),
    ]
    shown = perfetto_events(events, [], [])
    assert [e["name"] for e in slices(shown)] == [
        "split 0 (matmul)",
        "split 0",
        "wait for split 0",
        "tune matmul",
    ]
    # The two splits overlap, as those of two runs may: they are on two threads.
    assert len({e["tid"] for e in slices(shown, "split")}) == 2
    assert [e["ph"] for e in shown if e["ph"] in "sf"] == ["s", "f"]
    assert perfetto_events([], [], []) == [
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "host"}},
        {"ph": "M", "name": "process_sort_index", "pid": 1, "tid": 0, "args": {"sort_index": 1}},
    ]


def test_a_file_of_perfetto_is_json_that_any_reader_takes(tmp_path: Path) -> None:
    path = save_two_runs(tmp_path / "t.json")
    json.loads(path.read_text("utf-8"), parse_constant=pytest.fail)
