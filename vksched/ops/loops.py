"""What takes numpy many passes over float32, in one: native/loops.cpp.

Set-up builds it beside Kompute's modules; it needs neither them nor Vulkan. Without it numpy takes
its passes. Examples: tests/test_loops.py.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ..types import NDArray

native: Any = None
"""The module, None where it is not built."""
with contextlib.suppress(ImportError):
    native = importlib.import_module("vksched_native.loops")

Into = Callable[[NDArray, NDArray], object]
"""(float32 values, result) -> None, which writes all of the result."""


def one_pass(function: str, passes: Into) -> Into:
    """Returns the native loop of a function, which takes numpy's passes where there is none."""

    def into(x: NDArray, out: NDArray) -> None:
        if _takes(x, out):
            native.run(function, x, out)
        else:
            passes(x, out)

    return into


def norm(
    x: NDArray,
    scale: NDArray | None,
    shift: NDArray | None,
    out: NDArray,
    columns: int,
    eps: float,
    centered: bool,
) -> bool:
    """Writes layer norm (centered) or RMS norm of rows; returns False where numpy has to."""
    if not _takes(*[values for values in (x, scale, shift, out) if values is not None]):
        return False
    native.norm(x, scale, shift, out, columns, eps, centered)
    return True


def _takes(*arrays: NDArray) -> bool:
    return native is not None and all(
        values.dtype == np.float32 and values.flags.c_contiguous for values in arrays
    )
