"""The tests of onnx.backend.test that carry their data, run through vksched on sets of devices.

Used by tests/onnxruntime_api/test_onnx_backend.py and by scripts/checks/onnx_backend.py, which
writes docs/reference/onnx-support.md.
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

import vksched as vs
from vksched.engine.compile_options import CompileOptions
from vksched.engine.graph_registry import GraphRegistry
from vksched.importers.onnx.model import Model
from vksched.ir.build_graph import build_graph
from vksched.models.compiled_model import CompiledModel
from vksched.plan.costs.op_support import OpSupport
from vksched.plan.plan import Plan
from vksched.runtime.device import Device

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "tests" / "importers" / "data" / "onnx_reference.json"
FOLDERS = ("simple", "pytorch-converted", "pytorch-operator")
"""Kinds of tests that are files of the onnx package; those of kind "node" are made in code."""
T = onnx.TensorProto
PLAIN_32 = frozenset((T.FLOAT, T.INT32, T.BOOL))
"""Element types that every device computes."""
NARROW = {np.dtype(getattr(ml_dtypes, name)) for name in ("int2", "uint2", "int4", "uint4")}


@dataclass
class BackendCase:
    """One test. op: the op of a node test, also for its form as a function; else the kind.

    data_sets: inputs and expected outputs, by position.
    """

    name: str
    kind: str
    op: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def is_plain(self) -> bool:
        """All that goes in and out are tensors of float32, int32 or bool."""
        graph = self.model.graph
        types = [v.type for v in (*graph.input, *graph.output)]
        return all(t.HasField("tensor_type") and t.tensor_type.elem_type in PLAIN_32 for t in types)

    def feeds(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return inputs by name. Those with a default are not given."""
        defaults = {i.name for i in self.model.graph.initializer}
        names = [v.name for v in self.model.graph.input if v.name not in defaults]
        return dict(zip(names, inputs, strict=len(names) == len(inputs)))

    def check(self, expected: Sequence[Any], got: Sequence[Any]) -> None:
        """Raise where a result is not what is expected, as onnx's own runner judges it."""
        Runner.assert_similar_outputs(expected, got, self.rtol, self.atol)


@cache
def load_cases() -> dict[str, BackendCase]:
    """Return all tests by name; this takes seconds, and is done once."""
    cases: dict[str, BackendCase] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    for case in found:
        base = re.sub(r"_expanded(_ver\d+)?$", "", case.name)
        op = cases[base].op if base in cases else _op_of(case.model)
        data = [(_arrays(inputs), _arrays(wanted)) for inputs, wanted in case.data_sets]
        if op in ("Cast", "CastLike"):
            data = [(inputs, _modulo(inputs[0], wanted)) for inputs, wanted in data]
        cases[case.name] = BackendCase(
            case.name, "node", op, case.model, data, case.rtol, case.atol
        )
    for kind in FOLDERS:
        for case in sorted(load_model_tests(kind=kind), key=lambda c: str(c.name)):
            folder = Path(case.model_dir)
            model = onnx.load(folder / "model.onnx")
            data = [_read_set(f, model) for f in sorted(folder.glob("test_data_set_*"))]
            cases[case.name] = BackendCase(case.name, kind, kind, model, data, case.rtol, case.atol)
    return cases


def _op_of(model: onnx.ModelProto) -> str:
    node = model.graph.node[-1] if len(model.graph.node) == 1 else _main_node(model)
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _main_node(model: onnx.ModelProto) -> onnx.NodeProto:
    """Return the node that a test of several nodes is about: the first that is no constant."""
    return next(n for n in model.graph.node if n.op_type != "Constant")


def _modulo(value: Any, wanted: list[Any]) -> list[Any]:
    """Return the results of a cast of floats, modulo the range of integers of 2 or 4 bits.

    ONNX does not define values out of range. The expected values in the onnx package come from
    ml_dtypes: before 0.7 it keeps the lowest bits of these values, from 0.7 on it returns 0.
    """
    (result,) = wanted
    if value.dtype.kind != "f" or result.dtype not in NARROW:
        return wanted
    limits, whole = ml_dtypes.iinfo(result.dtype), np.trunc(value)
    is_outside = (whole < limits.min) | (whole > limits.max)
    return [np.where(is_outside, value.astype(np.int64).astype(result.dtype), result)]


def _arrays(values: Sequence[Any]) -> list[Any]:
    return [onnx.numpy_helper.to_array(v) if isinstance(v, T) else v for v in values]


def _read_set(folder: Path, model: onnx.ModelProto) -> tuple[list[Any], list[Any]]:
    def read(what: str, infos: Sequence[onnx.ValueInfoProto]) -> list[Any]:
        count = len(list(folder.glob(f"{what}_*.pb")))
        return [
            _read(folder / f"{what}_{i}.pb", info.type)
            for i, info in zip(range(count), infos, strict=False)
        ]

    return read("input", model.graph.input), read("output", model.graph.output)


