"""Select the cooperative-matrix tiles of attention.

    subgroup:  one matrix of query rows, against some keys at a time
    workgroup: 4 subgroups, which share keys and values as float16 in shared memory

Both matrix products have float16 operands and float32 sums; the softmax between them is float32.
The static choice follows the rule of matrix products (linalg/coopmat.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...ir.op import Call
from ...topology.limits import Limits
from ..linalg.coopmat import (
    MIN_SIDE,
    coopmat_name,
    coopmat_pays,
    coopmat_subgroups,
    guessed_shape,
    rounds,
    shapes_of,
)

_SUBGROUPS = 4
_KEYS = {False: 32, True: 16}
_MAX_COLUMNS = {False: 128, True: 16}
"""Maximum of keys at a time, of the depth of a query, and of the columns of v of one dispatch; a
subgroup holds the latter in registers. The key is True for CPU drivers: llvmpipe takes a minute to
compile more.
"""


def most_columns(limits: Limits) -> int:
    """Return the maximum columns of v of one dispatch, also the maximum depth of queries."""
    return _MAX_COLUMNS[limits.software]


@dataclass(frozen=True, slots=True)
class AttentionCoopmat:
    """A variant of `attention_coopmat`.

    Attributes
    ----------
    shape : tuple of int
        Rows, columns and depth of one cooperative matrix.
    subgroup : int
        Size of a subgroup.
    keys : int
        Number of keys processed at a time.
    """

    shape: tuple[int, int, int]
    subgroup: int
    keys: int

    @property
    def rows(self) -> int:
        """Return the number of queries of a workgroup."""
        return _SUBGROUPS * self.shape[0]

    @property
    def name(self) -> str:
        return coopmat_name(self.shape, self.rows, self.keys, self.subgroup)

    def matrices(self, depth: int, columns: int) -> tuple[int, int]:
        """Return the number of matrices along the depth of queries, and along the columns of v."""
        return -(-depth // self.shape[2]), -(-columns // self.shape[1])

    def shared_bytes(self, depth: int, columns: int) -> int:
        deep, wide = self.matrices(depth, columns)
        query, value = 2 * (deep * self.shape[2] + 8), 2 * (wide * self.shape[1] + 8)
        tiles = max(self.rows * query, self.keys * (query + value))
        row = 2 * (self.keys + 8) + 4 * (self.keys + 4) + 4 * self.shape[1] + 12
        return tiles + self.rows * row

    def constants(self, depth: int, columns: int, row: int) -> tuple[tuple[str, int], ...]:
        """Return the specialization constants for `columns` of v, whose row stride is `row`.

        Operands that fill whole matrices are read as 32-bit words, two float16 each.
        """
        deep, wide = self.matrices(depth, columns)
        full = deep * self.shape[2] == depth and wide * self.shape[1] == columns and row % 2 == 0
        rows, across, steps = self.shape
        return (
            ("LOCAL_X", _SUBGROUPS * self.subgroup),
            *(("MATRIX_M", rows), ("MATRIX_N", across), ("MATRIX_K", steps)),
            *(("DEPTHS", deep), ("COLUMNS", wide)),
            ("KEYS", self.keys),
            ("PADDED", int(not full)),
        )

    def fits(self, limits: Limits, depth: int, columns: int) -> bool:
        """Return True if a device supports this tile for heads of these sizes."""
        whole = all(self.keys % side == side % 8 == 0 for side in self.shape)
        # lanes that share a row in the softmax, with at least eight keys each
        sharing, rest = divmod(self.subgroup, self.shape[0])
        most = min(limits.max_invocations, limits.max_local_size[0])
        return (
            whole
            and rest == 0 < sharing <= self.keys // 8
            and _SUBGROUPS * self.subgroup <= most
            and self.shared_bytes(depth, min(columns, most_columns(limits))) <= limits.shared_bytes
        )


@lru_cache(maxsize=64)
def _coopmats(limits: Limits, depth: int, columns: int) -> dict[str, AttentionCoopmat]:
    spills = limits.few_registers  # of sums, which a subgroup holds for all columns
    if spills or not (limits.subgroup_shuffle and 0 < depth <= most_columns(limits)):
        return {}
    coopmats = (
        AttentionCoopmat(shape, subgroup, _KEYS[limits.software])
        for shape in shapes_of(limits)
        for subgroup in coopmat_subgroups(limits)
    )
    return {coopmat.name: coopmat for coopmat in coopmats if coopmat.fits(limits, depth, columns)}


def attention_coopmat_tile(call: Call, depth: int, columns: int) -> AttentionCoopmat | None:
    """Return the tile of a call's variant, or None if the variant is another kernel."""
    named = call.variant.startswith("coopmat ")
    return _coopmats(call.limits, depth, columns).get(call.variant) if named else None


def attention_coopmat_variants(
    call: Call, rows: int, keys: int, depth: int, columns: int
) -> tuple[str, ...]:
    """Return the cooperative-matrix variants for a call with this many rows of q per key head."""
    if min(rows, keys) < MIN_SIDE or not rounds(call):
        return ()
    return tuple(_coopmats(call.limits, depth, columns))


def guessed_attention_coopmat(call: Call, rows: int, keys: int, depth: int, columns: int) -> str:
    """Return the cooperative-matrix variant of a call without a measurement, or ""."""
    if call.limits.coopmat_attention_slow or not call.limits.coopmat_checked or not rounds(call):
        return ""
    for tile in _coopmats(call.limits, depth, columns).values():
        whole = -(-rows // tile.rows) * tile.rows * -(-keys // tile.keys) * tile.keys
        checked = (tile.shape, tile.subgroup) == guessed_shape(call.limits)
        if checked and coopmat_pays(call.limits, rows * keys, whole):
            return tile.name
    return ""
