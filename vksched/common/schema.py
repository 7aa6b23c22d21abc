"""Validation of plain data and JSON against types, by msgspec.

A type is `Whole`, `Size`, `Number`, str, bool, list[...], tuple[...], dict[str, ...], a TypedDict,
a NamedTuple, a frozen dataclass, or a union of these. Other keys of objects are ignored.
Examples: tests/trace/test_schema.py.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import sys
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypedDict, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

LARGEST = (1 << 63) - 1
"""Maximum of an integer."""
Whole = Annotated[int, Meta(ge=-1 << 63, le=LARGEST)]
Size = Annotated[int, Meta(ge=0, le=LARGEST)]
Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A finite number."""


class SchemaError(ValueError):
    """The data has another type; the message names the place."""


def record(**fields: Any) -> Any:
    """Return the type of an object with these keys."""
    return TypedDict("Record", fields)  # type: ignore[operator]


def check(data: object, kind: Any, where: str) -> Any:
    """Return plain data as a type.

    Raises
    ------
    SchemaError
        The data has another type; the message names the place.
    """
    try:
        return _converted(data, kind, where)
    except RecursionError:
        raise SchemaError(f"expected {where}, got data of too many levels") from None
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise SchemaError(f"expected Unicode in {where}, got {error.object!r:.60}") from None


def _converted(data: object, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(data, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise SchemaError(_explain(str(error), data, kind, where)) from None


def parse(text: bytes | bytearray | str, kind: Any, where: str) -> Any:
    """Return the JSON of a text as a type.

    Raises
    ------
    SchemaError
        The text is no JSON, or has another type; the message names the place.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        # json names the line, and takes escapes of half a surrogate pair
        return check(_parse_any(text, where), kind, where)


def _parse_any(text: bytes | bytearray | str, where: str) -> object:
    """Return the data of a JSON text. Raise SchemaError if it is none."""
    try:
        if isinstance(text, str):
            text.encode()
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"expected {where}, got no JSON: {error}") from None


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits:.60} is no finite number")
    return number


# -- errors ----------------------------------------------------------------------------------------

_VALUE = reprlib.Repr()
"""The begin of a value, as `repr` has it: of deep and large data only as much as errors show."""
_VALUE.maxlevel = _VALUE.maxlist = _VALUE.maxtuple = _VALUE.maxdict = 20
_VALUE.maxstring = _VALUE.maxlong = _VALUE.maxother = 200
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}


def _explain(text: str, data: Any, kind: Any, where: str) -> str:
    """Return an error of msgspec with our place and the value there."""
    text, _, path = text.partition(" - at `")
    for name, at in _STEP.findall(path):
        key: Any = name or at
        kind = _kind_at(kind, key)
        if isinstance(data, (list, tuple)):
            key = int(at)
        elif at:  # msgspec does not name the keys of a table
            key = next(each for each, value in data.items() if not _holds(value, kind))
        data, where = data[key], where + (f"[{key}]" if isinstance(key, int) else f".{_name(key)}")
    missing = re.fullmatch(r"Object missing required field `(.*)`", text)
    if missing:
        return f"expected {missing[1]!r} in {where}, got none"
    expected = re.sub("`(.*?)`", lambda found: _words(found[1]), text.partition(", got")[0])
    expected = expected.replace("of length ", "of ")
    got = _VALUE.repr(data)
    return f"{expected[0].lower()}{expected[1:]} as {where}, got " + (
        got if len(got) < 60 else got[:57] + "..."
    )


def _name(key: object) -> str:
    """Return a key as text that any terminal shows."""
    text = str(key)
    return text if text.isprintable() else ascii(text)


def _words(kinds: str) -> str:
    return " or ".join(_WORDS.get(each, each) for each in kinds.split(" | "))


def _kind_at(kind: Any, key: str) -> Any:
    """Return the type of the values at a step of a path, None if there is none."""
    origin, kinds = get_origin(kind), get_args(kind)
    if origin in (Annotated, Union, UnionType):
        return next(filter(None, (_kind_at(each, key) for each in kinds)), None)
    if origin is None:  # a dict, dataclass or named tuple of fields
        fields = get_type_hints(kind, include_extras=True) if isinstance(kind, type) else {}
        return [*fields.values()][int(key)] if key.isdigit() and fields else fields.get(key)
    if origin is tuple and kinds[-1] is not ...:
        return kinds[int(key)]
    return kinds[1] if issubclass(origin, Mapping) else kinds[0]


def _holds(data: object, kind: Any) -> bool:
    try:
        msgspec.convert(data, kind, str_keys=True)
    except msgspec.ValidationError:
        return False
    return True
