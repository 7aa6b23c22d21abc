"""Calibration samples: the calls that a calibration measures, of a graph or typical ones.

Each family has calls of three sizes, because the ratio of measured to estimated time depends on the
size: short calls show overheads inside kernels, long ones approach the device's rates. The list
alternates between families, so that a small budget covers each of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, zip_longest

import numpy as np

from ..common.dtypes import FLOAT16, FLOAT32, INT32, numpy_dtype
from ..ir.build_graph import build_graph
from ..ir.graph import Graph
from ..ir.op import Call, Op
from ..ir.precision import MIXED, precision_of
from ..ir.tensor import Tensor, input, weight
from ..ops.attention.attention import attention
from ..ops.conv.conv import conv
from ..ops.conv.pool import average_pool, max_pool
from ..ops.elementwise.activation import gelu
from ..ops.elementwise.unary import exp, relu
from ..ops.layout.index import gather
from ..ops.layout.pad import pad
from ..ops.layout.reshape import concat, transpose
from ..ops.linalg.matmul import matmul
from ..ops.reduction.layer_norm import layer_norm, rms_norm
from ..ops.reduction.reduce import reduce_mean, reduce_sum
from ..ops.reduction.softmax import softmax
from ..passes.set_precision import set_precision
from ..plan.costs.node_cost import (
    call_cost,
    call_of,
    call_signature,
    call_work,
    estimate,
    unsupported_reason,
)
from ..topology.device_spec import DeviceSpec
from ..topology.perf_model import MIN_S

ROWS = ((16, 64), (256, 512), (2048, 1024))
"""Shapes of elementwise ops, reductions and data movements: small, medium, large."""


Make = Callable[..., Tensor]
"""Create an input or a weight: (*shape, dtype=float32) -> Tensor."""


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """A call to measure.

    Parameters
    ----------
    seconds
        Estimated time of all equal calls of a graph.
    each_s
        Estimated time of one.
    weights
        Positions of operands that a model reads from memory, because no op has just written them.
    """

    op: Op
    call: Call
    estimate_s: float
    bound: str
    seconds: float
    weights: tuple[int, ...] = ()
    each_s: float = 0.0

    @property
    def kind(self) -> tuple[str, str]:
        """The op and its limiting resource."""
        return self.op.name, self.bound

    @property
    def place(self) -> tuple[str, str, int]:
        """The key of its sample; see `calibration_types.Sample`."""
        return (
            call_signature(self.op, self.call),
            self.bound,
            round(math.log2(max(self.estimate_s, MIN_S))),
        )


def device_samples(graph: Graph, spec: DeviceSpec) -> list[CalibrationSample]:
    """Return the calls of a graph that a device supports, on a GPU with float16 also in mixed
    precision, in which it runs language models.
    """
    samples = calibration_samples(graph, spec)
    if not spec.computes_float16:
        return samples
    mixed = calibration_samples(
        set_precision(graph, {node.id: MIXED for node in graph.nodes}), spec
    )
    rounded = (sample for sample in mixed if precision_of(sample.call.attrs) == MIXED)
    return [s for pair in zip_longest(samples, rounded) for s in pair if s is not None]


def calibration_samples(graph: Graph, spec: DeviceSpec) -> list[CalibrationSample]:
    """Return the distinct calls of a graph that a device supports, in order."""
    times: dict[int, int] = {}
    for node in graph.ops:
        if node.id not in graph.views and not node.declaration.stateful:
            signature = graph.signatures[node.id]
            times[signature] = times.get(signature, 0) + 1
    out: list[CalibrationSample] = []
    for signature, number in times.items():
        node = graph.calls[signature]
        if node.id in graph.views or unsupported_reason(spec, graph, node) is not None:
            continue
        op, call = node.declaration, call_of(spec, graph, node)
        if spec.kind == "cpu":  # on the CPU an epilogue is a separate pass
            call = call.without_epilogue
        estimate_s, bound = estimate(spec, call_work(spec, op, call))
        each_s = call_cost(spec, op, call).seconds
        weights = tuple(i for i, n in enumerate(node.inputs) if graph.view_bases[n] in graph.data)
        out.append(CalibrationSample(op, call, estimate_s, bound, number * each_s, weights, each_s))
    return out


def typical_samples() -> Graph:
    """Return a graph of typical calls that alternates between families."""
    numbers = count()

    def some(*shape: int, dtype: str = FLOAT32) -> Tensor:
        return input(f"x{next(numbers)}", shape, dtype)

    def held(*shape: int, dtype: str = FLOAT32) -> Tensor:
        return weight(np.zeros(shape, numpy_dtype(dtype)))

    families: tuple[Iterable[Tensor], ...] = (
        _elementwise(some),
        _matmuls(some, held),
        _reductions(some),
        _convolutions(some, held),
        _data_movements(some),
    )
    in_turn = [t for group in zip_longest(*families) for t in group if t is not None]
    return build_graph(in_turn)[0]


def _elementwise(some: Make) -> Iterator[Tensor]:
    for shape in ROWS:
        yield some(*shape) + some(*shape)
        yield gelu(some(*shape))
        yield relu(some(*shape))
        yield some(*shape) * some(shape[-1])
        yield exp(some(*shape))


def _matmuls(some: Make, held: Make) -> Iterator[Tensor]:
    for m, k, n in ((1, 768, 768), (128, 128, 128), (1, 768, 3072), (128, 768, 768), (64, 64, 64)):
        yield matmul(some(m, k), held(k, n))
        yield matmul(some(m, k), held(n, k), transpose_b=True)
    yield attention(*(some(1, 12, 16, 64) for _ in range(3)))
    yield matmul(some(128, 768), held(3072, 768), held(3072), transpose_b=True)
    yield attention(*(some(1, 12, 128, 64) for _ in range(3)))
    yield matmul(some(1, 4096), held(4096, 4096))
    yield matmul(some(1, 4096), held(4096, 4096), transpose_b=True)
    yield matmul(some(512, 512), held(512, 512))
    yield matmul(some(12, 128, 64), some(12, 64, 128))
    yield matmul(some(128, 768, dtype=FLOAT16), held(768, 768, dtype=FLOAT16))
    yield attention(*(some(1, 12, 512, 64) for _ in range(3)))
    yield matmul(some(1024, 1024), held(1024, 1024))
    yield matmul(some(512, 1024), held(1024, 1024), transpose_b=True)


def _reductions(some: Make) -> Iterator[Tensor]:
    for rows, columns in ROWS:
        yield softmax(some(rows, columns))
        yield layer_norm(some(rows, columns), some(columns), some(columns))
        yield reduce_sum(some(rows, columns), -1)
        yield rms_norm(some(rows, columns), some(columns))
        yield reduce_mean(some(rows, columns), 0)


def _convolutions(some: Make, held: Make) -> Iterator[Tensor]:
    for channels, side in ((16, 14), (64, 28), (256, 14), (64, 56)):
        yield conv(some(1, channels, side, side), held(channels, channels, 3, 3), padding=1)
        yield conv(some(1, channels, side, side), held(channels, channels, 1, 1))
        yield max_pool(some(1, channels, side, side), 3, stride=2, padding=1)
    for channels, side in ((32, 14), (128, 56)):
        x = some(1, channels, side, side)
        yield conv(x, held(channels, 1, 3, 3), padding=1, groups=channels)
    yield average_pool(some(1, 64, 56, 56), 2, stride=2)
    yield conv(some(1, 3, 224, 224), held(64, 3, 7, 7), stride=2, padding=3)


def _data_movements(some: Make) -> Iterator[Tensor]:
    for rows, columns in ROWS:
        yield transpose(some(rows, columns), (1, 0))
        yield concat([some(rows, columns), some(rows, columns)], 0)
        yield gather(some(rows, columns), some(max(1, rows // 2), dtype=INT32))
        yield pad(some(rows, columns), ((1, 1), (0, 0)))
