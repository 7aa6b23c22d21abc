"""Gemma 3 as a chat: the tiny model of `golden/gemma3.json` with a vocabulary and a template."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf_files import Draft, ValueType
from language.convert import draft
from tiny_vocabularies import CONTROL, byte_pair

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.gguf.model import LanguageModel
from vksched.importers.gguf.vision.vision_model import VisionModel

from . import VisionGolden, load
from .projectors import projector

CONTEXT = 96
TOP = 8
"""The number of most likely tokens of a place."""
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "<|im_start|>"
)
MARKERS = ("<start_of_image>", "<end_of_image>")


def chat_model(golden: VisionGolden, folder: Path | None = None) -> LanguageModel:
    """Return the text model with a token for each byte, and a chat template."""
    return _loaded(chat_draft(golden), folder)


def chat_draft(golden: VisionGolden) -> Draft:
    words = byte_pair()
    for key, more in (
        ("tokens", list(MARKERS)),
        ("token_type", [CONTROL] * 2),
        ("scores", [0.0] * 2),
    ):
        words[f"tokenizer.ggml.{key}"] += more  # type: ignore[operator]
    size = len(words["tokenizer.ggml.tokens"])  # type: ignore[arg-type]
    text = golden.text
    tensors = {
        name: (size, *shape[1:]) if name == "model.embed_tokens.weight" else shape
        for name, shape in text.tensors.items()
    }
    config = {**text.config, "vocab_size": size, "max_position_embeddings": CONTEXT}
    built = draft(replace(text, config=config, tensors=tensors))
    kinds = {str: ValueType.STRING, int: ValueType.INT32, float: ValueType.FLOAT32}
    for key, value in {**words, "tokenizer.chat_template": TEMPLATE}.items():
        if isinstance(value, list):
            built = built.with_key(key, ValueType.ARRAY, value, kinds[type(value[0])])
        else:
            built = built.with_key(key, kinds[type(value)], value)
    return built


def _loaded(built: Draft, folder: Path | None) -> LanguageModel:
    data: bytes | Path = built.packed()
    if folder is not None:
        data = folder / "gemma3.gguf"
        data.write_bytes(built.packed())
    model = vs.load(data)
    assert isinstance(model, LanguageModel)
    return model


def encoder() -> tuple[VisionGolden, VisionModel]:
    golden = load()
    return golden, vs.load_projector(projector(golden).packed())


def picture(seed: int) -> NDArray:
    """Return a picture, (28, 28, 3) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (28, 28, 3), np.uint8)


class Oracle:
    """The most likely tokens of whole texts with pictures, each from a graph of all of the text."""

    def __init__(self, sched: vs.Scheduler, model: LanguageModel, vision: VisionModel) -> None:
        self._sched, self._model, self._vision = sched, model, vision

    def greedy(self, prompt: list[int | NDArray], n: int) -> tuple[list[int], list[NDArray]]:
        """Return the next tokens of a prompt of tokens and pictures, and the log-probabilities of
        the most likely tokens of each place, in descending order.
        """
        text: list[int] = []
        shown: list[NDArray] = []
        for each in prompt:
            if isinstance(each, np.ndarray):
                first = self._model.hyper.vocabulary + len(shown) * self._vision.tokens
                text += range(first, first + self._vision.tokens)
                shown.append(self._vision.pixels(each))
            else:
                text.append(each)
        pixels = vs.input("pixels", (len(shown), *self._vision.pixels_shape))
        size = len(text) + n
        ids = vs.input("ids", (1, size), "int32")
        run = self._sched.compile(self._model.logits(ids, self._vision.encode(pixels)))
        start, chances = len(text), []
        for _ in range(n):
            padded = np.array([text + [0] * (size - len(text))], np.int32)
            logits = np.asarray(run(ids=padded, pixels=np.stack(shown)))[0, len(text) - 1]
            text.append(int(logits.argmax()))
            values = logits.astype(np.float64) - logits.max()
            chances.append(np.sort(values - np.log(np.exp(values).sum()))[: -TOP - 1 : -1])
        return text[start:], chances
