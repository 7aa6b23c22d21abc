"""Graphs of all origins, cached on disk: the next start finds them, and only where they fit."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import vulkan_names
from onnx import TensorProto, helper, numpy_helper

import vksched as vs
from vksched.common import package_code
from vksched.common.dtypes import NDArray
from vksched.common.user_warning import VkschedWarning
from vksched.engine import graph_cache, graph_document
from vksched.engine.graph_cache import describe_constraints, describe_graph
from vksched.engine.graph_document import SourceLeaves, decode_graph, encode_graph
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize
from vksched.plan.plan import Plan
from vksched.plan.serialize.plan_request import PlanRequest
from vksched.planner.planner import answer
from vksched.storage import background_writes, content_hash
from vksched.storage.model_file import MIN_MAPPED_BYTES, open_model
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology

CARD = vulkan_names()[-1:]
LAYERS, WIDTH = 6, 24
X = np.random.default_rng(0).standard_normal((3, WIDTH)).astype(np.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(graph_cache, "MIN_NODES", 8)
    monkeypatch.setattr(package_code, "LOADED_NS", sys.maxsize)  # whoever edits meanwhile
    return tmp_path / "cache" / "graphs"


class Work:
    """Counts of a start: passes and plans by number of nodes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.optimized: list[int] = []
        self.planned: list[int] = []

        def optimized(graph: Graph, constraints: RewriteConstraints | None = None) -> Graph:
            self.optimized.append(len(graph.nodes))
            return optimize(graph, constraints)

        def planned(question: PlanRequest, graph: Graph, topology: Topology) -> Plan:
            self.planned.append(len(graph.nodes))
            return answer(question, graph, topology)

        monkeypatch.setattr("vksched.engine.request.optimize", optimized)
        monkeypatch.setattr("vksched.engine.plan_builder.answer", planned)

    def taken(self) -> tuple[int, int]:
        """How often passes ran and a plan was made since the last call."""
        out = len(self.optimized), len(self.planned)
        self.optimized.clear()
        self.planned.clear()
        return out


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def mlp(seed: int = 1, bias: float = 0.5) -> vs.Tensor:
    rng = np.random.default_rng(seed)
    h = vs.input("x", (3, WIDTH))
    for number in range(LAYERS):
        w = vs.weight(rng.standard_normal((WIDTH, WIDTH)).astype(np.float32), f"w{number}")
        h = vs.tanh(h @ w + vs.constant(np.full(WIDTH, bias, np.float32)))
    return h


def run(outputs: vs.Tensor, device: str = "cpu", **options: Any) -> NDArray:
    with vs.Scheduler([device]) as sched:
        return np.array(sched.compile(outputs, **options)(x=X))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.graph"))


# -- ONNX models -----------------------------------------------------------------------------------


