"""Tests of the backend of torch.compile run where PyTorch is installed: `make test-torch`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

import vksched as vs

if find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    with warnings.catch_warnings():  # PyTorch's own, at its import
        warnings.simplefilter("ignore")
        import torch
        import torch._dynamo
        import torch._functorch.aot_autograd
    if "PYTEST_XDIST_WORKER" in os.environ:  # threads of several processes wait for each other
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "torch_backend" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default:::torch"))
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


@pytest.fixture(scope="session")
def gpu_name() -> str:
    """The first Vulkan device; tests are skipped without one."""
    names = [d.name for d in vs.devices() if d.name != "cpu" and d.usable]
    if not names:
        pytest.skip("no Vulkan device")
    return names[0]


@pytest.fixture(scope="session", params=["cpu", "vulkan"])
def scheduler(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    """The CPU, and one Vulkan device."""
    name = "cpu" if request.param == "cpu" else request.getfixturevalue("gpu_name")
    with vs.Scheduler([name]) as opened:
        yield opened


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()
