"""BLAS: the thread count of numpy's library, and its functions for native loops.

Threads of a BLAS library synchronize by spinning, at least once per matmul. If another program
occupies a core, all threads wait for the one that is not scheduled. The CPU backend therefore
limits BLAS to one thread and splits matmuls itself (ops/linalg/matmul_blocks.py): a thread without
a core takes no piece, and no other thread waits for it. If the user sets OPENBLAS_NUM_THREADS or a
similar variable, matmuls are not split and BLAS uses that number of threads. Examples:
tests/runtime/test_busy_threads.py.
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
"""Environment variables with which a user sets the number of BLAS threads."""
_NAMES = (
    ("scipy_cblas_sgemm64_", "scipy_cblas_sgemv64_", True),
    ("cblas_sgemm64_", "cblas_sgemv64_", True),
    ("cblas_sgemm_64", "cblas_sgemv_64", True),
    ("scipy_cblas_sgemm", "scipy_cblas_sgemv", False),
    ("cblas_sgemm", "cblas_sgemv", False),
)
"""Matmul functions in builds of OpenBLAS, MKL and BLIS, and True for 64-bit integers. The first
function that a library has is used.
"""


def is_chosen() -> bool:
    """Return True if the number of BLAS threads must not be changed.

    Either the user set it, or the library has no global setting.
    """
    return any(os.environ.get(name) for name in CHOSEN_BY) or _is_bound_to_callers()


@cache
def _is_bound_to_callers() -> bool:
    """Return True if OpenBLAS has no global thread count.

    It was built with OpenMP, which has a count per caller, or without threads and locks.
    """
    return any(
        pool.internal_api == "openblas" and pool.threading_layer in ("openmp", "disabled")
        for pool in libraries()
    )


@cache
def libraries() -> list[Any]:
    """Return the BLAS libraries of numpy that have a setting for threads.

    The list is empty if the system cannot list the loaded libraries.
    """
    try:
        pools = ThreadpoolController().select(user_api="blas").lib_controllers
    except OSError:
        return []
    return [pool for pool in pools if pool.num_threads is not None]


@cache
def is_in_loops() -> bool:
    """Return True if native loops can call the library that numpy's own module is linked to."""
    if not (native_kernels.has_programs() and libraries()):
        return False
    try:
        numpys = ctypes.CDLL(np._core._multiarray_umath.__file__)  # type: ignore[attr-defined]
    except (AttributeError, OSError):
        return False
    for gemm, gemv, wide in _NAMES:
        if hasattr(numpys, gemm) and hasattr(numpys, gemv):
            functions = (getattr(numpys, name) for name in (gemm, gemv))
            addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in functions]
            native_kernels.native.use_blas(*addresses, wide)
            return True
    return False