def write_onnx(path: Path, seed: int = 2, convolves: bool = False) -> Path:
    rng = np.random.default_rng(seed)
    nodes, held, h = [], [], "x"
    for number in range(LAYERS):
        shape = (8, 8, 3, 3) if convolves else (WIDTH, WIDTH)
        array = rng.standard_normal(shape).astype(np.float32) / 8
        held.append(numpy_helper.from_array(array, f"w{number}"))
        op = "Conv" if convolves else "MatMul"
        how = {"pads": [1, 1, 1, 1]} if convolves else {}
        nodes.append(helper.make_node(op, [h, f"w{number}"], [f"m{number}"], **how))
        nodes.append(helper.make_node("Relu", [f"m{number}"], [f"h{number}"]))
        h = f"h{number}"
    shape = (1, 8, 9, 9) if convolves else (3, WIDTH)
    ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in ("x", h))
    model = helper.make_model(
        helper.make_graph(nodes, "layers", *ends, held),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(model, str(path))
    return path


def start(path: Path, device: str = "cpu") -> NDArray:
    """Return the result of a model in a new scheduler."""
    model: Any = vs.load(path)
    with vs.Scheduler([device]) as sched:
        run = sched.compile(model)
        shape = run.plan.graph.inputs[0].type.shape
        (found,) = run(x=np.ones(shape, np.float32)).values()
        run.plan.verify()
        return np.array(found)


@pytest.mark.parametrize("device", ["cpu", *CARD])
@pytest.mark.parametrize("convolves", [False, True])
def test_the_second_start_of_an_onnx_model_rewrites_and_plans_nothing(
    tmp_path: Path, folder: Path, work: Work, device: str, convolves: bool
) -> None:
    path = write_onnx(tmp_path / "m.onnx", convolves=convolves)
    first = start(path, device)
    assert work.taken() == (1, 1)
    is_whole = bool(files(folder))
    assert is_whole or (convolves and device != "cpu"), "transformed weights are no constants"
    second = start(path, device)
    assert work.taken() == ((0, 0) if is_whole else (1, 1))
    assert np.array_equal(first, second)


def test_another_model_of_the_same_sizes_is_rewritten(
    tmp_path: Path, folder: Path, work: Work
) -> None:
    start(write_onnx(tmp_path / "m.onnx"))
    work.taken()
    changed = start(write_onnx(tmp_path / "m.onnx", seed=3))
    assert work.taken() == (1, 1) and len(files(folder)) == 2
    assert np.array_equal(changed, start(tmp_path / "m.onnx")) and work.taken() == (0, 0)


@pytest.mark.parametrize("at", [0, 40, 200, -1])
def test_a_damaged_entry_is_ignored_and_written_again(
    tmp_path: Path, folder: Path, work: Work, at: int
) -> None:
    path = write_onnx(tmp_path / "m.onnx")
    right = start(path)
    work.taken()
    (file,) = files(folder)
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    with pytest.warns(VkschedWarning, match="is set aside as .damaged, and built again"):
        assert np.array_equal(start(path), right)
    assert work.taken() == (1, 1) and file.with_suffix(".damaged").exists()
    assert np.array_equal(start(path), right) and work.taken() == (0, 0)


def test_weights_of_a_file_are_known_by_it_unless_it_may_change_within_a_tick(
    tmp_path: Path, folder: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model() -> vs.Tensor:
        content = np.frombuffer(open_model(path, "test").content, np.float32)
        h = vs.input("x", (3, WIDTH))
        for number in range(LAYERS):
            start = number * WIDTH * WIDTH
            w = content[start : start + WIDTH * WIDTH].reshape(WIDTH, WIDTH)
            h = vs.tanh(h @ vs.weight(w, f"w{number}"))
        return h

    path = tmp_path / "w"
    path.write_bytes(np.ones(MIN_MAPPED_BYTES, np.float32))
    monkeypatch.setattr(content_hash, "SETTLED_NS", 10**12)
    right = run(model())
    assert np.array_equal(run(model()), right)
    assert work.taken() == (2, 2) and not files(folder)
    monkeypatch.setattr(content_hash, "SETTLED_NS", 0)
    assert np.array_equal(run(model()), right)
    assert np.array_equal(run(model()), right)
    assert work.taken() == (1, 1) and len(files(folder)) == 1


# -- writes in the background ----------------------------------------------------------------------


def test_compile_does_not_write_the_file_and_close_waits_for_it(
    folder: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As does a later compile of the same graph."""
    monkeypatch.setattr(background_writes, "DELAY_S", 3600.0)
    writers: list[int] = []
    write = graph_cache.CachedGraph.write

    def written(*args: Any) -> None:
        writers.append(threading.get_ident())
        write(*args)

    monkeypatch.setattr(graph_cache.CachedGraph, "write", written)
    with vs.Scheduler(["cpu"]) as sched:
        first = sched.compile(mlp())
        right = np.array(first(x=X))
        assert not writers and not files(folder)
        first.close()
        again = sched.compile(mlp())
        assert len(files(folder)) == 1 and work.taken() == (1, 1)
        assert np.array_equal(np.array(again(x=X)), right)
        sched.compile(mlp(seed=7))
        assert len(files(folder)) == 1
    assert len(files(folder)) == 2
    assert len(writers) == 2 and threading.get_ident() not in writers


# -- graphs of tensors -----------------------------------------------------------------------------


def test_a_graph_of_equal_weights_is_found_again(folder: Path, work: Work) -> None:
    right = run(mlp())
    assert work.taken() == (1, 1)
    assert np.array_equal(run(mlp()), right) and work.taken() == (0, 0)
    others = [run(mlp(seed=7)), run(mlp(bias=0.25)), run(mlp(), precision="mixed")]
    assert work.taken() == (3, 3) and len(files(folder)) == 4
    assert not any(np.array_equal(other, right) for other in others[:2])


def test_options_of_a_request_select_another_file(folder: Path, work: Work) -> None:
    right = run(mlp())
    seen: list[str] = []
    for _ in range(2):
        work.taken()
        observed = run(mlp(), observe={"tanh_1": lambda name, array: seen.append(name)})
        assert np.array_equal(observed, right)
    assert seen == ["tanh_1"] * 2 and work.taken() == (0, 0) and len(files(folder)) == 2
    run(mlp(), placement={"*": "cpu"})
    assert len(files(folder)) == 3


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("VKSCHED_TRACE", ("1.json", "2.json")),
        ("VKSCHED_MONITOR", ("0", "off")),
        ("VKSCHED_TEMPLATES", ("", "inprocess")),
        ("VKSCHED_PROBE", ("", "inprocess")),
        ("VKSCHED_CHECK", ("1", "0")),
        ("VKSCHED_FIND_OVERFLOW", ("1", "0")),
        ("VKSCHED_NARROW", ("1", "0")),
        ("VKSCHED_OF_A_LATER_VERSION", ("1", "0")),
    ],
)
def test_environment_variables_select_another_file_only_if_they_may_change_the_graph(
    variable: str,
    values: tuple[str, str],
    tmp_path: Path,
    folder: Path,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where tapes are written
    for value in values:
        work.taken()
        monkeypatch.setenv(variable, value)
        run(mlp())
    has_influence = variable not in graph_cache.WITHOUT_INFLUENCE
    assert has_influence is (variable in ("VKSCHED_NARROW", "VKSCHED_OF_A_LATER_VERSION"))
    assert work.taken() == ((1, 1) if has_influence else (0, 0))
    assert len(files(folder)) == 1 + has_influence


def test_the_cache_folder_may_be_moved(
    tmp_path: Path, folder: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(mlp())
    work.taken()
    folder.parent.rename(tmp_path / "moved")
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "moved"))
    run(mlp())
    assert work.taken() == (0, 0)


def test_states_are_those_of_this_process(folder: Path, work: Work) -> None:
    def totals() -> list[float]:
        total = vs.state(np.zeros((3, WIDTH), np.float32), name="total")
        h = mlp() + total
        with vs.Scheduler(["cpu"]) as sched:
            accumulate = sched.compile(h, updates={total: h})
            return [float(np.asarray(accumulate(x=X)).sum()) for _ in range(3)]

    first = totals()
    assert work.taken() == (1, 1) and len(files(folder)) == 1
    assert totals() == first and work.taken() == (0, 0)


def test_equal_graphs_of_one_scheduler_read_no_file(folder: Path, work: Work) -> None:
    tensor = mlp()
    with vs.Scheduler(["cpu"]) as sched:
        first, second = sched.compile(tensor), sched.compile(tensor)
        assert first.plan is second.plan
    assert work.taken() == (1, 1)


def test_graphs_of_several_outputs_come_back_in_their_structure(work: Work) -> None:
    def outputs() -> dict[str, vs.Tensor]:
        h = mlp()
        return {"b": h, "a": vs.exp(h)}

    for _ in range(2):
        with vs.Scheduler(["cpu"]) as sched:
            found = sched.compile(outputs())(x=X)
            assert isinstance(found, dict) and list(found) == ["b", "a"]
            assert np.allclose(np.exp(found["b"]), found["a"])
    assert work.taken() == (1, 1)


@pytest.mark.parametrize("how", ["small", "as written", "a config", "large weights in memory"])
def test_nothing_is_cached(
    folder: Path, work: Work, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    settings: dict[str, Any] = {}
    if how == "small":
        monkeypatch.setattr(graph_cache, "MIN_NODES", 1000)
    elif how == "as written":
        settings["optimize"] = False
    elif how == "a config":
        settings["config"] = {}
    else:
        monkeypatch.setattr(graph_cache, "MAX_HASHED_BYTES", 1000)
    with vs.Scheduler(["cpu"], **settings) as sched:
        sched.compile(mlp())(x=X)
    assert not folder.exists()


def test_what_cannot_be_reported_by_name_is_not_described() -> None:
    few = build_graph(vs.exp(vs.input("x", (2,))))[0]
    assert describe_graph(few) is None
    graph = build_graph(mlp())[0]
    assert describe_graph(graph) == describe_graph(build_graph(mlp())[0])
    assert describe_graph(graph) != describe_graph(build_graph(mlp(bias=0.25))[0])


def test_constraints_are_described_by_all_that_passes_read() -> None:
    some = RewriteConstraints(frozenset("a"), {"b": "cpu"}, Limits(), 1 << 30)
    reported = {
        describe_constraints(each, with_memory=True)
        for each in (
            some,
            replace(some, observed=frozenset("b")),
            replace(some, pinned_devices={}),
            replace(some, limits=None),
            replace(some, limits=Limits(subgroup_size=8)),
            replace(some, memory_bytes=1 << 31),
        )
    }
    assert len(reported) == 6
    less = replace(some, memory_bytes=1 << 20)
    assert describe_constraints(some, False) == describe_constraints(less, False)


# -- forged files ----------------------------------------------------------------------------------


def rename(reported: Any, *names: str) -> None:
    """Rename nodes, all by default, and drop their former names."""
    for node in reported["nodes"]:
        node[4] += "_" if not names or node[4] in names else ""
    reported["aliases"] = {}


FORGED: dict[str, Callable[[Any], object]] = {
    "a leaf of another number": lambda reported: reported["leaves"][0].__setitem__(2, 10**6),
    "a negative leaf": lambda reported: reported["leaves"][0].__setitem__(2, -(10**6)),
    "a leaf of names": lambda reported: reported["leaves"][0].__setitem__(2, ["w0"]),
    "a node as a leaf": lambda reported: reported["leaves"][0].__setitem__(1, "state"),
    "a plan of nothing": lambda reported: reported.update(plan={}),
    "another key": lambda reported: reported.update(key="0" * 32),
    "other names": rename,
    "another input": lambda reported: rename(reported, "x"),
    "another name of an observed node": lambda reported: rename(reported, "tanh_1"),
    "an observed node of an unknown name": lambda reported: (
        rename(reported, "tanh_1"),
        reported["aliases"].update(tanh_1=7),
    ),
    "an output of another name": lambda reported: reported["outputs"][0].__setitem__(0, "y"),
    "one more output": lambda reported: reported["outputs"].append(["y", 0]),
    "another output": lambda reported: reported["outputs"][0].__setitem__(1, 1),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_file_that_was_built_to_mislead_is_set_aside(folder: Path, work: Work, name: str) -> None:
    observe = {"tanh_1": lambda name, array: None}
    right = run(mlp(), observe=observe)
    (file,) = files(folder)
    document = graph_document.document_of(file.read_bytes())
    data = json.loads(json.dumps(document.fields))
    FORGED[name](data)
    file.write_bytes(graph_document.bytes_of(replace(document, fields=data)))
    work.taken()
    with pytest.warns(VkschedWarning, match="is set aside"):
        assert np.array_equal(run(mlp(), observe=observe), right)
    assert work.taken() == (1, 1)
    assert np.array_equal(run(mlp(), observe=observe), right) and work.taken() == (0, 0)


def test_a_document_gives_the_graph_back() -> None:
    source = build_graph(mlp())[0]
    graph = optimize(source)
    document = encode_graph(graph, SourceLeaves(source))
    assert document is not None
    back = decode_graph(document, SourceLeaves(source))
    assert str(back) == str(graph) and back.aliases == graph.aliases
    weights = [node.id for node in graph.weights]
    assert weights and all(back.keys[n] is graph.keys[n] for n in weights)
    other = build_graph(mlp())[0]
    assert encode_graph(graph, SourceLeaves(other)) is None, "these are another graph's weights"
