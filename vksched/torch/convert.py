"""Element types and arrays of PyTorch tensors.

torch.bfloat16 --computed as--> float32        all other types have an equal one, or none
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..common.dtypes import NDArray

STORAGE: dict[Any, str] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "float32",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
}
"""The element types that run on devices, and the one that stores each."""


def storage_of(tensor: Any) -> str | None:
    """Return the element type that stores a tensor, or None."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    return STORAGE.get(tensor.dtype)


def to_array(tensor: Any) -> NDArray:
    """Return the array of a tensor, without a copy unless it is bfloat16 or lazily negated."""
    plain = tensor.detach()
    if plain.is_neg():
        plain = plain.resolve_neg()
    if plain.dtype == torch.bfloat16:
        plain = plain.float()
    array: NDArray = plain.numpy()
    return array


def to_tensor(array: NDArray, dtype: Any, strides: Sequence[int]) -> Any:
    """Return a tensor of an array, without a copy if it has the strides.

    Parameters
    ----------
    dtype
        The type of the tensor; an array of another one is converted.
    strides
        The strides that PyTorch expects. Views of the tensor rely on them.
    """
    tensor = torch.from_numpy(array)
    if tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if tensor.stride() == tuple(strides):
        return tensor
    axes = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if tensor.numel() == 0 or all(n == 1 or a == b for n, a, b in axes):
        return tensor.as_strided(tensor.shape, tuple(strides))
    if 0 in strides:  # an expanded result: elements share memory
        first = tensor[tuple(slice(0, None if step else 1) for step in strides)]
        return _with_strides(first, strides).expand(tensor.shape)
    return _with_strides(tensor, strides)


def _with_strides(tensor: Any, strides: Sequence[int]) -> Any:
    """Return a copy of a tensor with these strides. Elements that share memory are equal."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    memory = torch.empty(size, dtype=tensor.dtype)
    out = memory.as_strided(tensor.shape, tuple(strides))
    if size >= tensor.numel():
        out.copy_(tensor)
        return out
    positions = torch.arange(size).as_strided(tensor.shape, tuple(strides))
    memory[positions.reshape(-1)] = tensor.reshape(-1)
    return out
