"""MessageAssembler: the tokens of an answer as changes of a message.

tokens --TextAssembler--> text --MessageParser--> content, reasoning, tool calls
"""

from __future__ import annotations

from dataclasses import dataclass

from ..generation.completion import TokenOutput
from .message_deltas import Delta, MessageParser
from .text_assembler import Piece, TextAssembler


@dataclass(frozen=True, slots=True)
class MessagePiece(Piece):
    """A piece of an answer, with the changes of the message. finish_reason: "tool_calls" after a
    call.
    """

    deltas: tuple[Delta, ...] = ()


class MessageAssembler:
    """Assembles a message, in the thread of its answer: parsing must not block the event loop.

    Parameters
    ----------
    assembler
        The assembler of the text.
    parser
        The parser of the message.
    """

    def __init__(self, assembler: TextAssembler, parser: MessageParser) -> None:
        self._assembler = assembler
        self._parser = parser

    @property
    def is_stopped(self) -> bool:
        """True if a stop string was found, or the message has all its calls."""
        return self._assembler.is_stopped or self._parser.is_complete

    def add(self, output: TokenOutput) -> MessagePiece | None:
        """Append a token; return the piece that is decided now, if there is one."""
        piece = self._assembler.add(output)
        return None if piece is None else self._parsed(piece)

    def end(self, reason: str) -> MessagePiece:
        """Return the last piece, with the rest of the message."""
        return self._parsed(self._assembler.end(reason))

    def _parsed(self, piece: Piece) -> MessagePiece:
        deltas = self._parser.add(piece.text) if piece.text else []
        reason = piece.finish_reason or ("stop" if self._parser.is_complete else "")
        if reason:
            deltas += self._parser.end()
        if reason in ("stop", "closed") and self._parser.calls:
            reason = "tool_calls"
        return MessagePiece(piece.text, piece.outputs, reason, piece.stop_tokens, tuple(deltas))
