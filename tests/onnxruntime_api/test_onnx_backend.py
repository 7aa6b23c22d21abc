"""The tests of the onnx package, on the CPU, on one device, on two at once; and the interface that
the package has for backends.
"""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import unittest
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import THOROUGH, vulkan_names
from selection import by_tier

onnx = pytest.importorskip("onnx")

import ml_dtypes  # noqa: E402 - it comes with onnx
import onnx_cases as cases  # noqa: E402
import onnx_page as page  # noqa: E402
from onnx import TensorProto, helper  # noqa: E402
from onnx.backend.test.runner import Runner  # noqa: E402

import vksched as vs  # noqa: E402
from vksched import onnx_backend  # noqa: E402
from vksched.topology.device_spec import DeviceSpec  # noqa: E402
from vksched.topology.limits import Limits  # noqa: E402

DEVICES = set(vulkan_names()) | {"cpu"}
SETS = {name: devices for name, devices in page.SETS.items() if DEVICES.issuperset(devices)}
GROUPS = (*cases.read_reference().tests, "others")
"""Ops with tests. "others" is empty for the onnx package that the notes are of."""
ON_DEVICES = set(GROUPS[::8])
"""Ops of which `make test` runs a case on each set; of the others it runs one on numpy."""
GPU = Limits(storage_buffers=16)
"""Of a device that takes what the first one of the page takes."""
NOTED = cases.read_reference().onnx == onnx.__version__


@cache
def all_cases() -> dict[str, cases.BackendCase]:
    """Return `load_cases`, which takes seconds, from where the last process has left it."""
    packages = (onnx, np, ml_dtypes)
    versions = (*(p.__version__ for p in packages), Path(cases.__file__).read_text("utf-8"))
    key = hashlib.sha256(repr(versions).encode()).hexdigest()[:16]
    path = cases.ROOT / "build" / "tests" / f"onnx_cases-{key}.pickle"
    if path.exists():
        stored: dict[str, cases.BackendCase] = pickle.loads(path.read_bytes())
        return stored
    built = cases.load_cases()
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("onnx_cases-*.pickle"):
        old.unlink(missing_ok=True)
    own = path.with_suffix(f".{os.getpid()}")
    own.write_bytes(pickle.dumps(built))
    own.replace(path)
    return built


@pytest.fixture(scope="session")
def runners() -> Iterator[dict[str, cases.CaseRunner]]:
    """One scheduler for each set of devices."""
    built = {name: cases.CaseRunner(devices) for name, devices in SETS.items()}
    yield built
    for runner in built.values():
        runner.close()


@pytest.fixture(scope="session")
def whole(runners: dict[str, cases.CaseRunner]) -> Iterator[dict[str, cases.CaseRunner]]:
    """What runs every case: all sets; in `make test` a simulated device in place of the first one,
    which places nodes as that does and has no kernels to compile.
    """
    if THOROUGH:
        yield runners
        return
    clock, spec = vs.SimulatedClock(), DeviceSpec("vulkan:0", "null", limits=GPU)
    with cases.CaseRunner([vs.SimulatedDevice(spec, clock)], vs.Trace(clock)) as simulated:
        yield {"vulkan:0": simulated}


@pytest.mark.scales
@pytest.mark.timeout(600)  # Attention has 186, three times each
@pytest.mark.parametrize("op", GROUPS)
def test_what_the_evaluator_passes_passes_here(
    op: str, runners: dict[str, cases.CaseRunner], whole: dict[str, cases.CaseRunner]
) -> None:
    known = cases.read_reference().tests
    chosen = [
        c for c in all_cases().values() if c.op == op or (op == "others" and c.op not in known)
    ]
    rest = {name: runners[name] for name in SETS if name == "cpu" or op in ON_DEVICES}
    results = {case.name: cases.run_on_all(case, whole) for case in chosen}
    sample = {case.name: cases.run_on_all(case, rest) for case in chosen[: not THOROUGH]}
    failed = [
        f"{case.name} on {name}: {outcome.error}"
        for case in chosen
        for found in (results[case.name], sample.get(case.name, {}))
        for name, outcome in found.items()
        if outcome.error is not None and cases.expected_to_pass(case)
    ]
    assert not failed, "\n".join(failed)
    if NOTED and op != "others":
        written = page.stored_rows().get(op)
        row = page.make_row(op, chosen, results)
        assert written and page.only(written, whole) == row, (
            "the table of ONNX ops is not current; try python scripts/checks/onnx_backend.py "
            "--write"
        )


def test_the_page_adds_up() -> None:
    rows = page.stored_rows()
    total = rows.pop("all")
    assert page.total_of(rows.values()) == total
    assert all(total.passed[name] == total.tests for name in page.SETS)
    assert total.plain_on_device >= 0.85 * total.plain
    assert rows.keys() == cases.read_reference().tests.keys()


@pytest.mark.skipif(not NOTED, reason="the notes are of another onnx package")
def test_the_notes_on_the_evaluator_are_current() -> None:
    """All that it fails but random values, and every hundredth of the others, asked anew."""
    noted = cases.read_reference()
    every = all_cases()
    assert Counter(case.op for case in every.values()) == noted.tests
    fails = {name for name in noted.fails if every[name].op != "Bernoulli"}
    sample = {*fails, *(name for name in list(every)[::100] if every[name].op != "Bernoulli")}
    found = {name: cases.reference_error(every[name]) for name in sorted(sample)}
    assert {name for name, error in found.items() if error} == fails


