"""Tokenizer: converts texts to token ids and back."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence

from ....common.errors import ModelFormatError, close_text
from .byte_pair import BytePair, find_pre
from .fields import PREFIX, Fields
from .sentence_piece import SentencePiece
from .special_tokens import SpecialTokenSplitter
from .unigram import Unigram
from .vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Algorithm, Vocabulary, read_vocabulary
from .word_piece import WordPiece

MODELS = ("gpt2", "gemma4", "llama", "t5", "bert")
"""The tokenizer classes by `tokenizer.ggml.model`."""


class Tokenizer:
    """The tokenizer of a GGUF file, built only from its metadata.

    It matches llama.cpp, or the original tokenizer if the two differ. `decode` never strips spaces
    before a full stop or an apostrophe, so that texts survive a round trip.

    Raises
    ------
    ModelFormatError
        The metadata is invalid, or the tokenizer is unknown.
    VkschedError
        The tokenizers package is missing.
    """

    def __init__(self, metadata: Mapping[str, object]) -> None:
        fields = Fields(metadata)
        model = fields.text("model")
        if model not in MODELS:
            raise ModelFormatError(
                f"[gguf] expected one of {', '.join(MODELS)} in {PREFIX}model, "
                f"got {model and model[:60]!r}{close_text(model or '', MODELS)}"
            )
        self.vocabulary: Vocabulary = read_vocabulary(fields, model)
        roles = self.vocabulary.roles
        begin, end, separate, prefix = False, False, False, False
        self._algorithm: Algorithm
        if model in ("gpt2", "gemma4"):
            pre = find_pre(fields, model)
            begin, separate = pre.begin, pre.separate
            self._algorithm = BytePair(self.vocabulary, fields, pre)
        elif model == "llama":
            begin = prefix = True
            self._algorithm = SentencePiece(self.vocabulary)
        elif model == "t5":
            end = True
            self._algorithm = Unigram(self.vocabulary, fields)
        else:
            begin = separate = True
            self._algorithm = WordPiece(self.vocabulary, fields)
        prefix = fields.flag("add_space_prefix", prefix)
        self._prefix = prefix and model == "llama"
        self._strip = prefix or model == "bert"
        self._specials = SpecialTokenSplitter(
            self.vocabulary,
            str(metadata.get("general.name", "")),
            fields.text("pre") or "",
            str(metadata.get("general.architecture", "")),
        )
        begin = fields.flag("add_bos_token", begin) or model == "gemma4"
        end = fields.flag("add_eos_token", end)
        separate = fields.flag("add_sep_token", separate)
        if model == "bert":
            begin, end, separate = True, False, True
        self._before = [roles["bos"]] if begin and "bos" in roles else []
        self._behind = [roles["eos"]] if end and "eos" in roles else []
        if separate and not end and "seperator" in roles:
            self._behind = [roles["seperator"]]
        self._between = [roles["seperator"]] if separate and end and "seperator" in roles else []

    @property
    def size(self) -> int:
        """The number of tokens."""
        return len(self.vocabulary.tokens)

    @property
    def ends(self) -> frozenset[int]:
        """The end-of-generation tokens."""
        return self.vocabulary.ends

    def role(self, name: str) -> int | None:
        """Return the token of a role: "bos", "eos", "eot", "unknown", "padding", "mask"; None if
        absent.
        """
        return self.vocabulary.roles.get(name)

    @property
    def control_names(self) -> list[str]:
        """The names that `encode` parses only with `special`, longest first."""
        return self._specials.control_names

    def encode(
        self,
        text: str,
        *,
        special: bool = False,
        bos: bool = False,
        mark: str = "",
        space_prefix: bool = True,
    ) -> list[int]:
        """Return the tokens of a text.

        Parameters
        ----------
        text
            The text.
        special
            Parse the names of control tokens in the text. Use it for the output of a chat template,
            not for user input.
        bos
            Add the special tokens that the model expects at the beginning and the end.
        mark
            A string that is removed after the names of special tokens were found, so that a mark
            within a name prevents that it is parsed.
        space_prefix
            Begin with a space where a sentencepiece model expects one. False is for texts within an
            answer.
        """
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        out: list[int] = []
        after_special = True
        for piece in self._specials.split(text, special):
            if isinstance(piece, int):
                out.append(piece)
            elif piece := piece.replace(mark, "") if mark else piece:
                lead = " " if self._prefix and space_prefix and after_special else ""
                out.extend(self._algorithm.encode(lead + piece))
            else:
                continue
            after_special = isinstance(piece, int)
        return self.surrounded(out) if bos else out

    def surrounded(self, tokens: Sequence[int]) -> list[int]:
        """Return tokens with the special tokens that the model expects around a text."""
        return [*self._before, *tokens, *self._behind]

    def encode_pair(self, first: str, second: str) -> list[int]:
        """Return the tokens of two texts for a model that compares them, with the special tokens
        that the model expects around and between them.
        """
        rest = self.encode(second) + self._behind
        return self.encode(first, bos=True) + self._between + rest

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Return the text of tokens. special: include the names of control tokens."""
        decoder = StreamDecoder(self, special=special)
        return "".join(map(decoder.add, ids)) + decoder.end()

    def bytes_of(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token, which may be a part of a character."""
        if not 0 <= token < self.size:
            raise ModelFormatError(f"[gguf] expected a token below {self.size}, got {token}")
        kind = self.vocabulary.types[token]
        if kind in (CONTROL, UNKNOWN) and not special:
            return b""
        if kind in (CONTROL, UNKNOWN, USER_DEFINED):
            return self.vocabulary.tokens[token].encode("utf-8", "replace")
        return self._algorithm.bytes_of(token)

    def strips_first_space(self) -> bool:
        """Return True if encoding adds a space before a text."""
        return self._strip


class StreamDecoder:
    """Decodes a stream of tokens to text, in whole characters."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._strip = tokenizer.strips_first_space()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Return the characters that this token completes, often none."""
        data = self._tokenizer.bytes_of(token, special=self._special)
        if self._strip and data:
            data, self._strip = data.removeprefix(b" "), False
        return self._decoder.decode(data)

    def end(self) -> str:
        """Return the rest of the text; incomplete characters become U+FFFD."""
        return self._decoder.decode(b"", True)
