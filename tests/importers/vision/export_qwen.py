"""Computes what `golden/qwen*.json` holds, with PyTorch and transformers: a developer's tool.

pip install torch 'transformers>=5' numpy pillow
python tests/importers/vision/export_qwen.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[3]))

from language import values

from vision import FOLDER, picture, row_texts
from vision.qwen import GRIDS, PATCH, POOL, file_names, pixels

PICTURE, BEGIN, END = 46, 45, 44
TEXT: dict[str, Any] = {
    "vocab_size": 47,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]},
    "tie_word_embeddings": False,
}
VISION: dict[str, Any] = {
    "depth": 3,
    "num_heads": 2,
    "patch_size": PATCH,
    "spatial_merge_size": POOL,
    "temporal_patch_size": 2,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2vl": ("Qwen2VL", {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}),
    "qwen25vl": (
        "Qwen2_5_VL",
        {
            "hidden_size": 32,
            "intermediate_size": 40,
            "out_hidden_size": 32,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    ),
    "qwen3vl": (
        "Qwen3VL",
        {
            "hidden_size": 32,
            "intermediate_size": 40,
            "out_hidden_size": 32,
            "num_position_embeddings": 25,
            "deepstack_visual_indexes": [0, 2],
        },
    ),
}


def patches(own: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return pixels (3, height, width) as processors do: patches by square, of two equal frames."""
    _, height, width = own.shape
    rows, columns = height // PATCH // POOL, width // PATCH // POOL
    cut = np.stack([own, own]).reshape(2, 3, rows, POOL, PATCH, columns, POOL, PATCH)
    cut = cut.transpose(2, 5, 3, 6, 1, 0, 4, 7)
    return torch.tensor(cut.reshape(rows * columns * POOL**2, -1))


def unpatched(found: np.ndarray[Any, Any], rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Return the pixels of patches."""
    cut = found.reshape(rows, columns, POOL, POOL, 3, 2, PATCH, PATCH)[:, :, :, :, :, 0]
    cut = cut.transpose(4, 0, 2, 5, 1, 3, 6)
    return cut.reshape(3, rows * POOL * PATCH, columns * POOL * PATCH)


def export(name: str) -> None:
    prefix, own = MODELS[name]
    config = getattr(transformers, f"{prefix}Config")(
        text_config=TEXT,
        vision_config={**VISION, **own},
        image_token_id=PICTURE,
        vision_start_token_id=BEGIN,
        vision_end_token_id=END,
        tie_word_embeddings=False,
    )
    for each in (config, config.text_config, config.vision_config):
        each._attn_implementation = "eager"
    model = getattr(transformers, f"{prefix}ForConditionalGeneration")(config).eval().double()
    tensors: dict[str, list[int]] = {}
    with torch.no_grad():
        for parameter, array in model.named_parameters():
            parts = file_names(parameter, tuple(array.shape))
            for key, shape in parts.items():
                tensors[key] = list(shape)
            arrays = [values(key, shape) for key, shape in parts.items()]
            if parameter.endswith("patch_embed.proj.weight"):
                arrays = [np.stack(arrays, 2)]
            array.copy_(torch.tensor(np.concatenate(arrays).reshape(array.shape)))
        shown = torch.cat([patches(each) for each in pixels()]).double()
        grid = torch.tensor([[1, rows * POOL, columns * POOL] for rows, columns in GRIDS])
        first, second = ([PICTURE] * (rows * columns) for rows, columns in GRIDS)
        ids = [2, 5, BEGIN, *first, END, 8, 9, BEGIN, *second, END, 3, 4, 17, 30]
        kinds = torch.tensor([[int(each == PICTURE) for each in ids]])
        found = model.model.get_image_features(shown, grid)
        features = torch.cat(list(found.pooler_output))
        deeper = getattr(found, "deepstack_features", None) or []
        deeper = [each if torch.is_tensor(each) else torch.cat(list(each)) for each in deeper]
        features = torch.cat([features, *deeper], dim=1)
        logits = model(
            input_ids=torch.tensor([ids]),
            pixel_values=shown,
            image_grid_thw=grid,
            mm_token_type_ids=kinds,
        ).logits[0]
    processor = transformers.Qwen2VLImageProcessorPil(
        size={"shortest_edge": 64, "longest_edge": 256}, patch_size=PATCH, merge_size=POOL
    )
    resized = processor(picture(), return_tensors="np")
    _, height, width = np.asarray(resized["image_grid_thw"])[0]
    own_pixels = unpatched(np.asarray(resized["pixel_values"]), height // POOL, width // POOL)
    rows = {
        "features": features,
        "logits": logits,
        "pixels": own_pixels.reshape(-1, own_pixels.shape[2]),
    }
    data = {
        "text": TEXT,
        "vision": {**VISION, **own},
        "tensors": tensors,
        "ids": ids,
        **{key: row_texts(key, table) for key, table in rows.items()},
    }
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    print(path.stat().st_size, "bytes, of", float(features.std()), float(logits.std()))


if __name__ == "__main__":
    for each in MODELS:
        export(each)
