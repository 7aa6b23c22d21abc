"""Projector files of the tiny encoders."""

from __future__ import annotations

import language
from gguf_files import Draft, Type, ValueType

from . import VisionGolden

KINDS = {
    int: ValueType.UINT32,
    float: ValueType.FLOAT32,
    bool: ValueType.BOOL,
    str: ValueType.STRING,
}


def projector(golden: VisionGolden, swapped: bool = False) -> Draft:
    """Return a projector file. swapped: with names of older converters."""
    config, text = golden.vision, golden.text.config
    keys: dict[str, object] = {
        "general.architecture": "clip",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "gemma3",
        "clip.use_gelu": True,
        "clip.vision.projection_dim": text["hidden_size"],
        "clip.vision.image_size": config["image_size"],
        "clip.vision.patch_size": config["patch_size"],
        "clip.vision.embedding_length": config["hidden_size"],
        "clip.vision.feed_forward_length": config["intermediate_size"],
        "clip.vision.block_count": config["num_hidden_layers"],
        "clip.vision.attention.head_count": config["num_attention_heads"],
        "clip.vision.attention.layer_norm_epsilon": config["layer_norm_eps"],
        "clip.vision.projector.scale_factor": 2,
    }
    data = Draft()
    for key, value in keys.items():
        data = data.with_key(key, KINDS[type(value)], value)
    for key in ("image_mean", "image_std"):
        values = [0.5, 0.5, 0.5]
        data = data.with_key(f"clip.vision.{key}", ValueType.ARRAY, values, ValueType.FLOAT32)
    for name, shape in golden.tensors.items():
        own = language.values(name, shape)
        if swapped:
            up, down = "ffn_up", "ffn_down"
            name = name.replace(up, "-").replace(down, up).replace("-", down)
        data = data.with_tensor(name, own.shape, Type.F32, own.tobytes())
    return data
