"""Against PyTorch, where it is installed: the ops whose conventions differ between libraries.

An oracle beside those of tests/ops/references/, which need no PyTorch. On every set of devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

torch: Any = pytest.importorskip("torch")
F = torch.nn.functional

Build = Callable[..., vs.Tensor]
RNG = np.random.default_rng(11)


def values(*shape: int) -> NDArray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


IMAGE, VOLUME = values(2, 6, 11, 13), values(1, 4, 5, 6, 7)
GRID = np.asarray(RNG.uniform(-1.3, 1.3, (2, 5, 4, 2)), np.float32)
Q, K, V = values(2, 4, 9, 16), values(2, 2, 11, 16), values(2, 2, 11, 8)
SHORT = Q[:, :, :, :8]
KEEP = RNG.random((9, 11)) < 0.7
KEEP[:, 0] = True


def rnn_weights(gates: int) -> list[NDArray]:
    """Input, weights and biases of one layer, in torch's order: (x, w, r, b_w, b_r)."""
    return [values(5, 3, 4), *(values(gates * 6, n) for n in (4, 6)), *([values(gates * 6)] * 2)]


def torch_rnn(kind: str, *arrays: Any) -> Any:
    x, *weights = arrays
    layer = getattr(torch.nn, kind)(4, 6)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    with torch.no_grad():
        for name, weight in zip(names, weights, strict=True):
            getattr(layer, name).copy_(weight)
        return layer(x)[0]


def reordered(w: vs.Tensor, order: tuple[int, ...]) -> vs.Tensor:
    """The gates of torch in the order of ONNX: (gates * 6, ...) -> (1, gates * 6, ...)."""
    parts = vs.split(w, len(order))
    return vs.expand_dims(vs.concat([parts[i] for i in order]), 0)


def ours_rnn(kind: str, order: tuple[int, ...]) -> Build:
    def build(x: vs.Tensor, w: vs.Tensor, r: vs.Tensor, b_w: vs.Tensor, b_r: vs.Tensor) -> Any:
        w, r, b_w, b_r = (reordered(t, order) for t in (w, r, b_w, b_r))
        more = {"linear_before_reset": True} if kind == "gru" else {}
        out = getattr(vs, kind)(x, w, r, vs.concat([b_w, b_r], 1), **more)[0]
        return vs.squeeze(out, 1)

    return build


def grid(mode: str, padding: str, corners: bool) -> tuple[str, tuple[Any, ...], Any, Any]:
    name = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return (
        f"grid_sample {mode} {padding} {corners}",
        (IMAGE, GRID),
        lambda x, g: vs.grid_sample(x, g, mode=name, padding_mode=padding, align_corners=corners),
        lambda x, g: F.grid_sample(x, g, mode=mode, padding_mode=padding, align_corners=corners),
    )


def conv(name: str, x: NDArray, w: NDArray, **more: Any) -> tuple[str, tuple[Any, ...], Any, Any]:
    function = getattr(F, f"{name}{x.ndim - 2}d")
    ours = vs.conv if name == "conv" else vs.conv_transpose
    count = w.shape[0] if name == "conv" else w.shape[1] * more.get("groups", 1)
    title = f"{name} {x.ndim - 2} {sorted(more.items())}"
    return title, (x, w, values(count)), partial_of(ours, more), partial_of(function, more)


def partial_of(function: Any, more: dict[str, Any]) -> Any:
    return lambda *tensors: function(*tensors, **more)


