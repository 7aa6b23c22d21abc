"""Launch of the GEMV of few float16 rows and quantized weights, with float32 sums, for GPUs.

    workgroup   BATCH rows of x, normalized, as float16 in shared memory
    team        ROWS rows of weights: SPLITS subgroups, whose lanes follow each other along k
    lane        one run of 32 quantized values of each row at a time

Problem: a decode step reads each weight once, so that the latency of a launch and the instructions
per weight count. Method: all subgroups of a workgroup share one conversion of x, sums need no
barrier unless a team has several subgroups, and two quantized values become float16 by one mask and
one `or`. x is scaled by a power of two, so that large rows do not overflow. A batch of rows reads
the weights once, and stages as many runs of x at a time as shared memory holds.

Bit-identity: a row has the same bits in a batch of any size, by any variant without dot products:
the workgroup, SPLITS and the lanes depend on the device, k and the gate only. Kernel:
shaders/quantized/quant_gemv_mixed.glsl. Examples: tests/ops/test_gemv_mixed.py,
tests/ops/test_gemv_rows.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from ...common.dtypes import TensorType
from ...ir.op import OUTPUT, Call, Dispatch
from ...ir.precision import may_round
from ...topology.limits import Limits
from ..linalg.matmul_kernels import MAX_GEMV_ROWS
from .gemv_rows import rows_of
from .gguf_formats import FORMATS, format_of
from .quant_layout import RUN
from .rotated_columns import Rope

DOT = {"gemv_mixed dot 2": 2, "gemv_mixed dot 4": 4}
"""Variants by dot products of two values, for devices that have them: rows of weights of a team.
They are not guessed, because they were compiled for GPUs, but not executed.
"""
VARIANTS = {"gemv_mixed 2": 2, "gemv_mixed 4": 4, "gemv_mixed 1": 1, **DOT}
"""All variants, the best guess first."""
WITH_DOT = ("f16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_K", "q5_K")
"""Formats with dot products: pairs of float16 with one scale."""
_PREFIXES = "quant_gemv_mixed", "quant_gemv_mixed_dot2"
SHADERS, ROPE_SHADERS = (
    tuple(
        f"{prefix}{end}_{name.lower()}"
        for prefix, names in zip(_PREFIXES, (FORMATS, WITH_DOT), strict=True)
        for name in names
    )
    for end in ("", "_rope")
)
MAX_WEIGHTS = 3
BUFFERS = 8
"""Buffers of the kernel: x, a scale, three weights, a bias, the result and a residual."""
MAX_LANES = 256
"""Maximum invocations of a workgroup. With more, fewer workgroups repeat the conversion of x."""
MAX_RUNS_PER_LANE = 4
"""Runs of a row per lane, above which a team has more subgroups."""
GROUP_COLUMNS = 16
"""Maximum columns of a workgroup with USUAL_ROWS rows of weights of a team."""
USUAL_ROWS = 2
MAX_ROW_BITS = 32
"""Maximum low bits of a value, times rows of a team: the registers that hold a run of each row."""
MAX_ROWS = 2
"""Maximum rows of a team on a GPU with few registers."""
MAX_SUMS = {False: 16, True: 8}
"""Maximum sums of an invocation, of ROWS rows of weights by BATCH rows of x; the key is True for
GPUs with few registers.
"""
BATCH_BYTES = 16384
"""Shared memory for several rows of x, so that several workgroups are resident on a core."""
RUN_STEP = 32
"""Shared memory is allocated for multiples of these runs, so that fewer pipelines differ."""
TABLE = 16
"""Words of the numbers that 4-bit codes stand for."""
SUBGROUP_SIZES = (8, 64)
"""Minimum and maximum subgroup size."""


@dataclass(frozen=True, slots=True)
class Product:
    """Few rows times weights.

    Attributes
    ----------
    weights
        Operands of the call; the columns of the result are those of all of them.
    scale, bias
        Operands of the call, or None.
    gate
        Number of the activation of the first weight's columns, which are multiplied by those of the
        second one; 0: none.
    stacked
        If true, the results of the weights are matrices, one after another.
    """

    weights: tuple[int, ...]
    scale: int | None = None
    bias: int | None = None
    gate: int = 0
    eps: float = 0.0
    stacked: bool = False
    rope: Rope | None = None

    def columns(self, rows: int) -> int:
        """Return the columns of the result that a team with `rows` rows of weights computes; 0 if
        it cannot compute both parts of a gate, or both values of a pair.
        """
        if self.rope and rows % 2:
            return 0
        return rows // 2 if self.gate else rows

    def size(self, call: Call) -> int:
        """Return the columns of the result."""
        sizes = [call.inputs[i].shape[0] for i in self.weights]
        return sizes[0] if self.gate else sum(sizes)


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
    if not may_round(call) or limits.software or not 0 < rows_of(call) <= MAX_GEMV_ROWS:
        return False
    lanes, kind = _lanes(limits), format_of(call.attrs["format"])
    if (
        not lanes
        or not product.columns(rows)
        or limits.storage_buffers < BUFFERS + bool(product.rope)
    ):
        return False
    most_rows = MAX_ROWS if limits.few_registers else MAX_ROW_BITS // kind.low
    if rows > most_rows:
        return False
    columns = _group_columns(k, rows, product, limits)
    groups = -(-product.size(call) // columns)
    return _batch(call, product, rows)[1] > 0 and groups <= limits.max_groups[0]


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


def _local(k: int, product: Product, limits: Limits) -> tuple[int, int]:
    """Return the invocations of a workgroup and the subgroups of a team.

    Both are the same for all variants and batches: the order of sums depends on them.
    """
    lanes = _lanes(limits)
    most = min(MAX_LANES, limits.max_invocations, limits.max_local_size[0]) // lanes
    splits = 1
    while 2 * splits <= most and k // RUN > MAX_RUNS_PER_LANE * lanes * splits:
        splits *= 2
    teams = 1
    columns = product.columns(USUAL_ROWS)
    while 2 * teams * splits <= most and 2 * teams * columns <= GROUP_COLUMNS:
        teams *= 2
    return lanes * splits * teams, splits


def _group_columns(k: int, rows: int, product: Product, limits: Limits) -> int:
    local, splits = _local(k, product, limits)
    return local // (_lanes(limits) * splits) * product.columns(rows)


def _batch(call: Call, product: Product, rows: int) -> tuple[int, int]:
    """Return the rows of x of a workgroup, and the runs of each that are staged at a time.

    Registers hold the sums of the rows, a power of two. The runs are all of a row, or a multiple of
    those that a team reads at a time; 0 if there is no space for one row.
    """
    limits, kind, k = call.limits, format_of(call.attrs["format"]), call.inputs[0].shape[-1]
    local, splits = _local(k, product, limits)
    subgroups, step = local // _lanes(limits), splits * _lanes(limits)
    batch = min(
        1 << (rows_of(call) - 1).bit_length(), max(1, MAX_SUMS[limits.few_registers] // rows)
    )
    whole = -(-k // (RUN * RUN_STEP)) * RUN_STEP
    while True:
        fixed = 4 * (subgroups * batch * (rows + 2) + TABLE)
        each = batch * (2 * RUN + 4 * kind.sums)
        space = limits.shared_bytes - fixed
        if batch > 1:
            space = min(space, max(BATCH_BYTES, step * each))
        runs = whole if whole * each <= space else max(space, 0) // (each * step) * step
        if runs or batch == 1:
            return batch, runs
        batch //= 2


def dispatch(call: Call, product: Product | None = None) -> Dispatch:
    """Return the dispatch of a call by one of `variants`; product: as there."""
    product = product or _linear(call)
    rows, limits, m = VARIANTS[call.variant], call.limits, rows_of(call)
    k, n, kind = call.inputs[0].shape[-1], product.size(call), format_of(call.attrs["format"])
    weights = tuple(product.weights[min(i, len(product.weights) - 1)] for i in range(MAX_WEIGHTS))
    ends = tuple(accumulate(_words_rows(call.inputs[i]) for i in weights[: MAX_WEIGHTS - 1]))
    (local, splits), rope = _local(k, product, limits), product.rope
    batch, runs = _batch(call, product, rows)
    constants: tuple[tuple[str, int], ...] = (
        *(("LOCAL_X", local), ("ROWS", rows), ("SPLITS", splits)),
        *(("MAX_RUNS", runs), ("BATCH", batch)),
        *(("NORMED", int(product.scale is not None)), ("GATE", product.gate)),
        *(("WEIGHTS", len(product.weights)), ("STACKED", int(product.stacked and m > 1))),
        ("SUBGROUPS", local // _lanes(limits)),
    )
    push: tuple[tuple[str, int | float | tuple[int, ...]], ...] = (
        *(("m", m), ("n", n), ("k", k), ("ends", ends)),
        *(("b_column", kind.row_words(k)), ("eps", product.eps)),
    )
    if rope:
        constants += rope.constants
        push += rope.push
        last: tuple[int, ...] = rope.tables
    else:
        constants += (("BIASED", int(product.bias is not None)),)
        last = (product.bias or 0,)
    operands = (0, product.scale or 0, *weights, *last, OUTPUT)
    groups = -(-n // _group_columns(k, rows, product, limits)), -(-m // batch), 1
    prefix = _PREFIXES[call.variant in DOT] + "_rope" * bool(rope)
    shader = f"{prefix}_{kind.name.lower()}"
    return Dispatch(shader, operands, groups, push, constants, subgroup=_lanes(limits))


def _words_rows(words: TensorType) -> int:
    return words.shape[0]
