"""Sliding windows over the spatial axes of a tensor, for convolutions and pools."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...common.dtypes import Shape
from ...common.errors import ShapeError
from ...ir.attr_domains import LONG, Domains, spatial, wholes
from ...topology.limits import Limits
from ..lowering.chunking import check_dispatches, check_serial
from ..lowering.strides import LOCAL_SIZE, LOOP_STEPS, MAX_ROUNDS, SERIAL_STEPS

PerAxis = int | Sequence[int]
"""One value for all spatial axes, or one per axis."""
Padding = str | int | Sequence[int]
"""One value for both ends of all axes, one per axis, all begins and then all ends, or a rule:
"valid", "same_upper", "same_lower".
"""
RULES = ("valid", "same_upper", "same_lower")
KERNEL_AXES = 3
"""Spatial axes of the kernels; calls with fewer have leading axes of size 1."""
_LANE_ITEMS = 16
"""Items of one invocation on a CPU driver, whose workgroups are expensive."""
_PADDED, _WASTE = 1 << 26, 64
"""Maximum padded positions of all planes that the CPU may write: an absolute limit, and a multiple
of the operand's and the result's positions. The larger one applies.
"""
_LIMIT = 1 << 30
"""Kernels add two positions, strides or extents below this limit in a signed 32-bit word."""

STEPS, PADDING = wholes(1, LONG, spatial), wholes(0, LONG, spatial)
WINDOW: Domains = {"stride": STEPS, "dilation": STEPS, "begin": PADDING, "end": PADDING}
"""The attributes of ops with a window; their rule calls `Window.check`."""

Push = tuple[tuple[str, "int | tuple[int, ...]"], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial axes.

    It starts `begin` positions before the input, moves by `stride` and reads every `dilation`-th
    position.
    """

    sizes: Shape
    kernel: Shape
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def extent(self) -> Shape:
        """Return the number of positions from the window's first tap to its last, per axis."""
        return extent(self.kernel, self.dilation)

    @property
    def taps(self) -> int:
        """Return the number of positions that the window reads."""
        return math.prod(self.kernel)

    @property
    def pointwise(self) -> bool:
        """Return True if each window is the single position at its own index."""
        same = set(self.kernel) == set(self.stride) == {1}
        return same and not any((*self.begin, *self.end))

    def counts(self, ceil_mode: bool = False) -> tuple[int, ...]:
        """Return the number of windows along each axis; below 1 if none fits.

        `ceil_mode`: a last window may reach beyond the padding if it does not start there.
        """
        out = []
        for size, reach, step, first, last in zip(
            self.sizes, self.extent, self.stride, self.begin, self.end, strict=True
        ):
            room = size + first + last - reach
            count = (-(-room // step) if ceil_mode else room // step) + 1
            if ceil_mode and (count - 1) * step >= size + first:
                count -= 1
            out.append(count)
        return tuple(out)

    def output(self, op: str, planes: int) -> tuple[int, ...]:
        """Check the window and return the number of windows along each axis.

        Raises
        ------
        ShapeError
            As `check`.
        """
        counts = self.counts()
        self.check(op, counts, planes)
        return counts

    def check(self, op: str, counts: Sequence[int] = (), planes: int = 1) -> None:
        """Check the window.

        `planes` is the number of channels of all images.

        Raises
        ------
        ShapeError
            If a stride, dilation, extent or padded size is too large, if no window fits, or if the
            padding is far larger than the positions that windows read.
        """
        padded = tuple(
            first + size + max(last, 0)
            for first, size, last in zip(self.begin, self.sizes, self.end, strict=True)
        )
        for what, values in (
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("window", self.extent),
            ("padded size", padded),
        ):
            if max(values) >= _LIMIT:
                raise ShapeError(
                    f"[{op}] expected a {what} below {_LIMIT} along each axis, got {values}"
                )
        if min(counts, default=1) < 1:
            raise ShapeError(
                f"[{op}] expected a window within the padded input, got {self.kernel} dilated "
                f"by {self.dilation} over {self.sizes} padded by {self.begin} and {self.end}; "
                "try a larger padding"
            )
        read = math.prod(self.sizes) + math.prod(counts)
        if counts and planes * math.prod(padded) > max(_PADDED, _WASTE * planes * read):
            raise ShapeError(
                f"[{op}] expected a padding of {self.sizes} that {math.prod(counts)} windows "
                f"mostly read, got {self.begin} and {self.end}; try a smaller stride or dilation"
            )

    def push(self) -> Push:
        """Return the window's push constants, with three axes each."""
        return (
            ("kernel", three(self.kernel)),
            ("stride", three(self.stride)),
            ("dilation", three(self.dilation)),
            ("begin", three(self.begin, 0)),
        )

    def rounds(self, inner: int = 0) -> int:
        """Return the loop iterations over the window's axes, with `inner` iterations inside."""
        count = 1 + inner
        for size in reversed(three(self.kernel)):
            count = 1 + size * count
        return count


def extent(kernel: Shape, dilation: tuple[int, ...]) -> Shape:
    """Return how many positions a dilated window covers along each axis."""
    return tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))


