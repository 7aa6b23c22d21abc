"""Computes what `golden/*.json` holds, with PyTorch and transformers: a developer's tool.

pip install torch 'transformers<5' gguf numpy  # with `rope_parameters`: 'transformers>=5'
python tests/importers/language/export.py [NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from language import FOLDER, text_ids, values, written
from language.recipes import RECIPES, Recipe

UNMASKED = "Llama"
"""A class with a causal mask, which an encoder does without."""
BUFFERS = ("_bias", "layer_scalar")
"""Endings of the names of buffers that files have."""


def main() -> None:
    for name in sys.argv[1:] or RECIPES:
        recipe = RECIPES[name]
        torch.manual_seed(0)
        config = getattr(transformers, f"{recipe.kind}Config")(**recipe.config)
        config._attn_implementation = config._experts_implementation = "eager"
        if recipe.encoder:
            model = transformers.AutoModel.from_config(config).eval()
        else:
            causal = getattr(transformers, f"{recipe.kind}ForCausalLM", None)
            build = causal._from_config if causal else transformers.AutoModelForCausalLM.from_config
            model = build(config).eval().double()
        tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
        own = dict(model.named_parameters())
        own |= {key: value for key, value in model.named_buffers() if key.endswith(BUFFERS)}
        tensors = {
            key: tuple(value.shape)
            for key, value in own.items()
            if key not in tied and not key.startswith("pooler.")
        }
        with torch.no_grad():
            for key, shape in tensors.items():
                own[key].copy_(torch.tensor(values(key, shape)))
            size = recipe.config["vocab_size"]
            ids = text_ids(recipe.tokens, size)
            seen = torch.zeros(1, 1, len(ids), len(ids)) if recipe.kind == UNMASKED else None
            mask = {"attention_mask": seen} if recipe.encoder and seen is not None else {}
            wanted = model(input_ids=torch.tensor([ids]), **mask)[0][0].numpy()
        data = {
            "architecture": recipe.architecture,
            "config": _settings(recipe, config),
            "tensors": {key: list(shape) for key, shape in tensors.items()},
            "ids": ids,
            "wanted": wanted,
        }
        path = FOLDER / f"{name}.json"
        path.write_text(written(data), "utf-8")
        print(name, path.stat().st_size, "bytes, of", float(wanted.std()))


def _settings(recipe: Recipe, config: Any) -> dict[str, Any]:
    """Return the recipe's settings, and those that a file needs though they are usual ones."""
    optional = ("rope_theta", "head_dim", "attn_logit_softcapping", "final_logit_softcapping")
    known = config.to_dict()
    usual = {key: known[key] for key in optional if known.get(key) is not None}
    return {**usual, **recipe.config}


if __name__ == "__main__":
    main()