ROWS: list[tuple[str, tuple[Any, ...], Any, Any]] = [
    conv("conv", values(2, 6, 17), values(4, 6, 5), stride=2, padding=2),
    conv("conv", IMAGE, values(9, 2, 3, 3), padding=1, groups=3),
    conv("conv", IMAGE, values(6, 1, 3, 3), stride=2, groups=6),
    conv("conv", IMAGE, values(24, 6, 3, 2), dilation=2),
    conv("conv", VOLUME, values(3, 4, 2, 3, 3), padding=(1, 0, 1)),
    conv("conv_transpose", values(2, 6, 9), values(6, 5, 4), stride=3, padding=1),
    conv("conv_transpose", IMAGE, values(6, 2, 3, 3), stride=2, output_padding=1, groups=2),
    conv("conv_transpose", IMAGE, values(6, 3, 2, 3), dilation=2),
    (
        "max_pool",
        (IMAGE,),
        lambda x: vs.max_pool(x, 3, stride=2, padding=1, ceil_mode=True),
        lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    ),
    *(
        (
            f"average_pool {included}",
            (IMAGE,),
            lambda x, c=included: vs.average_pool(
                x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=c
            ),
            lambda x, c=included: F.avg_pool2d(x, 3, 2, 1, True, count_include_pad=c),
        )
        for included in (True, False)
    ),
    (
        "adaptive_average_pool",
        (IMAGE,),
        lambda x: vs.adaptive_average_pool(x, (4, 5)),
        lambda x: F.adaptive_avg_pool2d(x, (4, 5)),
    ),
    (
        "adaptive_max_pool",
        (IMAGE,),
        lambda x: vs.adaptive_max_pool(x, (4, 5)),
        lambda x: F.adaptive_max_pool2d(x, (4, 5)),
    ),
    *(
        grid(mode, padding, corners)
        for mode in ("bilinear", "nearest")
        for padding in ("zeros", "border", "reflection")
        for corners in (True, False)
    ),
    grid("bicubic", "zeros", True),
    *(
        (
            f"resize {mode} {corners}",
            (IMAGE,),
            lambda x, m=ours, c=corners: vs.resize(
                x,
                sizes=(2, 6, 25, 9),
                mode=m,
                coordinate_transformation_mode="align_corners" if c else "half_pixel",
            ),
            lambda x, m=mode, c=corners: F.interpolate(x, (25, 9), mode=m, align_corners=c),
        )
        for mode, ours in (("bilinear", "linear"), ("bicubic", "cubic"))
        for corners in (True, False)
    ),
    (
        "group_norm",
        (IMAGE, values(6), values(6)),
        lambda x, g, b: vs.group_norm(x, 3, g, b),
        lambda x, g, b: F.group_norm(x, 3, g, b),
    ),
    ("instance_norm", (IMAGE,), vs.instance_norm, F.instance_norm),
    (
        "local_response_norm",
        (IMAGE,),
        lambda x: vs.local_response_norm(x, 5, alpha=0.1, beta=0.75, bias=2.0),
        lambda x: F.local_response_norm(x, 5, alpha=0.1, beta=0.75, k=2.0),
    ),
    ("layer_norm", (IMAGE,), vs.layer_norm, lambda x: F.layer_norm(x, (13,))),
    ("log_softmax", (IMAGE,), lambda x: vs.log_softmax(x, 1), lambda x: F.log_softmax(x, 1)),
    ("linear", (values(3, 5, 7), values(4, 7), values(4)), vs.linear, F.linear),
    (
        "attention",
        (Q, K, V),
        lambda q, k, v: vs.attention(q, k, v),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
    ),
    (
        "attention mask",
        (Q, K, V, KEEP),
        lambda q, k, v, m: vs.attention(q, k, v, m),
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
    ),
    (
        "attention causal",
        (SHORT, SHORT, SHORT),
        lambda q, k, v: vs.attention(q, k, v, causal=True, scale=0.3),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
    ),
    ("lstm", tuple(rnn_weights(4)), ours_rnn("lstm", (0, 3, 1, 2)), partial_of(torch_rnn, {})),
    ("gru", tuple(rnn_weights(3)), ours_rnn("gru", (1, 0, 2)), partial_of(torch_rnn, {})),
    ("rnn", tuple(rnn_weights(1)), ours_rnn("rnn", (0,)), partial_of(torch_rnn, {})),
    ("mish", (IMAGE,), vs.mish, F.mish),
    ("softplus", (IMAGE * 20,), vs.softplus, lambda x: F.softplus(x, threshold=1e9)),
    ("celu", (IMAGE,), lambda x: vs.celu(x, 1.3), lambda x: F.celu(x, 1.3)),
    ("hard_swish", (IMAGE * 3,), vs.hard_swish, F.hardswish),
    ("logsumexp", (IMAGE,), lambda x: vs.reduce_logsumexp(x, 1), lambda x: x.logsumexp(1)),
    ("cumsum", (IMAGE,), lambda x: vs.cumsum(x, 2), lambda x: x.cumsum(2)),
    ("topk", (IMAGE,), lambda x: vs.topk(x, 4, 1)[0], lambda x: x.topk(4, 1)[0]),
    ("var", (IMAGE,), lambda x: vs.reduce_var(x, (0, 2), correction=1), lambda x: x.var((0, 2))),
]
RNNS = {"lstm": "LSTM", "gru": "GRU", "rnn": "RNN"}


@pytest.fixture(scope="module")
def sched(devices: list[str]) -> Iterator[vs.Scheduler]:
    with vs.Scheduler(devices) as opened:
        yield opened


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_equals_pytorch(row: tuple[str, tuple[Any, ...], Any, Any], sched: vs.Scheduler) -> None:
    name, arrays, ours, theirs = row
    inputs = [vs.input(f"x{i}", a.shape, str(a.dtype)) for i, a in enumerate(arrays)]
    run = sched.compile(ours(*inputs))
    got = run(**{f"x{i}": a for i, a in enumerate(arrays)})
    run.close()
    tensors = [torch.from_numpy(a) for a in arrays]
    expected = theirs(RNNS[name], *tensors) if name in RNNS else theirs(*tensors)
    assert got.shape == tuple(expected.shape)
    assert np.allclose(got, expected.numpy(), rtol=1e-4, atol=2e-5)
