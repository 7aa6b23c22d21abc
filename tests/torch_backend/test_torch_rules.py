"""Each rule computes what eager PyTorch does, on the CPU and on a Vulkan device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import vksched as vs
from vksched.torch.decompositions import decompositions
from vksched.torch.lower import op_name
from vksched.torch.program import Program, ProgramInfo
from vksched.torch.runtime import BackendOptions, Runtime

aten = torch.ops.aten
Cases = dict[str, Callable[[], Any]]
OF_ANY = (
    *("abs", "atan", "ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "relu", "round"),
    *("sigmoid", "sign", "sin", "sinh", "cosh", "tan", "tanh", "trunc", "isnan", "isinf"),
)
OF_POSITIVE = ("log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt", "asinh")


def compile_once(scheduler: vs.Scheduler, fn: Callable[..., Any], *args: Any) -> Program:
    """Return a program of a function, without Dynamo."""
    pure = torch.func.functionalize(fn, remove="mutations")
    module = make_fx(pure, decomposition_table=decompositions(), tracing_mode="fake")(*args)
    module.graph.eliminate_dead_code()
    runtime = Runtime(scheduler, BackendOptions(scheduler=scheduler))
    return Program(runtime, module, ProgramInfo("inference", {}))


def look(scheduler: vs.Scheduler, cases: Callable[..., Cases], *args: Any) -> None:
    """Compare all cases with eager PyTorch, in one graph."""
    expected = {name: case() for name, case in cases(*args).items()}

    def all_of(*inputs: Any) -> list[Any]:
        return [case() for case in cases(*inputs).values()]

    program = compile_once(scheduler, all_of, *args)
    found = program(list(args))
    (special,) = program.specialisations.values()
    assert {op_name(n): why for n, why in special.unsupported.items()} == {}
    for (name, wanted), got in zip(expected.items(), found, strict=True):
        torch.testing.assert_close(
            got, wanted, rtol=2e-5, atol=2e-5, equal_nan=True, msg=partial("{}: {}".format, name)
        )
        assert got.stride() == wanted.stride(), name


def elementwise(x: Any, y: Any, i: Any, b: Any) -> Cases:
    p = x.abs() + 0.1
    return {
        **{name: partial(getattr(torch, name), x) for name in OF_ANY},
        **{name: partial(getattr(torch, name), p) for name in OF_POSITIVE},
        "add alpha": lambda: torch.add(x, y, alpha=2),
        "sub of int": lambda: x - i,
        "rsub": lambda: 3 - i,
        "mul of bool": lambda: b * x,
        "bools": lambda: b & (x > 0),
        "bool sum": lambda: b + b,
        "div of ints": lambda: i / 2,
        "floor div": lambda: torch.div(x, p, rounding_mode="floor"),
        "trunc div": lambda: torch.div(i, 2, rounding_mode="trunc"),
        "pow": lambda: p**y,
        "square": lambda: x**2,
        "root": lambda: p**0.5,
        "remainder": lambda: torch.remainder(x, p),
        "fmod": lambda: torch.fmod(x, 0.7),
        "int plus float": lambda: i + 1.5,
        "compare": lambda: (i < 1.5) | (x >= y),
        "equal": lambda: torch.eq(i, 2),
        "where": lambda: torch.where(b, x, 0.0),
        "clamp": lambda: x.clamp(-0.5, 0.5),
        "clamp by tensor": lambda: x.clamp(min=y),
        "clamp ints": lambda: i.clamp(0, 2),
        "maximum": lambda: torch.maximum(x, y),
        "atan2": lambda: torch.atan2(x, y),
        "logical": lambda: torch.logical_not(i) ^ torch.logical_or(x, b),
        "shift": lambda: i << 2,
        "bitwise": lambda: (i & 3) | (~i),
        "gelu": lambda: F.gelu(x),
        "gelu tanh": lambda: F.gelu(x, approximate="tanh"),
        "elu": lambda: F.elu(x, 0.5),
        "selu": lambda: F.selu(x),
        "celu": lambda: F.celu(x, 1.5),
        "leaky relu": lambda: F.leaky_relu(x, 0.2),
        "softplus": lambda: F.softplus(x, 2.0, 3.0),
        "silu": lambda: F.silu(x),
        "mish": lambda: F.mish(x),
        "hardswish": lambda: F.hardswish(x),
        "hardtanh": lambda: F.hardtanh(x),
        "to int": lambda: (x * 3).to(torch.int64),
        "to bool": lambda: i.bool(),
        "to half": lambda: x.half(),
        "to bfloat16": lambda: x.bfloat16(),
        "fill": lambda: torch.full_like(x, 2.5),
        "addcmul": lambda: torch.addcmul(x, y, p, value=0.5),
        "sign of nan": lambda: torch.sign(x / x.clamp(min=0) * 0),
        "round to tenths": lambda: torch.round(x, decimals=1),
        "round to tens": lambda: torch.round(x * 40, decimals=-1),
        "lerp": lambda: torch.lerp(x, y, 0.3),
    }


def reductions(x: Any, i: Any, b: Any) -> Cases:
    return {
        "sum": lambda: x.sum(),
        "sum of bools": lambda: b.sum(1),
        "sum of ints": lambda: i.sum((0, 2), keepdim=True),
        "mean": lambda: x.mean((1, 2)),
        "amax": lambda: x.amax(1),
        "amin": lambda: x.amin((0, -1), keepdim=True),
        "prod": lambda: x.prod(1),
        "any": lambda: b.any(1),
        "all": lambda: b.all(),
        "var": lambda: x.var(1),
        "std": lambda: x.std((1, 2), correction=0),
        "argmax": lambda: x.argmax(-1),
        "argmin of all": lambda: x.argmin(),
        "max": lambda: torch.max(x, 1)[0],
        "min with index": lambda: torch.min(x, -1, keepdim=True)[1],
        "softmax": lambda: x.softmax(1),
        "log softmax": lambda: x.log_softmax(-1),
        "logsumexp": lambda: x.logsumexp(1),
        "cumsum": lambda: x.cumsum(1),
        "cumsum of ints": lambda: i.cumsum(-1),
        "topk": lambda: x.topk(2, 1)[0],
        "topk index": lambda: x.topk(2, -1, largest=False)[1],
        "sort": lambda: x.sort(1, descending=True)[0],
        "argsort": lambda: x.argsort(-1),
        "norm": lambda: x.norm(dim=1),
        "scalar": lambda: x.sum().softmax(0) + x.max(),
    }


def layouts(x: Any, i: Any) -> Cases:
    return {
        "view": lambda: x.view(2, -1),
        "permute": lambda: x.permute(2, 0, 1).contiguous(),
        "expand": lambda: x[:1].expand(4, -1, -1) + 0,
        "expanded result": lambda: (x[:, :1] * 2).expand(2, 4, 5),
        "windows": lambda: (x * 2).unfold(2, 3, 1),
        "squeeze": lambda: x[:, :1].squeeze(1).unsqueeze(0) * 1,
        "slice": lambda: x[:, 1:-1:2] * 1,
        "select": lambda: x[1, -1] * 1,
        "cat": lambda: torch.cat([x, x * 2], 1),
        "cat of types": lambda: torch.cat([x, i], 0),
        "stack": lambda: torch.stack([x, x + 1], -1),
        "split": lambda: x.split([1, 2], 1)[1] * 1,
        "chunk": lambda: x.chunk(3, 2)[2] * 1,
        "unbind": lambda: x.unbind(1)[0] * 1,
        "repeat": lambda: x.repeat(2, 1, 3),
        "flip": lambda: x.flip(0, 2),
        "roll": lambda: x.roll((1, -2), (0, 2)),
        "diagonal": lambda: x.diagonal(1, 1, 2) * 1,
        "tril": lambda: x.tril(-1),
        "triu": lambda: x.triu(1),
        "pad": lambda: F.pad(x, (1, 2, 0, 1), value=3.0),
        "reflect": lambda: F.pad(x, (1, 2), mode="reflect"),
        "replicate": lambda: F.pad(x, (2, 1), mode="replicate"),
        "replicate and cut": lambda: F.pad(x, (-5, 7), mode="replicate"),
        "reflect and cut": lambda: F.pad(x, (-2, 3), mode="reflect"),
        "slice scatter": lambda: torch.slice_scatter(x, x[:, :1] * 3, 1, 1, 2),
        "strided slice scatter": lambda: torch.slice_scatter(x, x[:, :, :2], 2, 1, 5, 2),
        "as strided": lambda: torch.as_strided(x * 2, (2, 3, 2), (7, 1, 3), 4) + 0,
        "select scatter": lambda: torch.select_scatter(x, x[:, 0], 1, -1),
        "arange": lambda: torch.arange(1, 9, 2) + i[0, 0, 0],
        "linspace": lambda: torch.linspace(0, 1, 5) + x[0, 0, 0],
        "eye": lambda: torch.eye(5) @ x[0].T,
        "meshgrid": lambda: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij")[1] * 1,
        "one hot": lambda: F.one_hot(i[0].clamp(0, 3), 4),
        "empty": lambda: torch.cat([x[:0], x], 0) + x[:, :0].sum(),
        "clone": lambda: x.clone(),
    }


def indices(x: Any, i: Any, b: Any) -> Cases:
    j = i.clamp(0, 2)
    return {
        "embedding": lambda: F.embedding(j, x[0]),
        "bags": lambda: F.embedding_bag(j.flatten(), x[0], i.new_tensor([0, 5, 5, 20])),
        "bags by maximum": lambda: F.embedding_bag(j[0], x[0], mode="max", padding_idx=1),
        "weighted bags": lambda: F.embedding_bag(j[0], x[0], mode="sum", per_sample_weights=x[1]),
        "index": lambda: x[:, j[0, 0]],
        "two indices": lambda: x[j[0, 0], :, j[0, 0]],
        "adjacent indices": lambda: x[:, j[0, 0], j[0, 0]],
        "negative index": lambda: x[:, torch.tensor([-1, 0])],
        "gather": lambda: x.gather(1, j),
        "index select": lambda: x.index_select(2, j[0, 0]),
        "scatter": lambda: x.scatter(1, j[:, :1], x[:, 1:2]),
        "scatter value": lambda: x.scatter(2, j[:, :, :1], 7.0),
        "scatter add": lambda: x.scatter_add(1, j, x),
        "scatter reduce": lambda: x.scatter_reduce(1, j, x, "amax"),
        "scatter sum of others": lambda: x.scatter_reduce(1, j, x, "sum", include_self=False),
        "scatter min": lambda: x.scatter_reduce(0, j, x, "amin", include_self=False),
        "scatter mean": lambda: x.scatter_reduce(1, j, x, "mean"),
        "scatter mean of others": lambda: x.scatter_reduce(2, j, x, "mean", include_self=False),
        "scatter mean of ints": lambda: i.scatter_reduce(0, j, i - 4, "mean"),
        "index put": lambda: x.index_put((j[0, 0], j[0, 1]), x[0, 0, 0]),
        "index add": lambda: x.index_add(1, torch.tensor([1, 1, 0]), x),
        "index copy": lambda: x.index_copy(1, torch.tensor([2, 0]), x[:, :2]),
        "masked fill": lambda: x.masked_fill(b, -1.0),
        "masked scatter": lambda: x.masked_scatter(b, x * 2),
        "mask": lambda: torch.index_put(x, (b,), torch.tensor(2.0)),
        "mask of an axis": lambda: aten.index_put(x, [None, b[0, 0]], x[:1, :1] * 2),
        "mask adds": lambda: torch.index_put(x, (b[0],), x[0, 0], accumulate=True),
        "take along": lambda: torch.take_along_dim(x, j, 2),
    }


def products(x: Any, w: Any, c: Any) -> Cases:
    q = c[:, :, :4, :]
    return {
        "matmul": lambda: x @ w,
        "linear": lambda: F.linear(x, w.T, w[0]),
        "bmm": lambda: torch.bmm(x, x.transpose(1, 2)),
        "addmm": lambda: (
            torch.addmm(w, x[0, :2, :3].T @ x[0, :2], w.T @ w, beta=0.5, alpha=2)
            if False
            else torch.addmm(w[:, :1], w, w.T @ w[:, :2], beta=0.5, alpha=2)
        ),
        "distances": lambda: torch.cdist(x, x * 2),
        "long distances": lambda: torch.cdist(x.repeat(1, 9, 1), x + 2, 2),
        "distances of rows": lambda: F.pdist(w, 3.0) + F.pdist(w, 0)[0],
        "einsum": lambda: torch.einsum("bij,jk->bki", x, w),
        "attention": lambda: F.scaled_dot_product_attention(q, c, c),
        "causal": lambda: F.scaled_dot_product_attention(c, c, c, is_causal=True),
        "masked": lambda: F.scaled_dot_product_attention(c, c, c, attn_mask=c[..., :1] > -9),
        "layer norm": lambda: F.layer_norm(x, (5,), w[:, 0], w[:, 1]),
        "layer norm of a negative eps": lambda: F.layer_norm(x, (5,), w[:, 0], None, -1e-9),
        "group norm": lambda: F.group_norm(c, 2),
        "instance norm": lambda: F.instance_norm(c),
        "batch norm": lambda: F.batch_norm(c, c[0, :, 0, 0] * 0, c[0, :, 0, 0].abs() + 1),
    }


def images(x: Any, w: Any, t: Any) -> Cases:
    return {
        "conv": lambda: F.conv2d(x, w, w[:, 0, 0, 0], 2, 1),
        "dilated": lambda: F.conv2d(x, w, dilation=2),
        "grouped": lambda: F.conv2d(x, w[:, :2], groups=2),
        "conv1d": lambda: F.conv1d(x[:, :, 0], w[:, :, 0], padding=1),
        "transposed": lambda: F.conv_transpose2d(x, t, stride=2, padding=1, output_padding=1),
        "max pool": lambda: F.max_pool2d(x, 3, 2, 1),
        "max pool index": lambda: F.max_pool2d(x, 2, return_indices=True)[1],
        "avg pool": lambda: F.avg_pool2d(x, 3, 2, 1),
        "avg pool without padding": lambda: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        "divisor": lambda: F.avg_pool2d(x, 3, 2, 1, divisor_override=4),
        "divisor and ceil": lambda: F.avg_pool2d(x, 3, 2, 1, True, divisor_override=4),
        "divisor and long step": lambda: F.avg_pool2d(x, 2, 3, 1, True, divisor_override=3),
        "adaptive": lambda: F.adaptive_avg_pool2d(x, (3, 2)),
        "global": lambda: F.adaptive_avg_pool2d(x, 1),
        "nearest": lambda: F.interpolate(x, scale_factor=2),
        "nearest of 14": lambda: F.interpolate(torch.cat([x, x], 3), size=(8, 2)),
        "nearest by a factor": lambda: F.interpolate(x, scale_factor=1.7),
        "bilinear by factors": lambda: F.interpolate(x, scale_factor=(1.3, 0.6), mode="bilinear"),
        "bilinear": lambda: F.interpolate(x, size=(9, 5), mode="bilinear"),
        "aligned": lambda: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
        "fold": lambda: F.fold(x.flatten(2)[:, :, :20], (5, 6), 2),
        "fold with gaps": lambda: F.fold(x[0].flatten(1)[:, :4], (3, 3), 2, 2, 1, 2),
        "pixel shuffle": lambda: F.pixel_shuffle(x, 2),
        "grid": lambda: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False),
    }


def test_elementwise(scheduler: vs.Scheduler) -> None:
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    i = torch.randint(-3, 4, (3, 5))
    look(scheduler, elementwise, x, y, i, x > y)


def test_reductions(scheduler: vs.Scheduler) -> None:
    x = torch.randn(2, 3, 7)
    look(scheduler, reductions, x, torch.randint(-3, 4, (2, 3, 7)), x > 0)


def test_layouts(scheduler: vs.Scheduler) -> None:
    look(scheduler, layouts, torch.randn(2, 3, 5), torch.randint(-3, 4, (2, 3, 5)))


def test_indices(scheduler: vs.Scheduler) -> None:
    x = torch.randn(3, 3, 3)
    look(scheduler, indices, x, torch.randint(0, 3, (3, 3, 3)), x > 0)


def test_products(scheduler: vs.Scheduler) -> None:
    look(scheduler, products, torch.randn(2, 3, 5), torch.randn(5, 3), torch.randn(2, 4, 6, 8))


def test_images(scheduler: vs.Scheduler) -> None:
    x = torch.randn(2, 4, 8, 7)
    look(scheduler, images, x, torch.randn(6, 4, 3, 3), torch.randn(4, 3, 3, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats(scheduler: vs.Scheduler, dtype: torch.dtype) -> None:
    x, w = torch.randn(3, 8, dtype=dtype), torch.randn(8, 5, dtype=dtype)

    def fn(x: Any, w: Any) -> tuple[Any, ...]:
        return (x @ w).softmax(-1), F.layer_norm(x, (8,)), x.sum(0), torch.sin(x) * 2 + x.float()

    program = compile_once(scheduler, fn, x, w)
    for got, wanted in zip(program([x, w]), fn(x, w), strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
    (special,) = program.specialisations.values()
    assert special.unsupported == {}
