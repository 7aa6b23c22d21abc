"""How a product is divided among threads: into blocks of its result, each computed by one thread.

    out (m, n)   | columns 0..95 | 96..191 | ...      rows, too, where there are many of both

Threads take blocks one after the other, so the division need not know how many of them there are,
or which cores others hold: it goes by shapes alone, and results do not depend on threads. OpenBLAS
sums along k alike for all columns and rows, so a block has the bits of the whole product on one
thread. Blocks are no less than the products for which it has kernels of their own, that sum in
another order. Examples: tests/ops/native/test_matmul_blocks.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ..lowering import blas

LEAST, MIN_VECTOR = 5 << 17, 1 << 17
"""n blocks have n times as many multiply-adds each, at least: two blocks some 30 us, as waking a
thread takes about as long; more of them are larger, as each reads its operands anew. The same where
one operand is a vector, as long as the time goes into reading the other one.
"""
MOST = 64
"""Blocks of a product."""
ROWS, COLUMNS = 64, 96
"""Rows and columns of a block at least: with fewer, kernels are slower."""
MANY_ROWS = 128
"""Blocks are of rows before they are of columns where they have so many, as elementwise ops and
norms are divided by rows, too: a core then finds in its caches some of what it made before.
"""
UNITS = 12, 32
"""Rows and columns of a block are a multiple of so many, but for the last, as in
native/cpu_kernels/program/gemm.hpp; rows of a vector are as columns.
"""


class Parts(NamedTuple):
    """Into how many parts matrices, their rows and their columns are divided."""

    batches: int = 1
    rows: int = 1
    columns: int = 1


def divide(batches: int, m: int, n: int, k: int, transpose_b: bool = False) -> Parts:
    """Return the parts of so many products of (m, k) and (k, n); one where the library has threads
    that the user has chosen. turned: b lies as (n, k), which takes longer to read.
    """
    if blas.is_chosen():
        return Parts()
    is_vector, work = m == 1 or n == 1, batches * m * n * k
    most = min(MOST, math.isqrt(work // (MIN_VECTOR if is_vector else LEAST)))
    parts = Parts(max(1, min(batches, most)))
    least_rows, least_columns = (UNITS[1], UNITS[1]) if is_vector else (ROWS, COLUMNS)
    many = MANY_ROWS * (4 if transpose_b else 1)
    while 2 * math.prod(parts) <= most:
        half_rows = _least(m, UNITS[n == 1], 2 * parts.rows)
        half_columns = _least(n, UNITS[1], 2 * parts.columns)
        by_columns = half_columns >= least_columns
        if half_rows >= least_rows and (m >= 2 * many * parts.rows or not by_columns):
            parts = parts._replace(rows=2 * parts.rows)
        elif by_columns:
            parts = parts._replace(columns=2 * parts.columns)
        else:
            break
    return parts


def blocks(m: int, n: int, parts: Parts) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of the blocks of one matrix (m, n)."""
    for rows in _spans(m, UNITS[n == 1], parts.rows):
        for columns in _spans(n, UNITS[1], parts.columns):
            yield rows, columns


def examples(count: int, parts: Parts) -> Iterator[slice]:
    """Yield the parts of a batch, or of the longest axis of one."""
    return _spans(count, 1, min(count, parts.batches))


def heads(batch: int, shared: int, work: float) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of the examples of an attention and of its heads of keys.

    work: multiply-adds of all of it.
    """
    count = 1 if blas.is_chosen() else min(MOST, math.isqrt(int(work) // LEAST))
    of_batch = max(1, min(batch, count))
    groups = max(1, min(shared, count // of_batch))
    for some in _spans(batch, 1, of_batch):
        for those in _spans(shared, 1, groups):
            yield some, those


def _least(size: int, unit: int, parts: int) -> int:
    """Return how much the smallest of so many parts has."""
    units = -(-size // unit)
    return min(units // parts * unit, size - units * (parts - 1) // parts * unit)


def _spans(size: int, unit: int, parts: int) -> Iterator[slice]:
    """Yield parts of so many; each has whole units, but for the last."""
    units = -(-size // unit)
    for part in range(parts):
        first, end = units * part // parts * unit, units * (part + 1) // parts * unit
        if first < min(end, size):
            yield slice(first, min(end, size))
