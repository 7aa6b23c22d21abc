"""Texts: the strings of a long array of a file, for example a vocabulary, decoded at first use.

Examples: tests/importers/test_gguf_reader.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from ....storage.model_file import ModelFile, copied
from .cursor import Cursor


class LazyStrings(Sequence[str]):
    """A lazy sequence of strings, which compares by its elements. start, end: the range of the file
    that holds them, each after its length; its `count` strings were checked to be complete.

    Raises
    ------
    ModelFormatError
        At first use: the file was changed.
    """

    def __init__(self, file: ModelFile, start: int, end: int, count: int) -> None:
        self._part = file.part(start, end)
        self._count = count

    @cached_property
    def _strings(self) -> tuple[str, ...]:
        return tuple(Cursor(copied(self._part)).texts(self._count, "texts"))

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        return self._strings[at]

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings)

    def index(self, text: str, *where: int) -> int:
        return self._strings.index(text, *where)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (tuple, LazyStrings)):
            return self._strings == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._strings)

    def __repr__(self) -> str:
        return repr(self._strings)
