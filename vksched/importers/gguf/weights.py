"""Weights: the tensors of a file as tensors of a graph, each made once."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import Context

from gguf.constants import GGMLQuantizationType

from ...errors import ModelFormatError
from ...ops.core.tensor import Tensor, weight
from ...ops.products.blocks import numbered
from ...ops.products.packed import packed
from .read.loader import GgufFile
from .read.tensors import GgufTensor


class Weights:
    """Makes weights of a file's tensors when they are asked for; all graphs share them. Matrices
    keep the type of the file where products read it (vs.packed); all else becomes float32.
    """

    def __init__(self, file: GgufFile) -> None:
        self._tensors = file.tensors
        self._made: dict[str, Tensor] = {}

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
        if name not in self._made:
            self._made[name] = Context().run(_made, tensor)
        return self._made[name]

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


def _made(tensor: GgufTensor) -> Tensor:
    kind = numbered(GGMLQuantizationType[tensor.type])
    if kind is None or len(tensor.shape) < 2 or tensor.shape[-1] % kind.step:
        return weight(tensor.to_numpy(), tensor.name)
    return packed(tensor.data, kind.name, tensor.shape, name=tensor.name)
