"""Vocabulary: the tokens of a file with their types, scores and roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ....common.errors import ModelFormatError
from .fields import PREFIX, Fields

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""The token types by their numbers in files."""

SPACE = "▁"
"""The replacement of a space in sentencepiece tokens."""

MAX_CHARACTERS = 1 << 16
"""The maximum length of a token; a longer one is an error or an attack."""

DEFAULTS: dict[str, dict[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "bert": {"bos": 101, "unknown": 100, "seperator": 102, "padding": 0, "mask": 103},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
"""The default special tokens of each tokenizer model."""

ENDS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> "
    "<eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
).split()
"""The names of end-of-generation tokens, regardless of their types in the file."""

FILL_ENDS: dict[str, list[str]] = {
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]".split(),
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>".split(),
    "fim_sep": ["<|file_sep|>"],
}
"""The fill-in-the-middle tokens, which also end generation."""

FILLS = (
    "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> "
    "<|prefix|> <|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> "
    "<|code_suffix|> <|suffix|> <|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> "
    "▁<MID> <|code_middle|> <|middle|>"
).split()
SHOWN = "<|channel|> <|message|> <|start|> <|constrain|>".split()
"""Control tokens that are part of the generated text."""


class Algorithm(Protocol):
    """The algorithm that encodes text without special tokens, and returns the bytes of a normal
    token.
    """

    def encode(self, text: str) -> list[int]: ...

    def bytes_of(self, token: int) -> bytes: ...


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a file by id.

    ids: the id of each token. roles: ids by role ("bos", "eos", ...). ends: the end-of-generation
    ids.
    """

    tokens: list[str]
    ids: dict[str, int]
    types: list[int]
    scores: list[float]
    roles: dict[str, int]
    ends: frozenset[int]

    def of_type(self, *types: int) -> list[int]:
        return [each for each, kind in enumerate(self.types) if kind in types]

    def bytes_of(self, token: int) -> int:
        """Return the value of a token such as <0x0A>."""
        text = self.tokens[token]
        try:
            if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
                return int(text[3:5], 16)
        except ValueError:
            pass
        raise ModelFormatError(
            f"[gguf] expected a name such as <0x0A> for token {token} of type byte, got {text!r}"
        )

    def byte_ids(self) -> dict[int, int]:
        """Return the token of each byte that has one."""
        named = ((value, self.ids.get(f"<0x{value:02X}>")) for value in range(256))
        return {value: token for value, token in named if token is not None}


def read_vocabulary(fields: Fields, model: str) -> Vocabulary:
    """Return the vocabulary; raise ModelFormatError if tokens, types, scores or roles are
    inconsistent.
    """
    tokens = fields.texts("tokens")
    if not tokens:
        raise ModelFormatError(f"[gguf] expected a list of tokens in {PREFIX}tokens, got none")
    tokens = [each or f"[EMPTY_{number}]" for number, each in enumerate(tokens)]
    ids = {each: number for number, each in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(each for number, each in enumerate(tokens) if ids[each] != number)
        raise ModelFormatError(f"[gguf] expected tokens that differ, got {twice[:60]!r} twice")
    if len(longest := max(tokens, key=len)) > MAX_CHARACTERS:
        raise ModelFormatError(
            f"[gguf] expected tokens of {MAX_CHARACTERS} characters at most, got {len(longest)}"
        )
    size = len(tokens)
    types = fields.wholes("token_type", size) or [NORMAL] * size
    scores = fields.numbers("scores", size) or [0.0] * size
    roles = {role: each for role, each in DEFAULTS.get(model, {}).items() if each < size}
    for role in ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask", *FILL_ENDS):
        if (found := fields.index(f"{role}_token_id", size)) is not None:
            roles[role] = found
    types = types[:size]
    return Vocabulary(tokens, ids, types, scores[:size], roles, _ends(ids, types, roles))


def _ends(ids: dict[str, int], types: list[int], roles: dict[str, int]) -> frozenset[int]:
    """Return the end-of-generation tokens, and correct the types of tokens with well-known
    names.
    """
    ends = {ids[each] for each in ENDS if each in ids}
    for role, names in FILL_ENDS.items():
        named = [roles[role]] if role in roles else [ids[each] for each in names if each in ids]
        ends.update(named[:1])
    for token in ends | {ids[each] for each in FILLS if each in ids}:
        types[token] = CONTROL
    ends.update(roles[role] for role in ("eos", "eot", "eom") if role in roles)
    for each in SHOWN:
        if each in ids:
            types[ids[each]] = USER_DEFINED
    calls = (
        {"<|return|>", "<|call|>"} <= ids.keys()
        or "<|flush|>" in ids
        and ("<|call|>" in ids or "<|calls|>" in ids)
    )
    if calls and "<|end|>" in ids:
        ends.discard(ids["<|end|>"])
        types[ids["<|end|>"]] = USER_DEFINED
    if "</s>" in ids and ("<|tool_response>" in ids or "<|plamo:eos|>" in ids):
        ends.discard(ids["</s>"])
        types[ids["</s>"]] = NORMAL
    return frozenset(ends)
