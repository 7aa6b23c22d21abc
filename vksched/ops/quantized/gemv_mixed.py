"""Launch of the GEMV of one float16 row and quantized weights, with float32 sums, for GPUs.

    workgroup   x, normalized, as float16 in shared memory
    team        ROWS rows of weights: SPLITS subgroups, whose lanes follow each other along k
    lane        one run of 32 quantized values of each row at a time

Problem: a decode step reads each weight once, so that the latency of a launch and the instructions
per weight count. Method: all subgroups of a workgroup share one conversion of x, sums need no
barrier unless a team has several subgroups, and two quantized values become float16 by one mask and
one `or`. x is scaled by a power of two, so that large rows do not overflow. Kernel:
shaders/quantized/quant_gemv_mixed.glsl. Examples: tests/ops/test_gemv_mixed.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ...common.dtypes import TensorType
from ...ir.op import OUTPUT, Call, Dispatch
from ...ir.precision import may_round
from ...topology.limits import Limits
from .gguf_formats import FORMATS, format_of
from .quant_layout import RUN, Format

DOT = {"gemv_mixed dot 2": 2, "gemv_mixed dot 4": 4}
"""Variants by dot products of two values, for devices that have them: rows of weights of a team.
They are not guessed, because they were compiled for GPUs, but not executed.
"""
VARIANTS = {"gemv_mixed 2": 2, "gemv_mixed 4": 4, "gemv_mixed 1": 1, **DOT}
"""All variants, the best guess first."""
WITH_DOT = ("f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_K", "q5_K")
"""Formats with dot products: pairs of float16 with one scale."""
SHADERS = (
    *(f"quant_gemv_mixed_{name.lower()}" for name in FORMATS),
    *(f"quant_gemv_mixed_dot2_{name.lower()}" for name in WITH_DOT),
)
MAX_WEIGHTS = 3
BUFFERS = 8
"""Buffers of the kernel: x, a scale, three weights, a bias, the result and a residual."""
MAX_LANES = 256
"""Maximum invocations of a workgroup. With more, fewer workgroups repeat the conversion of x."""
MAX_RUNS_PER_LANE = 4
"""Runs of a row per lane, above which a team has more subgroups."""
GROUP_COLUMNS = 16
"""Maximum columns of a workgroup, all of one weight: sizes of merged weights are multiples."""
MAX_ROW_BITS = 32
"""Maximum low bits of a value, times rows of a team: the registers that hold a run of each row."""
MAX_ROWS = 2
"""Maximum rows of a team on a GPU with few registers."""
RUN_STEP = 32
"""Shared memory is allocated for multiples of these runs, so that fewer pipelines differ."""
TABLE = 16
"""Words of the numbers that 4-bit codes stand for."""
SUBGROUP_SIZES = (8, 64)
"""Minimum and maximum subgroup size."""


@dataclass(frozen=True, slots=True)
class Product:
    """A row times weights.

    Attributes
    ----------
    weights
        Operands of the call; the columns of the result are those of all of them.
    scale, bias
        Operands of the call, or None.
    gate
        Number of the activation of the first weight's columns, which are multiplied by those of the
        second one; 0: none.
    """

    weights: Sequence[int]
    scale: int | None = None
    bias: int | None = None
    gate: int = 0
    eps: float = 0.0

    def columns(self, rows: int) -> int:
        """Return the columns of the result that a team with `rows` rows of weights computes."""
        return rows // 2 if self.gate else rows


def _linear(call: Call) -> Product:
    """Return the product of a call of `quantized_linear`."""
    return Product((1,), bias=2 if len(call.inputs) > 2 else None)


def variants(call: Call, product: Product | None = None) -> tuple[str, ...]:
    """Return the variants for a call, the best guess first; none if the kernel does not fit it.

    product: that of the call; None for `quantized_linear`.
    """
    product = product or _linear(call)
    rows = VARIANTS
    if not (call.limits.mixed_dot and call.attrs["format"] in WITH_DOT):
        rows = {name: count for name, count in VARIANTS.items() if name not in DOT}
    return tuple(name for name in rows if _fits(call, product, rows[name]))


def _fits(call: Call, product: Product, rows: int) -> bool:
    limits, k = call.limits, call.inputs[0].shape[-1]
    if not may_round(call) or limits.software or math.prod(call.output.shape[:-1]) != 1:
        return False
    lanes, kind = _lanes(limits), format_of(call.attrs["format"])
    if not lanes or not product.columns(rows) or limits.storage_buffers < BUFFERS:
        return False
    most_rows = MAX_ROWS if limits.few_registers else MAX_ROW_BITS // kind.low
    if rows > most_rows:
        return False
    local, _ = _local(k, rows, product, limits)
    subgroups = local // lanes
    groups = -(-call.output.shape[-1] // _group_columns(local, k, rows, product, limits))
    shared = _shared_bytes(k, rows, subgroups, kind)
    return shared <= limits.shared_bytes and groups <= limits.max_groups[0]


def _lanes(limits: Limits) -> int:
    """Return the subgroup size that the kernel requires, or 0 if the device has none.

    Of several sizes of a GPU with few registers (Intel), the smallest leaves most to a lane.
    """
    smallest, largest = SUBGROUP_SIZES
    sizes = [size for size in limits.subgroup_sizes if smallest <= size <= largest]
    if not (sizes and limits.subgroup_shuffle and limits.subgroup_arithmetic):
        return 0
    usual = limits.subgroup_size in sizes and not limits.few_registers
    lanes = limits.subgroup_size if usual else sizes[0]
    return lanes if lanes <= min(limits.max_invocations, limits.max_local_size[0]) else 0


def _local(k: int, rows: int, product: Product, limits: Limits) -> tuple[int, int]:
    """Return the invocations of a workgroup and the subgroups of a team."""
    lanes = _lanes(limits)
    most = min(MAX_LANES, limits.max_invocations, limits.max_local_size[0]) // lanes
    splits = 1
    while 2 * splits <= most and k // RUN > MAX_RUNS_PER_LANE * lanes * splits:
        splits *= 2
    teams = 1
    while 2 * teams * splits <= most and 2 * teams * product.columns(rows) <= GROUP_COLUMNS:
        teams *= 2
    return lanes * splits * teams, splits


def _group_columns(local: int, k: int, rows: int, product: Product, limits: Limits) -> int:
    lanes, (_, splits) = _lanes(limits), _local(k, rows, product, limits)
    return local // (lanes * splits) * product.columns(rows)


def _max_runs(k: int) -> int:
    return -(-k // (RUN * RUN_STEP)) * RUN_STEP


def _shared_bytes(k: int, rows: int, subgroups: int, kind: Format) -> int:
    """Return the bytes of shared memory: float16 values, and up to four sums of each run; sums of
    each subgroup; a table.
    """
    return _max_runs(k) * (2 * RUN + 4 * kind.sums) + 4 * (subgroups * (rows + 2) + TABLE)


def dispatch(call: Call, product: Product | None = None) -> Dispatch:
    """Return the dispatch of a call by one of `variants`; product: as there."""
    product = product or _linear(call)
    rows, limits = VARIANTS[call.variant], call.limits
    k, n, kind = call.inputs[0].shape[-1], call.output.shape[-1], format_of(call.attrs["format"])
    weights = tuple(product.weights[min(i, len(product.weights) - 1)] for i in range(MAX_WEIGHTS))
    ends = tuple(accumulate(_rows(call.inputs[i]) for i in weights[: MAX_WEIGHTS - 1]))
    local, splits = _local(k, rows, product, limits)
    constants = (
        *(("LOCAL_X", local), ("ROWS", rows), ("SPLITS", splits), ("MAX_RUNS", _max_runs(k))),
        *(("NORMED", int(product.scale is not None)), ("GATE", product.gate)),
        *(("WEIGHTS", len(product.weights)), ("BIASED", int(product.bias is not None))),
        ("SUBGROUPS", local // _lanes(limits)),
    )
    push = (
        *(("n", n), ("k", k), ("ends", ends)),
        *(("b_column", kind.row_words(k)), ("eps", product.eps)),
    )
    operands = (0, product.scale or 0, *weights, product.bias or 0, OUTPUT)
    groups = -(-n // _group_columns(local, k, rows, product, limits)), 1, 1
    prefix = "quant_gemv_mixed_dot2" if call.variant in DOT else "quant_gemv_mixed"
    shader = f"{prefix}_{kind.name.lower()}"
    return Dispatch(shader, operands, groups, push, constants, subgroup=_lanes(limits))


def _rows(words: TensorType) -> int:
    return words.shape[0]
