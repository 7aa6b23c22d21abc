"""Weights: creates graph weights from the tensors of a file, each once."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextvars import Context
from functools import cache

import numpy as np
from gguf.constants import GGMLQuantizationType

from ....common.dtypes import WORD_BYTES, NDArray
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor, weight
from ....ops.quantized.dequantize import dequantize as dequantize_weight
from ....ops.quantized.dequantize import quantized_weight
from ....ops.quantized.gguf_formats import numbered, pack_u32
from ....ops.quantized.quant_layout import Format
from ....storage.lazy_array import ORIGINS, ArrayLike, ConcatBytes, FileSlice, lazy_bytes
from ....storage.model_file import copied
from ..read.dequantize import dequantize
from ..read.loader import GgufFile
from ..read.tensors import GgufTensor
from .split_kv_b import half_of

Asked = tuple[str, tuple[int, ...], tuple[str, ...]]
"""The arguments of `take`: name, shape, parts."""


class Weights:
    """The weights of a file, created at first use by any thread and shared by all graphs.

    Quantized matrices keep the file's format if matmuls support it (`vs.quantized_weight`); all
    other tensors become float32.
    """

    def __init__(self, file: GgufFile) -> None:
        self._tensors = file.tensors
        self._tensors_by_name: dict[str, Tensor] = {}
        self._asked: dict[str, Asked] = {}
        self._held: dict[str, ArrayLike] = {}
        """The 32-bit words of matrices, which a background thread may repack."""
        self._words: dict[str, Tensor] = {}
        """The weights that graphs use or will use."""
        self._making = threading.Lock()
        self._required: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def rows(self, name: str) -> int:
        """Return the size of the first axis of a tensor, 0 if there is none."""
        return self._tensors[name].shape[0] if name in self._tensors else 0

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, () if there is none."""
        return self._tensors[name].shape if name in self._tensors else ()

    def names(self) -> Iterator[str]:
        """Return the names of all tensors of the file."""
        return iter(self._tensors)

    def size_of(self, name: str) -> int:
        """Return the size of a tensor's first axis; 1 if there is no such tensor."""
        return self._tensors[name].shape[0] if name in self._tensors else 1

    def take(self, name: str, shape: tuple[int, ...], parts: Sequence[str] = ()) -> Tensor:
        """Return a weight, named as in the file regardless of the current name scope.

        parts: the names of tensors that hold the entries of the first axis, for files that split
        it.

        Raises
        ------
        ModelFormatError
            There is no such tensor, or it has another shape.
        """
        if name not in self._tensors and any(part in self._tensors for part in parts[:1]):
            tensors = [self._found(part, shape[1:]) for part in parts]
        else:
            tensors = [self._found(name, shape)]
        with self._making:
            if name not in self._tensors_by_name:
                result = Context().run(self._make, name, shape, tensors)
                self._asked[name] = name, shape, tuple(parts)
                self._tensors_by_name |= dict.fromkeys(
                    (name, *(tensor.name for tensor in tensors)), result
                )
            return self._tensors_by_name[name]

    def leaf(self, name: str, shape: tuple[int, ...], parts: Sequence[str] = ()) -> Tensor:
        """Return the leaf of the weight that `take` returns: itself, or its 32-bit words if it is
        quantized.
        """
        tensor = None if parts else self._tensors.get(name)
        kind = None if tensor is None or tensor.shape != shape else _packed_as([tensor])
        if tensor is None or kind is None:
            return _leaf(self.take(name, shape, parts))
        with self._making:
            return Context().run(self._pack_u32, tensor, kind)

    def leaves(self) -> dict[Tensor, Asked]:
        """Return the leaves of all weights that were taken, with the arguments of `take`."""
        with self._making:
            return {
                _leaf(self._tensors_by_name[name]): asked for name, asked in self._asked.items()
            }

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ModelFormatError if there is no such tensor; its parts are taken by other names."""
        self._found(name, shape)
        self._required.add(name)

    def _found(self, name: str, shape: tuple[int, ...]) -> GgufTensor:
        tensor = self._tensors.get(name) or half_of(self._tensors, name, shape)
        if tensor is None or tensor.shape != shape:
            got = "none" if tensor is None else str(tensor.shape)
            raise ModelFormatError(f"[gguf] expected a tensor {name!r} of shape {shape}, got {got}")
        return tensor

    def _make(self, name: str, shape: tuple[int, ...], tensors: Sequence[GgufTensor]) -> Tensor:
        kind, blocks = _packed_as(tensors), _joined([tensor.blocks for tensor in tensors])
        if kind is not None and len(tensors) == 1:
            words = self._pack_u32(tensors[0], kind)
            return dequantize_weight(words, kind.name, shape[-1], name=name)
        if kind is not None:
            return quantized_weight(blocks, kind.name, shape, name=name)
        if isinstance(blocks, FileSlice) and {tensor.type for tensor in tensors} == {"F32"}:
            if len(shape) > 1:
                return weight(lazy_bytes(blocks, shape, "<f4"), name)
            return _vector(tensors[0], blocks, name)
        arrays = [_floats(tensor) for tensor in tensors]
        return weight(arrays[0] if len(arrays) == 1 else np.stack(arrays), name)

    def _pack_u32(self, tensor: GgufTensor, kind: Format) -> Tensor:
        if tensor.name not in self._words:
            held = self._held_of(tensor, kind)
            self._words[tensor.name] = weight(held, f"{tensor.name}.words")
        return self._words[tensor.name]

    def _held_of(self, tensor: GgufTensor, kind: Format) -> ArrayLike:
        if tensor.name not in self._held:
            self._held[tensor.name] = pack_u32(kind.name, tensor.blocks, tensor.shape)
        return self._held[tensor.name]

    def held(self) -> list[ArrayLike]:
        """Return the 32-bit words of all matrices, in the form that graphs use."""
        with self._making:
            return [self._held_of(tensor, kind) for tensor, kind in self._matrices()]

    def words(self) -> dict[Tensor, ArrayLike]:
        """Return the 32-bit words of all matrices by weight."""
        return Context().run(self._all_words)

    def _all_words(self) -> dict[Tensor, ArrayLike]:
        with self._making:
            packed = [self._pack_u32(tensor, kind) for tensor, kind in self._matrices()]
        return {each: each.held for each in packed if each.held is not None}

    def _matrices(self) -> Iterator[tuple[GgufTensor, Format]]:
        for tensor in self._tensors.values():
            kind = _packed_as([tensor])
            if kind is not None:
                yield tensor, kind

    def require_all(self, architecture: str, besides: Sequence[str] = ()) -> None:
        """Raise ModelFormatError if a tensor of the file, except `besides`, was never taken: an
        unknown tensor would be left out of the computation.
        """
        used = {*self._tensors_by_name, *self._required, *besides}
        left = [name for name in self._tensors if name not in used]
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelFormatError(
                f"[gguf] expected tensors that architecture {architecture!r} uses, got also "
                f"{', '.join(map(repr, left[:3]))}{more}"
            )


class MetaWeights(Weights):
    """Weights of equal types and sizes without data, for planning; nothing is read or allocated."""

    def _make(self, name: str, shape: tuple[int, ...], tensors: Sequence[GgufTensor]) -> Tensor:
        kind = _packed_as(tensors)
        if kind is None:
            # ones: vectors may be divisors
            array = np.zeros(shape, np.float32) if len(shape) > 1 else np.ones(shape, np.float32)
            return weight(array, name)
        words = np.zeros((*shape[:-1], kind.row_words(shape[-1])), np.uint32)
        return dequantize_weight(weight(words, f"{name}.words"), kind.name, shape[-1], name=name)


def _vector(tensor: GgufTensor, blocks: FileSlice, name: str) -> Tensor:
    """Return floats of a file as a copy, because a change of the file would be detected too
    late.
    """
    result = weight(_floats(tensor), name)
    origin = blocks.origin(result.shape, result.dtype)
    if origin is not None:
        ORIGINS.set(result.held, origin)
    return result


def _floats(tensor: GgufTensor) -> NDArray:
    """Return the values of a tensor as float32, without a change of its bytes."""
    return dequantize(tensor.name, tensor.type, tensor.shape, copied(tensor.blocks))


def _leaf(taken: Tensor) -> Tensor:
    return taken.inputs[0] if taken.inputs else taken


def _joined(blocks: Sequence[memoryview | FileSlice]) -> memoryview | FileSlice:
    """Return the concatenated bytes of tensors."""
    if len(blocks) == 1:
        return blocks[0]
    apart = [each for each in blocks if isinstance(each, FileSlice)]
    return ConcatBytes(apart) if len(apart) == len(blocks) else memoryview(b"".join(blocks))  # type: ignore[arg-type]


def device_bytes_of(tensor: GgufTensor) -> int:
    """Return the size of a tensor on a device in bytes."""
    kind, shape = _packed_as([tensor]), tensor.shape
    words = tensor.size if kind is None else math.prod(shape[:-1]) * kind.row_words(shape[-1])
    return WORD_BYTES * words


def _packed_as(tensors: Sequence[GgufTensor]) -> Format | None:
    """Return the quantized format in which tensors are stored on devices; None if they become
    float32, as tensors of different formats do.
    """
    types = {tensor.type for tensor in tensors}
    kind, shape = _format_of(types.pop()), tensors[0].shape
    if types or kind is None or len(shape) < 2 or shape[-1] % kind.step:
        return None
    return kind


@cache
def _format_of(type: str) -> Format | None:
    return numbered(GGMLQuantizationType[type])
