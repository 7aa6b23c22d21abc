"""einsum, rewritten into transposes, reductions and matrix products.

"bij,bjk,k->bi"  contracted in the order of numpy.einsum_path: (bij, bjk -> bik), (bik, k -> bi)
one operand:     diagonals of repeated letters, sums over letters that occur nowhere else
two operands:    shared letters are batch or contracted axes, the others are rows and columns
"""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ...common.dtypes import BOOL, MAX_RANK
from ...common.errors import DTypeError, ShapeError
from ...ir.tensor import Tensor, TensorLike, as_tensor
from ..elementwise import mul
from ..layout.reshape import reshape, slice_, transpose
from ..reduction.reduce import reduce_sum
from .matmul import matmul

_ELLIPSIS = "..."


def _parse(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of the operands and of the result, with digits for the axes under `...`.

    Digits count from the right, to match numpy's broadcasting.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    letters = [t.replace(_ELLIPSIS, "", 1) for t in (*terms, right)]
    if any(not (t.isascii() and t.isalpha()) for t in letters if t) or "->" in right:
        raise ShapeError(
            f"[einsum] expected letters, commas, ... and at most one ->, got {equation!r}"
        )
    if len(terms) != len(ranks):
        raise ShapeError(
            f"[einsum] expected one term for each of {len(ranks)} operands, got {equation!r}"
        )
    named, most = [], 0
    for number, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        count = rank - len(letters[number])
        if count < 0 or (count and _ELLIPSIS not in term):
            raise ShapeError(
                f"[einsum] expected {len(letters[number])} axes for {term!r}, got {rank}"
            )
        most = max(most, count)
        named.append(term.replace(_ELLIPSIS, _digits(count)))
    if not arrow:
        once = [c for c, n in Counter("".join(letters[:-1])).items() if n == 1]
        return named, _digits(most) + "".join(sorted(once))
    if most and _ELLIPSIS not in right:
        raise ShapeError(f"[einsum] expected ... in the result too, got {equation!r}")
    result = right.replace(_ELLIPSIS, _digits(most))
    known = set("".join(named))
    if len(set(result)) != len(result) or not set(result) <= known:
        raise ShapeError(
            f"[einsum] expected a result of distinct letters that an operand has, got {equation!r}"
        )
    return named, result


def _digits(count: int) -> str:
    return "".join(str(d) for d in reversed(range(count)))


def _sizes(terms: Sequence[str], tensors: Sequence[Tensor]) -> dict[str, int]:
    """Return the size of every letter; size 1 broadcasts as in numpy."""
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, tensors, strict=True):
        for letter, size in zip(term, tensor.shape, strict=True):
            known = sizes.setdefault(letter, size)
            if 1 not in (known, size) and known != size:
                raise ShapeError(
                    f"[einsum] expected one size for {letter!r}, got {known} and {size}"
                )
            sizes[letter] = size if known == 1 else known
    return sizes


def _diagonal(term: str, x: Tensor) -> tuple[str, Tensor]:
    """Take the diagonal over each repeated letter."""
    for letter in sorted({c for c in term if term.count(c) > 1}):
        at = [i for i, c in enumerate(term) if c == letter]
        rest = [i for i, c in enumerate(term) if c != letter]
        size, others = x.shape[at[0]], [x.shape[i] for i in rest]
        if any(x.shape[i] != size for i in at):
            raise ShapeError(f"[einsum] expected one size for {letter!r}, got {x.shape}")
        x = reshape(transpose(x, (*rest, *at)), (*others, size ** len(at)))
        if size > 1:  # of size * size elements, keep elements 0, size + 1, 2 (size + 1), ...
            x = slice_(x, 0, None, -1, sum(size**i for i in range(len(at))))
        term = "".join(term[i] for i in rest) + letter
    return term, x


def _sum_out(term: str, x: Tensor, wanted: set[str]) -> tuple[str, Tensor]:
    """Sum over the letters that neither the result nor another operand uses."""
    gone = tuple(i for i, c in enumerate(term) if c not in wanted)
    if gone:
        x = reduce_sum(x, gone)
    return "".join(c for c in term if c in wanted), x


def _drop_ones(term: str, x: Tensor, sizes: dict[str, int]) -> tuple[str, Tensor]:
    """Drop axes of size 1 that broadcast against longer axes."""
    axes = [i for i, c in enumerate(term) if x.shape[i] == sizes[c]]
    if len(axes) == len(term):
        return term, x
    return "".join(term[i] for i in axes), reshape(x, [x.shape[i] for i in axes])


def _ordered(term: str, wanted: str, x: Tensor) -> Tensor:
    return transpose(x, [term.index(c) for c in wanted])


