"""Messages: normalizes conversations and tools, as clients of OpenAI's API send them.

    content   None -> ""      [{"type": "text", "text": ...}, ...] -> one text
    tool calls  arguments as JSON text -> a dict
    tools     checked; an empty list -> None

Chat templates expect the forms on the right. Other keys of a message stay unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from reprlib import repr as shortened

from ...common.errors import MessageError, close_text
from ..tool_calls.strict_json import DECODER

Message = dict[str, object]

ROLES = ("system", "developer", "user", "assistant", "tool")
"""The roles of OpenAI's API."""
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""The types of content parts with text, and the key of the text."""
_MAX_ARGUMENT_DEPTH = 100


def normalize_messages(
    messages: Sequence[Mapping[str, object]], other_roles: Collection[str] = ()
) -> list[Message]:
    """Return messages in the form that chat templates expect.

    Parameters
    ----------
    messages
        Messages with "role", and "content" as text, parts or None.
    other_roles
        Allowed roles besides those of the API.

    Raises
    ------
    MessageError
        A message is invalid; its `field` is the place.
    """
    if not messages:
        raise MessageError("messages", "expected at least one message, got none")
    roles = (*ROLES, *other_roles)
    return [_normalized(each, f"messages[{at}]", roles) for at, each in enumerate(messages)]


def _normalized(message: Mapping[str, object], place: str, roles: Collection[str]) -> Message:
    role = message.get("role")
    if not isinstance(role, str) or role not in roles:
        close = close_text(role, ROLES) if isinstance(role, str) else ""
        raise MessageError(
            f"{place}.role", f"expected one of {', '.join(ROLES)}, got {shortened(role)}{close}"
        )
    out = {str(key): value for key, value in message.items()}
    out["content"] = content_text(message.get("content"), f"{place}.content")
    calls = out.pop("tool_calls", None)
    if calls:
        if role != "assistant":
            raise MessageError(
                f"{place}.tool_calls", f"expected tool calls of the assistant, got role {role!r}"
            )
        out["tool_calls"] = _tool_calls(calls, f"{place}.tool_calls")
    if out.get("reasoning_content", "") is None:
        del out["reasoning_content"]
    return out


def content_text(content: object, field: str) -> str:
    """Return the content of a message as one text; parts are joined by newlines.

    Raises
    ------
    MessageError
        The content is neither text, nor parts of text, nor None.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, (bytes, bytearray)):
        raise MessageError(
            field, f"expected a text, a list of text parts, or null, got {shortened(content)}"
        )
    return "\n".join(part_text(each, f"{field}[{at}]") for at, each in enumerate(content))


def part_text(part: object, field: str) -> str:
    """Return the text of a part of a message; raise MessageError if it has none."""
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or not isinstance(kind, str):
        raise MessageError(
            field, f'expected a part such as {{"type": "text", "text": ...}}, got {shortened(part)}'
        )
    if kind not in _TEXT_PARTS:
        hint = "models read text only"
        if kind in ("image", "image_url", "input_image"):
            hint += " without a projector file (mmproj)"
        raise MessageError(f"{field}.type", f"expected a part of type text, got {kind!r}; {hint}")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise MessageError(
            f"{field}.{_TEXT_PARTS[kind]}", f"expected a text, got {shortened(text)}"
        )
    return text


def _tool_calls(calls: object, field: str) -> list[Message]:
    return [_tool_call(call, f"{field}[{at}]") for at, call in enumerate(_listed(calls, field))]


def _tool_call(call: object, field: str) -> Message:
    out, function = _function(call, field)
    function["arguments"] = _arguments(function.get("arguments"), f"{field}.function.arguments")
    return {**out, "function": function}


def _listed(values: object, field: str) -> Sequence[object]:
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray)):
        return values
    raise MessageError(field, f"expected a list, got {shortened(values)}")


def _function(value: object, field: str) -> tuple[Message, Message]:
    """Return a tool or a tool call, and its function with a name, as dicts."""
    if not isinstance(value, Mapping):
        raise MessageError(field, f"expected an object with 'function', got {shortened(value)}")
    kind = value.get("type", "function")
    if kind != "function":
        raise MessageError(f"{field}.type", f"expected 'function', got {shortened(kind)}")
    function = value.get("function")
    if not isinstance(function, Mapping):
        raise MessageError(
            f"{field}.function", f"expected an object with 'name', got {shortened(function)}"
        )
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise MessageError(f"{field}.function.name", f"expected a name, got {shortened(name)}")
    return {**value, "type": "function"}, dict(function)


def _arguments(arguments: object, field: str) -> Message:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = DECODER.decode(arguments)
        except (ValueError, RecursionError) as error:
            raise MessageError(
                field, f"expected a JSON object as text, got {shortened(arguments)}: {error}"
            ) from error
    if not isinstance(arguments, Mapping):
        raise MessageError(field, f"expected a JSON object, got {shortened(arguments)}")
    if _depth_exceeds(arguments, _MAX_ARGUMENT_DEPTH):
        raise MessageError(
            field, f"expected JSON of at most {_MAX_ARGUMENT_DEPTH} levels, got more"
        )
    return {str(key): value for key, value in arguments.items()}


def _depth_exceeds(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        inner: list[object] = []
        for each in level:
            if isinstance(each, Mapping):
                inner.extend(each.values())
            elif isinstance(each, (list, tuple)):
                inner.extend(each)
        if not inner:
            return False
        level = inner
    return True


def normalize_tools(tools: object) -> list[Message] | None:
    """Return tools with their functions as dicts, or None if there are none.

    Raises
    ------
    MessageError
        A tool is not a function with a name; `field` is the place.
    """
    if tools is None or not (listed := _listed(tools, "tools")):
        return None
    found: list[Message] = []
    for at, tool in enumerate(listed):
        out, function = _function(tool, f"tools[{at}]")
        parameters = function.get("parameters") or {"type": "object"}
        if not isinstance(parameters, Mapping):
            raise MessageError(
                f"tools[{at}].function.parameters",
                f"expected a JSON schema, got {shortened(parameters)}",
            )
        complete = {**parameters, "properties": parameters.get("properties") or {}}
        found.append({**out, "function": {**function, "parameters": complete}})
    return found
