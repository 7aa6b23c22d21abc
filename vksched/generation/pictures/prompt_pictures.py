"""PromptPictures: the places of pictures in a prompt.

    ids     2   5   K+0   K+1   K+2   K+3   8   9       K: a number from the hash of the pixels
    parts   '-text' '---- a picture ----'   'text-'

The id of a picture's token names the pixels of the picture and the row of its tokens. Prefixes of
the KV cache are compared by ids, so that a request only reuses rows of the same picture.

With M-RoPE, a token of a picture has the position of the picture's first token in time, plus its
row and column in the picture. A picture of 3 x 4 tokens takes 4 positions of the text after it:

    ids        5   K+0  K+1  ...  K+11   8         shift of the last token: max(3, 4) - 12 = -8
    positions  0   (1,1,1) (1,1,2) ...   5

Examples: tests/generation/pictures/test_prompt_pictures.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...common.dtypes import NDArray
from ...common.errors import ShapeError

FIRST_ID = 1 << 160
"""The minimum id of a picture's token. Ids of text are below 2**63."""
MAX_TOKENS = 1 << 24
"""The maximum number of tokens of a picture."""
KEY_BITS = 128


def is_picture_id(token: int) -> bool:
    """Return True if an id is that of a token of a picture."""
    return token >= FIRST_ID


def text_ids(tokens: Sequence[int]) -> list[int]:
    """Return the tokens that are not those of pictures."""
    return [token for token in tokens if token < FIRST_ID]


@dataclass(frozen=True, eq=False)
class PictureTokens:
    """The tokens of a picture, before they are computed.

    Parameters
    ----------
    key
        A number of `KEY_BITS` bits that only equal pictures share.
    count
        The number of tokens.
    is_whole
        The tokens see each other, so that one step must read all of them.
    grid
        The rows and columns of tokens of a picture with M-RoPE, whose product is `count`; None if
        the tokens have positions like those of text.
    """

    key: int
    count: int
    is_whole: bool = True
    grid: tuple[int, int] | None = None

    @property
    def ids(self) -> range:
        """The ids of the tokens in a prompt."""
        first = FIRST_ID + self.key * MAX_TOKENS
        return range(first, first + self.count)

    @property
    def shift(self) -> int:
        """The difference of the positions that the picture takes, and of its tokens."""
        return max(self.grid) - self.count if self.grid else 0


@dataclass(frozen=True, eq=False)
class OpenedPicture:
    """A picture whose rows are not computed yet. pixels: the input of the encoder."""

    tokens: PictureTokens
    pixels: NDArray


@dataclass(frozen=True, eq=False)
class EncodedPicture:
    """A picture with its tokens. rows: (tokens, width) float32."""

    tokens: PictureTokens
    rows: NDArray


@dataclass(frozen=True, slots=True)
class Part:
    """The tokens `start` to `end` of a prompt: text, or a part of one picture, whose first token is
    `first`.
    """

    start: int
    end: int
    picture: EncodedPicture | None = None
    first: int = 0

    @property
    def is_whole(self) -> bool:
        """True if one step must read all tokens."""
        return self.picture is not None and self.picture.tokens.is_whole

    @property
    def rows(self) -> NDArray:
        """The rows of the tokens, (n, width)."""
        assert self.picture is not None
        return self.picture.rows[self.start - self.first : self.end - self.first]


class PromptPictures:
    """The pictures of one prompt.

    Raises
    ------
    ShapeError
        The prompt has ids of a picture that is not among the pictures, or not all of a picture.
    """

    def __init__(self, prompt: Sequence[int], pictures: Iterable[EncodedPicture]) -> None:
        by_id = {picture.tokens.ids[0]: picture for picture in pictures}
        self._spans: list[Part] = []
        at = 0
        while at < len(prompt):
            if not is_picture_id(prompt[at]):
                at += 1
                continue
            picture = by_id.get(prompt[at])
            if picture is None:
                raise ShapeError(
                    "[pictures] expected the rows of each picture whose ids are in a prompt, got "
                    f"none for those at token {at}; try the pictures that the encoder of prompts "
                    "returned"
                )
            end = at + picture.tokens.count
            if list(prompt[at:end]) != list(picture.tokens.ids):
                raise ShapeError(
                    f"[pictures] expected all {picture.tokens.count} ids of the picture at token "
                    f"{at}, got others; try the prompt that the encoder of prompts returned"
                )
            self._spans.append(Part(at, end, picture, at))
            at = end
        self._starts = [span.start for span in self._spans]

    @property
    def shift(self) -> int:
        """The difference of the position and the index of a token after the prompt."""
        return self.shift_at(self._spans[-1].end) if self._spans else 0

    def shift_at(self, at: int) -> int:
        """Return the difference of the position and the index of a token of text."""
        return sum(
            span.picture.tokens.shift for span in self._spans if span.picture and span.end <= at
        )

    def parts(self, start: int, end: int) -> list[Part]:
        """Return the parts of the tokens from `start` to `end`, in order."""
        out: list[Part] = []
        for span in self._spans:
            begin, stop = max(span.start, start), min(span.end, end)
            if begin >= stop:
                continue
            if start < begin:
                out.append(Part(start, begin))
            out.append(Part(begin, stop, span.picture, span.start))
            start = stop
        return [*out, Part(start, end)] if start < end else out

    def readable_before(self, at: int) -> int:
        """Return the largest number of tokens, at most `at`, that ends in no picture which one step
        must read.
        """
        index = bisect_right(self._starts, at) - 1
        if index >= 0 and (span := self._spans[index]).start < at < span.end and span.is_whole:
            return span.start
        return at

    def positions(self, part: Part) -> NDArray:
        """Return the positions of a part of a picture with M-RoPE in time, rows and columns,
        (3, n) int32.
        """
        assert part.picture is not None and part.picture.tokens.grid is not None
        columns = part.picture.tokens.grid[1]
        row = np.arange(part.start - part.first, part.end - part.first)
        first = part.first + self.shift_at(part.first)
        return first + np.stack([0 * row, row // columns, row % columns]).astype(np.int32)