def _read(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    if kind.HasField("sequence_type"):
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind.HasField("optional_type"):
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return onnx.numpy_helper.to_array(T.FromString(data))


# -- the reference evaluator -----------------------------------------------------------------------


def reference_error(case: BackendCase) -> str | None:
    """Return why the reference evaluator fails a test, None where it passes."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            evaluator = ReferenceEvaluator(case.model)
            for inputs, expected in case.data_sets:
                case.check(expected, evaluator.run(None, case.feeds(inputs)))
    except Exception as error:
        return _brief(error)
    return None


def _brief(error: BaseException) -> str:
    text = " ".join(re.sub(r"0x[0-9a-f]+", "...", str(error)).split())
    return f"{type(error).__name__}: {text}"[:300].rstrip()


def write_reference() -> None:
    """Write what the reference evaluator fails, and the groups of tests, for this onnx package."""
    cases = load_cases()
    errors = {name: reference_error(case) for name, case in cases.items()}
    counts: dict[str, int] = {}
    for case in cases.values():
        counts[case.op] = counts.get(case.op, 0) + 1
    held = {
        "onnx": onnx.__version__,
        "tests": dict(sorted(counts.items())),
        "fails": {name: error for name, error in sorted(errors.items()) if error},
    }
    REFERENCE.write_text(json.dumps(held, indent=1) + "\n")


@dataclass(frozen=True)
class Reference:
    """What the reference evaluator of one onnx package does. tests: how many there are of each op.

    fails: tests that it fails, with the errors.
    """

    onnx: str
    tests: Mapping[str, int]
    fails: Mapping[str, str]


@cache
def read_reference() -> Reference:
    """Return the notes about the reference evaluator."""
    return Reference(**json.loads(REFERENCE.read_text()))


def expected_to_pass(case: BackendCase) -> bool:
    """Return whether the reference evaluator passes a test: as noted, for another onnx package
    than the notes are of by asking it.
    """
    if read_reference().onnx == onnx.__version__:
        return case.name not in read_reference().fails
    return reference_error(case) is None


# -- running ---------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """One test on one set of devices. error: None where it passes.

    ran: how many nodes each device computed. why: for each op of vksched or ONNX that the CPU
    computed, the reason.
    """

    error: str | None = None
    ran: dict[str, int] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """ "device" when Vulkan devices computed all of it, "part" when some, "host" when none, and
        "none" where nothing had to be computed: views, and what is the same in every run.
        """
        on_devices = sum(n for name, n in self.ran.items() if name != "cpu")
        if self.ran.get("cpu"):
            return "part" if on_devices else "host"
        return "device" if on_devices else "none"


class CaseRunner:
    """Runs tests on one set of devices, through one scheduler.

    With several devices the nodes of each graph take turns on them.
    """

    def __init__(self, devices: Sequence[str | Device], trace: vs.Trace | None = None) -> None:
        self.sched = vs.Scheduler(devices, trace=trace)
        self.names = [d.name for d in self.sched.devices if d.name != "cpu"]

    def __enter__(self) -> CaseRunner:
        return self

    def __exit__(self, *exit: object) -> None:
        self.close()

    def close(self) -> None:
        self.sched.close()

    def run(self, case: BackendCase, model: Model | None = None) -> Outcome:
        """Run a test and compares. model: the case's, where it is loaded already."""
        outcome = Outcome()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", vs.VkschedWarning)
                run = self._compile(case, model or vs.load(case.model))
                try:
                    for inputs, expected in case.data_sets:
                        got = run(**case.feeds(inputs))
                        _look_at(run, outcome)
                        case.check(expected, list(got.values()))
                finally:
                    run.close()
        except Exception as error:
            outcome.error = _brief(error)
        return outcome

    def _compile(self, case: BackendCase, model: Model) -> CompiledModel:
        if len(self.names) < 2:
            return self.sched.compile(model)
        turns = itertools.cycle(self.names)
        for _ in range(zlib.crc32(case.name.encode()) % len(self.names)):
            next(turns)
        graphs = _GraphsInTurns(self.sched, turns)
        return CompiledModel(model, graphs, CompileOptions(), 16, warns=False)


class _GraphsInTurns(GraphRegistry):
    """Graphs of a scheduler whose nodes go to the devices in turn."""

    def __init__(self, sched: vs.Scheduler, turns: Iterator[str]) -> None:
        super().__init__(sched._preparing)
        self._sched = sched
        self._turns = turns

    def compile(
        self, outputs: Mapping[str, vs.Tensor], *_: object, **__: object
    ) -> vs.CompiledGraph:
        return self._sched.compile(outputs, _take_turns(outputs, self._turns))


def _take_turns(
    outputs: Mapping[str, vs.Tensor], devices: Iterator[str]
) -> dict[str | vs.Tensor, str]:
    graph, ids = build_graph(outputs)
    computed = {n.id for n in graph.nodes if _computes(graph, n.id)}
    return {tensor: next(devices) for tensor, i in ids.items() if i in computed}


def _computes(graph: vs.Graph, node: int) -> bool:
    return not graph.nodes[node].declaration.leaf and node not in graph.views


def _look_at(run: CompiledModel, outcome: Outcome) -> None:
    """Notes where a model's nodes ran."""
    outcome.ran.clear()
    for segment in run.segments:
        if segment.run is not None:
            _look_at_plan(segment.run.plan, outcome)
        step = segment.lowered.step
        if step is not None:
            outcome.ran["cpu"] = outcome.ran.get("cpu", 0) + 1
            outcome.why.setdefault(step.node.op_type, step.reason)


def _look_at_plan(plan: Plan, outcome: Outcome) -> None:
    devices, support = plan.topology.devices, OpSupport(plan.graph, plan.topology)
    for node in plan.graph.nodes:
        if not _computes(plan.graph, node.id):
            continue
        placement = plan.placements[node.id]
        name = devices[placement.device].name
        outcome.ran[name] = outcome.ran.get(name, 0) + 1
        if name == "cpu":
            reason = (
                node.attrs.get("reason") or support.unsupported_reason(node, 0) or placement.reason
            )
            outcome.why.setdefault(node.op.removeprefix("onnx."), str(reason))


def run_on_all(case: BackendCase, runners: Mapping[str, CaseRunner]) -> dict[str, Outcome]:
    """Run a test on all sets of devices, loaded once."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", vs.VkschedWarning)
            model = vs.load(case.model)
    except Exception as error:
        return {name: Outcome(_brief(error)) for name in runners}
    return {name: runner.run(case, model) for name, runner in runners.items()}
