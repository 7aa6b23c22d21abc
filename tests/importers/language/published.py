"""Tiny models that `transformers` lacks: their published networks in float64 numpy.

python tests/importers/language/published.py [NAME ...]  # writes golden/NAME.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    for _above in (1, 3):
        sys.path.insert(0, str(Path(__file__).parents[_above]))

from language import FOLDER, text_ids, values, written
from language.published_alibi import baichuan, baichuan_shapes, jais, jais_shapes
from language.published_decoders import (
    deci,
    deci_shapes,
    maincoder,
    maincoder_shapes,
    openelm,
    openelm_shapes,
    plamo,
    plamo3,
    plamo3_shapes,
    plamo_shapes,
    plm,
    plm_shapes,
)
from language.published_rwkv import (
    Shapes,
    arwkv7,
    arwkv7_shapes,
    rwkv6,
    rwkv6_shapes,
    rwkv6qwen2,
    rwkv6qwen2_shapes,
    rwkv7,
    rwkv7_shapes,
)
from vksched.common.dtypes import NDArray

Config = Mapping[str, Any]
SIZES = {"vocab_size": 37, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
DECODER = {**SIZES, "num_attention_heads": 4, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
RANKS = {"w": 6, "a": 5, "v": 4, "g": 7}
RWKV = {**SIZES, "head_size": 8, "layer_norm_epsilon": 1e-5}
RWKV6 = {"mix_rank": 3, "decay_rank": 6}


@dataclass(frozen=True)
class Published:
    """shapes: the tensors of a model with some settings. logits: (weights, settings, ids (n,)) ->
    (n, vocabulary).
    """

    architecture: str
    config: dict[str, Any]
    shapes: Callable[[Config], Shapes]
    logits: Callable[[Mapping[str, NDArray], Config, NDArray], NDArray]
    tokens: int = 20


PUBLISHED = {
    "rwkv7": Published("rwkv7", {**RWKV, "ranks": RANKS}, rwkv7_shapes, rwkv7),
    "arwkv7": Published(
        "arwkv7",
        {**SIZES, "head_size": 8, "rms_norm_eps": 1e-6, "ranks": RANKS, "wkv_has_gate": False},
        arwkv7_shapes,
        arwkv7,
    ),
    "arwkv7_gated": Published(
        "arwkv7",
        {**SIZES, "head_size": 8, "rms_norm_eps": 1e-6, "ranks": RANKS, "wkv_has_gate": True},
        arwkv7_shapes,
        arwkv7,
    ),
    "rwkv6": Published(
        "rwkv6",
        {**RWKV, **RWKV6, "num_hidden_layers": 3, "rescale_every": 2},
        rwkv6_shapes,
        rwkv6,
    ),
    "rwkv6qwen2": Published(
        "rwkv6qwen2",
        {**SIZES, **RWKV6, "head_size": 8, "rms_norm_eps": 1e-6, "num_key_value_heads": 2},
        rwkv6qwen2_shapes,
        rwkv6qwen2,
    ),
    "plm": Published(
        "plm",
        {
            **DECODER,
            "kv_lora_rank": 12,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 8,
            "rope_theta": 1e5,
        },
        plm_shapes,
        plm,
    ),
    "openelm": Published(
        "openelm",
        {
            "vocab_size": 37,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_query_heads": [4, 4, 6],
            "num_kv_heads": [1, 2, 2],
            "ffn_dims": [16, 24, 40],
            "head_dim": 8,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1e4,
        },
        openelm_shapes,
        openelm,
    ),
    "plamo": Published(
        "plamo",
        {**DECODER, "num_attention_heads": 4, "num_key_value_heads": 2},
        plamo_shapes,
        plamo,
    ),
    "plamo3": Published(
        "plamo3",
        {
            **DECODER,
            "num_hidden_layers": 3,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "windows": [6, 6, 0],
            "sliding_window": 6,
            "rope_theta": 1e5,
            "rope_local_theta": 1e4,
        },
        plamo3_shapes,
        plamo3,
    ),
    "deci": Published(
        "deci",
        {
            **DECODER,
            "num_hidden_layers": 5,
            "num_key_value_heads": 2,
            "block_kinds": ["attention", "none", "linear", "none", "attention"],
            "ffn_dims": [24, 40, 16, 0, 0],
            "rope_theta": 5e4,
        },
        deci_shapes,
        deci,
    ),
    "maincoder": Published(
        "maincoder",
        {**DECODER, "num_key_value_heads": 2, "head_dim": 8, "rope_theta": 2e4},
        maincoder_shapes,
        maincoder,
    ),
    "jais": Published(
        "jais",
        {
            **SIZES,
            "num_attention_heads": 4,
            "max_position_embeddings": 64,
            "layer_norm_epsilon": 1e-5,
            "max_alibi_bias": 6.0,
            "mup_embeddings_scale": 1.6,
            "mup_output_alpha": 2.2,
            "mup_width_scale": 0.5,
        },
        jais_shapes,
        jais,
    ),
    "baichuan_13b": Published(
        "baichuan",
        {**DECODER, "num_key_value_heads": 4, "max_alibi_bias": 8.0},
        baichuan_shapes,
        baichuan,
    ),
}


def computed(name: str) -> dict[str, Any]:
    """Return the contents of the golden file of a model, with logits as an array."""
    model = PUBLISHED[name]
    shapes = model.shapes(model.config)
    weights = {key: values(key, shape).astype(np.float64) for key, shape in shapes.items()}
    ids = text_ids(model.tokens, model.config["vocab_size"])
    return {
        "architecture": model.architecture,
        "config": model.config,
        "tensors": {key: list(shape) for key, shape in shapes.items()},
        "ids": ids,
        "wanted": model.logits(weights, model.config, np.array(ids)),
    }


def main() -> None:
    for name in sys.argv[1:] or PUBLISHED:
        data = computed(name)
        print(name, "logits of", float(data["wanted"].std()))
        (FOLDER / f"{name}.json").write_text(written(data), "utf-8")


if __name__ == "__main__":
    main()
