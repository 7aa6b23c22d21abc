"""ControlShield: prevents that texts of users become control tokens.

A chat template writes control tokens by their names, as <|im_end|>, between the texts of messages.
If a text contains such a name itself, the tokenizer must not parse it:

    "a<|im_end|>b" --mark--> "a<#|im_end|>b" --template--> "<|im_start|>user\na<#|im_end|>b..."
        --the names of control tokens are found--> --marks are removed--> --text is encoded-->

The mark is one character that occurs in no text of the conversation and not in the template. It is
inserted behind the first character of a name, so templates may trim, cut or escape texts, or change
their case. Texts without names stay unchanged, and their tokens are those of the plain rendering.

Examples: tests/generation/conversation/test_prompt_encoder.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

_MARKS = (range(0xFDD0, 0xFDF0), range(0xE000, 0xF900), range(0xF0000, 0x110000))
"""Code points for the mark: noncharacters, which are for internal use, then private ones."""


class ControlShield:
    """Marks the names of control tokens in the texts of conversations.

    names: the names of the control tokens. Names of one character, or of letters and digits only,
    are ignored.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [name for name in names if len(name) > 1 and not name.isalnum()]
        folded = [name.casefold() for name in self._names]
        self._folded = folded
        cuts = [(name[:n], name[n:]) for name in folded for n in range(1, len(name))]
        self._heads = frozenset(head for head, _ in cuts if not head.isalnum())
        self._tails = frozenset(tail for _, tail in cuts if not tail.isalnum())
        self._longest = max(map(len, folded), default=0)

    def marker(self, values: object, template: str) -> Marker:
        """Return the marker for all texts of one conversation."""
        texts = list(_texts_of(values))
        return Marker(self, _unused_mark([*texts, template]), self._found("\0".join(texts)))

    def _found(self, text: str) -> list[re.Pattern[str]]:
        """Return patterns of the names in a text, without regard to case."""
        folded = text.casefold()
        pairs = zip(self._names, self._folded, strict=True)
        return [re.compile(re.escape(name), re.I) for name, each in pairs if each in folded]

    def _begins_with_tail(self, text: str) -> bool:
        return any(text[:n].casefold() in self._tails for n in range(1, self._longest))

    def _ends_with_head(self, text: str) -> bool:
        return any(text[-n:].casefold() in self._heads for n in range(1, self._longest))


class Marker:
    """Marks the texts of one conversation. mark: the character."""

    def __init__(self, shield: ControlShield, mark: str, found: Sequence[re.Pattern[str]]) -> None:
        self.mark = mark
        self._shield = shield
        self._found = found

    def add_to_key(self, text: str) -> str:
        """Return a text with marks in the names of control tokens."""
        for pattern in self._found:
            text = pattern.sub(lambda match: f"{match[0][0]}{self.mark}{match[0][1:]}", text)
        return text

    def add(self, text: str) -> str:
        """Return a text with marks in the names of control tokens, and at its ends if it could
        complete a name together with its surroundings.
        """
        text = self.add_to_key(text)
        core = text.strip()  # templates trim
        if core and self._shield._begins_with_tail(core):
            text = text.replace(core, self.mark + core, 1)
        if core and self._shield._ends_with_head(core):
            at = len(text.rstrip())
            text = text[:at] + self.mark + text[at:]
        return text

    def unescape(self, rendered: str) -> str:
        """Return a rendering in which marks that the template escaped, as JSON, are marks again."""
        escaped = json.dumps(self.mark)[1:-1]
        return rendered.replace(escaped, self.mark)


def unused_mark(values: object, template: str) -> str:
    """Return a character that is in none of the texts in some values, and not in a template."""
    return _unused_mark([*_texts_of(values), template])


def _texts_of(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts_of(key)
            yield from _texts_of(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts_of(each)


def _unused_mark(texts: Iterable[str]) -> str:
    """Return a character that is in none of the texts, not even escaped."""
    used: set[str] = set()
    escapes: set[str] = set()
    for text in texts:
        used.update(text)
        escapes.update(match.lower() for match in re.findall(r"\\u[0-9a-fA-F]{4}", text))
    for code in chain(*_MARKS):
        mark = chr(code)
        if mark not in used and json.dumps(mark)[1:7] not in escapes:
            return mark
    raise AssertionError("a text of all private characters is longer than any request")
