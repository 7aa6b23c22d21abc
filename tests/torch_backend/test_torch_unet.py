"""A diffusion network as in Diffusers equals eager PyTorch, on one device and on two."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vksched as vs
from vksched.torch.backend import vksched as backend
from vksched.torch.explanation import explain
from vksched.torch.frame import programs
from vksched.torch.segment import DeviceSegment


class ResBlock(nn.Module):
    """Two convolutions with group norm, and a shift by the time embedding."""

    def __init__(self, channels_in: int, channels: int, time: int) -> None:
        super().__init__()
        self.norm_in, self.conv_in = (
            nn.GroupNorm(4, channels_in),
            nn.Conv2d(channels_in, channels, 3, padding=1),
        )
        self.time = nn.Linear(time, channels)
        self.norm_out, self.conv_out = (
            nn.GroupNorm(4, channels),
            nn.Conv2d(channels, channels, 3, padding=1),
        )
        self.skip = (
            nn.Conv2d(channels_in, channels, 1) if channels_in != channels else nn.Identity()
        )

    def forward(self, x: Any, time: Any) -> Any:
        h = self.conv_in(F.silu(self.norm_in(x)))
        h = h + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv_out(F.silu(self.norm_out(h)))


class Attention(nn.Module):
    """Self-attention over the positions of an image."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(4, channels)
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        tokens = self.norm(x).view(n, c, h * w).transpose(1, 2)
        q, k, v = self.qkv(tokens).view(n, h * w, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, h * w, c)
        return x + self.out(mixed).transpose(1, 2).reshape(n, c, h, w)


class UNet(nn.Module):
    """Predicts the noise in an image: down, middle with attention, up with a skip connection."""

    def __init__(self, channels: int = 8, time: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.conv_in = nn.Conv2d(3, channels, 3, padding=1)
        self.down = ResBlock(channels, channels, time)
        self.downsample = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.middle = ResBlock(2 * channels, 2 * channels, time)
        self.attention = Attention(2 * channels, 2)
        self.upsample = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.up = ResBlock(2 * channels, channels, time)
        self.norm_out, self.conv_out = (
            nn.GroupNorm(4, channels),
            nn.Conv2d(channels, 3, 3, padding=1),
        )

    def forward(self, x: Any, steps: Any) -> Any:
        half = self.conv_in.out_channels // 2
        angles = steps[:, None] * torch.exp(torch.arange(half) * (-9.2 / half))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        skip = self.down(self.conv_in(x), time)
        h = self.attention(self.middle(self.downsample(skip), time))
        h = self.upsample(F.interpolate(h, scale_factor=2.0, mode="nearest"))
        h = self.up(torch.cat([h, skip], 1), time)
        return self.conv_out(F.silu(self.norm_out(h)))


def losses(model: Any, x: Any, steps: Any, noise: Any) -> tuple[Any, Any]:
    found = model(x, steps)
    loss = F.mse_loss(found, noise)
    loss.backward()
    return found.detach(), loss.detach()


def segments() -> list[DeviceSegment]:
    """Return the segments on devices of the network; no node may run in eager PyTorch."""
    gc.collect()  # networks of earlier tests
    found = [p for frame, p in programs() if frame.label == "UNet"]
    special = [m for p in found for m in p.specialisations.values()]
    assert special and all(m.unsupported == {} for m in special)
    return [step for m in special for step in m.steps if isinstance(step, DeviceSegment)]


def assert_equals_eager(eager: nn.Module, options: dict[str, Any]) -> nn.Module:
    """Compare the results, the loss and all gradients of one step; return the compiled network."""
    model = copy.deepcopy(eager)
    args = torch.randn(2, 3, 8, 8), torch.tensor([3, 500]), torch.randn(2, 3, 8, 8)
    wanted = losses(eager, *args)
    got = losses(torch.compile(model, backend=backend, options=options), *args)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    for (name, a), b in zip(eager.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-4, msg=name)
    return model


@pytest.mark.thorough
def test_a_unet_equals_eager_pytorch(scheduler: vs.Scheduler) -> None:
    model = assert_equals_eager(UNet(), {"scheduler": scheduler})
    assert isinstance(model, UNet)  # it is alive, and so are its graphs
    assert len(segments()) == 2  # forward and backward


def test_a_unet_is_placed_on_two_devices(gpu_name: str) -> None:
    placement = {"down*": gpu_name, "middle*": gpu_name, "attention*": "cpu", "up*": "cpu"}
    model = assert_equals_eager(UNet(), {"devices": ["cpu", gpu_name], "placement": placement})
    assert isinstance(model, UNet)  # it is alive, and so are its graphs
    forward, backward = [segment.compiled.plan for segment in segments()]
    for plan in (forward, backward):
        assert {plan.topology.devices[i].name for i in plan.working} == {"cpu", gpu_name}
    for name in ("down.conv_in", "downsample", "middle.conv_out"):
        assert forward.device_of(f"{name}.weight") == gpu_name
    for name in ("attention.qkv", "up.conv_in", "up.time"):
        assert forward.device_of(f"{name}.weight") == "cpu"


def test_patterns_match_in_one_of_several_graphs() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            torch._dynamo.graph_break()
            return self.second(y)

    model, x = Broken().eval(), torch.randn(2, 3)
    options = {
        "devices": ["cpu"],
        "placement": {"first*": "cpu", "second*": "cpu", "third*": "cpu"},
    }
    fast = torch.compile(model, backend=backend, options=options)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    (line,) = [line for line in explain(fast).splitlines() if "no op or weight matches" in line]
    assert "third*" in line


def test_parameters_have_the_names_of_their_state_dict() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

        def forward(self, inputs: Any) -> Any:
            return self.layers(inputs["x"][0])

    model, x = Nested().eval(), torch.randn(2, 3)
    with vs.Scheduler(["cpu"]) as sched, torch.no_grad():
        for module, args in ((model, {"x": [x]}), (copy.deepcopy(model.layers), x)):
            fast = torch.compile(module, backend=backend, options={"scheduler": sched})
            torch.testing.assert_close(fast(args), module(args))
            (special,) = list(programs())[-1][1].specialisations.values()
            names = {name for name in module.state_dict() if "num_batches" not in name}
            assert {entry.name for entry in special.weights.values()} == names
