"""Native loops of convolutions and pools: drawn windows against sums over taps in float64, by the
vectors of every processor, of AVX2 and of AVX-512; what follows a convolution, special values, and
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir import cpu_kernel
from vksched.ir.attrs import Attrs, AttrValue
from vksched.ir.graph import Graph
from vksched.ir.op import EPILOGUE, all_ops
from vksched.ops.conv.conv_cpu import exact_floats
from vksched.ops.lowering import native_kernels
from vksched.passes import RewriteConstraints, optimize

WIDE = {"every": 0, "avx2": 1, "avx512": 2}
"""Which vectors the loops take at most: a processor without them takes what it has."""
Ints = tuple[int, ...]
native: Any = native_kernels.native

pytestmark = pytest.mark.skipif(
    not native_kernels.conv_epilogue_ops(), reason="the loops of convolutions are not built"
)


@pytest.fixture(params=WIDE)
def wide(request: pytest.FixtureRequest) -> int:
    return WIDE[request.param]


class Drawn:
    """A window of one to three axes over x, as a seed draws it."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        axes = seed % 3 + 1

        def some(low: int, high: int) -> Ints:
            return tuple(int(v) for v in rng.integers(low, high, axes))

        self.kernel, self.stride, begin = some(1, 5), some(1, 4), some(0, 4)
        self.dilation = tuple(
            d if k > 1 else 1 for d, k in zip(some(1, 4), self.kernel, strict=True)
        )
        self.begin, self.end = begin, some(0, 4)
        if seed % 4 == 0:  # windows that read x where it lies
            self.begin = self.end = (0,) * axes
            self.stride = (1,) * axes
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        sizes = [r + int(v) for r, v in zip(reach, some(0, 40 if axes < 3 else 9), strict=True)]
        if seed % 10 == 0:
            sizes[-1] += 3000 if axes < 3 else 300  # more than one part
        self.sizes = tuple(sizes)
        self.out = tuple(
            (s + b + e - r) // t + 1
            for s, b, e, r, t in zip(sizes, self.begin, self.end, reach, self.stride, strict=True)
        )

    def values(self, *shape: int) -> NDArray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def taps(self, x: NDArray, fill: float) -> Iterator[tuple[Ints, NDArray]]:
        """Yield each tap and what it reads for each result."""
        room = list(zip(self.begin, self.end, strict=True))
        padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *room], constant_values=fill)
        for tap in product(*map(range, self.kernel)):
            places = np.ix_(
                *(
                    np.arange(count) * stride + t * dilation
                    for t, count, stride, dilation in zip(
                        tap, self.out, self.stride, self.dilation, strict=True
                    )
                )
            )
            yield tap, padded[(slice(None), slice(None), *places)]

    def sliding(self) -> Any:
        return native.SlidingWindow(self.stride, self.dilation, self.begin)

    def attrs(self, **more: AttrValue) -> Attrs:
        names = ("stride", "dilation", "begin", "end")
        return Attrs({**{name: getattr(self, name) for name in names}, **more})


