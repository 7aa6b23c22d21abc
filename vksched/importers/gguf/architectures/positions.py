"""Positions: applies rotary embedding and attention temperature scaling to queries and keys.

Rotary embedding rotates pairs of elements of each head by angles proportional to the position. cos
and sin of all positions are tables, from which the rows of the tokens are gathered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor, constant
from ....ops import gather, reshape, rotary_embedding
from ..hparams.hparams import HParams
from ..hparams.metadata_keys import MAX_REAL
from ..hparams.rope import Rope
from .family import Family
from .token_layout import SequenceLayout
from .weights import Weights

Tables = dict[Rope | None, tuple[Tensor, ...]]
"""Tables by rotary parameters; under None the attention temperatures."""
SCALINGS = ("none", "linear", "yarn", "longrope")


def axes_of_pairs(rope: Rope, mrope: str) -> NDArray:
    """Return the axis of each pair with M-RoPE: 0 for time, 1 for rows, 2 for columns.

    mrope: "sections" for one section of pairs after the other, or "interleaved".

    Raises
    ------
    ModelFormatError
        The sections have other numbers of pairs than the rotary embedding.
    """
    pairs = rope.dims // 2
    if sum(rope.sections) != pairs:
        raise ModelFormatError(
            f"[gguf] key 'rope.dimension_sections': expected {pairs} pairs in all sections, got "
            f"{sum(rope.sections)}"
        )
    if mrope == "sections":
        return np.repeat(np.arange(3), rope.sections)
    axes = np.zeros(pairs, np.int64)
    for axis in (1, 2):
        axes[axis : 3 * rope.sections[axis] : 3] = axis
    return axes


@dataclass
class Positions:
    """The positions of the tokens of one text."""

    family: Family
    hyper: HParams
    weights: Weights
    text: SequenceLayout
    tables: Tables
    """The tables for all positions, which all parts of a text share."""
    rows: Tables = field(default_factory=dict)
    """The rows of the tokens."""

    def rotate(self, x: Tensor, windowed: bool) -> Tensor:
        """Return queries or keys (b, heads, n, size) with rotary embedding. windowed: True in a
        layer with a window, which may have another rotary base.
        """
        rope = self.hyper.rope
        if windowed:
            base = rope.window_base or self.family.window_base or rope.base
            rope = replace(rope, base=base, dims=rope.window_dims)
            if not self.family.window_scaled:
                rope = replace(rope, scaling="none", attention_factor=1.0, slowed=False)
        cos, sin = self._rows_of(rope)
        return rotary_embedding(
            x, cos, sin, interleaved=self.family.interleaved, rotary_dim=rope.dims
        )

    def tempered(self, q: Tensor) -> Tensor:
        """Return queries (b, heads, n, size), scaled by the attention temperature of their
        positions.
        """
        if self.text.length + self.family.tempered_from <= self.hyper.temperature_length:
            return q
        factors = self._rows_of(None)[0]
        if factors.rank == 3:  # of several rows
            factors = reshape(factors, (factors.shape[0], 1, *factors.shape[1:]))
        return q * factors

    def _rows_of(self, rope: Rope | None) -> tuple[Tensor, ...]:
        if rope not in self.rows:
            if rope not in self.tables:
                tables = self._growth() if rope is None else self._angles(rope)
                self.tables[rope] = tuple(constant(self._float32(each)) for each in tables)
            at, whole = self.text.positions, self.tables[rope]
            if rope is not None and self.text.rotary is not None:
                at = self.text.rotary
            if at is None:
                self.rows[rope] = whole
            elif rope is not None and at.rank == 3:
                self.rows[rope] = tuple(self._by_axis(each, at, rope) for each in whole)
            else:
                self.rows[rope] = tuple(gather(each, at) for each in whole)
        return self.rows[rope]

    def _by_axis(self, table: Tensor, at: Tensor, rope: Rope) -> Tensor:
        """Return the rows (b, n, pairs) of a table for positions in time, rows and columns, each of
        which rotates some of the pairs.
        """
        axes = axes_of_pairs(rope, self.family.mrope)
        own = (
            gather(table, at[:, axis]) * constant((axes == axis).astype(np.float32))
            for axis in range(3)
        )
        return next(own) + next(own) + next(own)

    def _float32(self, table: NDArray) -> NDArray:
        largest = np.abs(table).max(initial=0)
        if largest > MAX_REAL:
            raise ModelFormatError(
                f"[gguf] expected keys of '{self.hyper.architecture}.rope.scaling' and "
                f"'.attention.temperature_scale' that make factors of at most {MAX_REAL:g}, got "
                f"{largest:g}"
            )
        return table.astype(np.float32)

    def _growth(self) -> tuple[NDArray]:
        hyper, at = self.hyper, np.arange(self.text.length, dtype=np.float64)
        passed = np.floor((at + self.family.tempered_from) / hyper.temperature_length)
        return (1 + hyper.temperature_scale * np.log1p(passed)[:, None],)

    def _angles(self, rope: Rope) -> tuple[NDArray, NDArray]:
        """Return cos and sin of the angles at positions 0, 1, ..., each (length, dims / 2)."""
        if rope.scaling not in SCALINGS or rope.dims % 2:
            raise ModelFormatError(
                f"[gguf] key '{self.hyper.architecture}.rope.scaling.type': expected one of "
                f"{', '.join(SCALINGS)} with an even number of dimensions, got {rope.scaling!r} "
                f"with {rope.dims}"
            )
        rates = _rates(rope, self._slowed(rope), self.family.yarn_rounded)
        angles = np.arange(self.text.length, dtype=np.float64)[:, None] * rates
        return rope.attention_factor * np.cos(angles), rope.attention_factor * np.sin(angles)

    def _slowed(self, rope: Rope) -> NDArray | float:
        """Return the divisors of the pairs' frequencies: those of Llama 3.1 files, and those of Phi
        3 for short or long contexts.
        """
        if not rope.slowed:
            return 1.0
        if "rope_freqs.weight" in self.weights:
            return self._divisors("rope_freqs.weight")
        if "rope_factors_long.weight" not in self.weights and rope.scaling != "longrope":
            return 1.0
        short, long = (self._divisors(f"rope_factors_{each}.weight") for each in ("short", "long"))
        return long if self.text.length > rope.original else short

    def _divisors(self, name: str) -> NDArray:
        found = np.asarray(self.weights.take(name, (self.hyper.rope.dims // 2,)).data)
        if not (found > 0).all():
            raise ModelFormatError(f"[gguf] tensor {name!r}: expected numbers over 0")
        return found


def _rates(rope: Rope, slowed: NDArray | float, rounded: bool) -> NDArray:
    """Return the frequency of each pair, its angle at position 1. slowed: the divisors of
    frequencies. rounded: see `Family.yarn_rounded`.
    """
    rates = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims) / slowed
    if rope.scaling == "linear":
        return np.asarray(rates / rope.factor)
    if rope.scaling == "yarn":
        ext_factor = rope.ext_factor * _extrapolation_ramp(rope, rounded)
        return np.asarray(rates * (ext_factor + (1 - ext_factor) / rope.factor))
    return np.asarray(rates)


def _extrapolation_ramp(rope: Rope, rounded: bool) -> NDArray:
    """Return YaRN's ramp for each pair: 1 for high frequencies, falling linearly to 0 for low ones.

    Source: https://arxiv.org/abs/2309.00071
    """
    span = (
        2 * np.log(max(rope.base, 1 + 1e-6)) / rope.dims
    )  # the step of log frequency between pairs
    first, last = (
        np.log(rope.original / (2 * np.pi * turns)) / span for turns in (rope.fast, rope.slow)
    )
    if rounded:
        first, last = np.floor(first), np.ceil(last)
    first, last = max(first, 0), min(last, rope.dims - 1)
    slower = (np.arange(rope.dims // 2) - first) / max(last - first, 0.001)
    return np.asarray(1 - np.clip(slower, 0, 1))
