"""Word views: arrays as 32-bit words, the unit of device memory."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from ...common.dtypes import (
    WORD_BYTES,
    NDArray,
    TensorType,
    elements_of_word,
    is_uniform,
    numpy_dtype,
)
from ...common.errors import DTypeError
from ...storage.lazy_array import ArrayLike


def to_words(array: NDArray) -> NDArray:
    """Return an array as 32-bit words (see TensorType), as a view if possible.

    Raises
    ------
    DTypeError
        An int64 does not fit into int32, or the type is not supported on devices.
    """
    if is_uniform(array):
        one = to_words(np.full(elements_of_word(array.dtype.name), array.flat[0]))
        return np.broadcast_to(one, _words(array))
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.bool_:
        return flat.astype(np.uint32)
    if flat.dtype == np.int64:
        small = flat.astype(np.int32)
        if not np.array_equal(small, flat):
            raise DTypeError(
                f"[run] expected int64 values that fit int32, as the plan assumes, got "
                f"{flat.min()}..{flat.max()}"
            )
        return small.view(np.uint32)
    if elements_of_word(flat.dtype.name) > 1:
        rest = -flat.size % elements_of_word(flat.dtype.name)
        return (np.append(flat, np.zeros(rest, flat.dtype)) if rest else flat).view(np.uint32)
    if flat.dtype.itemsize != WORD_BYTES:
        raise DTypeError(f"[run] expected values that a device can hold, got {flat.dtype}")
    return flat.view(np.uint32)


class WordView:
    """Words of mapped memory as values of one type."""

    __slots__ = ("_type", "_values", "_words")

    def __init__(self, words: NDArray, type_: TensorType) -> None:
        self._words = words
        self._type = type_
        dtype = numpy_dtype(type_.dtype)
        as_is = dtype.itemsize == WORD_BYTES or dtype == np.float16
        self._values = read_words(words, dtype, type_.shape) if as_is else None

    def write(self, array: NDArray) -> None:
        if self._values is None:
            self._words[:] = to_words(array)
        else:
            self._values[...] = array

    def read(self) -> NDArray:
        """Return the values; a view if the words have numpy's representation."""
        if self._values is None:
            return read_words(self._words, numpy_dtype(self._type.dtype), self._type.shape)
        return self._values


def write_words(target: NDArray, array: NDArray) -> None:
    """Write an array as 32-bit words."""
    target[:] = to_words(array)


def read_words(words: NDArray, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> NDArray:
    """Return words as an array of an element type; a view for the 32-bit types and float16."""
    if dtype == np.bool_:
        return np.asarray(words != 0).reshape(shape)
    if dtype == np.int64:
        return words.view(np.int32).astype(np.int64).reshape(shape)
    count = math.prod(shape)
    return words.view(dtype)[:count].reshape(shape)


def _words(held: ArrayLike) -> int:
    return -(-held.size // _elements_of_word(held.dtype))


@lru_cache
def _elements_of_word(dtype: np.dtype[np.generic]) -> int:
    return elements_of_word(dtype.name)  # cached, because numpy builds the name in each call
