"""Nested bodies: parses tool calls whose arguments are nested values in formats other than JSON.

    MiniMax M3   ]<]minimax[>[<invoke name="f">]<]minimax[>[<key>value]<]minimax[>[</key>...
    Gemma 4      call:f{key:<|"|>text<|"|>,other:{n:1,list:[true]}}
    LFM2         [f(key='text', n=1), g()]

A parser returns the calls of a text, or None if the text is not complete, or of another format.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress

from .answer_parts import ToolCall
from .call_bodies import Calls, Schemas, call_of_values, complete_calls
from .schema_types import Schema, alternative_of, schema_of, typed_value, types_of
from .strict_json import DECODER
from .text_scanner import TextScanner

MINIMAX = "]<]minimax[>["
"""The text before each tag of MiniMax M3."""
GEMMA_QUOTE = '<|"|>'
_GEMMA_KEY = re.compile(r'[^:,{}\[\]<>"]+')
_GEMMA_SCALAR = re.compile(r"[^,{}\[\]<>]+")
_GEMMA_NAME = re.compile(r"[\w.\-/]+")
_CONSTANTS = {"true": True, "false": False, "null": None}


class _Incomplete(Exception):
    """The text is not complete, or of another format."""


def parse_minimax(text: str, schemas: Schemas) -> Calls:
    """Parse <invoke name="f"> with an element per argument. Elements are objects, lists of <item>,
    or scalars.
    """
    scanner, found = TextScanner(text.strip()), []
    with suppress(_Incomplete, RecursionError):
        while not scanner.is_at_end:
            name = scanner.take_until('">') if scanner.take(f'{MINIMAX}<invoke name="') else None
            if name is None:
                return None
            values = _members(scanner, schemas.get(name, {}), f"{MINIMAX}</invoke>")
            found.append(call_of_values(name, values))
            scanner.skip_spaces()
        return complete_calls(found)
    return None


def _members(scanner: TextScanner, schema: Schema, end: str) -> dict[str, object]:
    """Return the elements before an end tag."""
    values: dict[str, object] = {}
    scanner.skip_spaces()
    while not scanner.take(end):
        key = _tag(scanner)
        values[key] = _element(scanner, key, schema, key)
        scanner.skip_spaces()
    return values


def _items(scanner: TextScanner, schema: Schema, end: str) -> list[object]:
    values: list[object] = []
    scanner.skip_spaces()
    while not scanner.take(end):
        tag = _tag(scanner)
        values.append(_element(scanner, tag, {"properties": {tag: schema.get("items")}}, tag))
        scanner.skip_spaces()
    return values


def _element(scanner: TextScanner, tag: str, schema: Schema, key: str) -> object:
    """Return the value of an element whose tag has been read."""
    end = f"{MINIMAX}</{tag}>"
    start = scanner.at
    text = scanner.take_until(end)
    if text is None:
        raise _Incomplete
    own = schema_of(schema, key)
    types = types_of(own)
    if MINIMAX not in text:
        is_empty = not text.strip() and "string" not in types
        empty: dict[str, object] = {"array": [], "object": {}} if is_empty else {}
        found = [value for kind, value in empty.items() if kind in types]
        return found[0] if found else typed_value(text, schema, key)
    scanner.at = start
    has_items = text.lstrip().startswith(f"{MINIMAX}<item>")
    if has_items and (not types or "array" in types):
        return _items(scanner, alternative_of(own, "array"), end)
    return _members(scanner, alternative_of(own, "object"), end)


def _tag(scanner: TextScanner) -> str:
    tag = scanner.take_until(">") if scanner.take(f"{MINIMAX}<") else None
    if not tag or tag.startswith("/"):
        raise _Incomplete
    return tag


def parse_gemma(text: str, _: Schemas) -> Calls:
    """Parse call:name{key:value}; texts are between quote tokens, other scalars are JSON."""
    scanner = TextScanner(text.strip())
    with suppress(_Incomplete, RecursionError):
        name = _GEMMA_NAME.match(scanner.text, len("call:")) if scanner.take("call:") else None
        if name is None:
            return None
        scanner.at = name.end()
        values = _gemma_value(scanner)
        return complete_calls([call_of_values(name[0], values)]) if scanner.is_at_end else None
    return None


def _gemma_value(scanner: TextScanner) -> object:
    scanner.skip_spaces()
    if scanner.take(GEMMA_QUOTE):
        return _taken(scanner.take_until(GEMMA_QUOTE))
    if scanner.take("{"):
        members: dict[str, object] = {}
        while not _is_end(scanner, "}"):
            is_quoted = scanner.take(GEMMA_QUOTE)
            found = scanner.take_until(GEMMA_QUOTE) if is_quoted else _matched(scanner, _GEMMA_KEY)
            scanner.skip_spaces()
            if found is None or not scanner.take(":"):
                raise _Incomplete
            members[found] = _gemma_value(scanner)
        return members
    if scanner.take("["):
        items = []
        while not _is_end(scanner, "]"):
            items.append(_gemma_value(scanner))
        return items
    scalar = _taken(_matched(scanner, _GEMMA_SCALAR))
    if scalar in ("None", "True", "False"):  # as the chat template writes them
        return {"None": None, "True": True, "False": False}[scalar]
    with suppress(ValueError):
        return DECODER.decode(scalar)
    return scalar


def _is_end(scanner: TextScanner, end: str) -> bool:
    """Return True, and move past the end, if it is next after a separator."""
    scanner.skip_separators()
    if scanner.is_at_end:
        raise _Incomplete
    return scanner.take(end)


def _matched(scanner: TextScanner, pattern: re.Pattern[str]) -> str | None:
    match = pattern.match(scanner.text, scanner.at)
    if match is None:
        return None
    scanner.at = match.end()
    return match[0].strip()


def _taken(text: str | None) -> str:
    if text is None:
        raise _Incomplete
    return text


def parse_python_calls(text: str, _: Schemas) -> Calls:
    """Parse a list of calls as in Python; values may also be JSON."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        calls = node.elts if isinstance(node, ast.List) else [node]
        return complete_calls([_python_call(each) for each in calls])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    if not isinstance(node.func, (ast.Name, ast.Attribute)):
        return None
    constants = _WithConstants()
    values = {each.arg: ast.literal_eval(constants.visit(each.value)) for each in node.keywords}
    return call_of_values(ast.unparse(node.func), values)


class _WithConstants(ast.NodeTransformer):
    """Replaces the names of JSON's constants by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id not in _CONSTANTS:
            return node
        return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)
