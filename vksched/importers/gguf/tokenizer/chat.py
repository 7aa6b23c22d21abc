"""Chat templates: how a model wants to see a conversation, as a program in its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....errors import VkschedError


class ChatTemplate:
    """Renders conversations by a template, as Hugging Face's `apply_chat_template` does.

    The template is a stranger's program. It runs in a sandbox: it reads no files, changes nothing
    that it is given, and its steps, its time and its output have limits.

    Raises:
        ModelFormatError: the template is wrong; the message has the line.
        VkschedError: the jinja2 package is missing.
    """

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        try:
            from .sandbox import compile_template
        except ImportError as error:
            raise VkschedError(
                '[gguf] expected the jinja2 package, got none; try pip install "vksched[gguf]"'
            ) from error
        self.source = source
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._render = compile_template(source)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool = True,
        **values: object,
    ) -> str:
        """Returns a conversation as text, with special tokens by their names.

        messages: each with "role" and "content". add_generation_prompt: the text ends where the
            model's answer begins. values: more variables of the template, such as `tools`.
        """
        return self._render(
            {
                "messages": [dict(each) for each in messages],
                "add_generation_prompt": add_generation_prompt,
                "tools": None,
                "documents": None,
                **self._tokens,
                **values,
            }
        )
