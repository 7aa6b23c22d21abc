"""Baselines of the bench: what they compute, and processes that die, hang or answer rubbish."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from benchmark_folders import import_baseline

from vksched.bench import baseline_process
from vksched.bench.baseline_process import BaselineFailed, BaselineMissing, BaselineProcess
from vksched.bench.baselines import protocol, workloads
from vksched.bench.baselines.workloads import (
    Spec,
    arrays_of,
    compared_rows,
    error_of,
    expected_of,
    nmse_of,
    result_shape,
    work_of,
)
from vksched.bench.rounds import measure_case

CPU = {"name": "numpy", "uuid": "", "index": 0, "type": "cpu"}
SPECS = [
    Spec("small product", "matmul", "matmul", {"m": 3, "k": 5, "n": 4}),
    Spec("turned", "matmul", "matmul", {"m": 3, "k": 5, "n": 4, "transpose_a": True}),
    Spec("turned b", "matmul", "matmul", {"m": 3, "k": 5, "n": 4, "transpose_b": True}),
    Spec("batched", "matmul", "matmul", {"m": 3, "k": 5, "n": 4, "batch": 2}),
    Spec("sum", "binary", "elementwise", {"op": "add", "shape": [4, 8]}),
    Spec("relu", "unary", "elementwise", {"op": "relu", "shape": [4, 8]}),
    Spec("exp", "unary", "elementwise", {"op": "exp", "shape": [4, 8]}),
    Spec("softmax", "softmax", "rows", {"shape": [4, 8]}),
    Spec("layer norm", "layer_norm", "rows", {"shape": [4, 8]}),
    Spec("rms norm", "rms_norm", "rows", {"shape": [4, 8]}),
    Spec("sums", "reduce", "rows", {"op": "sum", "axis": 1, "shape": [4, 8]}),
    Spec("maxima", "reduce", "rows", {"op": "max", "axis": 0, "shape": [4, 8]}),
    Spec("transpose", "transpose", "rows", {"axes": [1, 0], "shape": [4, 8]}),
    Spec("gather", "gather", "rows", {"shape": [5, 4], "count": 7}),
    Spec("conv", "conv", "conv", {"channels": 2, "size": 6, "out": 3, "kernel": 3, "pad": 1}),
    Spec("attention", "attention", "attention", {"heads": 2, "tokens": 3, "width": 4}),
    Spec("chain", "chain", "overhead", {"count": 8, "ops": 3}),
]
SMALL = SPECS[0]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_baselines_of_the_cpu_compute_what_is_expected(spec: Spec) -> None:
    arrays = arrays_of(spec)
    expected = expected_of(spec, arrays)
    assert expected.shape == result_shape(spec)
    assert all(amount >= 0 for amount in work_of(spec))
    for name in ("numpy", "onnxruntime", "torch"):
        if importlib.util.find_spec(name) is None:
            continue
        baseline = importlib.import_module(
            f"vksched.bench.baselines.{name}_baseline"
        ).open_baseline(CPU)
        try:
            job = baseline.prepare(spec, arrays)
        except protocol.Skip:
            assert name == "onnxruntime" and spec.kind == "attention"
            continue
        assert nmse_of(job.result(), expected) < 1e-10
        assert job.sample() > 0


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_mlir_names_each_value_once(spec: Spec) -> None:
    text = import_baseline("mlir").module_of(spec, 2)
    built = [line.split("=")[0].strip() for line in text.splitlines() if line.startswith("  %")]
    outside = [name for name in built if name[1:2] in "rx" or name.startswith("%in")]
    assert {"%r0", "%r1", "%in0", "%in1"} <= set(outside) and len(set(outside)) == len(outside)


def test_of_a_large_product_some_rows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Spec("rows", "matmul", "matmul", {"m": 64, "k": 5, "n": 4})
    arrays = arrays_of(spec)
    right = expected_of(spec, arrays)
    assert compared_rows(spec) is None
    monkeypatch.setattr(workloads, "MAX_COMPARED", 1000)
    rows = compared_rows(spec)
    assert rows is not None and [int(row) // 16 for row in rows] == [0, 1, 2, 3]
    assert len({int(row) % 16 for row in rows}) == 4
    assert error_of(spec, arrays, right) < 1e-12
    wrong = right.copy()
    wrong[rows[1]] += 1.0
    assert error_of(spec, arrays, wrong) > 0.1
    assert error_of(spec, arrays, right[rows]) == float("inf")


def test_wrong_shapes_and_what_is_not_finite_are_far_off() -> None:
    good = np.ones((2, 2), np.float32)
    assert nmse_of(good, good) == 0.0
    assert nmse_of(good[:1], good) == nmse_of(good * np.nan, good) == float("inf")


# -- processes -------------------------------------------------------------------------------------

HELLO = (
    "import json, sys\nsay = lambda d: print(json.dumps(d), flush=True)\nsay({'version': '1'})\n"
)
LOOP = "for line in sys.stdin:\n    request = json.loads(line)\n    do = request['do']\n"
ANSWERS = {
    "good": "    say({'seconds': [0.5, 0.25], 'nmse': 0.0, 'note': 'x'})\n",
    "wrong": "    say({'nmse': 0.5})\n",
    "nan": "    say({'nmse': float('nan')})\n",
    "skips": "    say({'skip': 'no such kernel'})\n",
    "dies": "    sys.exit('cannot go on')\n",
    "hangs": "    continue\n",
    "rubbish": "    print('Segmentation', flush=True)\n",
    "list": "    say([1])\n",
    "dies later": "    sys.exit('lost') if do == 'measure' else say({'nmse': 0.0})\n",
    "no times": "    say({'seconds': [0.0]} if do == 'measure' else {'nmse': 0.0})\n",
}


@pytest.fixture
def baseline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], BaselineProcess]]:
    """Start a worker that answers so, and ends it."""
    monkeypatch.setattr(baseline_process, "PREPARE_LIMIT_S", 10.0)
    started = []

    def start(answer: str) -> BaselineProcess:
        if answer == "hangs":
            monkeypatch.setattr(baseline_process, "PREPARE_LIMIT_S", 0.2)
        command = [sys.executable, "-c", HELLO + LOOP + ANSWERS[answer]]
        started.append(BaselineProcess("fake", CPU, command=command))
        return started[-1]

    yield start
    for one in started:
        one.close()


def test_a_good_baseline_gets_a_figure(baseline: Callable[[str], BaselineProcess]) -> None:
    result = measure_case("cpu", SMALL, [baseline("good")], 0.01, rounds=2)
    (figure,) = result.figures
    assert figure.seconds == 0.375 and figure.rounds_s == [0.375, 0.375]
    assert figure.note == "x" and figure.reason == "" and figure.spread > 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("wrong", "wrong result: normalized squared error 0.5"),
        ("nan", "wrong result: normalized squared error nan"),
        ("skips", "no such kernel"),
        ("dies", "its process ended: cannot go on"),
        ("hangs", "no answer within 0.2 s"),
        ("rubbish", "an answer that is no JSON: 'Segmentation"),
        ("list", "an answer that is no object"),
        ("dies later", "its process ended: lost"),
        ("no times", "no times"),
    ],
)
def test_no_figure_without_a_right_result(
    baseline: Callable[[str], BaselineProcess], answer: str, reason: str
) -> None:
    result = measure_case("cpu", SMALL, [baseline(answer)], 0.01, rounds=2)
    (figure,) = result.figures
    assert figure.seconds is None and reason in figure.reason
    assert figure.wrong == answer.startswith(("wrong", "nan"))


def test_a_dead_baseline_starts_again_a_few_times(
    baseline: Callable[[str], BaselineProcess],
) -> None:
    dying = baseline("dies")
    reasons = [measure_case("cpu", SMALL, [dying], 0.01, 1).figures[0].reason for _ in range(5)]
    assert "ended" in reasons[2] and reasons[-1] == "its process failed too often"


def test_a_baseline_that_is_not_there_is_missing() -> None:
    with pytest.raises(BaselineMissing, match="No module named .baselines.nobody_baseline."):
        BaselineProcess("nobody", CPU)
    with pytest.raises(BaselineFailed, match="no_such_python"):
        BaselineProcess("numpy", CPU, ["no_such_python"])


def test_a_real_worker_measures() -> None:
    worker = BaselineProcess("numpy", CPU)
    try:
        assert worker.version == np.__version__
        assert worker.prepare(SMALL)["nmse"] < 1e-10
        assert min(worker.measure(0.001)) > 0
        half = Spec("half", "matmul", "matvec", {"m": 1, "k": 4, "n": 4, "storage": "float16"})
        assert "float16" in worker.prepare(half)["skip"]
        odd = Spec("odd", "riddle", "riddles")
        assert "expected a known kind" in worker.prepare(odd)["error"]
        with pytest.raises(BaselineFailed):
            worker.measure(0.001)
    finally:
        worker.close()


OWNER = f"""
import sys
from vksched.bench.baselines.workloads import Spec
from vksched.bench.baseline_process import BaselineProcess
baseline = BaselineProcess("numpy", {CPU})
baseline.prepare(Spec.from_dict({SMALL.as_dict()}))
print(baseline._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells children")
def test_a_stopped_worker_ends_with_its_killed_parent() -> None:
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            worker = os.pidfd_open(int(owner.stdout.readline()))
        finally:
            owner.kill()
    try:
        assert select.select([worker], [], [], 30.0)[0], "the worker is still there"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)


def test_a_worker_of_a_thread_outlives_it() -> None:
    with ThreadPoolExecutor(1) as pool:
        worker = pool.submit(BaselineProcess, "numpy", CPU).result()
    try:
        assert worker.prepare(SMALL)["nmse"] < 1e-10
    finally:
        worker.close()


def test_repeats_fill_a_batch() -> None:
    assert (
        protocol.repeats(1.0) == 1 and protocol.repeats(0.001) == 10 and protocol.repeats(0.0) == 64
    )
