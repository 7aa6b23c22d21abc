"""Call bodies: parses the texts of tool calls in the formats of model families.

A parser returns the calls of a text, or None if the text is not complete, or of another format.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress

from .answer_parts import ToolCall

Schemas = Mapping[str, Mapping[str, object]]
"""The JSON schema of the parameters, by name of the tool."""
Calls = list[ToolCall] | None

_NAME = r"[\w.\-/:]+"
_FUNCTION = re.compile(rf"<function=({_NAME})>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)
_GLM = re.compile(rf"\s*({_NAME})\s*(.*)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*", re.DOTALL)
_DEEPSEEK = re.compile(
    rf"\s*(?:function<｜tool▁sep｜>)?({_NAME})(?:<｜tool▁sep｜>|\s)\s*(?:```json)?(.*?)(?:```)?\s*",
    re.DOTALL,
)
_KIMI = re.compile(rf"\s*(?:functions\.)?({_NAME}?)(?::\d+)?\s*")
_MISTRAL = re.compile(rf"\s*({_NAME})(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(.*)", re.DOTALL)


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
    found: list[ToolCall] = []
    for match in _FUNCTION.finditer(text):
        name, body = match.groups()
        values = {
            key.strip(): _typed(_trimmed(value), schemas.get(name), key.strip())
            for key, value in _PARAMETER.findall(body)
        }
        found.append(_call(name, values))
    return None if _FUNCTION.sub("", text).strip() else found or None


def parse_named_json(text: str, _: Schemas) -> Calls:
    """Parse <function=name>{...}</function>."""
    calls = [_json_call(*match.groups()) for match in _FUNCTION.finditer(text)]
    return None if _FUNCTION.sub("", text).strip() else _complete(calls)


def parse_glm(text: str, schemas: Schemas) -> Calls:
    """Parse name<arg_key>key</arg_key><arg_value>value</arg_value>."""
    match = _GLM.fullmatch(text)
    if match is None or _GLM_ARGUMENT.sub("", match[2]).strip():
        return None
    name, pairs = match[1], _GLM_ARGUMENT.findall(match[2])
    values = {key: _typed(value, schemas.get(name), key) for key, value in pairs}
    return [_call(name, values)]


def parse_deepseek(text: str, _: Schemas) -> Calls:
    """Parse calls between <｜tool▁call▁begin｜> and <｜tool▁call▁end｜>, with JSON arguments."""
    parts = _between(text, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
    matches = [_DEEPSEEK.fullmatch(part) for part in parts]
    return _complete([match and _json_call(match[1], match[2]) for match in matches])


def parse_kimi(text: str, _: Schemas) -> Calls:
    """Parse functions.name:index and JSON arguments between tokens."""
    found: list[ToolCall | None] = []
    for part in _between(text, "<|tool_call_begin|>", "<|tool_call_end|>"):
        head, _sep, arguments = part.partition("<|tool_call_argument_begin|>")
        match = _KIMI.fullmatch(head)
        found.append(match and _json_call(match[1], arguments))
    return _complete(found)


def parse_mistral(text: str, schemas: Schemas) -> Calls:
    """Parse a list of JSON objects, or name[ARGS]{...} several times."""
    if text.lstrip().startswith(("[", "{")):
        return parse_json(text, schemas)
    matches = [_MISTRAL.fullmatch(part) for part in text.split("[TOOL_CALLS]")]
    return _complete([match and _json_call(match[1], match[2]) for match in matches])


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
                pairs = {str(each.arg): ast.literal_eval(each.value) for each in node.keywords}
                return [_call(owner.id, pairs)]
    if "code_interpreter" in schemas:
        return [_call("code_interpreter", {"code": text.strip()})]
    return None


def parse_named_sections(text: str, _: Schemas) -> Calls:
    """Parse name, newline, JSON arguments."""
    name, _newline, arguments = text.partition("\n")
    is_name = re.fullmatch(_NAME, name.strip()) is not None
    return _complete([_json_call(name.strip(), arguments)]) if is_name else None


def _complete(calls: list[ToolCall | None]) -> Calls:
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def _between(text: str, begin: str, end: str) -> list[str]:
    """Return the parts of a text that follow `begin`, each to the next `end`."""
    return [part.partition(end)[0] for part in text.split(begin)[1:]]


def _json_values(text: str) -> Iterator[object]:
    """Yield JSON values that are separated by spaces, commas or semicolons; stop with None at
    anything else.
    """
    decoder, at = json.JSONDecoder(), 0
    while rest := text[at:].lstrip(" \t\r\n,;"):
        at = len(text) - len(rest)
        try:
            value, length = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        at += length


def _call_of(value: object) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    function = value.get("function")
    inner = function if isinstance(function, Mapping) else value
    name = inner.get("name", value.get("tool_name", function))
    arguments = inner.get("arguments", inner.get("parameters", {}))
    if isinstance(arguments, str):
        return _json_call(name, arguments) if isinstance(name, str) else None
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return None
    return _call(name, arguments)


def _json_call(name: str, arguments: str) -> ToolCall | None:
    """Return a call whose arguments are JSON text; None if they are no JSON object."""
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return _call(name, value) if name and isinstance(value, dict) else None


def _call(name: str, arguments: Mapping[str, object]) -> ToolCall:
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _trimmed(value: str) -> str:
    """Return a value without the newlines of its tags."""
    return value.removeprefix("\n").removesuffix("\n")


def _typed(value: str, schema: Mapping[str, object] | None, key: str) -> object:
    """Return a value by the type in the schema: a text, or JSON."""
    properties = (schema or {}).get("properties")
    kind = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = kind.get("type") if isinstance(kind, Mapping) else None
    if kinds == "string" or isinstance(kinds, list) and "string" in kinds:
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    return value
