"""llama, and what is the same network under its name: Mistral, TinyLlama, SmolLM, and Mixtral with
its experts.

Source: https://arxiv.org/abs/2302.13971
"""

from __future__ import annotations

from .family import Family

LLAMA = Family(interleaved=True)
