"""AltUp: the sizes of alternating updates, whose layers compute one of several residual streams.

Source: https://arxiv.org/abs/2301.13310
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .metadata_keys import ALTERNATING, MetadataKeys

MAX_STREAMS = 1 << 8
DENSE = -math.inf
"""The cutoff of a layer whose gates are all used."""


@dataclass(frozen=True)
class AltUp:
    """streams: the number of residual streams. active: the one that layers compute. cutoffs: for
    each layer the gate below which the feed-forward is 0, in standard deviations over the mean of
    the token's gates.
    """

    streams: int
    active: int
    cutoffs: tuple[float, ...]


def read_altup(keys: MetadataKeys, layers: int) -> AltUp | None:
    """Return the sizes of a file; None for architectures without alternating updates.

    Raises
    ------
    ModelFormatError
        A key is missing, or its value is invalid.
    """
    if keys.architecture not in ALTERNATING:
        return None
    streams = keys.whole("altup.num_inputs", minimum=2, maximum=MAX_STREAMS)
    active = keys.whole("altup.active_idx", minimum=0, maximum=streams - 1)
    cutoffs = keys.reals("activation_sparsity_scale", layers, least=-math.inf)
    return AltUp(streams, active, cutoffs or (DENSE,) * layers)
