"""The library of numpy's products (BLAS): whose threads it takes, and where native loops find it.

Threads of such a library wait for each other by spinning, once or more in each product. Where
another program holds a core, all of them wait for the one that does not run. So the CPU backend has
it take one thread, and divides products itself (ops/linalg/matmul_blocks.py): a thread that gets no
core takes no piece, and nobody waits for it. Who sets OPENBLAS_NUM_THREADS or its like has chosen:
then products are whole, and the library takes as many threads as that says.
Examples: tests/runtime/test_busy_threads.py.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from . import native_kernels

CHOSEN_BY = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOTO_NUM_THREADS")
"""Variables of the environment by which a user sets the threads of numpy's products."""
_NAMES = (
    ("scipy_cblas_sgemm64_", "scipy_cblas_sgemv64_", True),
    ("cblas_sgemm64_", "cblas_sgemv64_", True),
    ("cblas_sgemm_64", "cblas_sgemv_64", True),
    ("scipy_cblas_sgemm", "scipy_cblas_sgemv", False),
    ("cblas_sgemm", "cblas_sgemv", False),
)
"""What products are called in builds of OpenBLAS, MKL and BLIS, and whether their integers have 64
bits. Where a library has several of these, the first is taken.
"""


def is_chosen() -> bool:
    """Whether threads of numpy's products are left as they are: the user has said how many there
    are, or the library has no count that holds for all callers.
    """
    return any(os.environ.get(name) for name in CHOSEN_BY) or _is_bound_to_callers()


@cache
def _is_bound_to_callers() -> bool:
    """Whether OpenBLAS has OpenMP's threads, of which each caller has a count of its own, or none
    and no locks for several callers.
    """
    return any(
        pool.internal_api == "openblas" and pool.threading_layer in ("openmp", "disabled")
        for pool in libraries()
    )


@cache
def libraries() -> list[Any]:
    """Return the libraries of numpy's products that say how many threads they take; none where the
    system does not list what a process has loaded.
    """
    try:
        pools = ThreadpoolController().select(user_api="blas").lib_controllers
    except OSError:
        return []
    return [pool for pool in pools if pool.num_threads is not None]


@cache
def is_in_loops() -> bool:
    """Whether native loops can call the library that numpy's own module is linked to."""
    if not (native_kernels.has_programs() and libraries()):
        return False
    try:
        numpys = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return False
    for gemm, gemv, wide in _NAMES:
        if hasattr(numpys, gemm) and hasattr(numpys, gemv):
            found = (getattr(numpys, name) for name in (gemm, gemv))
            addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in found]
            native_kernels.native.use_blas(*addresses, wide)
            return True
    return False
