"""Values of arguments by the types in their JSON schemas.

{"type": "array"}, {"type": ["array", "null"]}, {"anyOf": [{"type": "array"}, {"type": "null"}]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from .strict_json import DECODER

Schema = Mapping[str, object]


def types_of(schema: Schema) -> frozenset[str]:
    """Return the types that a schema allows; none if it does not say."""
    return frozenset(kind for each in _alternatives(schema) for kind in _own_types(each))


def alternative_of(schema: Schema, kind: str) -> Schema:
    """Return the alternative of a schema that has a type, or else the schema."""
    return next((each for each in _alternatives(schema) if kind in _own_types(each)), schema)


def schema_of(schema: Schema | None, key: str) -> Schema:
    """Return the schema of a member of an object."""
    properties = (schema or {}).get("properties")
    own = properties.get(key) if isinstance(properties, Mapping) else None
    return own if isinstance(own, Mapping) else {}


def typed_value(value: str, schema: Schema | None, key: str) -> object:
    """Return the value of a member of an object by its type: a text, or JSON."""
    if "string" in types_of(schema_of(schema, key)):
        return value
    with suppress(ValueError, RecursionError):
        return DECODER.decode(value)
    return value


def _alternatives(schema: Schema) -> Iterator[Schema]:
    """Yield a schema, and those of which a value may match one."""
    yield schema
    for name in ("anyOf", "oneOf"):
        found = schema.get(name)
        yield from (
            (each for each in found if isinstance(each, Mapping)) if isinstance(found, list) else ()
        )


def _own_types(schema: Schema) -> tuple[str, ...]:
    kinds = schema.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return tuple(each for each in listed if isinstance(each, str))
