"""Networks, defined once: every runtime builds its own from equal random weights.

    minilm(builder)  ->  the builder's calls, in order  ->  an ONNX file, ncnn's layers, ...

Sizes are those of MiniLM-L6 (8 texts of 32 tokens), ResNet-18, ResNet-50 and MobileNet-V2 (one
image of 224 x 224, norms folded into the convolutions) and a small GPT-2 (one token with a KV cache
of 128, or a prompt of 512).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from . import numpy_functions
from .numpy_functions import Array

V = TypeVar("V")
WORDS = 30522


class Builder(Protocol[V]):
    """Builder of layers in a runtime.

    Values are rows, (rows, columns), or images, (1, channels, side, side).
    """

    def input(self, name: str, value: Array) -> V:
        """Return an input of the network: int32 ids or a float32 image."""

    def embed(self, ids: V, table: Array) -> V:
        """Return the rows of a table by id."""

    def linear(self, x: V, w: Array, bias: Array | None) -> V:
        """Return x w + bias; w: (in, out). Without a bias x w^T; w: (out, in), like an embedding
        table.
        """

    def layer_norm(self, x: V, scale: Array, shift: Array) -> V: ...

    def gelu(self, x: V) -> V: ...

    def relu(self, x: V) -> V: ...

    def relu6(self, x: V) -> V:
        """Clamp each value to 0..6."""

    def add(self, a: V, b: V) -> V: ...

    def attention(self, q: V, k: V, v: V, batch: int, heads: int) -> V:
        """Return attention of rows with interleaved heads; batch: number of independent
        sequences.
        """

    def mean(self, x: V, batch: int) -> V:
        """Return the mean of the rows of each sequence."""

    def grow(self, cache: Array, new: V) -> V:
        """Return `cache`, a state of the runtime, with a new row appended."""

    def conv(self, x: V, w: Array, bias: Array, stride: int, pad: int, groups: int = 1) -> V: ...

    def max_pool(self, x: V, kernel: int, stride: int, pad: int) -> V: ...

    def pool(self, x: V) -> V:
        """Return the mean of each channel, as one row."""

    def causal_attention(self, q: V, k: V, v: V, batch: int, heads: int) -> V:
        """Return causal attention within each sequence."""

    def last(self, x: V) -> V:
        """Return the last row, (1, columns)."""


class _Weights:
    """Random weights, scaled to keep values near 1."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(5)

    def __call__(self, *shape: int) -> Array:
        inward = float(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        values = self._rng.random(shape, dtype=np.float32) - np.float32(0.5)
        return np.asarray(values * np.float32((12 / inward) ** 0.5))

    def table(self, rows: int, columns: int) -> Array:
        return np.ascontiguousarray(self(columns, rows).T)

    def bias(self, size: int) -> Array:
        return np.asarray(self._rng.random(size, dtype=np.float32) * np.float32(0.1), np.float32)

    def scale(self, size: int) -> Array:
        return np.asarray(self.bias(size) + np.float32(1))


def _block(b: Builder[V], w: _Weights, x: V, width: int) -> V:
    up = b.gelu(b.linear(x, w(width, 4 * width), w.bias(4 * width)))
    return b.linear(up, w(4 * width, width), w.bias(width))


def minilm(b: Builder[V], batch: int = 8, tokens: int = 32, layers: int = 6, width: int = 384) -> V:
    """ids (batch x tokens) -> (batch, width): the mean of the last layer."""
    w = _Weights()
    ids = np.random.default_rng(1).integers(0, WORDS, batch * tokens).astype(np.int32)
    x = b.embed(b.input("ids", ids), w.table(WORDS, width) * np.float32(5))
    for _ in range(layers):
        q, k, v = (b.linear(x, w(width, width), w.bias(width)) for _ in range(3))
        seen = b.attention(q, k, v, batch, 12)
        x = b.add(x, b.linear(seen, w(width, width), w.bias(width)))
        x = b.layer_norm(x, w.scale(width), w.bias(width))
        x = b.layer_norm(b.add(x, _block(b, w, x, width)), w.scale(width), w.bias(width))
    return b.mean(x, batch)


class _Convolutions(Generic[V]):
    """Layers of an image network. A call is a convolution with random filters."""

    def __init__(self, builder: Builder[V]) -> None:
        self._b, self._w = builder, _Weights()

    def __call__(
        self,
        x: V,
        inward: int,
        out: int,
        kernel: int,
        stride: int,
        gain: float = 1.0,
        groups: int = 1,
    ) -> V:
        filters = self._w(out, inward // groups, kernel, kernel) * np.float32(gain)
        return self._b.conv(x, filters, self._w.bias(out), stride, kernel // 2, groups)

    def image(self, size: int) -> V:
        """Return a random image, (1, 3, size, size)."""
        image = np.random.default_rng(1).random((1, 3, size, size), dtype=np.float32)
        return self._b.input("image", image)

    def stem(self, size: int) -> V:
        """Return 64 channels at a quarter of the image's side."""
        x = self(self.image(size), 3, 64, 7, 2)
        return self._b.max_pool(self._b.relu(x), 3, 2, 1)

    def classes(self, x: V, inward: int) -> V:
        """Return the logits of 1,000 classes."""
        return self._b.linear(self._b.pool(x), self._w(inward, 1000), self._w.bias(1000))


def resnet18(b: Builder[V], size: int = 224) -> V:
    """image (1, 3, size, size) -> (1, 1000)."""
    layer = _Convolutions(b)
    x, inward = layer.stem(size), 64
    for out in (64, 128, 256, 512):
        for stride in (1 if out == 64 else 2, 1):
            short = layer(x, inward, out, 1, stride) if stride > 1 else x
            h = b.relu(layer(x, inward, out, 3, stride))
            x = b.relu(b.add(layer(h, out, out, 3, 1, 0.5), short))
            inward = out
    return layer.classes(x, inward)


def resnet50(b: Builder[V], size: int = 224) -> V:
    """image (1, 3, size, size) -> (1, 1000)."""
    layer = _Convolutions(b)
    x, inward = layer.stem(size), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for number in range(blocks):
            out, stride = 4 * width, 2 if width > 64 and not number else 1
            short = x if number else layer(x, inward, out, 1, stride)
            h = b.relu(layer(x, inward, width, 1, 1))
            h = b.relu(layer(h, width, width, 3, stride))
            x = b.relu(b.add(layer(h, width, out, 1, 1, 0.5), short))
            inward = out
    return layer.classes(x, inward)


def mobilenet(b: Builder[V], size: int = 224) -> V:
    """image (1, 3, size, size) -> (1, 1000)."""
    layer = _Convolutions(b)
    x, inward = b.relu6(layer(layer.image(size), 3, 32, 3, 2)), 32
    for wider, out, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for stride in (first, *[1] * (count - 1)):
            width, has_identity = wider * inward, stride == 1 and inward == out
            h = b.relu6(layer(x, inward, width, 1, 1)) if wider > 1 else x
            h = b.relu6(layer(h, width, width, 3, stride, groups=width))
            h = layer(h, width, out, 1, 1, 0.5 if has_identity else 1.0)
            x, inward = b.add(x, h) if has_identity else h, out
    return layer.classes(b.relu6(layer(x, inward, 1280, 1, 1)), 1280)


def gpt2_mini(
    b: Builder[V], past: int = 128, layers: int = 6, width: int = 384, words: int = 50257
) -> V:
    """id (1) -> (1, words): one decode step; the last row of the KV cache is its own."""
    w = _Weights()
    table = w.table(words, width)
    x = b.embed(b.input("id", np.array([7], np.int32)), table)
    for _ in range(layers):
        h = b.layer_norm(x, w.scale(width), w.bias(width))
        q, k, v = (b.linear(h, w(width, width), w.bias(width)) for _ in range(3))
        keys, values = (b.grow(w.table(past - 1, width), new) for new in (k, v))
        seen = b.attention(q, keys, values, 1, 6)
        x = b.add(x, b.linear(seen, w(width, width), w.bias(width)))
        h = b.layer_norm(x, w.scale(width), w.bias(width))
        x = b.add(x, _block(b, w, h, width))
    return b.linear(x, table, None)


def gpt2_text(
    b: Builder[V],
    batch: int = 4,
    tokens: int = 64,
    layers: int = 6,
    width: int = 384,
    words: int = 50257,
) -> V:
    """ids (batch x tokens) -> (batch x tokens, words): logits after each token, as in training."""
    x, table = _read_text(b, batch, tokens, layers, width, words)
    return b.linear(x, table, None)


def gpt2_prompt(
    b: Builder[V], tokens: int = 512, layers: int = 6, width: int = 384, words: int = 50257
) -> V:
    """ids (tokens) -> (1, words): logits after a prompt."""
    x, table = _read_text(b, 1, tokens, layers, width, words)
    return b.linear(b.last(x), table, None)


def _read_text(
    b: Builder[V], batch: int, tokens: int, layers: int, width: int, words: int
) -> tuple[V, Array]:
    """Return the hidden rows of whole texts, (batch x tokens, width), and the embedding table."""
    w = _Weights()
    table = w.table(words, width)
    ids = np.random.default_rng(1).integers(0, words, batch * tokens).astype(np.int32)
    x = b.embed(b.input("ids", ids), table)
    for _ in range(layers):
        h = b.layer_norm(x, w.scale(width), w.bias(width))
        q, k, v = (b.linear(h, w(width, width), w.bias(width)) for _ in range(3))
        seen = b.causal_attention(q, k, v, batch, 6)
        x = b.add(x, b.linear(seen, w(width, width), w.bias(width)))
        h = b.layer_norm(x, w.scale(width), w.bias(width))
        x = b.add(x, _block(b, w, h, width))
    return x, table


NETWORKS: Mapping[str, Callable[..., Any]] = {
    "minilm": minilm,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "mobilenet": mobilenet,
    "gpt2_mini": gpt2_mini,
    "gpt2_text": gpt2_text,
    "gpt2_prompt": gpt2_prompt,
}
NO_SIZES = ("model", "phase", "hardware", "precision")
"""Parameters of a case that do not affect the computation of its network."""


def build(params: Mapping[str, Any], builder: Builder[V]) -> V:
    """Return the result of a network by its name and sizes."""
    sizes = {key: value for key, value in params.items() if key not in NO_SIZES}
    result: V = NETWORKS[params["model"]](builder, **sizes)
    return result


class NumpyBuilder:
    """A builder that computes directly, with numpy. flops: operations of matmuls. weight_bytes:
    size of their weights and of tables.
    """

    def __init__(self) -> None:
        self.feeds: dict[str, Array] = {}
        self.flops = 0.0
        self.weight_bytes = 0.0
        self._tables: list[Array] = []

    def _hold(self, array: Array) -> None:
        if not any(array is table for table in self._tables):
            self.weight_bytes += array.nbytes

    def input(self, name: str, value: Array) -> Array:
        self.feeds[name] = value
        return value

    def embed(self, ids: Array, table: Array) -> Array:
        self._hold(table)
        self._tables.append(table)  # which an output may read again
        return np.asarray(table[ids])

    def linear(self, x: Array, w: Array, bias: Array | None) -> Array:
        self._hold(w)
        y = np.asarray(x @ w.T if bias is None else x @ w + bias)
        self.flops += 2.0 * x.shape[1] * y.size
        return y

    def layer_norm(self, x: Array, scale: Array, shift: Array) -> Array:
        return numpy_functions.layer_norm(x, scale, shift)

    def gelu(self, x: Array) -> Array:
        return numpy_functions.gelu(x)

    def relu(self, x: Array) -> Array:
        return np.asarray(np.maximum(x, np.float32(0)))

    def relu6(self, x: Array) -> Array:
        return np.asarray(np.clip(x, np.float32(0), np.float32(6)))

    def add(self, a: Array, b: Array) -> Array:
        return np.asarray(a + b)

    def attention(
        self, q: Array, k: Array, v: Array, batch: int, heads: int, causal: bool = False
    ) -> Array:
        width: int = q.shape[1]
        self.flops += 4.0 * q.size * (k.shape[0] // batch)

        def split(x: Array) -> Array:
            return np.asarray(x.reshape(batch, -1, heads, width // heads).transpose(0, 2, 1, 3))

        scores = split(q) @ np.swapaxes(split(k), -1, -2) * np.float32((width // heads) ** -0.5)
        if causal:
            scores = scores + numpy_functions.later_of(scores.shape[-1])
        seen = numpy_functions.softmax(scores) @ split(v)
        return np.asarray(seen.transpose(0, 2, 1, 3).reshape(q.shape))

    def causal_attention(self, q: Array, k: Array, v: Array, batch: int, heads: int) -> Array:
        return self.attention(q, k, v, batch, heads, causal=True)

    def last(self, x: Array) -> Array:
        return x[-1:]

    def mean(self, x: Array, batch: int) -> Array:
        return np.asarray(x.reshape(batch, -1, x.shape[1]).mean(1))

    def grow(self, cache: Array, new: Array) -> Array:
        self._hold(cache)
        return np.concatenate([cache, new])

    def conv(
        self, x: Array, w: Array, bias: Array, stride: int, pad: int, groups: int = 1
    ) -> Array:
        self._hold(w)
        y = numpy_functions.conv(x, w, stride, pad, groups)
        self.flops += 2.0 * y.size * w[0].size
        return np.asarray(y + bias[None, :, None, None])

    def max_pool(self, x: Array, kernel: int, stride: int, pad: int) -> Array:
        seen = numpy_functions.windows(x[0], kernel, stride, pad, -np.inf)
        return np.asarray(seen.max((3, 4)))[None]

    def pool(self, x: Array) -> Array:
        return np.asarray(x.mean((2, 3)))


@lru_cache(maxsize=len(NETWORKS))
def _computed(params: tuple[tuple[str, Any], ...]) -> tuple[Array, NumpyBuilder]:
    numbers = NumpyBuilder()
    return build(dict(params), numbers), numbers


def computed(params: Mapping[str, Any]) -> tuple[Array, NumpyBuilder]:
    """Return a network's result with numpy, and its work."""
    same = {key: value for key, value in params.items() if key == "model" or key not in NO_SIZES}
    return _computed(tuple(sorted(same.items())))