def _multiply(
    left: tuple[str, Tensor], right: tuple[str, Tensor], needed: set[str], sizes: dict[str, int]
) -> tuple[str, Tensor]:
    """Contract two operands; `needed` holds the letters that are used afterwards."""
    (a, x), (b, y) = left, right
    batch = "".join(c for c in a if c in b and c in needed)
    inner = "".join(c for c in a if c in b and c not in needed)
    rows = "".join(c for c in a if c not in b)
    columns = "".join(c for c in b if c not in a)
    if not inner:
        return _scale(batch, rows, columns, left, right)
    shape = [math.prod(sizes[c] for c in part) for part in (batch, rows, inner, columns)]
    swapped_x, first = _matrix(a, x, batch, rows, inner, (shape[0], shape[1], shape[2]))
    swapped_y, second = _matrix(b, y, batch, inner, columns, (shape[0], shape[2], shape[3]))
    if not batch:
        first, second = reshape(first, first.shape[1:]), reshape(second, second.shape[1:])
    product = matmul(first, second, transpose_a=swapped_x, transpose_b=swapped_y)
    term = batch + rows + columns
    return term, reshape(product, [sizes[c] for c in term])


def _scale(
    batch: str, rows: str, columns: str, left: tuple[str, Tensor], right: tuple[str, Tensor]
) -> tuple[str, Tensor]:
    """Multiply two operands elementwise, with broadcasting and without a sum."""
    term = batch + rows + columns
    parts = []
    for letters, x in (left, right):
        own = "".join(c for c in term if c in letters)
        moved = _ordered(letters, own, x)
        parts.append(reshape(moved, [moved.shape[own.index(c)] if c in own else 1 for c in term]))
    return term, mul(*parts)


def _matrix(
    term: str, x: Tensor, batch: str, rows: str, columns: str, shape: tuple[int, int, int]
) -> tuple[bool, Tensor]:
    """Return (is_transposed, x), where x is the operand as a batch of matrices.

    The order of the operand in memory is retained if possible, because matmul reads both orders.
    """
    if term == batch + columns + rows and term != batch + rows + columns:
        return True, reshape(x, (shape[0], shape[2], shape[1]))
    return False, reshape(_ordered(term, batch + rows + columns, x), shape)


def _path(terms: Sequence[str], result: str, sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Return the contraction order: the pairs that numpy.einsum_path chooses for these sizes."""
    letters = sorted({c for term in terms for c in term})
    if len(terms) <= 2 or len(letters) > 52:
        return [tuple(range(len(terms)))]
    names = dict(zip(letters, string.ascii_letters, strict=False))
    equation = ",".join("".join(names[c] for c in t) for t in terms)
    equation += "->" + "".join(names[c] for c in result)
    shapes = [np.broadcast_to(np.float32(0), [sizes[c] for c in t]) for t in terms]
    path, _ = np.einsum_path(equation, *shapes, optimize="greedy")
    return [tuple(int(i) for i in step) for step in path[1:]]


def einsum(equation: str, *operands: TensorLike, name: str | None = None) -> Tensor:
    """Evaluate the Einstein summation convention, as numpy.einsum.

    Operands are contracted in the order that numpy.einsum_path chooses.

    Parameters
    ----------
    equation : str
        Subscripts, e.g. "ij,jk->ik" for a matrix product, "ii" for a trace and "...ij->...ji" for a
        transpose. Without "->" the result has the axes under `...` and then, in alphabetical order,
        the letters that occur once.
    *operands : Tensor
        One operand for each term of `equation`.

    Returns
    -------
    Tensor
        The sum of products over the letters that the result lacks.
    """
    if not isinstance(equation, str):
        raise ShapeError(f"[einsum] expected an equation such as 'ij,jk->ik', got {equation!r}")
    if not operands:
        raise ShapeError("[einsum] expected at least one operand, got none")
    like = next((t for t in operands if isinstance(t, Tensor)), None)
    tensors = [as_tensor(t, like=like) for t in operands]
    if any(t.dtype == BOOL for t in tensors):
        raise DTypeError("[einsum] expected numbers, got bool; try vs.cast")
    terms, result = _parse(equation, [t.rank for t in tensors])
    sizes = _sizes(terms, tensors)
    if len(result) > MAX_RANK:
        raise ShapeError(f"[einsum] expected a result of at most {MAX_RANK} axes, got {result!r}")
    parts = [_diagonal(t, x) for t, x in zip(terms, tensors, strict=True)]
    parts = [_drop_ones(t, x, sizes) for t, x in parts]
    for step in _path([t for t, _ in parts], result, sizes):
        taken = [parts[i] for i in step]
        parts = [p for i, p in enumerate(parts) if i not in step]
        rest = set(result).union(*(t for t, _ in parts))
        while len(taken) > 1:  # numpy contracts the last few operands in one step
            first, second = taken[:2]
            elsewhere = rest.union(*(t for t, _ in taken[2:]))
            first = _sum_out(*first, elsewhere | set(second[0]))
            second = _sum_out(*second, elsewhere | set(first[0]))
            taken = [_multiply(first, second, elsewhere, sizes), *taken[2:]]
        parts.append(_sum_out(*taken[0], rest))
    term, x = parts[0]
    return transpose(x, [term.index(c) for c in result], name=name)
