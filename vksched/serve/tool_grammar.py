"""Tool grammars: answers that call tools, as a grammar in the format of the model's family.

tool_choice "required", hermes  ->  start: calls     with tool_choice "auto" and a schema: | answer
                                    calls: call ("\\n" call)*
                                    call: "<tool_call>" "\\n" json "\\n" "</tool_call>"
                                    json: %json {a call of one of the tools}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..generation.tool_calls.call_formats import CallFormat
from .api_error import ApiError
from .constraints import OPTIONS, GrammarConstraint

if TYPE_CHECKING:
    from .generation_job import AnswerSchema
    from .model_service import ModelService

JSON_FORMATS = {
    "hermes": ("arguments", "\n", "\n"),
    "llama 3": ("parameters", "", ""),
    "llama 3.2": ("parameters", "", ""),
    "granite 3": ("arguments", "", ""),
    "command r7b": ("parameters", "", ""),
    "command r+": ("parameters", "\n```json\n", "```"),
    "mistral": ("arguments", "", ""),
}
"""The families whose calls are JSON: the name of the arguments, the text before and after."""
LISTS = ("granite 3", "command r7b", "command r+", "mistral")
"""The families that write a list of calls between one pair of markers."""
TOOL_NAMES = {"command r7b": "tool_name", "command r+": "tool_name"}
BARE = ("llama 3", "llama 3.2")
"""The families that write calls without markers."""


def tool_constraint(
    tools: Sequence[Mapping[str, Any]],
    call_format: CallFormat,
    service: ModelService,
    several: bool,
    answer: AnswerSchema | None = None,
) -> GrammarConstraint:
    """Return the constraint of an answer that calls some tools, or follows a schema.

    Parameters
    ----------
    tools
        The normalized tools that may be called.
    several
        Allow several calls, if the format has them.
    answer
        The schema of answers without calls; None if at least one tool must be called.

    Raises
    ------
    ApiError
        The format is no JSON.
    GrammarError
        The schema of a tool cannot be enforced.
    """
    name = call_format.name
    if name not in JSON_FORMATS:
        param = "tool_choice" if answer is None else answer.param
        other = "'auto'" if answer is None else "tool_choice 'none'"
        raise ApiError(
            f"[{param}] expected no restriction of answers with the tool calls of {name}, which "
            f"no grammar describes here; try {other}",
            param,
            code="unsupported_parameter",
        )
    arguments, before, after = JSON_FORMATS[name]
    call = _calls_schema(tools, TOOL_NAMES.get(name, "name"), arguments)
    if name in LISTS:
        items = {key: call.pop(key) for key in ("anyOf",)}
        call |= {"type": "array", "items": items, "minItems": 1}
        if not several:
            call["maxItems"] = 1
    begin, end = ("", "") if name in BARE else call_format.markers[0]
    parts = (_mark(begin, service), _text(before), "json", _text(after), _mark(end, service))
    repeats = several and name not in LISTS and name not in BARE
    lines = [
        "%llguidance {}",
        "start: calls" if answer is None else "start: calls | answer",
        'calls: call ("\\n" call)*' if repeats else "calls: call",
        f"call: {' '.join(filter(None, parts))}",
        f"json: %json {json.dumps(call)}",
    ]
    if answer is not None:
        service.grammars.from_schema(answer.schema, answer.param)  # its errors name its field
        lines.append(f"answer: %json {json.dumps(_with_options(answer.schema))}")
    return service.grammars.from_lark("\n".join(lines), "tools", "JSON schema")


def _calls_schema(
    tools: Sequence[Mapping[str, Any]], name_key: str, arguments_key: str
) -> dict[str, Any]:
    """Return the schema of a call of one of some tools. Schemas of arguments are definitions, so
    that their references stay valid.
    """
    definitions, calls = {}, []
    for index, tool in enumerate(tools):
        function = tool["function"]
        place = f"#/$defs/tool{index}"
        definitions[f"tool{index}"] = _moved(function["parameters"], place)
        properties = {
            name_key: {"const": function["name"]},
            arguments_key: {"$ref": place},
        }
        calls.append(
            {
                "type": "object",
                "properties": properties,
                "required": [name_key, arguments_key],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls, "$defs": definitions, "x-guidance": OPTIONS}


def _with_options(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    return schema if isinstance(schema, bool) else {**schema, "x-guidance": OPTIONS}


def _moved(schema: Any, place: str) -> Any:
    """Return a schema whose references to itself begin at another place."""
    if isinstance(schema, Mapping):
        return {
            key: f"{place}{value[1:]}"
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, place)
            for key, value in schema.items()
        }
    return [_moved(each, place) for each in schema] if isinstance(schema, list) else schema


def _mark(marker: str, service: ModelService) -> str:
    """Return a marker in Lark syntax: a control token by name, or a text."""
    token = service.tokenizer.vocabulary.ids.get(marker)
    if token is None or service.tokenizer.bytes_of(token):
        return _text(marker)
    if not (marker.startswith("<") and marker.endswith(">")):
        raise ApiError(
            f"[tool_choice] expected 'auto' or 'none', because no grammar describes the control "
            f"token {marker}",
            "tool_choice",
            code="unsupported_parameter",
        )
    return marker


def _text(text: str) -> str:
    return json.dumps(text) if text else ""
