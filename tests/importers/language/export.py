"""Computes what `golden/*.json` holds, with PyTorch and transformers: a developer's tool.

pip install torch 'transformers<5' gguf numpy
python tests/importers/language/export.py [NAME ...]
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from language import FOLDER, values

COMMON: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
WINDOW = 7
"""Shorter than the text."""


@dataclass(frozen=True)
class Recipe:
    """kind: of transformers. more: settings beside the common ones."""

    architecture: str
    kind: str
    more: dict[str, Any] = field(default_factory=dict)
    tokens: int = 20
    common: dict[str, Any] = field(default_factory=lambda: COMMON)

    @property
    def config(self) -> dict[str, Any]:
        return {**self.common, **self.more}


GEMMA = {"head_dim": 16, "sliding_window": WINDOW, "hidden_activation": "gelu_pytorch_tanh"}
GEMMA3 = {
    **GEMMA,
    "query_pre_attn_scalar": 16,
    "num_hidden_layers": 7,
    "rope_theta": 1e6,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
FACTORS = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5],
    "long_factor": [1.0, 1.6, 3.0, 7.0],
}
PHI = {"pad_token_id": 0, "original_max_position_embeddings": 24}
GPT = {"vocab_size": 37, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 48}

BERT = {
    **{key: value for key, value in COMMON.items() if key[:8] not in ("num_key_", "rms_norm")},
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

RECIPES = {
    "llama": Recipe("llama", "Llama"),
    "llama_window": Recipe("llama", "Mistral", {"sliding_window": WINDOW}),
    "qwen2": Recipe("qwen2", "Qwen2"),
    "qwen3": Recipe("qwen3", "Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma": Recipe("gemma", "Gemma", {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh"}),
    "gemma2": Recipe("gemma2", "Gemma2", {**GEMMA, "query_pre_attn_scalar": 16}),
    "gemma2_large": Recipe("gemma2", "Gemma2", {**GEMMA, "query_pre_attn_scalar": 8}),
    "gemma3": Recipe("gemma3", "Gemma3Text", GEMMA3),
    "phi3": Recipe("phi3", "Phi3", {**PHI, "sliding_window": WINDOW}),
    "phi3_short": Recipe("phi3", "Phi3", {**PHI, "rope_scaling": FACTORS}),
    "phi3_long": Recipe("phi3", "Phi3", {**PHI, "rope_scaling": FACTORS}, tokens=30),
    "llama_experts": Recipe("llama", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2moe": Recipe("qwen2moe", "Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3moe": Recipe("qwen3moe", "Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "gpt2": Recipe("gpt2", "GPT2", {"layer_norm_epsilon": 1e-5}, common=GPT),
    "bert": Recipe("bert", "Bert", common=BERT),
}


def main() -> None:
    for name in sys.argv[1:] or RECIPES:
        recipe = RECIPES[name]
        torch.manual_seed(0)
        config = getattr(transformers, f"{recipe.kind}Config")(**recipe.config)
        config._attn_implementation = "eager"
        if recipe.kind == "Bert":
            model = transformers.BertModel(config, add_pooling_layer=False).eval()
        else:
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        own = dict(model.named_parameters())
        tensors = {key: tuple(value.shape) for key, value in own.items() if key not in tied}
        with torch.no_grad():
            for key, shape in tensors.items():
                own[key].copy_(torch.tensor(values(key, shape)))
            size = recipe.config["vocab_size"]
            ids = [(7 * at * at + 3 * at + 5) % size for at in range(recipe.tokens)]
            wanted = model(input_ids=torch.tensor([ids]))[0][0].numpy()
        kept = {
            "architecture": recipe.architecture,
            "config": _settings(recipe, config),
            "tensors": {key: list(shape) for key, shape in tensors.items()},
            "ids": ids,
            "wanted": [" ".join(f"{number:.6g}" for number in row) for row in wanted],
        }
        path = FOLDER / f"{name}.json"
        path.write_text(_written(kept), "utf-8")
        print(name, path.stat().st_size, "bytes, of", float(wanted.std()))


def _settings(recipe: Recipe, config: Any) -> dict[str, Any]:
    """Returns the recipe's settings, and those that a file needs though they are usual ones."""
    told = ("rope_theta", "head_dim", "attn_logit_softcapping", "final_logit_softcapping")
    usual = {key: getattr(config, key) for key in told if getattr(config, key, None) is not None}
    return {**usual, **recipe.config}


def _written(kept: dict[str, Any]) -> str:
    """Returns JSON with a line for each tensor and each token."""
    lines = []
    for key, value in kept.items():
        text = json.dumps(value)
        if key == "tensors":
            rows = (f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            text = "{\n" + ",\n".join(rows) + "\n }"
        elif key == "wanted":
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
