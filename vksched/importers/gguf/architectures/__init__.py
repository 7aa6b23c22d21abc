"""Architectures: the parameters of each family of language models, one short file each."""

from __future__ import annotations

from collections.abc import Mapping

from ....common.errors import ModelFormatError
from .bert import BERT, NOMIC_BERT
from .cohere import COHERE2, COMMAND_R
from .family import Family
from .gemma import GEMMA, GEMMA2, GEMMA3
from .glm import CHATGLM, GLM4
from .gpt2 import GPT2
from .gpt_oss import GPT_OSS
from .layer_norms import FALCON, NEMOTRON, PHI2, STABLELM, STARCODER2
from .llama import ARCEE, EXAONE, GRANITE, LLAMA, LLAMA4, SMOLLM3
from .olmo import EXAONE4, OLMO2, OLMOE
from .phi import PHI3
from .qwen import QWEN2, QWEN2_MOE, QWEN3, SEED_OSS

KNOWN: Mapping[str, Family] = {
    "llama": LLAMA,
    "llama4": LLAMA4,
    "mistral3": LLAMA,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "qwen2": QWEN2,
    "qwen2moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3moe": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi2": PHI2,
    "phi3": PHI3,
    "olmo2": OLMO2,
    "olmoe": OLMOE,
    "command-r": COMMAND_R,
    "cohere2": COHERE2,
    "glm4": GLM4,
    "chatglm": CHATGLM,
    "exaone": EXAONE,
    "exaone4": EXAONE4,
    "ernie4_5": LLAMA,
    "seed_oss": SEED_OSS,
    "arcee": ARCEE,
    "nemotron": NEMOTRON,
    "starcoder2": STARCODER2,
    "stablelm": STABLELM,
    "falcon": FALCON,
    "gpt2": GPT2,
    "gpt-oss": GPT_OSS,
    "bert": BERT,
    "nomic-bert": NOMIC_BERT,
}
"""Families by the architecture name in GGUF files."""


MISSING: Mapping[str, str] = {
    **dict.fromkeys(("deepseek2", "minicpm3", "plm"), "attention to compressed keys and values"),
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv6", "rwkv7"), "layers of states that are not attention"
    ),
    **dict.fromkeys(
        ("falcon-h1", "granitehybrid", "jamba", "kimi-linear", "nemotron_h", "qwen35", "qwen3next"),
        "layers of states beside attention",
    ),
    **dict.fromkeys(("lfm2", "lfm2moe"), "layers of short convolutions"),
    **dict.fromkeys(
        (
            "bailingmoe2",
            "deepseek",
            "dots1",
            "ernie4_5-moe",
            "glm4moe",
            "hunyuan-moe",
            "minimax-m2",
        ),
        "the way in which experts are chosen",
    ),
    **dict.fromkeys(("gemma3n", "gemma4"), "vectors of tokens in each layer"),
    "apertus": "its activation",
    **dict.fromkeys(("bloom", "jais", "mpt"), "scores that fall with distance"),
    **dict.fromkeys(("t5", "t5encoder"), "an encoder beside a decoder"),
}
"""For unsupported architectures: the missing feature of the network."""


def architecture(name: str) -> Family:
    """Return the family of an architecture.

    Raises
    ------
    ModelFormatError
        The architecture is unknown.
    """
    if name in MISSING:
        raise ModelFormatError(
            f"[gguf] expected an architecture without {MISSING[name]}, got {name!r}; try one of "
            f"{', '.join(KNOWN)}"
        )
    if name not in KNOWN:
        raise ModelFormatError(
            f"[gguf] expected one of the architectures {', '.join(KNOWN)}, got {name!r}; "
            "`vksched info` tells what is in the file"
        )
    return KNOWN[name]
