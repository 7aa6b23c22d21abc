"""Partition a matrix product into blocks of its result, each computed by one thread.

    out (m, n)   | columns 0..95 | 96..191 | ...      rows are divided too if there are many of both

Threads take blocks one after the other, so the partition is independent of the number of threads
and of the cores that other threads use. It depends on shapes only, so results do not depend on
threads. OpenBLAS accumulates along k in the same order for all columns and rows, so a block is
bitwise equal to that part of the single-threaded product. Blocks are larger than the sizes for
which OpenBLAS has special kernels, which accumulate in another order. Examples:
tests/ops/native/test_matmul_blocks.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ..lowering import blas

LEAST, MIN_VECTOR = 5 << 17, 1 << 17
"""Minimum multiply-adds: a partition into n blocks has at least n times this many in each block.
Two blocks take about 30 us, as long as waking a thread; more blocks are larger, because each one
reads its operands again. The second value is for a vector operand, if reading the other operand
dominates.
"""
MOST = 64
"""Maximum number of blocks of a product."""
ROWS, COLUMNS = 64, 96
"""Minimum rows and columns of a block; kernels are slower with fewer."""
MANY_ROWS = 128
"""Products with this many rows are divided by rows first. Elementwise ops and norms are divided by
rows too, so a core finds part of its earlier output in its caches.
"""
UNITS = 12, 32
"""Rows and columns of a block are multiples of these, except in the last block; see
native/cpu_kernels/program/gemm.hpp. Rows of a vector are divided like columns.
"""


class Parts(NamedTuple):
    """Number of parts into which matrices, their rows and their columns are divided."""

    batches: int = 1
    rows: int = 1
    columns: int = 1


def divide(batches: int, m: int, n: int, k: int, transpose_b: bool = False) -> Parts:
    """Return the partition of `batches` products of (m, k) and (k, n) matrices.

    The partition is a single block if the user has set the number of threads of the BLAS library.
    `transpose_b`: b is stored as (n, k), which is slower to read.
    """
    if blas.is_chosen():
        return Parts()
    is_vector, work = m == 1 or n == 1, batches * m * n * k
    most = min(MOST, math.isqrt(work // (MIN_VECTOR if is_vector else LEAST)))
    parts = Parts(max(1, min(batches, most)))
    least_rows, least_columns = (UNITS[1], UNITS[1]) if is_vector else (ROWS, COLUMNS)
    many = MANY_ROWS * (4 if transpose_b else 1)
    while 2 * math.prod(parts) <= most:
        half_rows = _smallest_part(m, UNITS[n == 1], 2 * parts.rows)
        half_columns = _smallest_part(n, UNITS[1], 2 * parts.columns)
        by_columns = half_columns >= least_columns
        if half_rows >= least_rows and (m >= 2 * many * parts.rows or not by_columns):
            parts = parts._replace(rows=2 * parts.rows)
        elif by_columns:
            parts = parts._replace(columns=2 * parts.columns)
        else:
            break
    return parts


def blocks(m: int, n: int, parts: Parts) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of each block of an (m, n) matrix."""
    for rows in _spans(m, UNITS[n == 1], parts.rows):
        for columns in _spans(n, UNITS[1], parts.columns):
            yield rows, columns


def examples(count: int, parts: Parts) -> Iterator[slice]:
    """Yield the slices of a batch, or of its longest axis."""
    return _spans(count, 1, min(count, parts.batches))


def heads(batch: int, shared: int, work: float) -> Iterator[tuple[slice, slice]]:
    """Yield slices of the batch and of the key heads of an attention with `work` multiply-adds."""
    count = 1 if blas.is_chosen() else min(MOST, math.isqrt(int(work) // LEAST))
    of_batch = max(1, min(batch, count))
    groups = max(1, min(shared, count // of_batch))
    for some in _spans(batch, 1, of_batch):
        for those in _spans(shared, 1, groups):
            yield some, those


def _smallest_part(size: int, unit: int, parts: int) -> int:
    """Return the size of the smallest part."""
    units = -(-size // unit)
    return min(units // parts * unit, size - units * (parts - 1) // parts * unit)


def _spans(size: int, unit: int, parts: int) -> Iterator[slice]:
    """Yield the slices of an axis; each consists of whole units, except the last."""
    units = -(-size // unit)
    for part in range(parts):
        first, end = units * part // parts * unit, units * (part + 1) // parts * unit
        if first < min(end, size):
            yield slice(first, min(end, size))
