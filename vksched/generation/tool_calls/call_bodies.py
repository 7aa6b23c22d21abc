"""Call bodies: parses the texts of tool calls in the formats of model families.

A parser returns the calls of a text, or None if the text is not complete, or of another format.
The list of calls may be empty.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from .answer_parts import ToolCall
from .schema_types import typed_value
from .strict_json import DECODER
from .text_scanner import TextScanner

Schemas = Mapping[str, Mapping[str, object]]
"""The JSON schema of the parameters, by name of the tool."""
Calls = list[ToolCall] | None

_NAME = re.compile(r"[\w.\-/:]+")
_KIMI = re.compile(r"(?:functions\.)?([\w.\-/:]+?)(?::\d+)?")
_MISTRAL = re.compile(r"\s*([\w.\-/:]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(.*)", re.DOTALL)
_SEPARATOR = "<｜tool▁sep｜>"
_DIRECT_ANSWER = ToolCall("directly-answer", "{}")


def parse_json(text: str, _: Schemas) -> Calls:
    """Parse JSON objects with a name and arguments, one after the other or in a list."""
    found: list[ToolCall] = []
    for value in _json_values(text):
        for each in value if isinstance(value, list) else [value]:
            call = _call_of(each)
            if call is None:
                return None
            found.append(call)
    return found or None


def parse_xml(text: str, schemas: Schemas) -> Calls:
    """Parse <function=name><parameter=key>value</parameter></function>."""
    found: list[ToolCall | None] = []
    scanner = TextScanner(text.strip())
    while not scanner.is_at_end:
        name = _function_name(scanner)
        values = None if name is None else _parameters(scanner, schemas.get(name))
        if name is None or values is None:
            return None
        found.append(call_of_values(name, values))
        scanner.skip_spaces()
    return complete_calls(found)


def _function_name(scanner: TextScanner) -> str | None:
    """Return the name of <function=name>; None if there is none."""
    match = _NAME.match(scanner.text, scanner.at) if scanner.take("<function=") else None
    if match is None:
        return None
    scanner.at = match.end()
    return match[0] if scanner.take(">") else None


def _parameters(
    scanner: TextScanner, schema: Mapping[str, object] | None
) -> dict[str, object] | None:
    """Return the parameters before </function>; None if one is not complete."""
    values: dict[str, object] = {}
    scanner.skip_spaces()
    while not scanner.take("</function>"):
        key = scanner.take_until(">") if scanner.take("<parameter=") else None
        value = None if key is None else scanner.take_until("</parameter>")
        if key is None or value is None:
            return None
        values[key.strip()] = typed_value(_trimmed(value), schema, key.strip())
        scanner.skip_spaces()
    return values


def parse_named_json(text: str, _: Schemas) -> Calls:
    """Parse <function=name>{...}</function>."""
    found: list[ToolCall | None] = []
    scanner = TextScanner(text.strip())
    while not scanner.is_at_end:
        name = _function_name(scanner)
        if name is None:
            return None
        scanner.skip_spaces()
        arguments: object = {}
        if not scanner.take("</function>"):
            arguments = _next_json(scanner)
            scanner.skip_spaces()
            if not scanner.take("</function>"):
                return None
        found.append(call_of_values(name, arguments))
        scanner.skip_spaces()
    return complete_calls(found)


def parse_glm(text: str, schemas: Schemas) -> Calls:
    """Parse name<arg_key>key</arg_key><arg_value>value</arg_value>."""
    scanner = TextScanner(text.strip())
    match = _NAME.match(scanner.text)
    if match is None:
        return None
    scanner.at = match.end()
    scanner.skip_spaces()
    values: dict[str, object] = {}
    while not scanner.is_at_end:
        key = scanner.take_until("</arg_key>") if scanner.take("<arg_key>") else None
        scanner.skip_spaces()
        value = scanner.take_until("</arg_value>") if scanner.take("<arg_value>") else None
        if key is None or value is None:
            return None
        values[key] = typed_value(value, schemas.get(match[0]), key)
        scanner.skip_spaces()
    return complete_calls([call_of_values(match[0], values)])


def parse_deepseek(text: str, _: Schemas) -> Calls:
    """Parse calls between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>, with JSON arguments."""
    parts = _between(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    return complete_calls([_deepseek_call(part) for part in parts])


def _deepseek_call(text: str) -> ToolCall | None:
    """Return the call of a text: name, separator or space, JSON that may be in a code fence."""
    text = text.strip().removeprefix(f"function{_SEPARATOR}")
    match = _NAME.match(text)
    rest = text[match.end() :] if match else ""
    if match is None or not (rest.startswith(_SEPARATOR) or rest[:1].isspace()):
        return None
    fenced = rest.removeprefix(_SEPARATOR).strip().removeprefix("```json")
    return _json_call(match[0], fenced.removesuffix("```"))


def parse_kimi(text: str, _: Schemas) -> Calls:
    """Parse functions.name:index and JSON arguments between tokens."""
    found: list[ToolCall | None] = []
    for part in _between(text, "<|tool_call_begin|>", "<|tool_call_end|>"):
        head, _sep, arguments = part.partition("<|tool_call_argument_begin|>")
        match = _KIMI.fullmatch(head.strip())
        found.append(match and _json_call(match[1], arguments))
    return complete_calls(found)


def parse_actions(text: str, schemas: Schemas) -> Calls:
    """Parse a list of JSON objects in a code fence. The tool "directly-answer" without arguments is
    no call, and no text for the user.
    """
    calls = parse_json(text.strip().removeprefix("```json").removesuffix("```"), schemas)
    if calls is None or "directly-answer" in schemas:
        return calls
    return [call for call in calls if call != _DIRECT_ANSWER]


def parse_mistral(text: str, schemas: Schemas) -> Calls:
    """Parse a list of JSON objects, or name[ARGS]{...} several times."""
    if text.lstrip().startswith(("[", "{")):
        return parse_json(text, schemas)
    matches = [_MISTRAL.fullmatch(part) for part in text.split("[TOOL_CALLS]")]
    return complete_calls([match and _json_call(match[1], match[2]) for match in matches])


def parse_python_tag(text: str, schemas: Schemas) -> Calls:
    """Parse JSON, or calls of built-in tools as in Python: name.call(key="value")."""
    calls = parse_json(text, schemas)
    if calls is not None:
        return calls
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            owner = node.func.value
            if node.func.attr == "call" and isinstance(owner, ast.Name):
                pairs = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
                return complete_calls([call_of_values(owner.id, pairs)])
    if "code_interpreter" in schemas:
        return complete_calls([call_of_values("code_interpreter", {"code": text.strip()})])
    return None


def parse_named_sections(text: str, _: Schemas) -> Calls:
    """Parse name, newline, JSON arguments."""
    name, _newline, arguments = text.partition("\n")
    is_name = _NAME.fullmatch(name.strip()) is not None
    return complete_calls([_json_call(name.strip(), arguments)]) if is_name else None


def complete_calls(calls: list[ToolCall | None]) -> Calls:
    """Return calls; None if there is none, or one of them is None."""
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _between(text: str, begin: str, end: str) -> list[str]:
    """Return the parts of a text that follow `begin`, each to the next `end`."""
    return [part.partition(end)[0] for part in text.split(begin)[1:]]


def _next_json(scanner: TextScanner) -> object:
    """Return the JSON value at a place, and move past it; None if there is none."""
    try:
        value, scanner.at = DECODER.raw_decode(scanner.text, scanner.at)
    except (ValueError, RecursionError):
        return None
    return value


def _json_values(text: str) -> Iterator[object]:
    """Yield JSON values that are separated by spaces, commas or semicolons; stop with None at
    anything else.
    """
    scanner = TextScanner(text)
    scanner.skip_separators()
    while not scanner.is_at_end:
        start = scanner.at
        yield _next_json(scanner)
        if scanner.at == start:
            return
        scanner.skip_separators()


def _call_of(value: object) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    inner = function if isinstance(function, Mapping) else value
    name = inner.get("name", value.get("tool_name", function))
    arguments = inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):
        return _json_call(name, arguments)
    return call_of_values(name, arguments)


def _json_call(name: object, arguments: str) -> ToolCall | None:
    """Return a call whose arguments are JSON text; None if they are no JSON object."""
    try:
        value = DECODER.decode(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return call_of_values(name, value)


def call_of_values(name: object, arguments: object) -> ToolCall | None:
    """Return a call; None if the name is no text, or the arguments are no JSON object."""
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return None
    if not _is_unicode(name) or not all(isinstance(key, str) for key in arguments):
        return None
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not _is_unicode(text):
            text = json.dumps(arguments, allow_nan=False)  # \ud83d as an escape
    except (TypeError, ValueError, RecursionError):
        return None
    return ToolCall(name, text)


def _is_unicode(text: str) -> bool:
    """Return True if a text can be encoded: it has no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _trimmed(value: str) -> str:
    """Return a value without the newlines of its tags."""
    return value.removeprefix("\n").removesuffix("\n")
