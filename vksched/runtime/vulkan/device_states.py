"""DeviceStates: the states in the memory of a Vulkan device."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...common.dtypes import NDArray, TensorType, numpy_dtype
from ...common.errors import DeviceLost
from ...plan.types.plan_types import Span
from ..state_store import Item
from .buffers import Buffer
from .context import Context
from .staging import download, upload
from .weight_store import WeightStore
from .word_view import read_words


class DeviceStates:
    """The states of one Vulkan device: like weights, but runs change them, and they stay until
    removed.
    """

    def __init__(self, context: Context, page_bytes: int, apart: bool) -> None:
        self._context = context
        self._store = WeightStore(context, page_bytes)
        self._apart = apart
        self._held: dict[object, tuple[TensorType, tuple[int, ...]]] = {}

    def holds(self, key: object) -> bool:
        return key in self._held

    def place(self, key: object) -> tuple[Buffer, Span]:
        """Return the location of a state: a buffer and a span of it."""
        try:
            span = self._store.span(key)
            return self._store.buffer(span.page), span
        except KeyError:
            raise DeviceLost(
                "[state] expected a state, got none: its device failed meanwhile"
            ) from None

    def add(self, items: Iterable[Item]) -> None:
        # duplicates count once, else the pages of the first one would leak
        new = list({key: (key, array) for key, array in items if key not in self._held}.values())
        # in one page, unless validation is to see each as its own buffer
        groups = [[item] for item in new] if self._apart else [new]
        taken: list[tuple[int, ...]] = []
        try:
            for group in groups:
                taken.append(self._store.acquire(group))
            for key, array in new:
                type_ = TensorType(array.shape, str(array.dtype))
                self._held[key] = type_, self._store.acquire([(key, array)])
        finally:
            for pages in taken:
                self._store.release(pages)

    def read(self, key: object) -> NDArray:
        type_, _ = self._held[key]
        words = download(self._context, *self.place(key))
        dtype = numpy_dtype(type_.dtype)
        return np.array(read_words(words, dtype, type_.shape), copy=True)

    def write(self, key: object, array: NDArray) -> None:
        buffer, span = self.place(key)
        upload(self._context, buffer, [array], at_word=span.offset)

    def remove(self, key: object) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            self._store.release(held[1])

    def keys(self) -> tuple[object, ...]:
        return tuple(self._held)
