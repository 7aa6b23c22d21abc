"""Host memory import: a device copies large inputs directly from the caller's arrays
(VK_EXT_external_memory_host).

    caller's array --its pages, imported--> copy queue --> memory of the device     no upload buffer

This saves the host's copy, which takes longer than the bus for a large input. The pages are
released before the run ends. The array must not change until then. Arrays that cannot be imported
use the upload buffer. Examples: tests/runtime/test_host_memory_import.py.
"""

from __future__ import annotations

import mmap
from typing import Any, NamedTuple

import numpy as np

from ...common.dtypes import NDArray, TensorType, numpy_dtype
from .context import Context

MIN_BYTES = 1 << 20
"""Below this size the host's copy is faster than the driver's import."""


class Pages(NamedTuple):
    """An array as a device sees it.

    Parameters
    ----------
    native
        The companion's object.
    offset
        The array's first byte in it.
    array
        Kept alive by this object.
    """

    native: Any
    offset: int
    array: NDArray


def import_array(
    context: Context, alignment: int, type_: TensorType, array: NDArray
) -> Pages | None:
    """Return an array's pages as a copy source for a device; None if they cannot be imported.

    Parameters
    ----------
    alignment
        Required alignment of addresses and sizes in bytes; 0: no import. If it exceeds the system's
        page size, the array itself must be aligned, because the memory around it is unknown.
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