@pytest.mark.scales
@pytest.mark.skipif("two devices" not in SETS, reason="two Vulkan devices are needed")
def test_two_devices_share_the_work(runners: dict[str, cases.CaseRunner]) -> None:
    ran: Counter[str] = Counter()
    ops = ("Gelu", "LayerNormalization", "Relu", "Exp", "Softmax")
    chosen = [case for case in all_cases().values() if case.op in ops]
    for case in chosen[:: by_tier(4, 2, 1)]:
        ran.update(runners["two devices"].run(case).ran)
    on_devices = [ran[name] for name in SETS["two devices"]]
    assert min(on_devices) >= 0.4 * sum(ran.values())


# -- the interface ---------------------------------------------------------------------------------

X = np.array([[-1.0, 2.0], [3.0, -4.0]], np.float32)
ALL = ",".join(n for n in ("vulkan:0", "vulkan:1") if n in DEVICES) or "cpu"


@pytest.fixture(autouse=True, scope="module")
def closed() -> Iterator[None]:
    """Nothing stays open behind these tests."""
    yield
    onnx_backend.close()


def make_model() -> onnx.ModelProto:
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[n,2] x, float[2] b) => (float[n,2] y, float[n,2] z)
        <float[2] b = {1, 2}> { y = Add(x, b)\n z = Relu(x) }"""
    )


@pytest.mark.parametrize("device", ["cpu", "CPU", ALL])
def test_a_prepared_model_takes_inputs_in_all_forms(device: str) -> None:
    with onnx_backend.prepare(make_model(), device) as rep:
        b = np.array([1, 2], np.float32)
        for inputs in (X, [X], (X,), {"x": X}, [X, b], {"x": X, "b": b}):
            y, z = found = rep.run(inputs)
            np.testing.assert_array_equal(y, X + b)
            np.testing.assert_array_equal(found.z, np.maximum(X, 0))
            assert found["z"] is z
        with pytest.raises(vs.GraphError, match="at most 2 inputs"):
            rep.run([X, b, b])
    with pytest.raises(vs.PlanError, match="closed"):
        rep.run(X)


def test_a_placement_is_retained() -> None:
    if "vulkan:0" not in DEVICES:
        pytest.skip("no Vulkan device here")
    with onnx_backend.prepare(make_model(), "vulkan:0", placement={"z*": "cpu"}) as rep:
        rep.run(X)
        assert "override" in rep.model_run.plan.explain()


def test_a_precision_is_retained() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x, float[3, 2] w) => (float[2, 2] y) { y = MatMul(x, w) }"""
    model = onnx.parser.parse_model(text)
    with onnx_backend.prepare(model, "cpu", precision="mixed") as rep:
        rep.run([np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)])
        assert "precision: 1 mixed" in rep.model_run.plan.explain()


@pytest.mark.parametrize("device", ["cpu", ALL])
def test_one_node(device: str) -> None:
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (found,) = onnx_backend.run_node(node, [X, np.float32(1)], device)
    np.testing.assert_array_equal(found, np.minimum(X, 1))
    info = [(np.float32, X.shape)]
    found = onnx_backend.run_node(node, {"x": X, "high": np.float32(1)}, device, info)
    np.testing.assert_array_equal(found.y, np.minimum(X, 1))
    with pytest.raises(vs.GraphError, match="expected 2 inputs"):
        onnx_backend.run_node(node, X, device)


def test_one_node_of_an_older_opset() -> None:
    node = helper.make_node("Unsqueeze", ["x"], ["y"], axes=[0])  # an input since 13
    (found,) = onnx_backend.run_node(node, X, "cpu", opset_version=11)
    assert found.shape == (1, 2, 2)


def test_one_node_with_a_sequence() -> None:
    node = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    (found,) = onnx_backend.run_node(node, [[X, X]], "cpu")
    np.testing.assert_array_equal(found, np.concatenate([X, X]))


def test_devices() -> None:
    assert onnx_backend.supports_device("cpu") and onnx_backend.supports_device("CPU")
    assert onnx_backend.supports_device(ALL)
    assert not onnx_backend.supports_device("CUDA")
    assert not onnx_backend.supports_device(f"{ALL},vulkan:99")
    assert onnx_backend.is_compatible(make_model(), "cpu")
    assert not onnx_backend.is_compatible(make_model(), "CUDA")
    bad = make_model()
    bad.graph.node[0].op_type = "Nothing"
    assert not onnx_backend.is_compatible(bad, "cpu")


def test_models_of_the_same_devices_share_a_scheduler() -> None:
    one, two = (onnx_backend.prepare(make_model(), "cpu") for _ in range(2))
    one.run(X)
    two.run(X)
    runs = [one.model_run, two.model_run]
    del one, two
    gc.collect()
    onnx_backend.prepare(make_model(), "cpu").close()  # frees what nobody holds any more
    for run in runs:
        with pytest.raises(vs.PlanError, match="closed"):
            run(x=X)


def test_what_is_prepared_after_close_opens_devices_again() -> None:
    first = onnx_backend.prepare(make_model(), "cpu")
    onnx_backend.close()
    with pytest.raises(vs.VkschedError, match="closed"):
        first.run(X)
    np.testing.assert_array_equal(onnx_backend.run_model(make_model(), X, "cpu").z, X.clip(0))


def test_onnx_s_own_runner_drives_it() -> None:
    cases.load_cases()  # making them is not free of warnings
    suite = Runner(onnx_backend.VkschedBackend, __name__).include("^test_(relu|gelu_tanh)_.*cpu")
    result = suite.test_suite.run(unittest.TestResult())
    assert result.testsRun > len(result.skipped) and result.wasSuccessful()


def test_types_of_bfloat16_are_reported() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    (found,) = onnx_backend.run_node(node, X.astype(ml_dtypes.bfloat16), "cpu")
    np.testing.assert_array_equal(found, X)
