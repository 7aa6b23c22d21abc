"""Chat templates: how a model wants to see a conversation, as a program in its file."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ....common.errors import DTypeError

MAX_DEPTH = 200
"""Of messages and other variables."""
_PLAIN = frozenset((str, int, float, bool, complex, bytes, type(None)))


class ChatTemplate:
    """Renders conversations by a template, as Hugging Face's `apply_chat_template` does.

    The template is a stranger's program. It runs in a process of its own, in a sandbox: it reads no
    files, changes nothing that it is given, and its steps, its time, its memory and its output have
    limits.

    Raises
    ------
    ModelFormatError
        The template is wrong; the message has the line.
    VkschedError
        The jinja2 package is missing, or no process can be started.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        from .rendering.template_process import RENDERER

        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._renderer = RENDERER
        RENDERER.render(source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> str:
        """Render a conversation as text, with special tokens by their names.

        Parameters
        ----------
        messages
            Each with "role" and "content".
        add_generation_prompt
            Whether the text ends where the model's answer begins.
        **values
            More variables of the template, such as `tools`: texts, numbers, and lists and
            mappings of these.

        Raises
        ------
        ModelFormatError
            The template fails, or needs more than the limits.
        DTypeError
            A variable is an object that no other process has.
        """
        variables = {
            "messages": [dict(each) for each in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
            **self._tokens,
            **values,
        }
        return self._renderer.render(
            self.source, {name: _plain(value, name) for name, value in variables.items()}
        )


def start_renderer() -> None:
    """Start the process that renders templates, for a rendering that comes later."""
    from .rendering.template_process import RENDERER

    RENDERER.start()


def _plain(value: Any, name: str, depth: int = 0) -> Any:
    """Return a value in types that another process has. name: of the variable, for errors."""
    if type(value) in _PLAIN:
        return value
    if depth > MAX_DEPTH:
        raise DTypeError(
            f"[chat template] expected {name!r} to be at most {MAX_DEPTH} deep, got more"
        )
    if is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Mapping):
        deeper = depth + 1
        return {_plain(k, name, deeper): _plain(v, name, deeper) for k, v in value.items()}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Iterable) and not isinstance(value, type):
        kind = next((each for each in (tuple, set, frozenset) if isinstance(value, each)), list)
        return kind(_plain(each, name, depth + 1) for each in value)
    raise DTypeError(
        f"[chat template] expected {name!r} to have texts, numbers, lists and mappings, got "
        f"{type(value).__name__}; try a mapping of its parts"
    )
