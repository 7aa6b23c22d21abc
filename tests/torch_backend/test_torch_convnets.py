"""Blocks of torchvision and timm equal eager PyTorch, and run on devices in one segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vksched as vs
from vksched.torch.backend import vksched as backend
from vksched.torch.frame import programs


def conv_norm(channels_in: int, channels: int, size: int, stride: int = 1, groups: int = 1) -> Any:
    """Return a convolution with batch norm, whose statistics are not those of a new module."""
    conv = nn.Conv2d(channels_in, channels, size, stride, size // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(channels)
    nn.init.uniform_(norm.running_mean, -0.2, 0.2)
    nn.init.uniform_(norm.running_var, 0.5, 1.5)
    return nn.Sequential(conv, norm)


class Bottleneck(nn.Module):
    """A block of torchvision's ResNet-50, with a shortcut of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce, self.spatial = conv_norm(8, 4, 1), conv_norm(4, 4, 3, stride=2)
        self.expand, self.shortcut = conv_norm(4, 16, 1), conv_norm(8, 16, 1, stride=2)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.spatial(F.relu(self.reduce(x), inplace=True)), inplace=True)
        return F.relu(self.expand(h) + self.shortcut(x), inplace=True)


class DenseLayer(nn.Module):
    """Two layers of torchvision's DenseNet: each one reads all results before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 4, 3, padding=1))
            for c in (8, 12)
        )

    def forward(self, x: Any) -> Any:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return F.avg_pool2d(torch.cat(found, 1), 2, ceil_mode=True)


class ConvNeXtBlock(nn.Module):
    """A block of timm's ConvNeXt: depthwise convolution, layer norm of channels, layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Any) -> Any:
        h = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        h = self.scale * self.down(F.gelu(self.up(h)))
        return x + h.permute(0, 3, 1, 2)


class InvertedResidual(nn.Module):
    """A block of timm's EfficientNet: depthwise convolution, squeeze and excitation, SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.spatial = conv_norm(8, 24, 1), conv_norm(24, 24, 5, groups=24)
        self.squeeze, self.excite = nn.Conv2d(24, 2, 1), nn.Conv2d(2, 24, 1)
        self.project = conv_norm(24, 8, 1)

    def forward(self, x: Any) -> Any:
        h = F.silu(self.spatial(F.silu(self.expand(x), inplace=True)), inplace=True)
        gate = self.excite(F.silu(self.squeeze(h.mean((2, 3), keepdim=True))))
        return x + self.project(h * gate.sigmoid())


@pytest.mark.parametrize("build", [Bottleneck, DenseLayer, ConvNeXtBlock, InvertedResidual])
def test_blocks_of_convolutional_networks(
    scheduler: vs.Scheduler, build: Callable[[], nn.Module]
) -> None:
    model, x = build().eval(), torch.randn(2, 8, 7, 7).to(memory_format=torch.channels_last)
    fast = torch.compile(model, backend=backend, options={"scheduler": scheduler})
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    (special,) = list(programs())[-1][1].specialisations.values()
    assert special.unsupported == {} and len(special.steps) == 1
