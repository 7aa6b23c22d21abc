"""What a model file may ask for: numbers far above real models and far below what hurts a host."""

from __future__ import annotations

from ....common.env import number_of

MAX_RANK = 64
"""Of a tensor, as in numpy."""
MAX_ELEMENTS = 1 << 40
"""Of a declared tensor: the product of its dimensions that are not zero."""
MAX_MADE_BYTES = 1 << 28
"""What constants may take that a file describes in less: sparse ones, shared external data, the
results of ConstantOfShape and the like while a model is folded. For folding more by `MADE_TIMES`
the size of the file, as weights of 4 bits may become floats."""
MATERIALIZED_FACTOR = 16
MADE = "VKSCHED_MADE_MIB"
"""Variable that gives another number instead of both, in MiB."""
MAX_DEPTH = 24
"""Subgraphs and functions inside each other."""
MAX_NODES = 1 << 18
"""With all function calls expanded."""
MAX_INFERRED_NODES = 1 << 16
MAX_INFERRED_BYTES = 1 << 26
"""Larger models are not given to shape inference as a whole: it copies them several times."""


def made_limit(file_bytes: int = 0) -> int:
    """Returns what may be made of a file of so many bytes, beside what it holds as it is."""
    limit_mib = number_of(MADE)
    return MAX_MADE_BYTES + MATERIALIZED_FACTOR * file_bytes if limit_mib is None else limit_mib << 20
