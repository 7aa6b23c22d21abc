"""CurrentWeights: a fast comparison of the parameters of a call with those of the call before.

    the same tensors? at the same address, with the same sizes? the same versions? the same samples?

A network has hundreds of parameters, and each call compares them all. Identities, addresses and
versions are therefore compared as lists, and samples are read through arrays that are made once.
These arrays do not own the memory of the parameters: they are read only after the address has been
compared. Examples: tests/torch_backend/test_torch_weights.py.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..common.dtypes import NDArray
from .weights import ManagedWeight, sampling_step

Layout = tuple[int, int, tuple[int, ...], tuple[int, ...]]


class CurrentWeights:
    """The parameters of a call whose values are on devices.

    Parameters
    ----------
    tensors
        The managed arguments of the call.
    entries
        Their weights, by position among the tensors. Others are inputs of each call.
    """

    def __init__(self, tensors: Sequence[Any], entries: dict[int, ManagedWeight]) -> None:
        self._refs = [weakref.ref(t) for t in tensors]
        self._at = list(entries)
        weights = [tensors[i] for i in self._at]
        self._layouts = [_layout(t) for t in weights]
        self._versions = [entry.version for entry in entries.values()]
        views = [_sample_view(t) for t in weights]
        self._views: list[NDArray] | None = None
        if all(view is not None for view in views):
            self._views = [view for view in views if view is not None]
        self._samples = [entry.sample for entry in entries.values()]

    def equal(self, tensors: Sequence[Any]) -> bool:
        """Return True if the parameters of another call are the same, with the same values as far
        as versions and samples show. False may mean that it is not known.
        """
        if self._views is None or len(tensors) != len(self._refs):
            return False
        for ref, tensor in zip(self._refs, tensors, strict=True):
            if ref() is not tensor:
                return False
        weights = [tensors[i] for i in self._at]
        return (
            [t._version for t in weights] == self._versions
            and [_layout(t) for t in weights] == self._layouts
            and [view.tobytes() for view in self._views] == self._samples
        )


def _layout(tensor: Any) -> Layout:
    """Return what locates the elements of a tensor: `Parameter.data = other` changes it."""
    storage: int = tensor.untyped_storage()._cdata
    return storage, tensor.data_ptr(), tensor.shape, tensor.stride()


def _sample_view(tensor: Any) -> NDArray | None:
    """Return the elements that `sample_of` reads, as an array that does not own their memory; None
    if they are not evenly spaced in memory.
    """
    if not _is_dense(tensor):
        return None
    count, size = tensor.numel(), tensor.element_size()
    if not count:
        return np.empty(0, np.uint8)
    memory = (ctypes.c_char * (count * size)).from_address(tensor.data_ptr())
    return np.frombuffer(memory, f"u{size}")[:: sampling_step(count)]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return True if a tensor has its elements without gaps in memory, in any order of axes."""
    expected = 1
    axes = sorted((s, d) for s, d in zip(tensor.stride(), tensor.shape, strict=True) if d > 1)
    for stride, size in axes:
        if stride != expected:
            return False
        expected *= size
    return True