def three(values: Sequence[int], fill: int = 1) -> tuple[int, ...]:
    """Return values for the kernels' three spatial axes, with leading `fill` values."""
    return (fill,) * (KERNEL_AXES - len(values)) + tuple(values)


def check_rank(op: str, shape: Shape) -> int:
    """Check the rank of (N, C, spatial...) and return the number of spatial axes."""
    if not 3 <= len(shape) <= 2 + KERNEL_AXES:
        raise ShapeError(
            f"[{op}] expected x of shape (N, C, spatial...) with 1 to {KERNEL_AXES} spatial axes, "
            f"got {shape}; try reshape"
        )
    return len(shape) - 2


def per_axis(op: str, what: str, value: PerAxis, axes: int, least: int = 1) -> tuple[int, ...]:
    """Return one value per spatial axis.

    Raises
    ------
    ShapeError
        If the number of values is wrong, or a value is below `least`.
    """
    out = _integers(op, what, value)
    out = out * axes if not isinstance(value, Sequence) and len(out) == 1 else out
    if len(out) != axes or any(v < least for v in out):
        raise ShapeError(
            f"[{op}] expected {what} of {least} or more, one for each of {axes} spatial axes, "
            f"got {value!r}"
        )
    return out


def dilation_of(op: str, value: PerAxis, kernel: Shape) -> tuple[int, ...]:
    """Return the dilation along each axis, or 1 for an axis with a single tap."""
    dilations = per_axis(op, "dilation", value, len(kernel))
    return tuple(d if k > 1 else 1 for d, k in zip(dilations, kernel, strict=True))


def stepping(window: Window) -> Window:
    """Return the window with strides limited to the padded input, beyond which no window starts."""
    padded = map(sum, zip(window.begin, window.sizes, window.end, strict=True))
    stride = tuple(min(s, max(p, 1)) for s, p in zip(window.stride, padded, strict=True))
    return replace(window, stride=stride)


def _integers(op: str, what: str, value: object) -> tuple[int, ...]:
    try:
        if isinstance(value, Sequence) and not isinstance(value, str):
            return tuple(operator.index(v) for v in value)
        return (operator.index(value),)  # type: ignore[arg-type]
    except TypeError:
        raise ShapeError(f"[{op}] expected integers as {what}, got {value!r}") from None


def paddings(
    op: str,
    padding: Padding,
    sizes: Shape,
    kernel: Shape,
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the padding before and after each spatial axis."""
    axes = len(sizes)
    if isinstance(padding, str):
        totals = []
        for size, reach, step in zip(sizes, extent(kernel, dilation), stride, strict=True):
            totals.append(max((-(-size // step) - 1) * step + reach - size, 0))
        return halves(op, padding, tuple(totals))
    amounts = _integers(op, "padding", padding)
    if len(amounts) == 2 * axes and all(v >= 0 for v in amounts):
        return amounts[:axes], amounts[axes:]
    both = per_axis(op, "padding", padding, axes, 0)
    return both, both


def halves(op: str, rule: str, totals: Shape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divide the total padding of each axis into begins and ends, by a rule of ONNX."""
    if rule not in RULES:
        raise ShapeError(f"[{op}] expected padding as numbers or {', '.join(RULES)}, got {rule!r}")
    if rule == "valid":
        return (0,) * len(totals), (0,) * len(totals)
    less, more = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (less, more) if rule == "same_upper" else (more, less)


@dataclass(frozen=True, slots=True)
class Launch:
    """A dispatch over items first..last-1, whose workgroups loop over the remaining items."""

    first: int
    last: int
    groups: tuple[int, int, int]

    @property
    def barrier(self) -> bool:
        """Return True if the dispatch is not the first.

        Dispatches of a result are serialized although they are independent, because only long work
        is split.
        """
        return self.first > 0

    @property
    def push(self) -> Push:
        return (("first_item", self.first), ("last_item", self.last))


def launches(op: str, items: int, rounds: int, limits: Limits) -> list[Launch]:
    """Return dispatches that cover all items; each item takes `rounds` loop iterations.

    Raises
    ------
    UnsupportedOp
        If a single item takes too many iterations of one invocation.
    """
    each = rounds + 1  # with the iteration for the item
    check_serial(op, each, limits)
    most = (LOOP_STEPS if limits.software else SERIAL_STEPS) // each
    per_group = LOCAL_SIZE * (min(most, _LANE_ITEMS) if limits.software else 1)
    # a dispatch ends when its invocations reach their limit
    reach = limits.max_groups[0] * LOCAL_SIZE * most
    if not limits.software:
        reach = min(reach, max(1, MAX_ROUNDS // each))
    check_dispatches(op, -(-items // reach))
    out = []
    for first in range(0, items, reach):
        last = min(first + reach, items)
        groups = min(-(-(last - first) // per_group), limits.max_groups[0])
        out.append(Launch(first, last, (groups, 1, 1)))
    return out
