"""Chat templates: formats conversations by the template program in a model's file."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from ....common.errors import DTypeError, ModelFormatError
from .vocabulary import Vocabulary

MAX_DEPTH = 200
"""The maximum depth of messages and other variables."""
_PLAIN = frozenset((str, int, float, bool, complex, bytes, type(None)))


class ChatTemplate:
    """Renders conversations by a template, like Hugging Face's `apply_chat_template`.

    The template is untrusted code. It runs in a sandbox in a separate process: it reads no files
    and cannot change its variables, and its steps, time, memory and output are limited.

    Raises
    ------
    ModelFormatError
        The template is invalid; the message has the line.
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
        /,
        *,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> str:
        """Render a conversation as text, with special tokens by name.

        Parameters
        ----------
        messages
            Messages with "role" and "content".
        add_generation_prompt
            End the text where the model's answer begins.
        **values
            Further variables of the template, for example `tools`: strings, numbers, and lists and
            mappings of these. A variable that is not passed is undefined in the template.

        Raises
        ------
        ModelFormatError
            The template fails, or exceeds the limits.
        DTypeError
            A variable cannot be sent to another process.
        """
        variables = {
            "messages": [dict(each) for each in messages],
            "add_generation_prompt": add_generation_prompt,
            **self._tokens,
            **values,
        }
        return self._renderer.render(
            self.source, {name: _plain(value, name) for name, value in variables.items()}
        )


def read_chat_template(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> ChatTemplate:
    """Return the chat template of a file.

    Raises
    ------
    ModelFormatError
        The file has none.
    """
    source = metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise ModelFormatError(
            "[gguf] expected a chat template in the file, got none; try a text as the prompt"
        )
    roles = {
        f"{role}_token": vocabulary.tokens[vocabulary.roles[role]]
        for role in ("bos", "eos")
        if role in vocabulary.roles
    }
    return ChatTemplate(source, **roles)


def start_renderer() -> None:
    """Start the template process in the background, for a later rendering."""
    from .rendering.template_process import RENDERER

    RENDERER.start()


def _plain(value: Any, name: str, depth: int = 0) -> Any:
    """Return a value as types that can be sent to another process. name: the variable's name, for
    errors.
    """
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
