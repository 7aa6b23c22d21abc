"""Tiny language models with the logits that the package `transformers` has for them.

`export.py` wrote `golden/*.json`: the settings of a model, its tensors, a text, and the logits of
it. `published.py` wrote those of models that `transformers` lacks. Weights are made from the names
of tensors, so none are stored. `convert.py` writes them as a GGUF file.

    golden = load("gemma2")
    write(golden, path)
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray

FOLDER = Path(__file__).parent / "golden"
TWINS = {
    "baichuan": "llama",
    "bailingmoe2": "glm4moe_large",
    "codeshell": "starcoder2",
    "deepseek": "bailingmoe",
    "hunyuan_vl": "hunyuan-dense",
    "internlm2": "llama",
    "minicpm": "granite",
    "paddleocr": "exaone",
    "qwen": "qwen2",
    "qwen2vl": "qwen2",
    "qwen3vl": "qwen3",
    "qwen3vlmoe": "qwen3moe",
    "xverse": "llama",
}
"""Architectures with the network of another one, whose logits they must have."""
ENCODERS = (
    *("bert", "eurobert", "gemma-embedding", "jina-bert-v3", "llama-embed", "modern-bert"),
    "modern-bert_silu",
)
"""Models whose hidden states are held, not logits."""
NAMES = tuple(sorted([path.stem for path in FOLDER.glob("*.json")] + [*TWINS]))


@dataclass(frozen=True)
class Golden:
    """architecture: as GGUF files name it. config: as transformers has it. ids: (n,) tokens.
    wanted: (n, vocabulary) logits, or (n, width) hidden states of an encoder.
    """

    name: str
    architecture: str
    config: dict[str, Any]
    tensors: dict[str, tuple[int, ...]]
    ids: NDArray
    wanted: NDArray

    def weights(self) -> dict[str, NDArray]:
        """Return the weights as transformers has them."""
        return {name: values(name, shape) for name, shape in self.tensors.items()}


def load(name: str) -> Golden:
    """Return a model by its name in the folder, or of an architecture with its network."""
    if name in TWINS:
        return replace(load(TWINS[name]), name=name, architecture=name)
    stored = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return Golden(
        name,
        stored["architecture"],
        stored["config"],
        {tensor: tuple(shape) for tensor, shape in stored["tensors"].items()},
        np.array(stored["ids"], np.int32),
        np.array([row.split() for row in stored["wanted"]], np.float32),
    )


def text_ids(tokens: int, vocabulary: int) -> list[int]:
    """Return the text of a golden file."""
    return [(7 * at * at + 3 * at + 5) % vocabulary for at in range(tokens)]


def written(data: dict[str, Any]) -> str:
    """Return JSON with a line for each tensor and each token. data: "wanted" is an array."""
    lines = []
    for key, value in data.items():
        if key == "tensors":
            rows = [f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            text = "{\n" + ",\n".join(rows) + "\n }"
        elif key == "wanted":
            rows = [f'  "{" ".join(f"{number:.6g}" for number in row)}"' for row in value]
            text = "[\n" + ",\n".join(rows) + "\n ]"
        else:
            text = json.dumps(value)
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def values(name: str, shape: tuple[int, ...]) -> NDArray:
    """Return the weights of a tensor: what a counter gives that its name is the key of."""
    raw = np.random.Philox(key=zlib.crc32(name.encode())).random_raw(math.prod(shape))
    even = ((raw >> np.uint64(40)) / 2.0**23 - 1).astype(np.float32).reshape(shape)
    if "correction" in name or "expert_bias" in name:
        return 0.4 * even
    if name.endswith("A_log"):  # decays of 0.6 to 0.95 per token
        return even - 1.5
    if len(shape) == 1:
        return 0.4 * even if name.endswith("bias") else 1 + 0.4 * even
    # Embeddings are of about 1, and so is what a product makes of them.
    return 1.7 * even if "emb" in name or "wte" in name else even * 2 / math.sqrt(min(shape[-2:]))
