"""Read: the only loader of tape files, with one clear error for truncated, foreign or malformed
files.

All checks are here: types by `format.py`, and the ranges of the numbers of nodes, splits, devices,
graphs and plans. Users of a TapeFile need no further checks. `plan/serialize/` decodes graphs and
topologies.
Complexity: O(file). Examples: tests/trace/test_read.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from ..common.errors import VkschedError
from ..common.schema import SchemaError, check
from .events import NAMES, Event
from .format import COLUMNS, FIELDS, FORMAT, OF_SPLITS, GraphDocument, PlanDocument, TapeDocument

MAX_CHARS = 1 << 29
"""Maximum characters of a file: over a million events."""

MAX_OBSERVERS = 1 << 16
"""Maximum number of functions that see one value."""

MAX_TIME_S = 1e12
"""Maximum time: 30,000 years."""

MAX_LITERAL = 6
"""Maximum characters of a truncated JSON literal, plus one."""


class _Whole(TypedDict):
    vksched: TapeDocument


class TapeError(VkschedError, ValueError):
    """A file is no tape file, or cannot be read."""


@dataclass(frozen=True, slots=True)
class TapeFile:
    """The content of a tape file.

    Attributes
    ----------
    version
        The version of vksched that wrote it.
    dropped, dropped_plans
        The number of older events and plans that the tape had discarded by then.
    graphs, plans
        Documents in the forms of `format.GraphDocument` and `format.PlanDocument`.
    events
        The events in order; `plan` is a position in `plans`, or -1.
    """

    version: str
    dropped: int
    dropped_plans: int
    graphs: tuple[GraphDocument, ...]
    plans: tuple[PlanDocument, ...]
    events: tuple[Event, ...]


def load_tape(path: str | PathLike[str]) -> TapeFile:
    """Return the content of a file that `Tape.save` wrote.

    Raises
    ------
    TapeError
        The file does not exist, is truncated, or is no tape file; the text gives the reason.
    """
    try:
        text = _text(Path(path))
        try:
            about = msgspec.json.decode(text, type=_Whole)["vksched"]
        except (msgspec.MsgspecError, RecursionError):  # json says why
            return tape_of(_data(text))
        return _tape_of(about)
    except SchemaError as error:
        raise TapeError(f"[trace] cannot read {path}: {error}") from None


def tape_of(data: object) -> TapeFile:
    """Return the tape file of plain data.

    Raises
    ------
    SchemaError
        The data is no tape file.
    """
    if not isinstance(data, dict) or "vksched" not in data:
        foreign = isinstance(data, list) or (isinstance(data, dict) and "traceEvents" in data)
        what = "a trace of another program" if foreign else "something else"
        raise SchemaError(f"expected a tape of vksched, got {what}; try a file of vs.Tape().save")
    about = data["vksched"]
    if isinstance(about, dict) and "format" in about:
        _check_format(about)
    return _tape_of(check(about, TapeDocument, "vksched"))


def _check_format(about: Mapping[str, Any]) -> None:
    if about["format"] != FORMAT:
        raise SchemaError(
            f"expected format {FORMAT}, got {about['format']!r}, of vksched "
            f"{about.get('version', 'of no version')}; try that version"
        )


def _tape_of(about: TapeDocument) -> TapeFile:
    _check_format(about)
    if about["columns"] != COLUMNS:
        raise SchemaError(f"expected columns {COLUMNS}, got {about['columns']}")
    for at, graph in enumerate(about["graphs"]):
        _check_graph(graph, f"vksched.graphs[{at}]")
    for at, plan in enumerate(about["plans"]):
        where = f"vksched.plans[{at}]"
        _in_range([plan["graph"]], len(about["graphs"]), f"{where}.graph")
        _check_plan(plan, about["graphs"][plan["graph"]], where)
    events = [_event(row, about["plans"], at) for at, row in enumerate(about["events"])]
    return TapeFile(
        about["version"],
        about["dropped"],
        about["dropped_plans"],
        tuple(about["graphs"]),
        tuple(about["plans"]),
        tuple(events),
    )


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SchemaError(reason) from None
    if len(text) > MAX_CHARS:
        raise SchemaError(f"expected at most {MAX_CHARS:,} characters, got more")
    if not text.strip():
        raise SchemaError("expected JSON, got an empty file")
    return text


def _data(text: str) -> object:
    """Return the data of a JSON text. Raise SchemaError with the line if it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        # half a number or literal may be left at the end of a truncated file
        ends = len(text[error.pos :].strip()) < MAX_LITERAL or "Unterminated" in error.msg
        cut = ends and text.lstrip()[0] in "{["
        end = "the file is cut" if cut else "it is no JSON"
        raise SchemaError(
            f"{end}: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"it is no JSON: {' '.join(str(error).split())}") from None


def _no_constant(word: str) -> object:
    raise ValueError(f"{word} is no number of JSON")


def _in_range(numbers: Sequence[int], count: int, where: str, least: int = 0) -> None:
    for number in numbers:
        if not least <= number < count:
            raise SchemaError(
                f"expected numbers of {least} to {count - 1} in {where}, got {number}"
            )


def _check_graph(graph: Mapping[str, Any], where: str) -> None:
    count = len(graph["nodes"])
    for at, node in enumerate(graph["nodes"]):
        _in_range(node["inputs"], at, f"{where}.nodes[{at}].inputs")
        _in_range(node["shape"], 1 << 62, f"{where}.nodes[{at}].shape")
    _in_range([node for _, node in graph["outputs"]], count, f"{where}.outputs")
    _in_range(graph["backed_up_states"], count, f"{where}.backed_up_states")
    _in_range([*graph["aliases"].values()], count, f"{where}.aliases")
    for kind in ("weights", "states"):
        _in_range([held["node"] for held in graph[kind]], count, f"{where}.{kind}")


def _check_plan(plan: Mapping[str, Any], graph: Mapping[str, Any], where: str) -> None:
    nodes, splits = len(graph["nodes"]), len(plan["splits"])
    devices = len(plan["memory"])
    items = plan["topology"].get("devices")
    if not isinstance(items, list) or len(items) != devices:
        raise SchemaError(f"expected {devices} devices in {where}.machine, as there are memories")
    if len(plan["placements"]) != nodes:
        raise SchemaError(f"expected {nodes} placements in {where}, got {len(plan['placements'])}")
    _in_range([device for device, _ in plan["placements"]], devices, f"{where}.placements")
    _in_range([rule for _, rule in plan["placements"]], len(plan["reasons"]), f"{where}.placements")
    _in_range(plan["final_waits"], splits, f"{where}.final_waits")
    if plan["decision"] is not None:
        weighed = [plan["decision"][key] for key in ("chosen", "best_single_device")]
        _in_range(weighed, len(plan["decision"]["candidates"]), f"{where}.decision")
        names = [str(each.get("name")) for each in items if isinstance(each, dict)]
        if not set(plan["decision"]["devices"]) <= {*names}:
            raise SchemaError(f"expected devices of the machine in {where}.decision.devices")
    _in_range([*plan["asked"]["observed"].values()], MAX_OBSERVERS, f"{where}.asked.observed")
    for at, split in enumerate(plan["splits"]):
        _check_split(split, (devices, nodes, at), f"{where}.splits[{at}]")
    for at, memory in enumerate(plan["memory"]):
        _in_range([*memory["weights"], *memory["states"]], nodes, f"{where}.memory[{at}]")
    _in_range([device for device, _, _ in plan["locations"]], devices, f"{where}.locations")
    _in_range([node for _, node, _ in plan["locations"]], nodes, f"{where}.locations", -nodes)
    _in_range([device for _, device, *_ in plan["spans"]], devices, f"{where}.spans")
    split_ids = [split for _, _, split, *_ in plan["spans"] if split is not None]
    _in_range(split_ids, splits, f"{where}.spans")


def _check_split(split: Mapping[str, Any], sizes: tuple[int, int, int], where: str) -> None:
    devices, nodes, at = sizes
    _in_range([split["device"]], devices, f"{where}.device")
    read = [node for node, *_ in (*split["uploads"], *split["downloads"], *split["in_place"])]
    states = [state for _, state in split["in_place"]]
    _in_range([*split["nodes"], *read, *states, *split["observed"]], nodes, where)
    _in_range([source for _, source, *_ in split["uploads"]], at, f"{where}.uploads", -1)
    _in_range(split["waits"], at, f"{where}.waits")
    _in_range(split.get("deferred_downloads", ()), at, f"{where}.deferred_downloads")
    ordered = [number for _, _, number in split.get("stage_deps", ())]
    _in_range(ordered, at + 1, f"{where}.orders")
    for key in ("seconds", "measured"):
        if len(split[key]) != len(split["nodes"]):
            raise SchemaError(f"expected one of {where}.{key} for each node")


def _event(row: Sequence[Any], plans: Sequence[Mapping[str, Any]], at: int) -> Event:
    name, device, start_s, end_s, run, plan, fields = row
    where = f"vksched.events[{at}]"
    if name not in NAMES:
        raise SchemaError(f"expected a name of {', '.join(NAMES)} for {where}, got {name!r}")
    if name in FIELDS:
        check(fields, FIELDS[name], f"{where}.fields")
    _in_range([plan], len(plans), f"{where}.plan", -1)
    if max(abs(start_s), abs(end_s)) > MAX_TIME_S:
        raise SchemaError(f"expected seconds of at most {MAX_TIME_S:.0e} in {where}")
    if plan >= 0 and name in OF_SPLITS:
        splits = len(plans[plan]["splits"])
        nodes = len(plans[plan]["placements"])  # one for each node
        _in_range([fields.get("node", -1)], nodes, f"{where}.node", -1)
        if not plans[plan]["decides"]:  # otherwise each run has splits of its own
            _in_range([fields.get("split", 0)], splits, f"{where}.split", 0)
            _in_range([fields.get("needed_by", -1)], splits, f"{where}.needed_by", -1)
    return Event(name, device, start_s, end_s, run, fields, plan)
