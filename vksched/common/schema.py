"""Validation of JSON documents against schemas."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any

LARGEST = 1 << 63
"""Maximum magnitude of an integer."""


@dataclass(frozen=True, slots=True)
class Row:
    """List with one schema per position."""

    of: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Dict with arbitrary keys and one schema for all values."""

    of: object


@dataclass(frozen=True, slots=True)
class Either:
    """Alternative schemas; None stands for null."""

    of: tuple[object, ...]


class Wrong(ValueError):
    """The data violates its schema; the message names the place."""


_WORDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def check(data: object, schema: object, where: str) -> None:
    """Check data against a schema.

    Raises
    ------
    Wrong
        The data violates the schema; the message names the place.
    """
    if not holds(data, schema):
        _tell(data, schema, where)


def holds(data: object, schema: object) -> bool:
    """Return True if JSON data matches a schema."""
    return _all_hold([data], schema)


def _all_hold(data: Sequence[Any], schema: object) -> bool:
    """Return True if each value matches a schema; checks a column of many rows at once."""
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
        values = [each[name] for each in data if name in each]
        if (name == key and len(values) < len(data)) or not _all_hold(values, of):
            return False
    return True


def _tell(data: object, schema: object, where: str) -> None:
    """Raise Wrong for the first place at which data violates a schema."""
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
    errors: list[str] = []
    for each in schema.of:
        try:
            return _tell(data, each, where)
        except Wrong as error:
            errors.append(str(error))
    raise Wrong(errors[-1])


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
