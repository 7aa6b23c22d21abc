"""Ssm: the sizes of layers with a recurrent state.

Files name them by those of Mamba, whatever the kind of the layers is.
"""

from __future__ import annotations

from dataclasses import dataclass

from .metadata_keys import MetadataKeys

MAX_KERNEL = 1 << 10
KEYS = {
    "kernel": "ssm.conv_kernel",
    "inner": "ssm.inner_size",
    "state": "ssm.state_size",
    "heads": "ssm.time_step_rank",
    "groups": "ssm.group_count",
}
"""The keys of the sizes in files."""


@dataclass(frozen=True)
class Ssm:
    """The sizes of recurrent layers; 0 if absent. kernel: the taps of the short convolution. inner:
    the channels of all heads. state: the size of the state per channel (that of a head in
    Kimi Linear and RWKV). heads: the number of heads
    (the rank of time steps in Mamba 1). groups: the number of groups of heads that share keys and
    queries. normed: RMS norms without weights of the projections of Mamba 1.
    """

    kernel: int = 0
    inner: int = 0
    state: int = 0
    heads: int = 0
    groups: int = 0
    normed: bool = False


def read_ssm(keys: MetadataKeys) -> Ssm:
    """Return the sizes of a file.

    Raises
    ------
    ModelFormatError
        A size is invalid.
    """
    taps = keys.whole("shortconv.l_cache", 0, minimum=0, maximum=MAX_KERNEL)
    wkv = keys.whole("wkv.head_size", 0, minimum=0)
    sizes = {"state": keys.whole("kda.head_dim", wkv, minimum=0)}
    for name, key in KEYS.items():
        if name != "kernel":
            sizes[name] = keys.whole(key, sizes.get(name, 0), minimum=0)
    return Ssm(
        kernel=keys.whole(KEYS["kernel"], taps, minimum=0, maximum=MAX_KERNEL),
        normed=keys.flag("ssm.dt_b_c_rms", False),
        **sizes,
    )
