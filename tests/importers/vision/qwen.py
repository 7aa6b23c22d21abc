"""Tiny Qwen VL models, and what the package `transformers` computes with them.

`export_qwen.py` wrote `golden/qwen*.json`. Weights are made from the names of tensors in files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import language
import numpy as np
from gguf_files import Draft, Type, ValueType
from language.convert import draft

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.generation.pictures.prompt_pictures import (
    EncodedPicture,
    PictureTokens,
    PromptPictures,
)
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.vision.vision_model import VisionModel

from . import read
from .projectors import KINDS

NAMES = ("qwen2vl", "qwen25vl", "qwen3vl")
ARCHITECTURES = {"qwen25vl": "qwen2vl"}
PROJECTORS = {
    "qwen2vl": "qwen2vl_merger",
    "qwen25vl": "qwen2.5vl_merger",
    "qwen3vl": "qwen3vl_merger",
}
PATCH, POOL = 4, 2
GRIDS = ((3, 5), (2, 2))
"""The rows and columns of the tokens of two pictures."""
PICTURE = 46
FILE_NAMES = {
    r"patch_embed\.proj\.bias": r"v.patch_embd.bias",
    r"pos_embed\.weight": r"v.position_embd.weight",
    r"blocks\.(\d+)\.norm(\d)\.(\w+)": r"v.blk.\1.ln\2.\3",
    r"blocks\.(\d+)\.attn\.proj\.(\w+)": r"v.blk.\1.attn_out.\2",
    r"blocks\.(\d+)\.attn\.qkv\.(\w+)": r"v.blk.\1.attn_qkv.\2",
    r"blocks\.(\d+)\.mlp\.(?:fc1|linear_fc1|up_proj)\.(\w+)": r"v.blk.\1.ffn_up.\2",
    r"blocks\.(\d+)\.mlp\.(?:fc2|linear_fc2|down_proj)\.(\w+)": r"v.blk.\1.ffn_down.\2",
    r"blocks\.(\d+)\.mlp\.gate_proj\.(\w+)": r"v.blk.\1.ffn_gate.\2",
    r"merger\.(?:ln_q|norm)\.(\w+)": r"v.post_ln.\1",
    r"merger\.(?:mlp\.0|linear_fc1)\.(\w+)": r"mm.0.\1",
    r"merger\.(?:mlp\.2|linear_fc2)\.(\w+)": r"mm.2.\1",
}
"""Names of parameters of the encoder, and of tensors in files."""
DEEPSTACK = {"0": "0", "1": "2"}
"""The layers whose output the mergers of deepstack read."""


def file_names(name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a file that hold a parameter, or the name of a language model alone."""
    name = name.removeprefix("model.")
    if not name.startswith("visual."):
        name = name.replace("language_model.", "model.")
        return {name: shape}
    name = name.removeprefix("visual.")
    if name == "patch_embed.proj.weight":
        shape = (*shape[:2], *shape[3:])
        return {"v.patch_embd.weight": shape, "v.patch_embd.weight.1": shape}
    if found := re.fullmatch(r"deepstack_merger_list\.(\d)\.(?:linear_)?(\w+)\.(\w+)", name):
        return {f"v.deepstack.{DEEPSTACK[found[1]]}.{found[2]}.{found[3]}": shape}
    for pattern, own in FILE_NAMES.items():
        if (found := re.fullmatch(pattern, name)) is not None:
            key = found.expand(own)
            if "attn_qkv" not in key or "norm" in key:
                return {key: shape}
            return {key.replace("qkv", which): (shape[0] // 3, *shape[1:]) for which in "qkv"}
    raise KeyError(name)


def pixels() -> list[NDArray]:
    """Return the pixels of two pictures, (3, height, width) each."""
    side = PATCH * POOL
    return [
        language.values(f"pixels {n}", (3, rows * side, columns * side))
        for n, (rows, columns) in enumerate(GRIDS)
    ]


@dataclass(frozen=True)
class QwenGolden:
    """name: one of `NAMES`. text: the language model. vision: settings of the encoder, as
    transformers has them. tensors: those of the projector file. features: the rows of the tokens of
    both pictures. pixels: the result for `picture()`, with 64 to 256 pixels.
    """

    name: str
    text: language.Golden
    vision: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    ids: NDArray
    features: NDArray
    logits: NDArray
    pixels: NDArray

    def pictures(self) -> tuple[list[int], list[EncodedPicture]]:
        """Return the ids of a prompt with pictures, and the pictures."""
        shown, at = [], 0
        for key, (rows, columns) in enumerate(GRIDS):
            tokens = PictureTokens(key, rows * columns, False, (rows, columns))
            shown.append(EncodedPicture(tokens, self.features[at : at + rows * columns]))
            at += rows * columns
        rest = iter([each for own in shown for each in own.tokens.ids])
        return [next(rest) if each == PICTURE else int(each) for each in self.ids], shown


def load(name: str) -> QwenGolden:
    found = read(name, ARCHITECTURES.get(name, name))
    resized = found.pixels.reshape(3, -1, found.pixels.shape[1])
    about = found.text, found.vision, found.tensors, found.ids, found.features, found.logits
    return QwenGolden(name, *about, resized)


def model_draft(golden: QwenGolden) -> Draft:
    """Return the language model as a file."""
    name = golden.text.architecture
    sections = [*golden.text.config["rope_parameters"]["mrope_section"], 0]
    data = draft(golden.text).with_key(
        f"{name}.rope.dimension_sections", ValueType.ARRAY, sections, ValueType.INT32
    )
    if deep := golden.vision.get("deepstack_visual_indexes"):
        data = data.with_key(f"{name}.n_deepstack_layers", ValueType.UINT32, len(deep))
    return data


def language_model(golden: QwenGolden) -> LanguageModel:
    model = vs.load(model_draft(golden).packed())
    assert isinstance(model, LanguageModel)
    return model


def projector(golden: QwenGolden, fused: bool = False) -> Draft:
    """Return the projector file. fused: queries, keys and values have one matrix."""
    config = golden.vision
    keys: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": PROJECTORS[golden.name],
        "clip.vision.projection_dim": golden.text.config["hidden_size"],
        "clip.vision.image_size": 5 * PATCH,
        "clip.vision.image_min_pixels": 64,
        "clip.vision.image_max_pixels": 960,
        "clip.vision.patch_size": PATCH,
        "clip.vision.embedding_length": config.get("embed_dim", config["hidden_size"]),
        "clip.vision.feed_forward_length": config["hidden_size"],
        "clip.vision.block_count": config["depth"],
        "clip.vision.attention.head_count": config["num_heads"],
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
    }
    if golden.name == "qwen25vl":
        keys["clip.vision.window_size"] = config["window_size"]
        keys["clip.vision.n_wa_pattern"] = config["fullatt_block_indexes"][0] + 1
    data = Draft()
    for key, value in keys.items():
        data = data.with_key(key, KINDS[type(value)], value)
    for key in ("image_mean", "image_std"):
        mean = [0.48145466, 0.4578275, 0.40821073] if key == "image_mean" else STD
        data = data.with_key(f"clip.vision.{key}", ValueType.ARRAY, mean, ValueType.FLOAT32)
    if golden.name == "qwen3vl":
        layers = [layer in config["deepstack_visual_indexes"] for layer in range(config["depth"])]
        name = "clip.vision.is_deepstack_layers"
        data = data.with_key(name, ValueType.ARRAY, layers, ValueType.BOOL)
    for name, array in _arrays(golden, fused).items():
        data = data.with_tensor(name, array.shape, Type.F32, array.tobytes())
    return data


STD = [0.26862954, 0.26130258, 0.27577711]


def _arrays(golden: QwenGolden, fused: bool) -> dict[str, NDArray]:
    arrays = {name: language.values(name, shape) for name, shape in golden.tensors.items()}
    if not fused:
        return arrays
    out: dict[str, NDArray] = {}
    for name, array in arrays.items():
        if ".attn_q." in name:
            own = [arrays[name.replace(".attn_q.", f".attn_{which}.")] for which in "qkv"]
            out[name.replace(".attn_q.", ".attn_qkv.")] = np.concatenate(own)
        elif ".attn_k." not in name and ".attn_v." not in name:
            out[name] = array
    return out


def encoder(golden: QwenGolden, fused: bool = False) -> VisionModel:
    return vs.load_projector(projector(golden, fused).packed())


def positions(ids: Sequence[int], shown: Sequence[EncodedPicture]) -> NDArray:
    """Return the positions of a prompt in time, rows and columns, (3, n) int32."""
    places, out = PromptPictures(ids, shown), []
    for part in places.parts(0, len(ids)):
        if part.picture is not None:
            out.append(places.positions(part))
        else:
            own = np.arange(part.start, part.end) + places.shift_at(part.start)
            out.append(np.stack([own] * 3).astype(np.int32))
    return np.concatenate(out, axis=1)
