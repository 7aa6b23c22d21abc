"""Architectures: the parameters of each family of language models, one short file each."""

from __future__ import annotations

from collections.abc import Mapping

from ....common.errors import ModelFormatError
from .apertus import APERTUS
from .bert import BERT, JINA_BERT_V2, JINA_BERT_V3, NOMIC_BERT, NOMIC_BERT_MOE
from .bitnet import BITNET
from .cohere import COHERE2, COMMAND_R
from .dbrx import DBRX
from .deepseek import DEEPSEEK2, MINICPM3
from .family import Family
from .gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3N, GEMMA4, GEMMA_EMBEDDING
from .glm import CHATGLM, GLM4, GLM4_MOE
from .gpt2 import GPT2
from .gpt_oss import GPT_OSS
from .hunyuan import HUNYUAN
from .kimi_linear import KIMI_LINEAR
from .layer_norms import (
    CODESHELL,
    FALCON,
    GPT_NEOX,
    JAIS2,
    NEMOTRON,
    PHI2,
    STABLELM,
    STARCODER2,
)
from .lfm2 import LFM2
from .llama import ARCEE, EXAONE, GRANITE, LLAMA, LLAMA4, SMOLLM3
from .mamba import FALCON_H1, GRANITE_HYBRID, JAMBA, MAMBA, MAMBA2, NEMOTRON_H
from .mimo import MIMO2
from .modern_bert import EUROBERT, LLAMA_EMBED, MODERN_BERT, NEO_BERT
from .olmo import EXAONE4, EXAONE_MOE, OLMO, OLMO2, OLMOE
from .phi import PHI3, PHI_MOE
from .qwen import (
    QWEN,
    QWEN2,
    QWEN2_MOE,
    QWEN2_VL,
    QWEN3,
    QWEN3_NEXT,
    QWEN3_VL,
    QWEN35,
    SEED_OSS,
)
from .rwkv6 import RWKV6, RWKV6_QWEN2
from .rwkv7 import ARWKV7, RWKV7
from .small_decoders import BLOOM, DECI, JAIS, MAINCODER, MPT, OPENELM, PLAMO, PLAMO3, PLM
from .trinity import AFMOE
from .unsupported import UNSUPPORTED

KNOWN: Mapping[str, Family] = {
    "llama": LLAMA,
    "llama4": LLAMA4,
    "mistral3": LLAMA,
    "internlm2": LLAMA,
    "xverse": LLAMA,
    "bailingmoe": LLAMA,
    "deepseek": LLAMA,
    "deepseek2": DEEPSEEK2,
    "mistral4": DEEPSEEK2,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "granitemoe": GRANITE,
    "minicpm": GRANITE,
    "minicpm3": MINICPM3,
    "apertus": APERTUS,
    "baichuan": LLAMA,
    "dbrx": DBRX,
    "qwen": QWEN,
    "qwen2": QWEN2,
    "qwen2vl": QWEN2_VL,
    "qwen2moe": QWEN2_MOE,
    "qwen3": QWEN3,
    "qwen3vl": QWEN3_VL,
    "qwen3moe": QWEN3,
    "qwen3vlmoe": QWEN3_VL,
    "qwen3next": QWEN3_NEXT,
    "qwen35": QWEN35,
    "qwen35moe": QWEN35,
    "dots1": QWEN3,
    "bailingmoe2": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma3n": GEMMA3N,
    "gemma4": GEMMA4,
    "phi2": PHI2,
    "phi3": PHI3,
    "phimoe": PHI_MOE,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "olmoe": OLMOE,
    "minimax-m2": OLMOE,
    "command-r": COMMAND_R,
    "cohere2": COHERE2,
    "glm4": GLM4,
    "glm4moe": GLM4_MOE,
    "chatglm": CHATGLM,
    "hunyuan-dense": HUNYUAN,
    "hunyuan-moe": HUNYUAN,
    "hunyuan_vl": HUNYUAN,
    "bitnet": BITNET,
    "exaone": EXAONE,
    "exaone4": EXAONE4,
    "exaone-moe": EXAONE_MOE,
    "pangu-embedded": EXAONE,
    "paddleocr": EXAONE,
    "ernie4_5": LLAMA,
    "ernie4_5-moe": LLAMA,
    "seed_oss": SEED_OSS,
    "arcee": ARCEE,
    "afmoe": AFMOE,
    "nemotron": NEMOTRON,
    "starcoder2": STARCODER2,
    "codeshell": CODESHELL,
    "jais2": JAIS2,
    "gptneox": GPT_NEOX,
    "stablelm": STABLELM,
    "orion": STABLELM,
    "falcon": FALCON,
    "gpt2": GPT2,
    "bloom": BLOOM,
    "mpt": MPT,
    "jais": JAIS,
    "starcoder": GPT2,
    "gpt-oss": GPT_OSS,
    "mimo2": MIMO2,
    "plm": PLM,
    "openelm": OPENELM,
    "plamo": PLAMO,
    "plamo3": PLAMO3,
    "deci": DECI,
    "maincoder": MAINCODER,
    "lfm2": LFM2,
    "lfm2moe": LFM2,
    "mamba": MAMBA,
    "mamba2": MAMBA2,
    "granitehybrid": GRANITE_HYBRID,
    "falcon-h1": FALCON_H1,
    "jamba": JAMBA,
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "kimi-linear": KIMI_LINEAR,
    "rwkv6": RWKV6,
    "rwkv6qwen2": RWKV6_QWEN2,
    "rwkv7": RWKV7,
    "arwkv7": ARWKV7,
    "bert": BERT,
    "nomic-bert": NOMIC_BERT,
    "nomic-bert-moe": NOMIC_BERT_MOE,
    "jina-bert-v2": JINA_BERT_V2,
    "jina-bert-v3": JINA_BERT_V3,
    "modern-bert": MODERN_BERT,
    "eurobert": EUROBERT,
    "neo-bert": NEO_BERT,
    "gemma-embedding": GEMMA_EMBEDDING,
    "llama-embed": LLAMA_EMBED,
}
"""Families by the architecture name in GGUF files."""


def architecture(name: str) -> Family:
    """Return the family of an architecture.

    Raises
    ------
    ModelFormatError
        The architecture is not supported. The message says which part of the network is missing,
        and which similar models run.
    """
    if name in KNOWN:
        return KNOWN[name]
    if name in UNSUPPORTED:
        other = UNSUPPORTED[name]
        raise ModelFormatError(
            f"[gguf] expected a supported architecture, got {name!r} ({other.models}), which needs "
            f"{other.missing}; try {other.instead}"
        )
    raise ModelFormatError(
        f"[gguf] expected one of the architectures {', '.join(KNOWN)}, got {name!r}; "
        "`vksched info` tells what is in the file"
    )
