"""Unsupported architectures: for each name that files may have, the models, the part of the network
that is missing, and similar models that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

COMPRESSED = "attention to compressed keys and values"
MIXED = "layers with a recurrent state between those with attention"
DIFFUSION = "generation by diffusion, which unmasks all tokens of a block in several passes"
ROUTED = "glm4moe (GLM 4.5 to 4.7) or qwen3moe (Qwen 3)"
SMALL = "qwen3 (Qwen 3), llama (Llama 3, SmolLM 2) or smollm3"
EMBEDDERS = "bert (BGE, E5, MiniLM) or nomic-bert (nomic-embed-text 1.5)"
VISION = "qwen3vl or gemma3"


@dataclass(frozen=True)
class Unsupported:
    """models: the models of an architecture. missing: the missing part of the network. instead:
    supported architectures with similar models.
    """

    models: str
    missing: str
    instead: str


UNSUPPORTED: Mapping[str, Unsupported] = {
    "arctic": Unsupported("Snowflake Arctic", "experts in parallel with a dense block", ROUTED),
    "chameleon": Unsupported("Chameleon", "image tokens", VISION),
    "clip": Unsupported(
        "a projector file (mmproj)",
        "a language model in another file; vs.load_projector takes this one",
        VISION,
    ),
    "cogvlm": Unsupported("CogVLM", "separate weights for image tokens", VISION),
    "deepseek2-ocr": Unsupported("DeepSeek OCR", "encoders of images", VISION),
    "dream": Unsupported("Dream", DIFFUSION, "qwen2 (Qwen 2.5)"),
    "glm-dsa": Unsupported("GLM 5", f"{COMPRESSED}, of chosen tokens", ROUTED),
    "gptj": Unsupported("GPT-J", "a converter, which no one has written", SMALL),
    "grok": Unsupported("Grok 1 and 2", "softcaps of routing, and a dense block", ROUTED),
    "grovemoe": Unsupported("GroveMoE", "experts that share parts", ROUTED),
    "llada": Unsupported("LLaDA", DIFFUSION, "llama (Llama 3)"),
    "llada-moe": Unsupported("LLaDA with experts", DIFFUSION, "olmoe (OLMoE)"),
    "plamo2": Unsupported("PLaMo 2", MIXED, SMALL),
    "refact": Unsupported(
        "Refact", "ALiBi with a gate and one head of keys", "starcoder2 or qwen2 (Qwen 2.5 Coder)"
    ),
    "rnd1": Unsupported("RND1", DIFFUSION, "qwen3moe (Qwen 3)"),
    "smallthinker": Unsupported(
        "SmallThinker", "routing by the input of attention", "qwen3moe (Qwen 3)"
    ),
    "step35": Unsupported("Step 3.5", "rotary embeddings and clipped gates by layer", ROUTED),
    "t5": Unsupported("T5 and Flan-T5", "an encoder and a decoder", SMALL),
    "t5encoder": Unsupported("T5 encoders", "attention scores by distance", EMBEDDERS),
    "wavtokenizer-dec": Unsupported("WavTokenizer", "a decoder of sounds", "none for sounds"),
}
"""Unsupported architectures by the architecture name in GGUF files."""
