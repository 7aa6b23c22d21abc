"""What takes numpy many passes over float32, in one: native/loops.cpp.

Set-up builds it beside Kompute's modules; it needs neither them nor Vulkan. Without it numpy takes
its passes. Examples: tests/ops/test_loops.py.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from ...types import NDArray

native: Any = None
"""The module, None where it is not built or does not load."""
with contextlib.suppress(ImportError, OSError):
    native = importlib.import_module("vksched_native.loops")

Into = Callable[[NDArray, NDArray], object]
"""(float32 values, result) -> None, which writes all of the result."""


def one_pass(function: str, passes: Into) -> Into:
    """Returns the native loop of a function, which takes numpy's passes where there is none."""

    def into(x: NDArray, out: NDArray) -> None:
        if _takes(x, out):
            native.run(function, _laid_out(x, out), out)
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
    if not _takes(x, out):
        return False
    affine = [  # files may hold them at any byte
        None if values is None else np.require(values, np.float32, ["C", "A"])
        for values in (scale, shift)
    ]
    native.norm(_laid_out(x, out), *affine, out, columns, eps, centered)
    return True


def norm_gradient(
    g: NDArray,
    x: NDArray,
    scale: NDArray | None,
    out: NDArray,
    columns: int,
    eps: float,
    centered: bool,
) -> bool:
    """Writes the gradient of such norms by their rows; returns False where numpy has to."""
    operands = (g, x) if scale is None else (g, x, scale)
    plain = all(v.flags.c_contiguous and v.flags.aligned for v in operands)
    if not (plain and _takes(x, out) and g.dtype == np.float32):
        return False
    native.norm_gradient(g, x, scale, out, columns, eps, centered)
    return True


def _takes(x: NDArray, out: NDArray) -> bool:
    plain = out.flags.c_contiguous and out.flags.aligned
    return native is not None and plain and x.dtype == out.dtype == np.float32


def _laid_out(x: NDArray, out: NDArray) -> NDArray:
    """Returns an operand as loops read it: where it lies anyhow, its copy in the result."""
    if x.flags.c_contiguous and x.flags.aligned:
        return x
    np.copyto(out, x)
    return out
