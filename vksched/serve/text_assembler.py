"""TextAssembler: the tokens of an answer as pieces of text, up to a stop string.

tokens: "Hel" "lo" "\\nUs" "er"   stop: "\\nUser:"
pieces: "Hel" "lo" (held: "\\nUs", "\\nUser") ...
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..generation.completion import TokenOutput
from ..generation.stop_matcher import StopMatcher
from ..importers.gguf.tokenizer.tokenizer import StreamDecoder, Tokenizer


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer: its text, and the tokens that it consists of. finish_reason: "" unless
    the piece is the last one. stop_tokens: the number of tokens of the stop string.
    """

    text: str
    outputs: tuple[TokenOutput, ...] = ()
    finish_reason: str = ""
    stop_tokens: int = 0


class TextAssembler:
    """Assembles an answer. Text that may begin a stop string is held until that is decided.

    Parameters
    ----------
    stops
        A matcher of the stop strings, which are not a part of the answer. It belongs to this text.
    before
        The tokens before the answer if it continues a text, which decides on leading spaces.
    special
        Include the names of control tokens.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: StopMatcher,
        before: Sequence[int] = (),
        *,
        special: bool = False,
    ) -> None:
        self._decoder = StreamDecoder(tokenizer, special=special)
        for token in before:
            self._decoder.add(token)
        self._matcher = stops
        self._decoded = self._emitted = 0
        """The numbers of characters until now."""
        self._waiting: deque[tuple[TokenOutput, int]] = deque()
        """Tokens that are not emitted yet, each with the place of its first character."""

    @property
    def is_stopped(self) -> bool:
        """True if a stop string was found: all further text is dropped."""
        return self._matcher.found is not None

    @property
    def stop_string(self) -> str:
        """The stop string that was found, or ""."""
        return self._matcher.found or ""

    def add(self, output: TokenOutput) -> Piece | None:
        """Append a token; return the piece that is decided now, if there is one."""
        self._waiting.append((output, self._decoded))
        text = self._decoder.add(output.token)
        self._decoded += len(text)
        text = self._matcher.add(text)
        if not text and not self.is_stopped:
            return None
        return self._piece(text, "stop" if self.is_stopped else "")

    def end(self, reason: str) -> Piece:
        """Return the last piece, with the rest of the text."""
        text = self._matcher.add(self._decoder.end())
        if self.is_stopped:
            return self._piece(text, "stop")
        text += self._matcher.end()
        return Piece(text, tuple(output for output, _ in self._waiting), reason)

    def _piece(self, text: str, reason: str) -> Piece:
        """Return a piece with the tokens that begin in it."""
        self._emitted += len(text)
        outputs = []
        while self._waiting and self._waiting[0][1] < self._emitted:
            outputs.append(self._waiting.popleft()[0])
        return Piece(text, tuple(outputs), reason, len(self._waiting) if reason else 0)
