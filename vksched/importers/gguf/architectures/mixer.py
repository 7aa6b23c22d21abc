"""Mixer: a layer's block with a recurrent state, in place of attention.

    x, state of the earlier tokens -> output, state after these tokens

The state has one size whatever the length of the text is. A family with such layers has a mixer;
`HParams.recurrent` lists the layers that use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ....common.dtypes import WORD_BYTES, Shape
from ....ir.tensor import Tensor
from ....ops import arange, gather, less, reshape, where
from ..hparams.hparams import HParams
from .token_layout import Recurrence, SequenceLayout
from .weights import Weights


class ModelLayers(Protocol):
    """The interface of `LinearLayers` that mixers use."""

    @property
    def hyper(self) -> HParams: ...

    @property
    def weights(self) -> Weights: ...

    def linear(self, x: Tensor, name: str, size: int) -> Tensor: ...

    def bias(self, name: str, size: int) -> Tensor | None: ...

    def norm(self, x: Tensor, name: str) -> Tensor: ...


@dataclass(frozen=True)
class MixerLayer:
    """The layer of a number in one graph: its weights, its tokens and its states. shared: tensors
    by name that layers of the graph share.
    """

    number: int
    layers: ModelLayers
    text: SequenceLayout
    shared: dict[str, Tensor] = field(default_factory=dict)

    def name(self, part: str) -> str:
        """Return the name of a part of the layer, as "blk.3.ssm_out"."""
        return f"blk.{self.number}.{part}"

    def linear(self, x: Tensor, part: str, size: int) -> Tensor:
        """Return x times a weight of the layer, plus its bias if there is one."""
        return self.layers.linear(x, self.name(part), size)

    def weight(self, part: str, shape: Shape) -> Tensor:
        """Return a tensor of the layer, as "ssm_a" or "ssm_conv1d.weight"."""
        return self.layers.weights.take(self.name(part), shape)

    def reshaped(self, part: str, shape: Shape) -> Tensor:
        """Return a tensor of the layer in a shape; the file's may have other axes of size 1."""
        name, weights = self.name(part), self.layers.weights
        found = weights.shape(name)
        if [size for size in found if size > 1] != [size for size in shape if size > 1]:
            return weights.take(name, shape)
        return reshape(weights.take(name, found), shape)

    def recur(self, state: str, rows: int, recurrence: Recurrence, shape: Shape) -> Tensor:
        """Return the output of a recurrence; see `SequenceLayout.recur`. state: a name of the
        mixer's `state_shapes`.
        """
        return self.text.recur(self.name(state), rows, shape, recurrence)

    def without_padding(self, x: Tensor) -> Tensor:
        """Return x (b, n, ...) with 0 for tokens that are padding."""
        count = self.text.count
        if count is None:
            return x
        is_token = less(arange(x.shape[1]), reshape(count, (-1, 1)))
        return where(reshape(is_token, (*is_token.shape, *(1 for _ in x.shape[2:]))), x, 0.0)

    def last_inputs(self, x: Tensor, size: int) -> Tensor:
        """Return the last `size` inputs before padding, (b, size, channels). x: the inputs of
        `size` earlier tokens, then those of the tokens, (b, size + n, channels).
        """
        count, (rows, length, channels) = self.text.count, x.shape
        if count is None or not size:
            return x[:, length - size :]
        first = reshape(arange(0, rows * length, length) + count, (-1, 1))
        return gather(reshape(x, (rows * length, channels)), first + arange(size))


def recurrent_bytes(mixers: Sequence[Mixer], hyper: HParams, layers: int) -> int:
    """Return the size of the recurrent states of one sequence in bytes. mixers: those of a layer.
    layers: the number of layers with such states.
    """
    shapes = [shape for mixer in mixers for shape in mixer.state_shapes(hyper).values()]
    return WORD_BYTES * layers * sum(map(math.prod, shapes))


class Mixer(Protocol):
    """A block with a recurrent state."""

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        """Return the shapes of a slot's states in each layer, by name."""

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        """Return the output of a layer's block, (b, n, width) -> (b, n, width)."""
