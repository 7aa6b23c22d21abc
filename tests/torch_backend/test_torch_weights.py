"""Parameters of a call are compared with those of the call before: no change is missed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from vksched.torch.current_weights import CurrentWeights
from vksched.torch.weights import SAMPLED, ManagedWeight


def current(*tensors: Any) -> CurrentWeights:
    entries = {
        i: ManagedWeight(t, f"w{i}", trained=False, unused=[].append) for i, t in enumerate(tensors)
    }
    return CurrentWeights(tensors, entries)


def parameter(*shape: int, dtype: Any = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape).to(dtype), requires_grad=dtype.is_floating_point)


def add_in_place(tensor: Any) -> None:
    with torch.no_grad():
        tensor.add_(1)


def transpose_data(tensor: Any) -> None:
    tensor.data = tensor.data.t()


def replace_data(tensor: Any) -> None:
    tensor.data = tensor.data.clone()


def change_data(tensor: Any) -> None:
    tensor.data.mul_(2)


def change_through_numpy(tensor: Any) -> None:
    tensor.detach().numpy()[...] = 0


def shrink_storage(tensor: Any) -> None:
    tensor.data = torch.zeros(1)


@pytest.mark.parametrize(
    "change",
    [
        add_in_place,
        transpose_data,
        replace_data,
        change_data,
        change_through_numpy,
        shrink_storage,
    ],
)
def test_a_change_of_one_parameter_is_seen(change: Callable[[Any], None]) -> None:
    tensors = [parameter(4), parameter(3 * SAMPLED, 3 * SAMPLED), parameter(2, 5)]
    found = current(*tensors)
    assert found.equal(tensors)
    change(tensors[1])
    assert not found.equal(tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_samples_of_all_layouts_and_types_are_those_of_the_slow_comparison(dtype: Any) -> None:
    """A view and `sample_of` read the same elements, so that unchanged parameters are equal."""
    images = parameter(2, 3, 17, 5, dtype=dtype)
    channels_last = nn.Parameter(
        images.detach().to(memory_format=torch.channels_last), images.requires_grad
    )
    tensors = [
        *(images, channels_last, parameter(7, 300, dtype=dtype).detach().t()),
        *(parameter(0, 4, dtype=dtype), parameter(1, 1, dtype=dtype)),
        parameter(SAMPLED * 2 - 1, dtype=dtype)[3:].detach(),
    ]
    assert current(*tensors).equal(tensors)


def test_not_a_number_is_equal_to_itself() -> None:
    tensors = [nn.Parameter(torch.full((3,), float("nan")))]
    assert current(*tensors).equal(tensors)


def test_equal_values_of_other_tensors_are_not_the_same_parameters() -> None:
    first, second = parameter(4), parameter(4)
    second.data = first.data
    assert not current(first).equal([second])


def test_gaps_between_elements_are_compared_the_slow_way() -> None:
    tensors = [parameter(8, 8)[:, ::2].detach()]
    assert not current(*tensors).equal(tensors)


def test_memory_of_parameters_is_freed() -> None:
    tensors = [parameter(1000)]
    storage = torch.multiprocessing.reductions.StorageWeakRef(tensors[0].untyped_storage())
    found = current(*tensors)
    tensors.clear()
    gc.collect()
    assert storage.expired()
    assert not found.equal([parameter(1000)])


def test_inputs_among_the_parameters_are_compared_by_identity_alone() -> None:
    """A buffer of a type that devices lack has no entry."""
    weight, buffer = parameter(4), torch.zeros(4, dtype=torch.float64)
    found = CurrentWeights(
        [buffer, weight], {1: ManagedWeight(weight, "w", trained=False, unused=[].append)}
    )
    buffer.add_(1)
    assert found.equal([buffer, weight])
    assert not found.equal([buffer.clone(), weight])
