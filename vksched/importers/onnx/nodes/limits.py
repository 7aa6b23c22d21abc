"""Limits on a model file: far above real models, and far below sizes that harm a host."""

from __future__ import annotations

from ....common.env import number_of

MAX_RANK = 64
"""Maximum rank of a tensor, as in numpy."""
MAX_ELEMENTS = 1 << 40
"""Maximum product of a declared tensor's dimensions, zeros excluded."""
MAX_MATERIALIZED_BYTES = 1 << 28
"""Maximum memory of constants that are larger than their description in the file.

Examples are sparse tensors, shared external data, and results of ConstantOfShape during folding.
Constant folding may also use `MATERIALIZED_FACTOR` times the size of the file, because 4-bit
weights may become floats.
"""
MATERIALIZED_FACTOR = 16
FOLD_LIMIT = "VKSCHED_FOLD_MIB"
"""Environment variable that replaces both limits, in MiB."""
MAX_DEPTH = 24
"""Maximum nesting of subgraphs and functions."""
MAX_NODES = 1 << 18
"""Maximum number of nodes with all function calls inlined."""
MAX_INFERRED_NODES = 1 << 16
MAX_INFERRED_BYTES = 1 << 26
"""Larger models skip shape inference of the whole model, which copies them several times."""


def materialized_limit(file_bytes: int = 0) -> int:
    """Return the limit on materialized constants for a file of this size."""
    limit_mib = number_of(FOLD_LIMIT)
    return (
        MAX_MATERIALIZED_BYTES + MATERIALIZED_FACTOR * file_bytes
        if limit_mib is None
        else limit_mib << 20
    )
