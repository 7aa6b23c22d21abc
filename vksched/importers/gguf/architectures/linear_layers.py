"""LinearLayers: the linear layers and norms of a file, by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....ir.tensor import Tensor
from ....ops import layer_norm, linear, rms_norm
from ..hparams.hparams import HParams
from .family import Family, Norms
from .scaled_rows import scaled_rows
from .weights import Weights


@dataclass
class LinearLayers:
    """The linear layers and norms of one graph.

    scale_rows: scale the rows of unbounded inputs of products into float16's range; see
    `scaled_rows.py`.
    """

    family: Family
    hyper: HParams
    weights: Weights
    scale_rows: bool = False
    _scaled: dict[Tensor, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Inputs of several products with scaled rows, and their factors."""

    def scales_input(self, norms: Norms) -> bool:
        """Return True to scale the rows of a block's input: no norm bounds it."""
        return self.scale_rows and not (norms.before or norms.sum)

    def linear(self, x: Tensor, name: str, size: int, scale_rows: bool = False) -> Tensor:
        """Return x times a weight and its scale, if the file has one, plus its bias if the file has
        one or the family requires it. scale_rows: x may exceed float16's range.
        """
        weight = self.weights.take(f"{name}.weight", (size, x.shape[-1]))
        bias, scale = self.bias(name, size), f"{name}.scale"
        if not scale_rows and scale not in self.weights:
            return linear(x, weight, bias)
        if not scale_rows:
            y = linear(x, weight)
        else:
            if x not in self._scaled:
                self._scaled[x] = scaled_rows(x)
            x, unscale = self._scaled[x]
            y = linear(x, weight) * unscale
        if scale in self.weights:
            y = y * self.weights.take(scale, (1,))
        return y if bias is None else y + bias

    def bias(self, name: str, size: int) -> Tensor | None:
        """Return the bias of a linear layer; None if it is optional and the file has none."""
        biased = name.rpartition(".")[2] in self.family.biases or f"{name}.bias" in self.weights
        return self.weights.take(f"{name}.bias", (size,)) if biased else None

    def has_norm(self, name: str) -> bool:
        """Return False if a norm is optional and the file has none."""
        return not name.endswith(self.family.optional_norms) or f"{name}.weight" in self.weights

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Return x normalized by a norm of the file; return x if the name is "", or if the file
        lacks an optional norm.
        """
        if not name or not self.has_norm(name):
            return x
        size, eps = x.shape[-1:], self.hyper.eps
        if not self.family.norm_weights:
            return layer_norm(x, eps=eps)
        scale = self.weights.take(f"{name}.weight", size)
        if not self.family.layer_norms:
            return rms_norm(x, scale, eps=eps)
        shift = self.weights.take(f"{name}.bias", size) if self.family.shifted_norms else None
        return layer_norm(x, scale, shift, eps=eps)
