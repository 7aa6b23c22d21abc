"""Draws of the convolutions."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from vksched.ops.conv.winograd import TILES
from vksched.testing.op_cases.conv.conv import call, sums
from vksched.testing.op_cases.conv.winograd import call as winograd_call
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array
from .epilogue import followed

FEW = st.integers(1, 3)


def window(pick: Pick, axes: int) -> dict[str, Any]:
    """Stride, dilation and padding of a window."""
    per_axis = st.one_of(FEW, st.lists(FEW, min_size=axes, max_size=axes).map(tuple))
    ends = st.lists(st.integers(0, 3), min_size=2 * axes, max_size=2 * axes).map(tuple)
    rules = st.sampled_from(["valid", "same_upper", "same_lower"])
    return {
        "stride": pick(per_axis),
        "dilation": pick(per_axis),
        "padding": pick(st.one_of(st.integers(0, 3), ends, rules)),
    }


def spatial(pick: Pick, more: dict[str, Any], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes over which the dilated kernel fits."""
    steps = more["dilation"]
    each = steps if isinstance(steps, tuple) else (steps,) * len(kernel)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, each, strict=True)]
    return tuple(r + pick(st.integers(0, 9 - 2 * len(kernel))) for r in reach)


def _channels(pick: Pick) -> tuple[int, int, int]:
    """Groups, channels and rows of each: for every algorithm some."""
    return pick(
        st.one_of(
            st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6)),
            st.tuples(st.integers(1, 6), st.just(1), st.integers(1, 3)),
            st.tuples(st.integers(1, 2), st.integers(8, 20), st.integers(8, 12)),
        )
    )


def _draw(op: str) -> Draw:
    def draw(pick: Pick) -> OpSample:
        axes = pick(st.integers(1, 3))
        more = window(pick, axes)
        groups, channels, rows = _channels(pick)
        sides = st.just(1) if pick(st.integers(0, 3)) == 0 else st.integers(1, 4 - axes // 2)
        kernel = tuple(pick(sides) for _ in range(axes))
        images = pick(st.integers(0, 3))
        x = (images, groups * channels, *spatial(pick, more, kernel))
        w = (groups * rows, channels, *kernel)
        if op == "conv_transpose":
            w = (groups * channels, rows, *kernel)
            if not isinstance(more["padding"], str):  # as much as leaves a result
                steps = more["dilation"]
                each = steps if isinstance(steps, tuple) else (steps,) * axes
                most = [(k - 1) * d // 2 for k, d in zip(kernel, each, strict=True)] * 2
                more["padding"] = tuple(pick(st.integers(0, m)) for m in most)
            stride = more["stride"]
            least = min(stride) if isinstance(stride, tuple) else stride
            more["output_padding"] = pick(st.integers(0, least - 1))
        dtype = pick(st.sampled_from(["float32", "float32", "int32"]))
        arrays = [array(pick, dtype, x), array(pick, dtype, w)]
        if pick(st.booleans()):
            arrays.append(array(pick, dtype, (groups * rows,)))
        case = call(op, tuple(arrays), "draw", groups=groups, **more)
        return case if op == "conv_transpose" else followed(pick, case)

    return draw


def _draw_winograd_weights(pick: Pick) -> OpSample:
    w = array(pick, "float32", (pick(st.integers(0, 9)), pick(st.integers(1, 9)), 3, 3))
    return OpSample("winograd_weights", (w,), {"tile": pick(st.sampled_from(TILES))}, "draw")


def _draw_winograd_conv(pick: Pick) -> OpSample:
    begin, end = ((pick(FEW) - 1, pick(FEW) - 1) for _ in range(2))
    least = (max(1, 3 - b - e) for b, e in zip(begin, end, strict=True))
    sizes = (size + pick(st.integers(0, 8)) for size in least)
    images, channels = pick(st.integers(0, 2)), pick(st.integers(1, 9))
    x = array(pick, "float32", (images, channels, *sizes))
    w = array(pick, "float32", (pick(st.integers(1, 9)), channels, 3, 3))
    tile, bias = pick(st.sampled_from(TILES)), pick(st.booleans())
    return followed(pick, winograd_call(x, w, "draw", tile, bias, begin, end))


def _draw_depthwise_weights(pick: Pick) -> OpSample:
    axes = pick(st.integers(1, 3))
    more = window(pick, axes)
    kernel = tuple(pick(st.integers(1, 6 - axes)) for _ in range(axes))
    x = (pick(st.integers(0, 3)), pick(FEW), *spatial(pick, more, kernel))
    return sums(x, pick(FEW), kernel, "draw", **more)


def _draw_turn_kernels(pick: Pick) -> OpSample:
    groups, channels, rows = _channels(pick)
    kernel = (pick(FEW) for _ in range(pick(FEW)))
    w = array(pick, pick(st.sampled_from(["float32", "int32"])), (groups * rows, channels, *kernel))
    return OpSample("flip_filters", (w,), {"groups": groups}, "draw")


DRAWS: dict[str, Draw] = {
    **{op: _draw(op) for op in ("conv", "conv_transpose")},
    "depthwise_conv_weight_grad": _draw_depthwise_weights,
    "flip_filters": _draw_turn_kernels,
    "winograd_conv": _draw_winograd_conv,
    "winograd_weights": _draw_winograd_weights,
}
