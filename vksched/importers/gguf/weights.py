"""Weights: the tensors of a file as tensors of a graph, each made once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextvars import Context

import numpy as np
from gguf.constants import GGMLQuantizationType

from ...errors import ModelFormatError
from ...ops.core.tensor import Tensor, weight
from ...ops.products.block_layout import Format
from ...ops.products.blocks import numbered
from ...ops.products.packed import packed, unpack
from .read.loader import GgufFile
from .read.tensors import GgufTensor


class Weights:
    """Makes weights of a file's tensors when they are asked for, by any thread; all graphs share
    them. Matrices keep the type of the file where products read it (vs.packed); all else becomes
    float32.
    """

    def __init__(self, file: GgufFile) -> None:
        self._tensors = file.tensors
        self._made: dict[str, Tensor] = {}
        self._making = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Returns a weight, with the name that it has in the file in whatever scope it is made.

        Raises:
            ModelFormatError: there is none, or it has another shape.
        """
        tensor = self._tensors.get(name)
        if tensor is None or tensor.shape != shape:
            got = "none" if tensor is None else str(tensor.shape)
            raise ModelFormatError(f"[gguf] expected a tensor {name!r} of shape {shape}, got {got}")
        with self._making:
            if name not in self._made:
                self._made[name] = Context().run(self._make, tensor)
            return self._made[name]

    def _make(self, tensor: GgufTensor) -> Tensor:
        kind = _packed_as(tensor)
        if kind is None:
            return weight(tensor.to_numpy(), tensor.name)
        return packed(tensor.data, kind.name, tensor.shape, name=tensor.name)

    def require_all(self, architecture: str, besides: Sequence[str] = ()) -> None:
        """Raises ModelFormatError where a tensor of the file was never taken, besides some: what is
        not known would be left out of the computation.
        """
        left = [name for name in self._tensors if name not in (*self._made, *besides)]
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelFormatError(
                f"[gguf] expected tensors that architecture {architecture!r} uses, got also "
                f"{', '.join(map(repr, left[:3]))}{more}"
            )


class HollowWeights(Weights):
    """Weights of the same types and sizes, for plans: nothing of the file is read, and no memory
    taken, as nobody reads them.
    """

    def _make(self, tensor: GgufTensor) -> Tensor:
        kind, shape = _packed_as(tensor), tensor.shape
        if kind is None:
            # the few vectors may be divided by
            array = np.zeros(shape, np.float32) if len(shape) > 1 else np.ones(shape, np.float32)
            return weight(array, tensor.name)
        words = np.zeros((*shape[:-1], kind.row_words(shape[-1])), np.uint32)
        held = weight(words, f"{tensor.name}.words")
        return unpack(held, kind.name, shape[-1], name=tensor.name)


def _packed_as(tensor: GgufTensor) -> Format | None:
    """Returns the format in which a tensor is held; None where it becomes float32."""
    kind = numbered(GGMLQuantizationType[tensor.type])
    if kind is None or len(tensor.shape) < 2 or tensor.shape[-1] % kind.step:
        return None
    return kind
