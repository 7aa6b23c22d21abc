"""Positions: what the place of a token in its text does to its queries and keys.

Pairs of elements of each head are turned by angles that grow with the position; queries may grow,
too. cos and sin of all positions are tables, of which the tokens take their rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ....common.dtypes import NDArray
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor, constant
from ....ops import gather, rotary_embedding
from ..hparams.hparams import Hyper
from ..hparams.metadata_keys import MAX_REAL
from ..hparams.rope import Rope
from .family import Family
from .token_layout import Text
from .weights import Weights

Tables = dict[Rope | None, tuple[Tensor, ...]]
"""By the way in which pairs are turned; None: what queries grow by."""
SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass
class Positions:
    """The positions of the tokens of one text."""

    family: Family
    hyper: Hyper
    weights: Weights
    text: Text
    tables: Tables
    """Of all positions. The parts of a text share them."""
    rows: Tables = field(default_factory=dict)
    """Those of the tokens."""

    def rotate(self, x: Tensor, windowed: bool) -> Tensor:
        """Return queries or keys (b, heads, n, size), turned. windowed: in a layer with a window,
        which may turn them by another base.
        """
        rope = self.hyper.rope
        if windowed:
            rope = replace(rope, base=rope.window_base or self.family.window_base or rope.base)
            if not self.family.window_scaled:
                rope = replace(rope, scaling="none", attention_factor=1.0)
        cos, sin = self._rows_of(rope)
        return rotary_embedding(
            x, cos, sin, interleaved=self.family.interleaved, rotary_dim=rope.dims
        )

    def tempered(self, q: Tensor) -> Tensor:
        """Return queries (b, heads, n, size), which grow with the position."""
        if self.text.length + self.family.tempered_from <= self.hyper.temperature_length:
            return q
        return q * self._rows_of(None)[0]

    def _rows_of(self, rope: Rope | None) -> tuple[Tensor, ...]:
        if rope not in self.rows:
            if rope not in self.tables:
                tables = self._growth() if rope is None else self._angles(rope)
                self.tables[rope] = tuple(constant(self._float32(each)) for each in tables)
            at = self.text.positions
            whole = self.tables[rope]
            self.rows[rope] = whole if at is None else tuple(gather(each, at) for each in whole)
        return self.rows[rope]

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
        """Returns what the speed of each pair is divided by, as files of Llama 3.1 have it, and
        those of Phi 3 for short texts and for long ones.
        """
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
    """Return the angle of each pair at position 1. slowed: what it is divided by. rounded: as
    `Family.yarn_rounded`.
    """
    rates = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims) / slowed
    if rope.scaling == "linear":
        return np.asarray(rates / rope.factor)
    if rope.scaling == "yarn":
        ext_factor = rope.ext_factor * _extrapolation_ramp(rope, rounded)
        return np.asarray(rates * (ext_factor + (1 - ext_factor) / rope.factor))
    return np.asarray(rates)


def _extrapolation_ramp(rope: Rope, rounded: bool) -> NDArray:
    """Return for each pair how much of its speed it keeps: 1 where it turns fast, then less and
    less, then 0.

    Source: https://arxiv.org/abs/2309.00071
    """
    span = 2 * np.log(max(rope.base, 1 + 1e-6)) / rope.dims  # of logarithms, from pair to pair
    first, last = (
        np.log(rope.original / (2 * np.pi * turns)) / span for turns in (rope.fast, rope.slow)
    )
    if rounded:
        first, last = np.floor(first), np.ceil(last)
    first, last = max(first, 0), min(last, rope.dims - 1)
    slower = (np.arange(rope.dims // 2) - first) / max(last - first, 0.001)
    return np.asarray(1 - np.clip(slower, 0, 1))
