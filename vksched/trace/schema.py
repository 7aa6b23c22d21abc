"""Schema: what the parts of a tape's file are made of, and a check that they are.

A schema is a type, a list of one schema, a dict of schemas by key ("?" at the end of a key: it may
be missing), `Table` of one schema by any key, `Row` of a fixed number, or `Either`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any

FORMAT = 1
"""Of files; another number is another format."""
LARGEST = 1 << 63
"""No whole number is larger."""
COLUMNS = ["name", "device", "start_s", "end_s", "run", "plan", "fields"]
"""Of a row of "events": the fields of Event, plan as a position in "plans" or -1."""


@dataclass(frozen=True, slots=True)
class Row:
    """A list with one schema for each position."""

    of: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A dict with any keys."""

    of: object


@dataclass(frozen=True, slots=True)
class Either:
    """One of several schemas; None stands for null."""

    of: tuple[object, ...]


class Wrong(ValueError):
    """The data is not what its schema says; the text says where."""


SPAN = Row((int, int, int))
"""Page, first word, words."""
NODE = {"name": str, "op": str, "inputs": [int], "attrs": dict, "shape": [int], "dtype": str}
HELD = {"node": int, "hash": str, "bounds?": Either((None, Row((int, int))))}
GRAPH = {
    "nodes": [NODE],
    "outputs": [Row((str, int))],
    "kept": [int],
    "merged": Table(int),
    "weights": [HELD],
    "states": [{"node": int}],
}
"""weights: which nodes hold values, with a hash of these, and the least and largest of whole
numbers where plans ask for them. states: nodes whose values runs change. kept, merged: as in
`Graph`.
"""
ASKED = {
    "policy": str,
    "objective": str,
    "overrides": [Row((Either((int, str)), str))],
    "copies": Either((int, str)),
    "resident": Table([int]),
    "observed": Table(int),
    "with_cpu": bool,
    "turns": Table(int),
}
"""What the planner was asked beside graph and machine. resident: by device number, nodes whose
values were there. observed: by node how many functions see it.
"""
WORK = {
    "device": int,
    "nodes": [int],
    "copies_in": [Row((int, int, SPAN, SPAN))],
    "copies_out": [Row((int, SPAN))],
    "waits": [int],
    "barriers": [int],
    "levels": int,
    "inner_barriers": int,
    "observed": [int],
    "in_place": [Row((int, int))],
    "aside?": [str],
    "orders?": [Row((str, str, int))],
    "hands_over?": [int],
    "refills?": bool,
}
"""copies_in: node, split that it comes from or -1, place in the inbox, place in memory. copies_out:
node, place in the outbox. The rest: as in `Split`.
"""
SPLIT = {**WORK, "fixed_s": float, "seconds": [float], "measured": [bool]}
"""fixed_s, seconds: predicted beside its nodes, and for each of its nodes. measured: whether the
latter rests on measurements.
"""
MEMORY = {
    "weights": [int],
    "weight_bytes": int,
    "activation_pages": [int],
    "inbox_pages": [int],
    "outbox_pages": [int],
    "peak_bytes": int,
    "resident_bytes": int,
    "states": [int],
    "state_bytes": int,
}
NUMBER = Either((None, float, {"float": str}))
CANDIDATE = {"name": str, "devices": [str], "copies": int, "metrics": Table(NUMBER)}
DECISION = {
    "objective": str,
    "won": int,
    "single": int,
    "weighed": int,
    "value": NUMBER,
    "single_value": NUMBER,
    "candidates": [CANDIDATE],
    "margin": float,
    "measured": bool,
    "watts_assumed": bool,
    "devices": [str],
    "costs": str,
}
"""As `Decision`. won, single: positions among the candidates, the first `weighed` of which are
those of the decision.
"""
CARRIED = {
    "machine": dict,
    "default_link": {"bytes_per_s": NUMBER, "latency_s": NUMBER},
    "policy": str,
    "copies": int,
    "rules": [str],
    "placements": [Row((int, int))],
    "splits": [WORK],
    "final_waits": [int],
    "memory": [MEMORY],
    "locations": [Row((int, int, SPAN))],
    "notes": [str],
}
"""What devices need to carry a plan out, beside its graph. machine, default_link: as in `Machine`.
rules, placements: for each node its device and the number of its rule. locations: device, node
(-1 - node: its scratch memory), place.
"""
PLAN = {
    **CARRIED,
    "graph": int,
    "cause": str,
    "asked": ASKED,
    "decides": bool,
    "splits": [SPLIT],
    "decision": Either((None, DECISION)),
    "seconds": float,
    "spans": [Row((str, int, Either((None, int)), float, float))],
    "replica?": int,
}
"""graph: its position in "graphs". cause: why it was made. decides: whether its runs decide anew
where their pieces go. decision: None where nothing was weighed. seconds: of a run by simulation;
spans: what happens in it: kind, device, split, start and end. replica: its number among the
replicas of the plan that answers what was asked, from 1 on.
"""
FIELDS = {
    "submit": {"split": int},
    "copy": {"split": int, "node": int, "bytes": int, "way": str, "needed_by": int},
    "wait": {"split": int, "needed_by": int},
    "split": {"split": int, "device_s": Either((None, float)), "observed_s": float},
    "aside": {"split": int, "way": str, "bytes": int, "device_s": Either((None, float))},
    "send": {"split": int, "node": int, "bytes": int, "to": str},
    "take": {"node": int, "bytes": int, "of": str, "needed_by": int},
    "prepare": {"bytes": int, "weight_bytes": int, "state_bytes": int, "resident_bytes": int},
    "free": {"bytes": int, "weight_bytes": int, "state_bytes": int, "resident_bytes": int},
    "plan": {"cause": str},
    "fallback": {"op": str, "nodes": [str], "cause": str},
    "failed": {"error": str, "message": str},
    "fault": {"error": str, "message": str, "during": str},
}
"""Of events, those that readers rely on; docs/traces.md tells what they mean."""
OF_SPLITS = ("submit", "copy", "wait", "split", "aside", "send", "take")
"""Events that name splits and nodes of a plan."""
EVENT = Row((str, str, float, float, int, int, dict))
FILE = {
    "format": int,
    "version": str,
    "dropped": int,
    "dropped_plans": int,
    "graphs": [GRAPH],
    "plans": [PLAN],
    "columns": [str],
    "events": [EVENT],
}
_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def check(data: object, schema: object, where: str) -> None:
    """Checks data against a schema.

    Raises:
        Wrong: they differ; the text says where.
    """
    if not holds(data, schema):
        _tell(data, schema, where)


