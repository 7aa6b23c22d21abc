"""Special tokens: finds tokens in texts that must not be split, such as <|im_start|>."""

from __future__ import annotations

from .vocabulary import CONTROL, UNKNOWN, USER_DEFINED, Vocabulary

_SPACES = " \t\n\v\f\r"


class SpecialTokenSplitter:
    """Splits texts at special tokens, longest names first.

    User-defined tokens are always found. Control tokens and the unknown token are found on request.
    name, pre: the tokenizer's model and pre-tokenizer, which determine the tokens that strip
    adjacent spaces.
    """

    def __init__(self, vocabulary: Vocabulary, name: str, pre: str, architecture: str) -> None:
        tokens = vocabulary.tokens
        listed = vocabulary.of_type(CONTROL, USER_DEFINED, UNKNOWN)
        listed.sort(key=lambda each: -len(tokens[each].encode("utf-8", "replace")))
        self._listed = [
            (each, tokens[each], vocabulary.types[each] == USER_DEFINED) for each in listed
        ]
        self._left: set[int] = set()
        self._right: set[int] = set()
        if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or architecture in (
            "nomic-bert-moe",
            "jina-bert-v3",
        ):
            self._left = {vocabulary.ids[each] for each in ("<mask>",) if each in vocabulary.ids}
        elif "phi-3" in name.lower() or "phi3" in name.lower():
            exempt = {"<unk>", "<s>", "<|endoftext|>"}
            self._right = {each for each, text, _ in self._listed if text not in exempt}
            self._right |= {vocabulary.ids[each] for each in ("</s>",) if each in vocabulary.ids}
        elif "modern-bert" in name.lower():
            self._left = {vocabulary.ids[each] for each in ("[MASK]",) if each in vocabulary.ids}

    @property
    def control_names(self) -> list[str]:
        """The names of the tokens that are found only on request, longest first."""
        return [name for _, name, always in self._listed if not always]

    def split(self, text: str, control: bool) -> list[str | int]:
        """Return pieces of text, and the ids of the special tokens between them."""
        pieces: list[str | int] = [text] if text else []
        for token, name, always in self._listed:
            if (always or control) and name in text:
                pieces = [part for each in pieces for part in self._cut(each, token, name)]
        return pieces

    def _cut(self, piece: str | int, token: int, name: str) -> list[str | int]:
        if isinstance(piece, int) or name not in piece:
            return [piece]
        out: list[str | int] = []
        parts = piece.split(name)
        for number, part in enumerate(parts):
            if number and token in self._right:
                part = part.lstrip(_SPACES)
            if number + 1 < len(parts) and token in self._left:
                part = part.rstrip(_SPACES)
            if part:
                out.append(part)
            if number + 1 < len(parts):
                out.append(token)
        return out
