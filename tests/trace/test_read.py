"""The loader of tapes: what is cut, foreign or malformed is one error that says why."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import THOROUGH

import vksched as vs
from vksched.engine.replay.replay_tape import replay_tape
from vksched.plan.serialize.plan_codec import decode_plan_inputs, decode_plan_record
from vksched.trace.read import TapeError
from vksched.viz.timeline.html_export import as_page

X = np.linspace(0.0, 1.0, 64, dtype=np.float32).reshape(8, 8)


def null_devices(count: int = 2) -> list[vs.SimulatedDevice]:
    clock = vs.SimulatedClock()
    return [vs.SimulatedDevice(vs.DeviceSpec(f"gpu:{i}", "null"), clock) for i in range(count)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tape, path = vs.Tape(), tmp_path_factory.mktemp("tape") / "t.json"
    with vs.Scheduler(null_devices(), trace=tape) as sched:
        x = vs.input("x", X.shape)
        held = vs.state(np.zeros(X.shape, np.float32), "held")
        a = vs.relu(x @ vs.weight(X, name="w"), name="a")
        b = vs.gather(vs.softmax(a + held, name="b"), vs.constant(np.array([1, 5])))
        placed = {"a": "gpu:0", "b": "gpu:1"}
        run = sched.compile(b, placed, updates={held: a * 0.5}, observe={"b": lambda *_: None})
        run(x=X)
        run(x=X)
    tape.save(path)
    return path


@pytest.fixture(scope="module")
def data(saved: Path) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(saved.read_text("utf-8"))
    return out


def test_a_saved_tape_is_read_back(saved: Path) -> None:
    tape = vs.load_tape(saved)
    assert tape.version == vs.__version__ and tape.dropped == 0
    assert len(tape.plans) == len(tape.graphs) == 1
    names = [event.name for event in tape.events]
    assert names[:2] == ["plan", "prepare"] and names.count("run") == 2
    assert {event.plan for event in tape.events} == {0}
    planned = decode_plan_record(tape.graphs[0], tape.plans[0])
    assert planned.plan.device_of("a") == "gpu:0" and planned.cause == "compile"
    assert "softmax" in planned.plan.explain("b")


def first(about: dict[str, Any], name: str) -> list[Any]:
    """Return the first event of a name."""
    return next(row for row in about["events"] if row[0] == name)


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ("  \n", "an empty file"),
        ("[1, 2", "the file is cut"),
        ('{"traceEvents": [{"na', "the file is cut"),
        ("hello", "it is no JSON"),
        ("\x7fELF\x00", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ('{"vksched": NaN}', "NaN is no number"),
        ('{"vksched": ' + "9" * 10_000 + "}", "it is no JSON"),
        ("[]", "a trace of another program"),
        ('{"traceEvents": []}', "a trace of another program"),
        ("7", "something else"),
        ('{"nodes": []}', "something else"),
        ('{"vksched": 3}', "expected an object as vksched"),
        ('{"vksched": {"format": 3, "version": "9"}}', "expected format 2, got 3, of vksched 9"),
        ('{"vksched": {}}', "expected 'format' in vksched"),
    ],
)  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TapeError, match="cannot read .*t.json: ") as error:
        vs.load_tape(path)
    assert message in str(error.value) and len(str(error.value)) < 500


def test_files_that_are_not_there_or_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TapeError, match="No such file"):
        vs.load_tape(tmp_path / "none.json")
    with pytest.raises(TapeError, match="cannot read"):
        vs.load_tape(tmp_path)
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    with pytest.raises(TapeError, match="cannot read"):
        vs.load_tape(tmp_path / "binary")


def test_a_file_cut_anywhere_is_refused(saved: Path, tmp_path: Path) -> None:
    text, path = saved.read_bytes(), tmp_path / "cut.json"
    draw = random.Random(0)
    for _ in range(200):
        path.write_bytes(text[: draw.randrange(len(text) - 1)])
        with pytest.raises(TapeError, match="the file is cut|an empty file"):
            vs.load_tape(path)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value inside."""
    yield path
    if isinstance(value, (dict, list)):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*path, key))


HOSTILE = [None, -1, -2, 10**9, 1 << 62, 0.5, "", "x", True, [], [[]], {}, {"float": "nan"}]
HOSTILE += [1e308, -1e300, 5e-324, "\x1b[31m</script>\ud800", [[[[]]] * 3]]


@pytest.mark.scales
def test_whatever_stands_somewhere_reading_and_use_end_in_one_error_or_none(
    data: dict[str, Any], tmp_path: Path
) -> None:
    ways, draw = [*places(data["vksched"])][1:], random.Random(1)
    path, refused, count = tmp_path / "hostile.json", 0, 600 if THOROUGH else 200
    alike: dict[str, list[tuple[Any, ...]]] = {}
    for way in ways:
        alike.setdefault(re.sub(r"\d+", "", repr(way)), []).append(way)
    for _ in range(count):
        other = copy.deepcopy(data["vksched"])
        at: Any = other
        *way, last = draw.choice(alike[draw.choice([*alike])])
        for key in way:
            at = at[key]
        if draw.random() < 0.2 and isinstance(at, dict):
            del at[last]
        else:
            at[last] = draw.choice(HOSTILE)
        write(path, {"traceEvents": [], "vksched": other})
        try:
            tape = vs.load_tape(path)
        except TapeError as error:
            refused += 1
            assert str(error).startswith("[trace] cannot read ") and len(str(error)) < 1000
            continue
        for plan in tape.plans:
            for make in (decode_plan_inputs, decode_plan_record):
                try:
                    make(tape.graphs[plan["graph"]], plan)  # type: ignore[operator]
                except vs.PlanError as error:
                    assert str(error).startswith("[trace] the ")
        for use in (lambda tape: as_page(vs.timeline(tape)), replay_tape):
            try:
                use(tape)
            except vs.VkschedError:
                pass
    assert refused > count * 130 // 600


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["plans"][0].update(graph=1), r"numbers of 0 to 0 in vksched.plans\[0\].graph"),
        (lambda d: d["graphs"][0]["nodes"][0]["inputs"].append(0), r"nodes\[0\].inputs"),
        (lambda d: d["plans"][0]["placements"].pop(), "placements"),
        (lambda d: d["plans"][0]["splits"][0]["seconds"].pop(), "for each node"),
        (lambda d: d["events"][0].append(1), r"a list of 7 as vksched.events\[0\]"),
        (lambda d: d["events"][0].__setitem__(0, "dance"), "expected a name of plan, "),
        (lambda d: d["events"][0].__setitem__(5, 7), r"events\[0\].plan"),
        (lambda d: d["columns"].reverse(), "expected columns"),
        (lambda d: d["events"][0].__setitem__(3, 1e300), r"at most 1e\+12 in vksched.events\[0\]"),
        (lambda d: first(d, "copy")[6].update(node=10**9), r"events\[\d+\].node"),
        (lambda d: d["plans"][0]["decision"]["devices"].append("x"), "devices of the machine"),
        (lambda d: d["plans"][0]["asked"]["observed"].update({"5": 10**9}), "asked.observed"),
    ],
)
def test_the_error_says_where(
    data: dict[str, Any], tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    other = copy.deepcopy(data["vksched"])
    change(other)
    with pytest.raises(TapeError, match=message):
        vs.load_tape(write(tmp_path / "t.json", {"vksched": other}))
