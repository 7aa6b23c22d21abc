"""xIELU: the parameters of Apertus' activation in each layer.

Source: https://arxiv.org/abs/2411.13010
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ....common.errors import ModelFormatError
from .metadata_keys import MetadataKeys

NAMES = ("alpha_p", "alpha_n", "beta", "eps")


@dataclass(frozen=True)
class XIELU:
    """The parameters of a layer. positive, negative: the factors of the curved parts over and below
    0. beta: the slope at 0. limit: the largest argument of exp.
    """

    positive: float
    negative: float
    beta: float
    limit: float


def read_xielu(keys: MetadataKeys, layers: int) -> tuple[XIELU, ...]:
    """Return the parameters of each layer; () if the file has none.

    Raises
    ------
    ModelFormatError
        A key is missing, or its value is invalid.
    """
    found = {name: keys.reals(name, layers) for name in NAMES}
    if not any(found.values()):
        return ()
    for name, values in found.items():
        if not values:
            raise ModelFormatError(
                f"[gguf] expected the key 'xielu.{name}' of an activation, got none; try to "
                "convert the model again"
            )
    return tuple(
        XIELU(_softplus(positive), beta + _softplus(negative), beta, limit)
        for positive, negative, beta, limit in zip(*found.values(), strict=True)
    )


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
