"""Decoders with blocks of other families: PLM has latent attention and a squared ReLU without a
gate; OpenELM has heads and feed-forwards of a size by layer; PLaMo has attention and feed-forward
in parallel; Maincoder has norms of heads after the rotary embedding.

Sources: https://arxiv.org/abs/2503.12167, https://arxiv.org/abs/2404.14619
"""

from __future__ import annotations

from .family import Family, Norms, squared_relu

PLM = Family(interleaved=True, gated=False, activation=squared_relu)
OPENELM = Family(head_norms="each", joined=("attn_qkv",))
PLAMO = Family(parallel=True, feed_forward_norms=Norms("attn_norm"))
MAINCODER = Family(interleaved=True, norms_after_rope=True)