def holds(data: object, schema: object) -> bool:
    """Whether plain data, as JSON gives it, is what a schema says; quick, as starts wait for it."""
    return _all_hold([data], schema)


def _all_hold(data: Sequence[Any], schema: object) -> bool:
    """Whether each of some values is what a schema says: a column of many rows at once."""
    kinds = set(map(type, data))
    if schema is str or schema is None:
        return kinds <= {str if schema is str else NoneType}
    if schema is int:
        return not data or (kinds == {int} and min(data) >= -LARGEST and max(data) <= LARGEST)
    if isinstance(schema, type):
        return all(_is(each, schema) for each in data)
    if isinstance(schema, Either):
        return all(any(holds(each, of) for of in schema.of) for each in data)
    if isinstance(schema, list):
        return kinds <= {list} and _all_hold([*chain.from_iterable(data)], schema[0])
    if isinstance(schema, Row):
        if not (kinds <= {list} and set(map(len, data)) <= {len(schema.of)}):
            return False
        columns = zip(*data, strict=True)
        return all(_all_hold(column, of) for column, of in zip(columns, schema.of, strict=False))
    if not kinds <= {dict}:
        return False
    if isinstance(schema, Table):
        return _all_hold([value for each in data for value in each.values()], schema.of)
    assert isinstance(schema, dict)
    for key, of in schema.items():
        name = key.removesuffix("?")
        found = [each[name] for each in data if name in each]
        if (name == key and len(found) < len(data)) or not _all_hold(found, of):
            return False
    return True


def _tell(data: object, schema: object, where: str) -> None:
    """Raises Wrong that tells the first place where data is not what a schema says."""
    if isinstance(schema, list):
        _expect(isinstance(data, list), "a list", data, where)
        assert isinstance(data, list)
        for at, each in enumerate(data):
            _tell(each, schema[0], f"{where}[{at}]")
    elif isinstance(schema, Row):
        size = len(schema.of)
        _expect(isinstance(data, list) and len(data) == size, f"a list of {size}", data, where)
        assert isinstance(data, list)
        for at, (each, of) in enumerate(zip(data, schema.of, strict=True)):
            _tell(each, of, f"{where}[{at}]")
    elif isinstance(schema, Table):
        _expect(isinstance(data, dict), "an object", data, where)
        assert isinstance(data, dict)
        for key, each in data.items():
            _tell(each, schema.of, f"{where}.{key}")
    elif isinstance(schema, dict):
        _expect(isinstance(data, dict), "an object", data, where)
        assert isinstance(data, dict)
        _check_keys(data, schema, where)
    elif isinstance(schema, Either):
        _check_either(data, schema, where)
    elif schema is None:
        _expect(data is None, "null", data, where)
    else:
        assert isinstance(schema, type)
        _expect(_is(data, schema), _WORDS.get(schema, "an object"), data, where)


def _check_keys(data: Mapping[str, object], schema: Mapping[str, object], where: str) -> None:
    for key, of in schema.items():
        name = key.removesuffix("?")
        if name in data:
            _tell(data[name], of, f"{where}.{name}")
        elif name == key:
            raise Wrong(f"expected {name!r} in {where}, got none")


def _check_either(data: object, schema: Either, where: str) -> None:
    said: list[str] = []
    for each in schema.of:
        try:
            return _tell(data, each, where)
        except Wrong as error:
            said.append(str(error))
    raise Wrong(said[-1])


def _is(data: object, kind: type) -> bool:
    if isinstance(data, bool) or kind is bool:
        return isinstance(data, bool) and kind is bool
    if isinstance(data, int) and kind in (int, float):
        return abs(data) <= LARGEST
    return isinstance(data, kind) and (kind is not float or math.isfinite(data))  # type: ignore[arg-type]


def _expect(holds: bool, what: str, data: object, where: str) -> None:
    if not holds:
        got = repr(data)
        raise Wrong(f"expected {what} as {where}, got {got if len(got) < 60 else got[:57] + '...'}")
