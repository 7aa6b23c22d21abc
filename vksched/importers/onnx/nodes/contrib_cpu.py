"""Ops of com.microsoft that only the CPU computes: ops on strings, and results of data-dependent
size.

The reference evaluator runs them as custom ops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....common.dtypes import NDArray
from .contrib_base import ContribOp, Results
from .contrib_hash import MurmurHash3, NGramHashMapping, VarlenNGramHashMapping
from .contrib_tokenizer import Tokenizer
from .schemas import MICROSOFT

# -- variants of ops of the default domain, for strings ------------------------------------------


class ExpandDims(ContribOp):
    """Insert an axis."""

    def _run(self, x: NDArray, axis: NDArray) -> Results:
        return (np.expand_dims(x, int(axis)),)


class GatherND(ContribOp):
    """Gather elements or slices by index tuples."""

    def _run(self, x: NDArray, indices: NDArray) -> Results:
        return (x[tuple(np.moveaxis(indices, -1, 0))],)


# -- numbers ---------------------------------------------------------------------------------------


class Inverse(ContribOp):
    """Invert each matrix."""

    def _run(self, x: NDArray) -> Results:
        wide = x.astype(np.float32) if x.dtype == np.float16 else x
        return (np.linalg.inv(wide).astype(x.dtype),)


class Unique(ContribOp):
    """Return the unique elements in order of first occurrence, the index of each element among
    them, and their counts.
    """

    def _run(self, x: NDArray) -> Results:
        values, first, places, counts = np.unique(
            x, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)
        at = np.argsort(order)[places.reshape(-1)]
        return values[order], at.astype(np.int64), counts[order].astype(np.int64)


class DynamicTimeWarping(ContribOp):
    """Return the path of minimal cost from the first element of (1, rows, columns) to the last.

    Of steps with equal cost, a diagonal one is preferred, then down, then along the row.
    """

    def _run(self, costs: NDArray) -> Results:
        costs = costs.reshape(costs.shape[-2:])
        rows, columns = costs.shape
        sums = np.full((rows + 1, columns + 1), np.inf, np.float32)
        steps = np.full(sums.shape, 2, np.int8)
        steps[:, 0] = 1
        sums[0, 0] = 0
        for diagonal in range(rows + columns - 1):
            row = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
            column = diagonal - row
            both, down, along = sums[row, column], sums[row, column + 1], sums[row + 1, column]
            taken = np.where((both < down) & (both < along), 0, np.where(
                (down < both) & (down < along), 1, 2))  # fmt: skip
            sums[row + 1, column + 1] = costs[row, column] + np.choose(taken, (both, down, along))
            steps[row + 1, column + 1] = taken
        path = []
        row_at, column_at = rows, columns
        while row_at > 0 or column_at > 0:
            path.append((row_at - 1, column_at - 1))
            step = steps[row_at, column_at]
            row_at -= step != 2
            column_at -= step != 1
        return (np.array(path[::-1], np.int32).T.copy(),)


class BifurcationDetector(ContribOp):
    """Accept predicted tokens up to and including the first one that differs from the source, and
    find where the source continues after the last tokens, if they occur there exactly once.
    """

    def _run(
        self,
        source: NDArray,
        current: NDArray,
        previous: NDArray,
        predicted: NDArray | None = None,
        min_ngram_size: int = 1,
        max_ngram_size: int = 1,
    ) -> Results:
        words, found = current, -1
        if predicted is not None:
            expected = source[int(previous.reshape(-1)[0]) :]
            differs = np.flatnonzero(predicted[: len(expected)] != expected)
            count = int(differs[0]) if differs.size else len(expected)
            words = np.concatenate([current, predicted[: count + 1]])
        for size in range(min_ngram_size, min(max_ngram_size, len(words)) + 1):
            if size > len(source):
                break
            windows = np.lib.stride_tricks.sliding_window_view(source, size)
            at = np.flatnonzero((windows == words[-size:]).all(1))
            if not at.size:
                break
            found = int(at[0]) + size
            if found >= len(source):
                break
            if at.size > 1:
                found = -1
        return words, np.full(previous.shape, found, np.int64)


HOST_OPS: tuple[type[Any], ...] = (
    BifurcationDetector,
    DynamicTimeWarping,
    ExpandDims,
    GatherND,
    Inverse,
    MurmurHash3,
    NGramHashMapping,
    Tokenizer,
    Unique,
    VarlenNGramHashMapping,
)
"""All ops of this module, by name."""


def has_host_op(op_type: str, domain: str) -> bool:
    """Return True if the CPU implements an op of com.microsoft."""
    return domain == MICROSOFT and any(op.__name__ == op_type for op in HOST_OPS)
