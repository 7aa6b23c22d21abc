"""Command R: layer norms without bias, and parallel attention and feed-forward blocks. Command R7B
and Command A have sliding windows in three of four layers; the others have no rotary embedding.

Source: https://docs.cohere.com/docs/command-r
"""

from __future__ import annotations

from dataclasses import replace

from .family import Family, Norms

COMMAND_R = Family(
    interleaved=True,
    layer_norms=True,
    shifted_norms=False,
    feed_forward_norms=Norms("attn_norm"),
    parallel=True,
)
COHERE2 = replace(COMMAND_R, full_every=4, full_unturned=True)
