"""PromptEncoder: encodes prompts, which are texts, tokens, or the messages of a conversation."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as shortened
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ...common.errors import DTypeError
from ..tool_calls.answer_parser import Parser, answer_parser, open_reasoning
from .control_shield import ControlShield
from .conversation_renderer import ConversationRenderer
from .messages import normalize_tools

if TYPE_CHECKING:
    from ...importers.gguf.model import LanguageModel

Prompt = str | Sequence[int] | Sequence[Mapping[str, object]]
"""A text or tokens to continue, or the messages of a conversation, with "role" and "content"."""

_PROMPT_END = 16
"""The number of tokens at the end of a prompt that may begin the reasoning."""


def is_conversation(prompt: object) -> TypeGuard[Sequence[Mapping[str, object]]]:
    """Return True if a prompt is a list of messages, at least one."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and len(prompt) > 0
        and all(isinstance(each, Mapping) for each in prompt)
    )


@dataclass(frozen=True, slots=True)
class RenderedConversation:
    """The text that a chat template returned. mark: the character that prevents that names of
    control tokens in messages are parsed. has_bos: the text has the token that texts begin with.
    """

    text: str
    mark: str
    has_bos: bool


class PromptEncoder:
    """Encodes prompts for one model. Its methods are thread-safe.

    Raises
    ------
    ModelFormatError
        The file has no tokenizer, or an unknown one.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._tokenizer = model.tokenizer

    @cached_property
    def renderer(self) -> ConversationRenderer:
        """The renderer of conversations, by the model's chat template."""
        return ConversationRenderer(self._model.chat_template)

    @cached_property
    def _shield(self) -> ControlShield:
        return ControlShield(self._tokenizer.control_names)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt.

        Raises
        ------
        DTypeError
            The prompt is neither a text, nor tokens, nor messages.
        MessageError
            A message is invalid.
        ModelFormatError
            The file has no chat template, or the template fails.
        """
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, bos=True)
        if is_conversation(prompt):
            return self.encode_conversation(prompt)
        return self._checked_tokens(prompt)

    def encode_conversation(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: object = None,
        tool_choice: object = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return the tokens of a conversation, formatted by the model's chat template.

        Only text of the template becomes control tokens. Names of control tokens in messages and
        tools are encoded as text. For the parameters see `ConversationRenderer.render`.
        """
        return self.encode_rendered(
            self.render_conversation(
                messages,
                tools=tools,
                tool_choice=tool_choice,
                add_generation_prompt=add_generation_prompt,
                variables=variables,
            )
        )

    def render_conversation(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: object = None,
        tool_choice: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> RenderedConversation:
        """Return the text of a conversation for `encode_rendered`; for the parameters see
        `ConversationRenderer.render`.
        """
        marker = self._shield.marker([messages, tools, variables], self._model.chat_template.source)
        text = self.renderer.render(
            messages,
            tools=tools,
            tool_choice=tool_choice,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
            marker=marker,
        )
        bos = self._tokenizer.role("bos")
        begun = bos is not None and text.startswith(self._tokenizer.vocabulary.tokens[bos])
        return RenderedConversation(marker.unescape(text), marker.mark, begun)

    def encode_rendered(self, rendered: RenderedConversation) -> list[int]:
        """Return the tokens of a rendered conversation."""
        return self._tokenizer.encode(
            rendered.text, special=True, bos=not rendered.has_bos, mark=rendered.mark
        )

    def answer_parser(self, prompt: Sequence[int], tools: object = None) -> Parser:
        """Return the parser of the answer to a conversation: it finds reasoning and tool calls.

        Parameters
        ----------
        prompt
            The tokens of the conversation; their end may begin the reasoning.
        tools
            The tools of the request. Without tools, calls are content.

        Its input is the text of the answer with `special=True` of the decoder, as the markers of
        some models are control tokens.
        """
        source = self._model.chat_template.source
        return answer_parser(source, normalize_tools(tools), prompt_end=self._end_of(prompt))

    def open_reasoning(self, prompt: Sequence[int]) -> str | None:
        """Return the marker that ends the reasoning which the tokens of a conversation have begun;
        None if they have not.
        """
        return open_reasoning(self._model.chat_template.source, self._end_of(prompt))

    def _end_of(self, prompt: Sequence[int]) -> str:
        return self._tokenizer.decode(prompt[-_PROMPT_END:], special=True)

    def _checked_tokens(self, prompt: object) -> list[int]:
        if isinstance(prompt, np.ndarray) and prompt.ndim == 1:
            prompt = prompt.tolist()
        if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
            raise DTypeError(
                "[chat] expected a text, a list of token ids, or a list of messages with 'role' "
                f"and 'content', got {shortened(prompt)}"
            )
        size = self._tokenizer.size
        return [_token(each, at, size) for at, each in enumerate(prompt)]


def _token(value: object, place: int, size: int) -> int:
    token = -1
    if hasattr(value, "__index__") and not isinstance(value, (bool, np.bool_)):
        token = operator.index(value)
    if not 0 <= token < size:
        raise DTypeError(
            f"[chat] expected token ids from 0 to {size - 1}, or messages with 'role' and "
            f"'content', got {shortened(value)} at index {place}"
        )
    return token
