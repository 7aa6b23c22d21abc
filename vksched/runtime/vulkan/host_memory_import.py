"""Import: large inputs that a device copies from where the caller has them.

    caller's array --its pages, imported--> copy queue --> memory of the device     no upload buffer

It spares the host's own copy, which costs a large input more than the bus does. The pages are given
back before the run ends. The array must stay as it is until then. What cannot be imported goes the
usual way. Examples: tests/runtime/test_host_memory_import.py.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np

from ...common.dtypes import NDArray, TensorType, numpy_dtype
from .context import Context

MIN_BYTES = 1 << 20
"""What the host copies in less time than a driver takes to look at pages."""


class Pages(NamedTuple):
    """An array as a device sees it. native: the companion's. offset: the array's first byte there.
    array: it, so that it lives as long.
    """

    native: Any
    offset: int
    array: NDArray


def import_array(
    context: Context, alignment: int, type_: TensorType, array: NDArray
) -> Pages | None:
    """Return an array's pages for a device to copy from; None where they cannot be had.

    alignment: what the device asks of addresses and sizes, in bytes; 0: it imports nothing. One
        larger than the system's pages has to be met by the array itself, as nobody knows what is
        around it.
    """
    as_is = array.dtype == numpy_dtype(type_.dtype) and array.dtype != np.bool_
    whole = array.flags.c_contiguous and array.nbytes == type_.device_bytes
    if not alignment or not (as_is and whole) or array.nbytes < MIN_BYTES:
        return None
    address = int(array.__array_interface__["data"][0])
    before, behind = address % alignment, -(address + array.nbytes) % alignment
    if address % 4 or (alignment > mmap.PAGESIZE and (before or behind)):
        return None
    native = context.imported(address - before, before + array.nbytes + behind)
    return None if native is None else Pages(native, before, array)
