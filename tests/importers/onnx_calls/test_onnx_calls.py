"""Random calls of each op equal onnxruntime, or the reference evaluator where that knows more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.onnx.nodes.contrib_cpu import has_host_op

pytest.importorskip("onnxruntime")
import onnx_calls_contrib
import onnx_calls_earlier
import onnx_calls_host
import onnx_calls_language
import onnx_calls_microsoft
import onnx_calls_ml
import onnx_calls_move
import onnx_calls_nn
from onnx_calls import ENTRIES, Call, Entry, draw_call, expected

DRAWS = (
    onnx_calls_contrib,
    onnx_calls_earlier,
    onnx_calls_host,
    onnx_calls_language,
    onnx_calls_microsoft,
    onnx_calls_ml,
    onnx_calls_move,
    onnx_calls_nn,
)
"""What is imported for the entries that it registers."""
SEEDS = 4
"""Calls of each op for each device.

For more: python tests/importers/onnx_calls/test_onnx_calls.py DEVICE FIRST COUNT
"""
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float64": 1e-6}
"""Relative; else 1e-4. Of float64 both judges have constants and steps in float32."""
ROUNDS = ("Quantize", "QLinear", "QGemm", "DynamicQuantize")
"""Ops whose results may be one step off where a quotient ends in .5."""


def difference(call: Call, found: NDArray, wanted: NDArray) -> str:
    """Return the error of a result; "" if it is right."""
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return f"{found.dtype}{found.shape} for {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind in "fV":
        rtol = TOLERANCE.get(wanted.dtype.name, 1e-4)
        if call.attrs.get("post_transform") in ("PROBIT", 4):
            rtol = 2e-2  # onnxruntime takes the difference of two numbers that are close in float32
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        size = np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0.0)
        same = np.isclose(a, b, rtol, rtol * min(max(size, 0.1), 1.0), equal_nan=True)
    else:
        same = np.asarray(found == wanted)
        if call.op.startswith(ROUNDS) and not same.all():
            steps = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
            same = steps <= (np.mean(steps) <= 0.1 + 1 / steps.size)
    at = None if same.all() else tuple(map(int, np.argwhere(~same)[0]))
    return "" if at is None else f"{found[at]} for {wanted[at]} at {at}"


def check(call: Call, sched: vs.Scheduler) -> bool:
    """Assert that a call gives what is expected; returns False where nobody knows what that is."""
    known = expected(call)
    if known is None:
        return False
    judge, wanted = known
    run = sched.compile(vs.load(call.model()))
    try:
        found = run(**call.feeds)
        ours = call.domain.startswith("com.microsoft")  # rules express them all
        if ours and not has_host_op(call.op, call.domain):
            assert not any(segment.lowered.step for segment in run.segments), call
            names = [n.op for plan in run.plans for n in plan.graph.nodes]
            assert not any(name.startswith("onnx.") for name in names), call
        for i, want in enumerate(wanted):
            wrong = difference(call, np.asarray(found[f"y{i}"]), want)
            assert not wrong, f"{call}: y{i} is {wrong} of {judge}"
    finally:
        run.close()
    return True


@pytest.fixture(scope="module", params=["cpu", "vulkan:0"])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    if request.param != "cpu" and request.param not in {d.name for d in vs.devices()}:
        pytest.skip("no such device")
    with vs.Scheduler([request.param]) as sched:
        yield sched


def line(*shape: int) -> NDArray:
    return np.linspace(-2, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def found(op: str, opset: int, *inputs: NDArray, fixed: bool = False, **attrs: Any) -> Call:
    """A call that was wrong. fixed: all operands are initializers."""
    return Call(op, opset, [*inputs], attrs, fixed=frozenset(range(len(inputs) * fixed)))


REGION = np.array([[1.4, 0.4, 3.9, 2.8]], np.float32)
FOUND = [
    # the evaluator, which folded them, has the newest version's rule, or another
    found("Softmax", 11, line(2, 3, 4), fixed=True, axis=1),
    found("LogSoftmax", 8, line(3, 5), fixed=True, axis=0),
    found("Unsqueeze", 10, line(1, 4, 3), fixed=True, axes=[3, 1, 5]),
    found("MaxPool", 20, np.arange(72, dtype=np.uint8).reshape(2, 3, 4, 3), fixed=True,
          kernel_shape=[1, 1], strides=[2, 2], auto_pad="SAME_LOWER"),
    found("GlobalMaxPool", 13, line(2, 3, 4), fixed=True),
    found("LRN", 9, line(1, 3, 2, 2), fixed=True, size=3, alpha=0.3),
    found("GRU", 10, line(3, 1, 1), line(1, 6, 1), line(1, 6, 2), fixed=True, hidden_size=2,
          clip=0.7),
    # the evaluator has the newest version's default
    found("RoiAlign", 15, line(1, 1, 7, 5), REGION, np.array([0]), sampling_ratio=0),
    # refused
    found("GroupNormalization", 18, line(2, 4, 3), line(2), line(2), num_groups=2),
    found("ReduceLogSum", 11, np.arange(1, 7, dtype=np.int32).reshape(2, 3), axes=[1]),
    found("Squeeze", 10, line(3, 1, 1), axes=[2, 1]),
    found("ConvTranspose", 11, line(2, 4, 3, 1), line(4, 1, 3, 1), strides=[2, 2], group=2,
          auto_pad="SAME_LOWER"),
    # shape inference counts a window that starts in the padding
    found("MaxPool", 12, line(1, 1, 3, 3), kernel_shape=[1, 1], strides=[3, 2], ceil_mode=1),
    # rounding and what is no number
    found("ThresholdedRelu", 22, np.array([np.nan, 2], np.float32)),
    found("DynamicQuantizeLinear", 18, np.zeros(3, np.float32)),
    found("Resize", 21, line(1, 2, 4), np.zeros(0, np.float32),
          np.array([1, 1, 0.6], np.float32), nearest_mode="floor"),
]  # fmt: skip
FOUND[-2].results = 3


@pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
@pytest.mark.parametrize("call", FOUND, ids=lambda c: f"{c.op}-{c.opset}")
def test_what_was_found(call: Call, sched: vs.Scheduler) -> None:
    assert check(call, sched)


@pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.domain.rpartition('.')[2]}{e.op}")
def test_calls(entry: Entry, sched: vs.Scheduler) -> None:
    calls = [draw_call(entry, seed) for seed in range(SEEDS)]
    assert sum(check(call, sched) for call in calls if call is not None)


if __name__ == "__main__":
    import sys
    import warnings

    warnings.simplefilter("ignore")
    device, first, count, *only = sys.argv[1:]
    tried = failed = 0
    with vs.Scheduler([device]) as scheduler:
        for entry in ENTRIES:
            for seed in range(int(first), int(first) + int(count)):
                drawn = draw_call(entry, seed) if not only or entry.op in only else None
                if drawn is None:
                    continue
                try:
                    tried += check(drawn, scheduler)
                except Exception as error:
                    failed += 1
                    print(f"{type(error).__name__}: {str(error)[:500]}\n    {str(drawn)[:300]}")
    print(f"{tried} calls on {device}, {failed} of them wrong")
    sys.exit(bool(failed))
