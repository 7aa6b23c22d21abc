"""A tiny model with an encoder of pictures, and what the package `transformers` computes with it.

`export.py` wrote `golden/gemma3.json`. Weights are made from the names of tensors in files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import language
import numpy as np

from vksched.common.dtypes import NDArray

FOLDER = Path(__file__).parent / "golden"
PICTURE_TOKENS = 4
FILE_NAMES = {
    r"vision_tower\.embeddings\.patch_embedding\.(\w+)": r"v.patch_embd.\1",
    r"vision_tower\.embeddings\.position_embedding\.(\w+)": r"v.position_embd.\1",
    r"vision_tower\.encoder\.layers\.(\d+)\.layer_norm(\d)\.(\w+)": r"v.blk.\1.ln\2.\3",
    r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.(\w+)": r"v.blk.\1.attn_\2.\3",
    r"vision_tower\.encoder\.layers\.(\d+)\.self_attn\.out_proj\.(\w+)": r"v.blk.\1.attn_out.\2",
    r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.fc1\.(\w+)": r"v.blk.\1.ffn_up.\2",
    r"vision_tower\.encoder\.layers\.(\d+)\.mlp\.fc2\.(\w+)": r"v.blk.\1.ffn_down.\2",
    r"vision_tower\.post_layernorm\.(\w+)": r"v.post_ln.\1",
    r"multi_modal_projector\.mm_input_projection_weight": r"mm.input_projection.weight",
    r"multi_modal_projector\.mm_soft_emb_norm\.weight": r"mm.soft_emb_norm.weight",
}
"""Names of parameters, and of tensors in files."""


@dataclass(frozen=True)
class VisionGolden:
    """text: the language model. vision: settings of the encoder, as transformers has them. tensors:
    those of the projector file. ids: with the tokens of two pictures. features: (2 pictures,
    tokens, width). logits: the rows of all tokens. pixels: the result for `picture()` and a side
    of 14.
    """

    text: language.Golden
    vision: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    ids: NDArray
    features: NDArray
    logits: NDArray
    pixels: NDArray


def read(name: str, architecture: str) -> VisionGolden:
    """Return a golden file; features and pixels have the rows of the file."""
    stored = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    features, logits, pixels = (
        np.array([row.split() for row in stored[key]], np.float32)
        for key in ("features", "logits", "pixels")
    )
    shapes = {key: tuple(shape) for key, shape in stored["tensors"].items()}
    own = {key: shape for key, shape in shapes.items() if key.startswith(("v.", "mm."))}
    rest = {key: shape for key, shape in shapes.items() if key not in own}
    ids = np.array(stored["ids"], np.int32)
    text = language.Golden(name, architecture, stored["text"], rest, ids, logits)
    return VisionGolden(text, stored["vision"], own, ids, features, logits, pixels)


def row_texts(key: str, table: Iterable[Any]) -> list[str]:
    """Return the rows of a table of a golden file. Features are inputs of the language model, so
    they have all digits of float32.
    """
    digits = 9 if key == "features" else 6
    return [" ".join(f"{number:.{digits}g}" for number in np.asarray(row)) for row in table]


def load() -> VisionGolden:
    found = read("gemma3", "gemma3")
    features = found.features.reshape(2, PICTURE_TOKENS, -1)
    return replace(found, features=features, pixels=found.pixels.reshape(3, 14, 14))


def picture() -> NDArray:
    """Return a small picture, (9, 20, 3) uint8."""
    raw = np.random.Philox(key=7).random_raw(9 * 20 * 3)
    return np.asarray(raw >> np.uint64(56), np.uint8).reshape(9, 20, 3)
