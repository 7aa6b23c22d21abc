"""PromptEncoder: encodes prompts, which are texts, tokens, or the messages of a conversation."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from reprlib import repr as shortened
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from ...common.errors import DTypeError, MessageError, ModelFormatError
from ..pictures.prompt_pictures import OpenedPicture, text_ids
from ..tool_calls.answer_parser import Parser, answer_parser, open_reasoning
from .control_shield import ControlShield
from .conversation_renderer import ConversationRenderer
from .messages import normalize_tools
from .picture_parts import (
    PicturePart,
    PictureRules,
    has_pictures,
    open_pictures,
    split_at_pictures,
    take_pictures,
)

if TYPE_CHECKING:
    from ...importers.gguf.model import LanguageModel
    from ..pictures.picture_encoder import PictureEncoder

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
    pictures: those of the messages. picture_mark: marks their places in the text.
    """

    text: str
    mark: str
    has_bos: bool
    pictures: tuple[OpenedPicture, ...] = ()
    picture_mark: str = ""


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The tokens of a prompt, and its pictures, whose ids are among them."""

    tokens: list[int]
    pictures: tuple[OpenedPicture, ...] = ()


class PromptEncoder:
    """Encodes prompts for one model. Its methods are thread-safe.

    pictures: the encoder of pictures; None refuses pictures in messages. rules: which pictures
    messages may have.

    Raises
    ------
    ModelFormatError
        The file has no tokenizer, or an unknown one.
    """

    def __init__(
        self,
        model: LanguageModel,
        pictures: PictureEncoder | None = None,
        rules: PictureRules | None = None,
    ) -> None:
        self._model = model
        self._pictures = pictures
        self.rules = rules or PictureRules()
        self._tokenizer = model.tokenizer

    @cached_property
    def renderer(self) -> ConversationRenderer:
        """The renderer of conversations, by the model's chat template."""
        return ConversationRenderer(self._model.chat_template)

    @cached_property
    def _shield(self) -> ControlShield:
        return ControlShield(self._tokenizer.control_names)

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the tokens of a prompt; see `encode_prompt`."""
        return self.encode_prompt(prompt).tokens

    def encode_prompt(self, prompt: Prompt) -> EncodedPrompt:
        """Return the tokens of a prompt, and its pictures.

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
            return EncodedPrompt(self._tokenizer.encode(prompt, bos=True))
        if is_conversation(prompt):
            rendered = self.render_conversation(prompt)
            return EncodedPrompt(self.encode_rendered(rendered), rendered.pictures)
        return EncodedPrompt(self._checked_tokens(prompt))

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
        template = self._model.chat_template.source
        parts: list[PicturePart] = []
        mark = ""
        if self._pictures is not None and has_pictures(messages):
            others = tools, variables
            messages, parts, mark = take_pictures(messages, self.rules, others, template)
        opened = tuple(map(self._opened, parts))
        marker = self._shield.marker([messages, tools, variables], template)
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
        text = marker.unescape(text)
        if parts:
            text = text.replace(json.dumps(mark)[1:-1], mark)  # of a template that writes JSON
            _check_written(split_at_pictures(text, mark), parts)
        return RenderedConversation(text, marker.mark, begun, opened, mark)

    def open_pictures(
        self,
        messages: Sequence[Mapping[str, object]],
        add: Callable[[OpenedPicture], object] = lambda opened: None,
    ) -> list[Mapping[str, object]]:
        """Return messages with opened pictures, which take no time in `render_conversation`.

        Parameters
        ----------
        add
            Called with each picture. Its errors end the call.

        Raises
        ------
        MessageError
            A picture is invalid, or there are too many.
        """

        def open_part(part: PicturePart) -> OpenedPicture:
            opened = self._opened(part)
            add(opened)
            return opened

        return open_pictures(messages, self.rules, open_part)

    def _opened(self, part: PicturePart) -> OpenedPicture:
        """Return the picture of a message."""
        assert self._pictures is not None
        if isinstance(part.picture, OpenedPicture):
            return part.picture
        try:
            rules = self.rules
            return self._pictures.open(part.picture, rules.max_pixels, rules.max_seconds)
        except OSError as error:
            text = f"expected a file that can be read, got {error.strerror or error}"
            raise MessageError(part.field, text) from error
        except (DTypeError, ModelFormatError) as error:
            raise MessageError(part.field, str(error).removeprefix("[vision] ")) from error

    def encode_rendered(self, rendered: RenderedConversation) -> list[int]:
        """Return the tokens of a rendered conversation. The ids of pictures are among them."""
        mark, has_bos = rendered.mark, rendered.has_bos
        if not rendered.pictures or self._pictures is None:
            return self._tokenizer.encode(rendered.text, special=True, bos=not has_bos, mark=mark)
        before, after = (mark + each + mark for each in self._pictures.projector.markers)
        pieces = split_at_pictures(rendered.text, rendered.picture_mark)
        out: list[int] = []
        for at in range(0, len(pieces), 2):
            text = f"{after * (at > 0)}{pieces[at]}{before * (at + 1 < len(pieces))}"
            out += self._tokenizer.encode(text, special=True, mark=mark)
            if at + 1 < len(pieces):
                out += rendered.pictures[int(pieces[at + 1])].tokens.ids
        return out if has_bos else self._tokenizer.surrounded(out)

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
        return self._tokenizer.decode(text_ids(prompt[-_PROMPT_END:]), special=True)

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


def _check_written(pieces: Sequence[str | int], parts: Sequence[PicturePart]) -> None:
    """Raise MessageError if the chat template did not write a picture."""
    for number, part in enumerate(parts):
        if number not in pieces[1::2]:
            raise MessageError(
                part.field,
                "expected a message that the model's chat template writes, got a picture that it "
                "leaves out; try it in a user message",
            )


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
