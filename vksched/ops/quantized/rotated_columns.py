"""The rotary embedding of the first columns of a product with quantized weights."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding of the first columns of a product.

    Attributes
    ----------
    tables
        Operands of the call: cosines and sines, (rows, pairs).
    columns
        Number of rotated columns of all weights, which come first.
    head_size, pairs
        Columns of a head, and pairs of them that are rotated.
    interleaved
        If true, the values of a pair are neighbours.
    """

    tables: tuple[int, int]
    columns: int
    head_size: int
    pairs: int
    interleaved: bool

    @property
    def push(self) -> tuple[tuple[str, int], ...]:
        """Return the push fields of GEMV kernels."""
        return (
            ("rotated", self.columns),
            ("head_size", self.head_size),
            ("rotary_pairs", self.pairs),
        )

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        """Return the constants of GEMV kernels."""
        return (("INTERLEAVED", int(self.interleaved)),)
