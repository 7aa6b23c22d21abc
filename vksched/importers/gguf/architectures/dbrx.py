"""DBRX: experts in all layers, layer norms without bias, and bounds of queries, keys and values.

Source: https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm
"""

from __future__ import annotations

from .family import Family, Norms

DBRX = Family(
    layer_norms=True,
    shifted_norms=False,
    joined=("attn_qkv",),
    feed_forward_norms=Norms("attn_output_norm"),
)
