"""Computes what `golden/*.json` holds, with PyTorch and transformers: a developer's tool.

pip install torch 'transformers>=5' numpy pillow
python tests/importers/vision/export.py
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from language import values

from vision import FILE_NAMES, FOLDER, PICTURE_TOKENS, picture, row_texts

TEXT: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "sliding_window": 7,
    "query_pre_attn_scalar": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
VISION: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 28,
    "patch_size": 7,
    "layer_norm_eps": 1e-6,
    "vision_use_head": False,
}
PICTURE = 36
"""The token that stands for each token of a picture."""


def file_name(name: str) -> str:
    """Return the name of a parameter in files, or of a language model alone."""
    name = name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.")
    for pattern, own in FILE_NAMES.items():
        if (found := re.fullmatch(pattern, name)) is not None:
            return found.expand(own)
    return name.replace("language_model.", "model.")


def main() -> None:
    config = transformers.Gemma3Config(
        text_config=TEXT,
        vision_config=VISION,
        mm_tokens_per_image=PICTURE_TOKENS,
        image_token_id=PICTURE,
    )
    for each in (config, config.text_config, config.vision_config):
        each._attn_implementation = "eager"
    model = transformers.Gemma3ForConditionalGeneration(config).eval().double()
    tensors: dict[str, list[int]] = {}
    with torch.no_grad():
        for name, own in model.named_parameters():
            if name == "lm_head.weight":
                continue
            key = file_name(name)
            tensors[key] = list(own.shape)
            array = values(key, tuple(own.shape))
            own.copy_(torch.tensor(array - (key == "mm.soft_emb_norm.weight")))
        pixels = torch.tensor(
            np.stack([values(f"pixels {n}", (3, 28, 28)) for n in range(2)]), dtype=torch.float64
        )
        shown = [PICTURE] * PICTURE_TOKENS
        ids = [2, 5, 7, *shown, 8, 9, *shown, 11, 3, 4, 17, 30]
        kinds = [int(each == PICTURE) for each in ids]
        features = model.model.get_image_features(pixels)
        features = getattr(features, "pooler_output", features)
        logits = model(
            input_ids=torch.tensor([ids]),
            pixel_values=pixels,
            token_type_ids=torch.tensor([kinds]),
        ).logits[0]
    processor = transformers.Gemma3ImageProcessorPil(
        size={"height": 14, "width": 14}, do_pan_and_scan=False
    )
    found = processor(picture(), return_tensors="np")["pixel_values"][0]
    rows = {
        "features": features.reshape(-1, 32),
        "logits": logits,
        "pixels": found.reshape(-1, 14),
    }
    data = {
        "text": TEXT,
        "vision": VISION,
        "tensors": tensors,
        "ids": ids,
        **{key: row_texts(key, table) for key, table in rows.items()},
    }
    path = FOLDER / "gemma3.json"
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(path.stat().st_size, "bytes, of", float(features.std()), float(logits.std()))


if __name__ == "__main__":
    main()
