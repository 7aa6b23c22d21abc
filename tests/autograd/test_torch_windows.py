"""Gradients of convolutions, pools and grid_sample against PyTorch's, where it is installed, in
float64 and with its conventions at ties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.build_graph import build_graph
from vksched.testing.numeric_gradient import evaluate

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional

RNG = np.random.default_rng(3)


def values(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape))


IMAGE, TIES = values(2, 6, 9, 8), np.round(values(2, 3, 9, 8))
GRID = np.asarray(RNG.uniform(-1.4, 1.4, (2, 5, 4, 2)))
Case = tuple[str, tuple[NDArray, ...], Callable[..., vs.Tensor], Callable[..., Any]]


def conv(name: str, x: NDArray, w: NDArray, **more: Any) -> Case:
    ours = vs.conv if name == "conv" else vs.conv_transpose
    theirs = getattr(F, f"{name}{x.ndim - 2}d")
    count = w.shape[0] if name == "conv" else w.shape[1] * more.get("groups", 1)
    return (
        f"{name} {x.ndim - 2}d {more}",
        (x, w, values(count)),
        lambda *t: ours(*t, **more),
        lambda *t: theirs(*t, **more),
    )


def pool(name: str, ours: Callable[..., vs.Tensor], theirs: Callable[..., Any]) -> Case:
    return name, (TIES if "max" in name else IMAGE,), ours, theirs


def sample(mode: str, padding: str, aligned: bool) -> Case:
    theirs = {"linear": "bilinear"}.get(mode, mode)
    more = {"padding_mode": padding, "align_corners": aligned}
    return (
        f"grid_sample {mode} {padding} {aligned}",
        (IMAGE, GRID),
        lambda x, grid: vs.grid_sample(x, grid, {"bicubic": "cubic"}.get(mode, mode), **more),
        lambda x, grid: F.grid_sample(x, grid, theirs, **more),
    )


CASES: list[Case] = [
    conv("conv", values(2, 3, 13), values(4, 3, 3), stride=2, padding=2, dilation=2),
    conv("conv", IMAGE, values(9, 2, 3, 2), stride=(2, 3), padding=(1, 0), groups=3),
    conv("conv", IMAGE, values(6, 1, 3, 3), padding=1, groups=6),
    conv("conv", IMAGE, values(5, 6, 1, 1), stride=2),
    conv("conv", values(1, 2, 5, 6, 7), values(3, 2, 2, 3, 2), stride=(1, 2, 3), padding=1),
    conv("conv_transpose", values(2, 3, 5), values(3, 2, 4), stride=3, output_padding=2),
    conv("conv_transpose", IMAGE, values(6, 2, 3, 3), stride=2, padding=1, groups=3),
    conv("conv_transpose", values(1, 2, 3, 4, 3), values(2, 3, 2, 3, 2), stride=(1, 2, 3)),
    pool(
        "max",
        lambda x: vs.max_pool(x, 3, stride=2, padding=1),
        lambda x: F.max_pool2d(x, 3, 2, 1),
    ),
    pool(
        "max dilated",
        lambda x: vs.max_pool(x, 2, stride=1, dilation=3),
        lambda x: F.max_pool2d(x, 2, 1, dilation=3),
    ),
    pool(
        "adaptive max",
        lambda x: vs.adaptive_max_pool(x, (4, 5)),
        lambda x: F.adaptive_max_pool2d(x, (4, 5)),
    ),
    *(
        pool(
            f"mean {count}",
            lambda x, count=count: vs.average_pool(
                x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=count
            ),
            lambda x, count=count: F.avg_pool2d(
                x, 3, 2, 1, ceil_mode=True, count_include_pad=count
            ),
        )
        for count in (False, True)
    ),
    pool(
        "adaptive mean",
        lambda x: vs.adaptive_average_pool(x, (4, 5)),
        lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    ),
    pool("norm", lambda x: vs.lp_pool(x, 3, 2, stride=2), lambda x: F.lp_pool2d(x, 2.0, 3, 2)),
    *(
        sample(mode, padding, aligned)
        for mode in ("nearest", "linear")
        for padding in ("zeros", "border", "reflection")
        for aligned in (False, True)
    ),
    *(sample("bicubic", "zeros", aligned) for aligned in (False, True)),
    (
        "resize linear",
        (IMAGE,),
        lambda x: vs.resize(x, (13, 5), axes=(2, 3), mode="linear"),
        lambda x: F.interpolate(x, (13, 5), mode="bilinear"),
    ),
    (
        "resize cubic",
        (IMAGE,),
        lambda x: vs.resize(x, (13, 5), axes=(2, 3), mode="cubic"),
        lambda x: F.interpolate(x, (13, 5), mode="bicubic"),
    ),
]


@pytest.mark.parametrize(
    ("arrays", "ours", "theirs"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_gradients_are_those_of_torch(
    arrays: tuple[NDArray, ...],
    ours: Callable[..., vs.Tensor],
    theirs: Callable[..., Any],
) -> None:
    tensors = [torch.from_numpy(a).requires_grad_() for a in arrays]
    result = theirs(*tensors)
    c = np.cos(np.arange(result.numel())).reshape(tuple(result.shape))
    wanted = torch.autograd.grad(result, tensors, torch.from_numpy(c))
    inputs = [vs.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    pulled = vs.vjp(ours(*inputs), c, inputs)
    graph = build_graph({f"g{i}": t for i, t in enumerate(pulled)})[0]
    found = evaluate(graph, {f"x{i}": a for i, a in enumerate(arrays)})
    for i, expected in enumerate(wanted):
        np.testing.assert_allclose(found[f"g{i}"], expected.numpy(), rtol=1e-9, atol=1e-10)
