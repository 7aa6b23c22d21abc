"""Architectures: what sets each family of language models apart, one short file each."""

from __future__ import annotations

from collections.abc import Mapping

from ....errors import ModelFormatError
from .bert import BERT, NOMIC_BERT
from .family import Family
from .gemma import GEMMA, GEMMA2, GEMMA3
from .gpt2 import GPT2
from .llama import LLAMA
from .phi import PHI3
from .qwen import QWEN2, QWEN2_MOE, QWEN3

KNOWN: Mapping[str, Family] = {
    "llama": LLAMA,
    "qwen2": QWEN2,
    "qwen2moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi3": PHI3,
    "gpt2": GPT2,
    "bert": BERT,
    "nomic-bert": NOMIC_BERT,
}
"""By the name that files have for them."""


def architecture(name: str) -> Family:
    """Returns what sets models of an architecture apart.

    Raises:
        ModelFormatError: it is not known.
    """
    if name not in KNOWN:
        raise ModelFormatError(
            f"[gguf] expected one of the architectures {', '.join(KNOWN)}, got {name!r}; "
            "`vksched info` tells what is in the file"
        )
    return KNOWN[name]
