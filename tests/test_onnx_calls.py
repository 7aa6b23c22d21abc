"""Random calls of each op equal onnxruntime, or the reference evaluator where that knows more."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import vksched as vs
from vksched.types import NDArray

pytest.importorskip("onnxruntime")
import onnx_calls_microsoft
import onnx_calls_move
import onnx_calls_nn
from onnx_calls import ENTRIES, Call, Entry, draw_call, expected

DRAWS = (onnx_calls_microsoft, onnx_calls_move, onnx_calls_nn)
"""What is imported for the entries that it registers."""
SEEDS = 4
"""Calls of each op for each device. For more: python tests/test_onnx_calls.py DEVICE FIRST COUNT"""
TOLERANCE = {"float16": 2e-2, "bfloat16": 2e-2, "float64": 1e-6}
"""Relative; else 1e-4. Of float64 both judges have constants and steps in float32."""
ROUNDS = ("Quantize", "QLinear", "QGemm", "DynamicQuantize")
"""Ops whose results may be one step off where a quotient ends in .5."""


def difference(call: Call, found: NDArray, wanted: NDArray) -> str:
    """Returns what is wrong with a result; nothing where it is right."""
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        return f"{found.dtype}{found.shape} for {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind in "fV":
        rtol = TOLERANCE.get(wanted.dtype.name, 1e-4)
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
    """Asserts that a call gives what is expected; returns False where nobody knows what that is."""
    known = expected(call)
    if known is None:
        return False
    judge, wanted = known
    run = sched.compile(vs.load(call.model()))
    try:
        found = run(**call.feeds)
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
    with vs.Scheduler([request.param]) as made:
        yield made


@pytest.mark.filterwarnings("ignore::vksched.trace.VkschedWarning")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: f"{e.domain[4:]}{e.op}")
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
