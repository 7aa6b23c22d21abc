"""Ssm: the sizes of layers with a recurrent state.

Files name them by those of Mamba, whatever the kind of the layers is.
"""

from __future__ import annotations

from dataclasses import dataclass

from .metadata_keys import MetadataKeys

MAX_KERNEL = 1 << 10


@dataclass(frozen=True)
class Ssm:
    """The sizes of recurrent layers; 0 if absent. kernel: the taps of the short convolution. inner:
    the channels of all heads. state: the size of the state per channel. heads: the number of heads
    (the rank of time steps in Mamba 1). groups: the number of groups of heads that share keys and
    queries.
    """

    kernel: int = 0
    inner: int = 0
    state: int = 0
    heads: int = 0
    groups: int = 0


def read_ssm(keys: MetadataKeys) -> Ssm:
    """Return the sizes of a file.

    Raises
    ------
    ModelFormatError
        A size is invalid.
    """
    return Ssm(
        kernel=keys.whole("ssm.conv_kernel", 0, minimum=0, maximum=MAX_KERNEL),
        inner=keys.whole("ssm.inner_size", 0, minimum=0),
        state=keys.whole("ssm.state_size", 0, minimum=0),
        heads=keys.whole("ssm.time_step_rank", 0, minimum=0),
        groups=keys.whole("ssm.group_count", 0, minimum=0),
    )