def convolved(drawn: Drawn, x: NDArray, w: NDArray, bias: NDArray) -> NDArray:
    """The sums in float64, tap after tap."""
    groups = x.shape[1] // w.shape[1]
    out = np.zeros((x.shape[0], groups, w.shape[0] // groups, *drawn.out))
    weights = w.astype(np.float64).reshape(groups, -1, *w.shape[1:])
    for tap, read in drawn.taps(x, 0):
        parts = read.reshape(x.shape[0], groups, w.shape[1], *drawn.out)
        at = (slice(None), slice(None), slice(None), *tap)
        out += np.einsum("ngc...,goc->ngo...", parts, weights[at])
    axes = (1,) * len(drawn.out)
    return out.reshape(x.shape[0], w.shape[0], *drawn.out) + bias.reshape(-1, *axes)


def operands(drawn: Drawn, seed: int) -> tuple[NDArray, NDArray, NDArray]:
    few = np.random.default_rng(seed)
    groups, channels, each = (int(few.integers(1, most)) for most in (4, 6, 11))
    if seed % 3 == 0:
        groups, channels, each = int(few.integers(1, 9)), 1, int(few.integers(1, 3))
    x = drawn.values(2, groups * channels, *drawn.sizes)
    w = drawn.values(groups * each, channels, *drawn.kernel)
    return x, w, drawn.values(groups * each)


@pytest.mark.each_value
@pytest.mark.parametrize("seed", range(60))
def test_drawn_convolutions(seed: int, wide: int) -> None:
    drawn = Drawn(seed)
    x, w, bias = operands(drawn, seed)
    wanted = convolved(drawn, x, w, bias)
    out = np.full(wanted.shape, 77, np.float32)
    native.conv(x, w, bias, None, out, drawn.sliding(), native.FusedProgram(1, [], []), wide)
    bound = 1e-6 * np.abs(w).reshape(len(w), -1).sum(1).max() * np.abs(x).max()
    assert np.abs(out - wanted).max() <= bound


def checked(
    drawn: Drawn, x: NDArray, w: NDArray, bias: NDArray, wide: int, bounds: tuple[float, float]
) -> None:
    """Holds a convolution within bounds, which it takes in registers, to the sums in float64."""
    wanted = np.clip(convolved(drawn, x, w, bias), *bounds)
    out = np.full(wanted.shape, 77, np.float32)
    steps = native.FusedProgram(1, [], [("clip", 0, 0, *bounds)])
    native.conv(x, w, bias, None, out, drawn.sliding(), steps, wide)
    bound = 1e-6 * np.abs(w).reshape(len(w), -1).sum(1).max() * np.abs(x).max()
    assert np.abs(out - wanted).max() <= bound


@pytest.mark.each_value
@pytest.mark.parametrize("seed", range(60))
def test_channels_with_weights_of_their_own(seed: int, wide: int) -> None:
    """Some at a time, as many as a vector holds; the last ones end where all do. Of seeds that are
    multiples of 10 there are several parts.
    """
    drawn = Drawn(seed)
    channels = int(drawn.rng.integers(4, 40))
    x, w = drawn.values(2, channels, *drawn.sizes), drawn.values(channels, 1, *drawn.kernel)
    checked(drawn, x, w, drawn.values(channels), wide, (-0.5, 1.5))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 15, 16, 17, 28, 57, 130])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_planes_of_depthwise_windows(size: int, stride: int, wide: int) -> None:
    """3 x 3 with padding, as mobile networks have it: few places, and parts of large planes."""
    drawn = Drawn(1)
    drawn.kernel, drawn.stride, drawn.dilation = (3, 3), (stride, stride), (1, 1)
    drawn.begin = drawn.end = (1, 1)
    drawn.sizes = (size, size + 2)
    drawn.out = tuple((n - 1) // stride + 1 for n in drawn.sizes)
    x, w = drawn.values(1, 35, *drawn.sizes), drawn.values(35, 1, 3, 3)
    checked(drawn, x, w, drawn.values(35), wide, (0, 6))


def test_alone_and_abreast_channels_have_the_same_bits(wide: int) -> None:
    drawn = Drawn(4)
    x, w = drawn.values(1, 21, *drawn.sizes), drawn.values(21, 1, *drawn.kernel)
    bias, out = drawn.values(21), np.full((1, 21, *drawn.out), 77, np.float32)
    sliding, steps = drawn.sliding(), native.FusedProgram(1, [], [("relu", 0, 0, 0, 0)])
    native.conv(x, w, bias, None, out, sliding, steps, wide)
    for channel in range(21):
        at, one = slice(channel, channel + 1), np.full((1, 1, *drawn.out), 77, np.float32)
        native.conv(x[:, at].copy(), w[at], bias[at], None, one, sliding, steps, wide)
        assert one.tobytes() == out[:, at].tobytes()


PLACES = [1, 3, 4, 15, 16, 17, 49, 63, 64, 65, 196, 255, 256, 512, 1030]


@pytest.mark.each_value
@pytest.mark.parametrize("places", PLACES)
@pytest.mark.parametrize(("channels", "results"), [(1, 2), (3, 5), (19, 16), (16, 49), (130, 8)])
def test_windows_of_one_place(places: int, channels: int, results: int, wide: int) -> None:
    """Tiles whose last vector ends where the places do, and channels that push each other out."""
    drawn = Drawn(0)
    drawn.sizes = drawn.out = (places,)
    drawn.kernel = (1,)
    x, w = drawn.values(2, 2 * channels, places), drawn.values(2 * results, channels, 1)
    checked(drawn, x, w, drawn.values(2 * results), wide, (-0.5, 1.5))


@pytest.mark.parametrize(("channels", "kernel"), [(5, 1), (5, 3), (1, 3)])
@pytest.mark.parametrize("epilogue", [None, "relu", "clip", "silu"])
def test_a_residual_and_what_follows_it(
    channels: int, kernel: int, epilogue: str | None, wide: int
) -> None:
    """In registers and from memory, the same bits as a pass over the sums."""
    drawn = Drawn(1)
    groups = 20 if channels == 1 else 1
    x, w = drawn.values(1, groups * channels, 9, 15), drawn.values(20, channels, kernel, kernel)
    x[0, 0, 3, 4:7] = np.nan, np.inf, -np.inf
    residual, bias = drawn.values(1, 20, 9, 15), drawn.values(20)
    residual[0, :, 0, :3] = np.nan, np.inf, -np.inf
    sliding = native.SlidingWindow([1, 1], [1, 1], [kernel // 2] * 2)
    sums, out = (np.full(residual.shape, 77, np.float32) for _ in range(2))
    native.conv(x, w, bias, None, sums, sliding, native.FusedProgram(1, [], []), wide)
    steps = [("add", 1, 0, 0, 0)] + ([(epilogue, 3, 3, -0.25, 0.5)] if epilogue else [])
    native.conv(x, w, bias, residual, out, sliding, native.FusedProgram(2, [9.0], steps), wide)
    with np.errstate(all="ignore"):
        wanted = sums + residual
        if epilogue == "silu":
            wanted = referred("silu", wanted).astype(np.float32)
        elif epilogue:
            wanted = np.clip(wanted, *((0, np.inf) if epilogue == "relu" else (-0.25, 0.5)))
    if epilogue == "silu":
        assert np.allclose(out, wanted, rtol=2e-6, atol=1e-6, equal_nan=True)
    else:
        np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("kernel", [1, 3])
def test_zeros_keep_their_signs(kernel: int, wide: int) -> None:
    """Of sums that bounds let pass: -0 is not below 0."""
    x, w = np.zeros((1, 16, 5, 5), np.float32), np.zeros((16, 1, kernel, kernel), np.float32)
    x[:], w[:] = -0.0, 1
    sliding = native.SlidingWindow([1, 1], [1, 1], [0, 0])
    out = np.full((1, 16, 6 - kernel, 6 - kernel), 77, np.float32)
    bias = np.full(16, -0.0, np.float32)
    for steps in ([], [("relu", 0, 0, 0, 0)], [("clip", 0, 0, 0, 6)]):
        native.conv(x, w, bias, None, out, sliding, native.FusedProgram(1, [], steps), wide)
        assert (out == 0).all() and np.signbit(out).all()


@pytest.mark.each_value
@pytest.mark.parametrize(
    ("most", "kind"), [(127, np.float32), (40_000, np.float64), (2**31 - 1, None)]
)
@pytest.mark.parametrize("seed", range(24))
def test_integers_are_summed_exactly(seed: int, most: int, kind: type | None) -> None:
    """Modulo 2**32; by floats only where these hold all sums."""
    drawn = Drawn(seed)
    like = operands(drawn, seed)
    x, w, bias = (drawn.rng.integers(-most, most, a.shape).astype(np.int32) for a in like)
    x.flat[0], w.flat[0] = most, -most
    assert exact_floats((x, w, bias)) is kind
    expected = np.zeros(1, np.int64)
    for i, left in enumerate((x & 0xFFFF, x >> 16)):  # float64 holds the sums of such parts
        for j, right in enumerate((w & 0xFFFF, w >> 16)):
            part = convolved(drawn, left, right, np.zeros(len(w)))
            expected = expected + (part.astype(np.int64) << 16 * (i + j))
    expected = expected + bias.reshape(-1, *(1,) * len(drawn.out))
    groups = x.shape[1] // w.shape[1]
    op = all_ops()["conv"]
    assert op.cpu is not None
    out = np.full(expected.shape, 77, np.int32)
    op.cpu.compute((x, w, bias), drawn.attrs(groups=groups), out)
    np.testing.assert_array_equal(out, expected.astype(np.int32))


CALLED = (
    "erf",
    "gelu",
    "gelu_backward",
    "gelu_tanh",
    "gelu_tanh_backward",
    "log",
    "sigmoid",
    "silu",
)


def referred(op: str, x: NDArray) -> NDArray:
    return all_ops()[op].reference((x.astype(np.float64),), Attrs({}))


STEPS: list[tuple[str, tuple[float, float], Callable[[NDArray], NDArray]]] = [
    ("relu", (0, 0), lambda x: np.maximum(x, 0)),
    ("clip", (-0.5, 0.75), lambda x: np.clip(x, -0.5, 0.75)),
    ("leaky_relu", (0.1, 0), lambda x: np.where(x < 0, np.float32(0.1) * x, x)),
    ("hard_sigmoid", (0.2, 0.5), lambda x: np.clip(np.float32(0.2) * x + np.float32(0.5), 0, 1)),
    ("hard_swish", (0, 0), lambda x: x * np.clip((x + 3) / 6, 0, 1)),
    ("add", (0, 0), lambda x: x + x),
    ("sub", (0, 0), lambda x: x - x),
    ("mul", (0, 0), lambda x: x * x),
    ("div", (0, 0), lambda x: x / x),
    ("maximum", (0, 0), lambda x: np.maximum(x, x)),
    ("minimum", (0, 0), lambda x: np.minimum(x, x)),
    ("neg", (0, 0), np.negative),
    ("abs", (0, 0), np.abs),
    ("square", (0, 0), np.square),
    ("sqrt", (0, 0), np.sqrt),
    ("floor", (0, 0), np.floor),
    ("ceil", (0, 0), np.ceil),
    ("trunc", (0, 0), np.trunc),
    ("round", (0, 0), np.rint),
    ("rsqrt", (0, 0), lambda x: 1 / np.sqrt(x)),
    ("reciprocal", (0, 0), np.reciprocal),
    ("tanh", (0, 0), lambda x: np.tanh(x.astype(np.float64))),
    *((name, (0.0, 0.0), partial(referred, name)) for name in CALLED),
]


@pytest.mark.each_value
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("name", "values", "wanted"), STEPS)
def test_each_step_is_its_function(
    name: str,
    values: tuple[float, float],
    wanted: Callable[[NDArray], NDArray],
    kernel: int,
    wide: int,
) -> None:
    """Of special values, too; on tiles that lie in the result as in x, and others."""
    assert {name for name, _, _ in STEPS} == native_kernels.conv_epilogue_ops()
    x = np.random.default_rng(0).standard_normal((1, 1, 9, 21)).astype(np.float32)
    x[0, 0, 4, 3:8] = np.nan, np.inf, -np.inf, -0.0, 3e38
    w = np.zeros((1, 1, kernel, kernel), np.float32)
    w[0, 0, kernel // 2, kernel // 2] = 1.5
    sliding, plain = (
        native.SlidingWindow([1, 1], [1, 1], [kernel // 2] * 2),
        native.FusedProgram(1, [], []),
    )
    sums, out = (np.full(x.shape, 77, np.float32) for _ in range(2))
    native.conv(x, w, None, None, sums, sliding, plain, wide)
    native.conv(
        x, w, None, None, out, sliding, native.FusedProgram(1, [], [(name, 0, 0, *values)]), wide
    )
    with np.errstate(all="ignore"):
        expected = wanted(sums)
    assert np.allclose(out, expected, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("kernel", [1, 3])
def test_steps_read_registers(kernel: int, wide: int) -> None:
    """(c + residual) * 0.5 * c, with the convolution read once more at the end."""
    drawn = Drawn(0)
    x, w = drawn.values(2, 5, 11, 19), drawn.values(9, 5, kernel, kernel)
    residual, bias = drawn.values(2, 9, 11, 19), drawn.values(9)
    sliding = native.SlidingWindow([1, 1], [1, 1], [kernel // 2] * 2)
    sums, out = (np.full(residual.shape, 77, np.float32) for _ in range(2))
    native.conv(x, w, bias, None, sums, sliding, native.FusedProgram(1, [], []), wide)
    steps = [("add", 0, 1, 0, 0), ("mul", 3, 2, 0, 0), ("mul", 4, 0, 0, 0)]
    native.conv(x, w, bias, residual, out, sliding, native.FusedProgram(2, [0.5], steps), wide)
    assert np.allclose(out, (sums + residual) * np.float32(0.5) * sums, rtol=1e-6, atol=1e-6)


@pytest.mark.each_value
@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize("seed", range(30))
def test_drawn_pools(kind: str, seed: int, wide: int) -> None:
    drawn = Drawn(seed)
    x = drawn.values(2, 3, *drawn.sizes)
    read = np.stack([r for _, r in drawn.taps(x, -np.inf if kind == "max" else 0)])
    there = np.stack([r for _, r in drawn.taps(np.ones_like(x), 0)]).sum(0)[0, 0]
    out = np.full((2, 3, *drawn.out), 77, np.float32)
    if kind == "max":
        wanted = read.max(0)
        native.pool(kind, x, out, drawn.kernel, drawn.sliding(), [], wide)
    else:
        inside = [_counts_along(drawn, axis) for axis in range(len(drawn.out))]
        wanted = read.sum(0) / np.maximum(there, 1)
        native.pool(kind, x, out, drawn.kernel, drawn.sliding(), inside, wide)
    assert np.allclose(out, wanted, rtol=1e-5, atol=1e-6)


def _counts_along(drawn: Drawn, axis: int) -> list[float]:
    places = np.arange(drawn.out[axis])[:, None] * drawn.stride[axis] - drawn.begin[axis]
    places = places + np.arange(drawn.kernel[axis]) * drawn.dilation[axis]
    return [float(n) for n in ((places >= 0) & (places < drawn.sizes[axis])).sum(1)]


def test_nan_wins_and_padding_never(wide: int) -> None:
    x = np.full((1, 2, 6, 40), -np.inf, np.float32)
    x[0, 0, 2, 5], x[0, 0, 2, 6], x[0, 0, 3, 20] = np.nan, 5, np.inf
    out = np.full((1, 2, 6, 40), 77, np.float32)
    native.pool("max", x, out, [3, 3], native.SlidingWindow([1, 1], [1, 1], [1, 1]), [], wide)
    nan = np.zeros(x.shape, bool)
    nan[0, 0, 1:4, 4:7] = True
    assert np.array_equal(np.isnan(out), nan)
    assert out[0, 0, 2, 7] == 5 and out[0, 0, 3, 21] == np.inf and (out[0, 1] == -np.inf).all()


def test_padding_is_zeros_that_meet_weights(wide: int) -> None:
    """An infinite weight makes NaN of them, as in the reference."""
    x, w = np.ones((1, 1, 9, 9), np.float32), np.ones((1, 1, 3, 3), np.float32)
    w[0, 0, 0, 0] = np.inf
    drawn_attrs = Attrs(
        {"stride": (1, 1), "dilation": (1, 1), "begin": (1, 1), "end": (1, 1), "groups": 1}
    )
    with np.errstate(all="ignore"):
        wanted = all_ops()["conv"].reference((x, w), drawn_attrs)
    out, sliding = np.empty_like(x), native.SlidingWindow([1, 1], [1, 1], [1, 1])
    native.conv(x, w, None, None, out, sliding, native.FusedProgram(1, [], []), wide)
    assert np.isnan(wanted).any() and np.array_equal(out, wanted, equal_nan=True)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op", ["conv", "max_pool", "average_pool"])
def test_pieces_make_the_same_bits(op: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn(seed)
    x, w, bias = operands(drawn, seed)
    inputs: tuple[NDArray, ...] = (x, w, bias)
    attrs = drawn.attrs(groups=x.shape[1] // w.shape[1])
    channels = w.shape[0]
    if op != "conv":
        attrs = drawn.attrs(kernel=drawn.kernel, sizes=drawn.out, count_include_pad=False)
        inputs, channels = (x,), x.shape[1]
    kernel = all_ops()[op].cpu
    assert kernel is not None
    whole, cut = (np.full((2, channels, *drawn.out), 77, np.float32) for _ in range(2))
    kernel.compute(inputs, attrs, whole)
    monkeypatch.setattr(cpu_kernel, "BLOCK", 4)
    pieces = list(kernel.cut(inputs, attrs, cut))
    assert len(pieces) > 1
    for piece, part in pieces:
        kernel.compute(piece, attrs, part)
    assert cut.tobytes() == whole.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"w": np.ones((4, 2, 3), np.float32)},
        {"w": np.ones((4, 5, 3, 3), np.float32)},
        {"bias": np.ones(3, np.float32)},
        {"out": np.ones((1, 3, 6, 6), np.float32)},
        {"out": np.ones((2, 4, 6, 6), np.float32)},
        {"residual": np.ones((1, 4, 6, 6), np.float32)},
    ],
)
def test_other_shapes_are_refused(change: dict[str, NDArray]) -> None:
    feeds: dict[str, Any] = {
        "x": np.ones((1, 4, 6, 6), np.float32),
        "w": np.ones((4, 2, 3, 3), np.float32),
        "bias": None,
        "residual": None,
        "out": np.ones((1, 4, 6, 6), np.float32),
        "sliding": native.SlidingWindow([1, 1], [1, 1], [1, 1]),
        "epilogue": native.FusedProgram(1, [], []),
    }
    native.conv(**feeds)
    with pytest.raises(ValueError, match="expected"):
        native.conv(**{**feeds, **change})


def test_registers_and_windows_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="registers"):
        native.FusedProgram(1, [], [("add", 0, 1, 0, 0)])
    with pytest.raises(ValueError, match="steps"):
        native.FusedProgram(2, [], [])
    with pytest.raises(KeyError):
        native.FusedProgram(1, [], [("exp", 0, 0, 0, 0)])
    with pytest.raises(ValueError, match="above 0"):
        native.SlidingWindow([0], [1], [0])


def network() -> Graph:
    rng = np.random.default_rng(0)
    x = vs.input("x", (1, 4, 8, 8), "float32")
    w = vs.weight(rng.standard_normal((4, 4, 3, 3)).astype(np.float32))
    output = vs.relu(vs.conv(x, w, padding=1) + x)
    return vs.build_graph(output)[0]


def test_numpy_alone_takes_steps_in_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = optimize(network(), RewriteConstraints())
    assert [n.op for n in graph.ops] == ["conv"] and EPILOGUE in graph.ops[0].attrs
    monkeypatch.setattr(native_kernels, "native", None)
    assert [n.op for n in optimize(network(), RewriteConstraints()).ops] == [
        "conv",
        "fused_elementwise",
    ]


@pytest.mark.parametrize("with_loops", [True, False])
def test_a_network_gives_what_its_ops_give(
    with_loops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan with such steps runs without loops, too."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((1, 4, 8, 8)).astype(np.float32)
    w = rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
    placeholder = vs.input("x", x.shape, "float32")
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.relu(vs.conv(placeholder, vs.weight(w), padding=1) + placeholder))
        if not with_loops:
            monkeypatch.setattr(native_kernels, "native", None)
        got = np.array(run(x=x))
    attrs = Attrs({"stride": (1, 1), "dilation": (1, 1), "begin": (1, 1), "end": (1, 1)})
    sums = all_ops()["conv"].reference((x, w), Attrs({**attrs, "groups": 1}))
    assert np.allclose(got, np.maximum(sums + x, 0), rtol=1e-5, atol=1e-5)
