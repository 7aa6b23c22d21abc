"""The barriers of networks on described GPUs: none may come back."""

from __future__ import annotations

from types import ModuleType

import pytest
from benchmark_folders import add_benchmarks

BARRIERS = {
    ("NVIDIA H100", "float32", "MiniLM 8 x 32 tokens"): 52,
    ("NVIDIA H100", "float32", "GPT-2 prompt 512"): 51,
    ("NVIDIA H100", "float32", "ResNet-50"): 92,
    ("NVIDIA H100", "mixed", "ResNet-50"): 60,
    ("Radeon RX 6600", "float32", "MiniLM 8 x 32 tokens"): 46,
    ("Radeon RX 6600", "float32", "GPT-2 prompt 512"): 45,
    ("Radeon RX 6600", "float32", "ResNet-50"): 87,
}
"""The most barriers of a run. Six of an H100's in float32 are those of split sums. ResNet-50 had
105 on both, by Winograd convolutions; by cooperative matrices each convolution is one dispatch.
"""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    add_benchmarks(monkeypatch)
    import network_dispatches

    return network_dispatches


@pytest.mark.parametrize(("card", "precision", "network"), BARRIERS)
def test_networks_have_no_more_barriers(
    card: str, precision: str, network: str, counts: ModuleType
) -> None:
    count = counts.count(network, counts.spec_of(card), precision)
    assert count.barriers <= BARRIERS[card, precision, network]
    assert any("coopmat" in kernel for kernel in count.kernels) == (precision == "mixed")
    assert count.dispatches == sum(count.kernels.values()) >= count.barriers / 2
