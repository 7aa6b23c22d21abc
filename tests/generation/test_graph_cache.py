"""Steps that are kept: the same as those that are written, and only where nothing has changed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import language
import numpy as np
import pytest
from conftest import vulkan_names
from gguf_models import Tiny, write
from test_gguf_golden import build_golden as golden

import vksched as vs
from vksched.common import package_code
from vksched.common.dtypes import NDArray
from vksched.common.user_warning import VkschedWarning
from vksched.engine import graph_cache, graph_document
from vksched.engine.graph_cache import CachedGraph, hash_of
from vksched.engine.graph_document import decode_graph, encode_graph
from vksched.generation import deferred_step
from vksched.generation.deferred_step import StepLeaves, step_key
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.passes import optimize
from vksched.plan.plan import Plan
from vksched.plan.serialize.plan_codec import encode_plan
from vksched.plan.serialize.plan_request import PlanRequest
from vksched.planner.planner import answer
from vksched.storage import content_hash, disk_cache
from vksched.storage.lazy_array import as_array
from vksched.storage.model_file import MIN_MAPPED_BYTES
from vksched.topology.topology import Topology

TINY = Tiny(kind="Q8_0")
CARD = vulkan_names()[-1:]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5]
"""Read in steps of 8 and 1."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(deferred_step, "MIN_LAYERS", 2)
    monkeypatch.setattr(package_code, "LOADED_NS", sys.maxsize)  # whoever edits meanwhile
    monkeypatch.setattr(content_hash, "SETTLED_NS", -sys.maxsize)  # models are just written
    return tmp_path / "cache" / "graphs"


def build_model(path: Path, tiny: Tiny = TINY, seed: int = 5) -> LanguageModel:
    write(tiny, path, np.random.default_rng(seed))
    return loaded(path)


def loaded(path: Path) -> LanguageModel:
    model = vs.load(path)
    assert isinstance(model, LanguageModel)
    return model


def read(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    cache_type: str = "f32",
    device: str = "cpu",
) -> tuple[NDArray, int]:
    """Return the logits behind TEXT in a new scheduler, and how many steps were written."""
    written = []
    step = LanguageModel.step

    def counted(*args: Any, **named: Any) -> Any:
        written.append(args)
        return step(*args, **named)

    with monkeypatch.context() as patch, vs.Scheduler([device]) as sched:
        patch.setattr(LanguageModel, "step", counted)
        steps = SlotSteps(sched, model, 32, 1, cache_type=cache_type)
        return np.array(steps.prefill(0, TEXT, 0)), len(written)


@pytest.mark.parametrize(
    ("device", "cache_type"),
    [("cpu", "f32"), ("cpu", "f16"), ("cpu", "q8_0"), *((name, "f16") for name in CARD)],
)
def test_a_second_start_writes_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, device: str, cache_type: str
) -> None:
    first, written = read(build_model(tmp_path / "m.gguf"), monkeypatch, cache_type, device)
    assert written == 2 == len(list(folder.glob("*.graph")))
    second, written = read(loaded(tmp_path / "m.gguf"), monkeypatch, cache_type, device)
    assert written == 0 and np.array_equal(first, second)


@pytest.mark.parametrize("device", ["cpu", *CARD])
def test_a_second_start_plans_nothing_unless_it_is_asked_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, device: str
) -> None:
    planned: list[int] = []

    def counted(question: PlanRequest, graph: Graph, topology: Topology) -> Plan:
        planned.append(len(graph.nodes))
        return answer(question, graph, topology)

    monkeypatch.setattr("vksched.engine.plan_builder.answer", counted)

    def start(**how: Any) -> tuple[list[Any], NDArray, int]:
        planned.clear()
        with vs.Scheduler([device], **how) as sched:
            reader = SlotSteps(sched, loaded(tmp_path / "m.gguf"), 32, 1)
            logits = np.array(reader.prefill(0, TEXT, 0))
            plans = [run.plan.verify() for run in reader.steps.runs.values()]
            same = "policy", "placements", "reasons", "splits", "locations"  # not how much is free
            document = [[encode_plan(plan)[key] for key in same] for plan in plans]
            return document, logits, len(planned)

    build_model(tmp_path / "m.gguf")
    first, right, written = start()
    second, got, again = start()
    assert (written, again) == (2, 0) and second == first and np.array_equal(got, right)
    _, got, again = start(copies=2)
    assert again == 2 and np.array_equal(got, right)
    assert start(copies=2)[2] == 0, "the plan of the last start is kept"


def test_steps_of_a_file_that_may_change_within_a_tick_are_not_retained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(content_hash, "SETTLED_NS", 10**12)
    assert read(build_model(tmp_path / "m.gguf"), monkeypatch)[1] == 2
    assert read(loaded(tmp_path / "m.gguf"), monkeypatch)[1] == 2
    assert not list(folder.glob("*.graph"))


def test_where_no_plan_can_be_retained_the_graph_is_and_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("vksched.planner.plan_cache.ROOM", 1e12)
    right, written = read(build_model(tmp_path / "m.gguf"), monkeypatch)
    files = {path: path.stat().st_ino for path in folder.glob("*.graph")}
    assert written == 2 == len(files)
    got, written = read(loaded(tmp_path / "m.gguf"), monkeypatch)
    assert written == 0 and np.array_equal(got, right)
    assert {path: path.stat().st_ino for path in folder.glob("*.graph")} == files


@pytest.mark.parametrize(
    "name",
    ["llama", "llama4", "gemma3", "gpt2", "gpt-oss", "qwen2moe", "glm4moe_large", "phimoe"],
)
def test_graphs_of_other_architectures_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    model = golden(language.load(name), tmp_path)
    cache = model.cache(16, "f16")
    step = model.step(cache, 2)
    graph = optimize(build_graph(step.logits, step.updates)[0])
    document = encode_graph(graph, StepLeaves(model, cache))
    assert document is not None
    back = decode_graph(document, StepLeaves(model, cache))
    assert str(back) == str(graph)
    assert (back.outputs, back.backed_up_states, back.aliases) == (
        graph.outputs,
        graph.backed_up_states,
        graph.aliases,
    )
    assert back.keys.keys() == graph.keys.keys() and back.initial.keys() == graph.initial.keys()
    for node, held in graph.data.items():
        same = np.array_equal(as_array(back.data[node]), as_array(held), equal_nan=True)
        assert same and (back.keys[node] is graph.keys[node]) is (graph.nodes[node].op == "weight")
    assert all(back.keys[node] is graph.keys[node] for node in graph.initial)


# -- what decides ----------------------------------------------------------------------------------


Change = Callable[[pytest.MonkeyPatch], object]
PATCHES: dict[str, Change] = {
    "format": lambda patch: patch.setattr(graph_cache, "FORMAT", graph_cache.FORMAT + 1),
    "version": lambda patch: patch.setattr(graph_cache, "__version__", "other"),
    "folder of the code": lambda patch: patch.setattr(graph_cache, "PACKAGE", Path("elsewhere")),
    "python": lambda patch: patch.setattr(sys, "version", "other"),
    "numpy": lambda patch: patch.setattr(np, "__version__", "other"),
    "processor": lambda patch: patch.setattr("platform.machine", lambda: "other"),
    "native": lambda patch: patch.setattr(graph_cache.native_kernels, "native", os),
    "no native": lambda patch: patch.setattr(graph_cache.native_kernels, "native", None),
    "variable": lambda patch: patch.setenv("VKSCHED_NARROW", "0"),
}


def test_all_that_decides_is_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(tmp_path / "m.gguf")

    def key(
        model: LanguageModel = model,
        length: int = 32,
        cache_type: str = "f32",
        size: int = 8,
        rewriting: str = "",
    ) -> str | None:
        return hash_of(step_key(model, model.cache(length, cache_type), size), rewriting)

    assert key() == key(loaded(tmp_path / "m.gguf"))
    others = [
        key(length=16),
        key(cache_type="f16"),
        key(size=1),
        key(rewriting="otherwise"),
        key(build_model(tmp_path / "equal bytes.gguf")),
        key(build_model(tmp_path / "deeper.gguf", replace(TINY, layers=3))),
    ]
    changed = loaded(tmp_path / "m.gguf")
    changed.hyper = replace(changed.hyper, eps=1e-4)  # type: ignore[misc]
    others.append(key(changed))
    for change in PATCHES.values():
        with monkeypatch.context() as patch:
            change(patch)
            others.append(key())
    later = (tmp_path / "m.gguf").stat().st_mtime_ns + 10**9
    os.utime(tmp_path / "m.gguf", ns=(later, later))
    others.append(key(loaded(tmp_path / "m.gguf")))
    assert None not in others and len({key(), *others}) == 1 + len(others)


@contextmanager
def schedulers() -> Iterator[dict[str, str | None]]:
    """Yield what schedulers of several kinds tell of how they rewrite."""
    kinds: dict[str, tuple[list[str], dict[str, Any]]] = {
        "plain": (["cpu"], {}),
        "as written": (["cpu"], {"optimize": False}),
        "rounded": (["cpu"], {"precision": "mixed"}),
        **({"card": (CARD, {})} if CARD else {}),
    }
    document: dict[str, str | None] = {}
    for kind, (devices, how) in kinds.items():
        with vs.Scheduler(devices, **how) as sched:
            assert sched.graphs.rewriting == sched.graphs.rewriting
            document[kind] = sched.graphs.rewriting
    yield document


def test_schedulers_tell_how_they_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    with schedulers() as document:
        assert None not in document.values() and len(set(document.values())) == len(document)
    with vs.Scheduler(["cpu"], config={}) as sched:
        assert sched.graphs.rewriting is None
    if CARD:
        with vs.Scheduler(CARD) as sched:
            device: Any = sched.devices[0]
            before = sched.graphs.rewriting
            limits = replace(device.spec.limits, storage_buffers=4)
            monkeypatch.setitem(
                sched._preparing.specs, device.name, replace(device.spec, limits=limits)
            )
            monkeypatch.setattr(device, "_spec", replace(device._spec, limits=limits))
            assert sched.graphs.rewriting not in (None, before)


def test_another_file_of_the_same_name_and_size_is_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowed = replace(TINY, slowed=True)  # a tensor of it becomes part of the graph's constants
    read(build_model(tmp_path / "m.gguf", slowed), monkeypatch)
    size = (tmp_path / "m.gguf").stat().st_size
    got, written = read(build_model(tmp_path / "m.gguf", slowed, seed=6), monkeypatch)
    assert (tmp_path / "m.gguf").stat().st_size == size and written == 2
    monkeypatch.setenv("VKSCHED_CACHE", str(tmp_path / "another cache"))
    right, _ = read(loaded(tmp_path / "m.gguf"), monkeypatch)
    assert np.array_equal(got, right)


# -- what is not kept ------------------------------------------------------------------------------


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def changed(content: bytes) -> bytes:
    return content.replace(b"rms_norm", b"layer_norm", 1)


def anew(content: bytes, *how: tuple[bytes, bytes]) -> bytes:
    """Whole, and of no use."""
    _, document, constants = content.split(b"\n", 2)
    for old, new in how:
        assert old in document
        document = document.replace(old, new)
    content = document + b"\n" + constants
    return graph_document.digest_of(content) + b"\n" + content


def of_another(content: bytes) -> bytes:
    return anew(content, (b"blk.0.attn_q.weight", b"blk.9.attn_q.weight"))


def of_other_shapes(content: bytes) -> bytes:
    return anew(content, (b"[256]", b"[257]"))


def of_other_code(content: bytes) -> bytes:
    return anew(content, (b'["generation/slot_steps.py",', b'["generation/slot_steps.py",1'))


def of_code_that_is_gone(content: bytes) -> bytes:
    return anew(content, (b'["generation/slot_steps.py",', b'["models/gone.py",'))


def behind_the_end(content: bytes) -> bytes:
    """Its first constant would begin there."""
    return anew(content, (b'"constant",0]', b'"constant",99999999]'))


def before_the_beginning(content: bytes) -> bytes:
    return anew(content, (b'"constant",0]', b'"constant",-64]'))


def of_attrs_that_are_not_there(content: bytes) -> bytes:
    return anew(content, (b'"attrs":[', b'"attrs":[],"others":['))


def without_constants(content: bytes) -> bytes:
    content = b"\n".join(content.split(b"\n", 2)[1:2]) + b"\n"
    return graph_document.digest_of(content) + b"\n" + content


@pytest.mark.parametrize(
    "damage",
    [
        *(cut, changed, of_another, of_other_shapes, of_other_code, of_code_that_is_gone),
        *(behind_the_end, before_the_beginning, of_attrs_that_are_not_there, without_constants),
        *(lambda content: b"", lambda content: b"\n{}", lambda content: content[:-1]),
    ],
)
def test_files_that_are_damaged_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, damage: Callable[[bytes], bytes]
) -> None:
    right, _ = read(build_model(tmp_path / "m.gguf"), monkeypatch)
    for file in folder.glob("*.graph"):
        content = file.read_bytes()
        file.write_bytes(damage(content))
        assert file.read_bytes() != content
    got, written = read(loaded(tmp_path / "m.gguf"), monkeypatch)
    assert written == 2 and np.array_equal(got, right)
    got, written = read(loaded(tmp_path / "m.gguf"), monkeypatch)
    assert written == 0 and np.array_equal(got, right)


# -- what is made to mislead -----------------------------------------------------------------------


def forged(file: Path, change: Callable[[Any], object]) -> None:
    """Changes what a file tells, and gives it the digest of that."""
    content = file.read_bytes()
    document = graph_document.document_of(content)
    reports = json.loads(json.dumps(document.fields))
    change(reports)
    file.write_bytes(graph_document.bytes_of(replace(document, fields=reports)))


def node_of(document: Any, op: str) -> Any:
    return next(node for node in document["nodes"] if node[0] == op)


def over_another(document: Any) -> None:
    """Two results of a device that are needed at once in one place."""
    for row in document["plan"]["locations"]:
        row[2][0] = row[2][1] = 0


def another_order(document: Any) -> None:
    document["plan"]["splits"][0]["nodes"].reverse()


def attr_of_first_norm(document: Any) -> Any:
    return document["attrs"][node_of(document, "rms_norm")[2]]


FORGED: dict[str, Callable[[Any], object]] = {
    "of another key": lambda document: document.update(key="0" * 32),
    "no key": lambda document: document.pop("key"),
    "nodes left out of the plan": lambda document: document["plan"]["splits"][0]["nodes"].pop(),
    "another order": another_order,
    "a node that is not there": lambda document: document["plan"]["splits"][0]["nodes"].append(
        10**6
    ),
    "a device that is not there": lambda document: document["plan"]["splits"][0].update(device=7),
    "another placement": lambda document: document["plan"]["placements"][-1].__setitem__(0, 1),
    "a plan of words": lambda document: document["plan"].update(copies="many"),
    "no plan at all": lambda document: document.update(plan={}),
    "a result that is not there": lambda document: document["outputs"][0].__setitem__(1, -1),
    "kept of nobody": lambda document: document.update(backed_up_states=[10**6]),
    "merged of nobody": lambda document: document["aliases"].update(x=-5),
    "another input": lambda document: node_of(document, "input").__setitem__(4, "tokens"),
    "one more output": lambda document: document["outputs"].append(["more", 0]),
    "an operand that comes later": lambda document: document["nodes"][-1][1].__setitem__(0, 10**6),
    "an op of another name": lambda document: document["nodes"][-1].__setitem__(0, "os.system"),
    "a type of no size": lambda document: document["types"][-1].__setitem__(0, [-1]),
    "a weight for an op": lambda document: document["leaves"].append(
        [len(document["nodes"]) - 1, "weight", [*document["leaves"][0][2]]]
    ),
    "a leaf of no node": lambda document: document["leaves"].append([-1, "constant", 0]),
    "numbers as names": lambda document: document["nodes"][0].__setitem__(4, 5),
    "an object as an attribute": lambda document: attr_of_first_norm(document).update(eps={}),
}


@pytest.mark.parametrize("name", FORGED)
def test_files_that_were_built_to_mislead_are_set_aside(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    right, _ = read(build_model(tmp_path / "m.gguf"), monkeypatch)
    files = {path: path.read_bytes() for path in folder.glob("*.graph")}
    for file in files:
        forged(file, FORGED[name])
    with pytest.warns(VkschedWarning, match="is set aside as .damaged, and built again"):
        got, written = read(loaded(tmp_path / "m.gguf"), monkeypatch)
    assert written == 2 and np.array_equal(got, right)
    assert {file.with_suffix(".damaged") for file in files} == set(folder.glob("*.damaged"))
    got, written = read(loaded(tmp_path / "m.gguf"), monkeypatch)
    assert written == 0 and np.array_equal(got, right)


@pytest.mark.parametrize("device", CARD)
def test_places_on_a_device_are_verified(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    right, _ = read(build_model(tmp_path / "m.gguf"), monkeypatch, "f16", device)
    for file in folder.glob("*.graph"):
        forged(file, over_another)
    with pytest.warns(VkschedWarning, match="is set aside"):
        got, written = read(loaded(tmp_path / "m.gguf"), monkeypatch, "f16", device)
    assert written == 2 and np.array_equal(got, right)


def test_the_file_of_another_model_does_not_pass_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Both have weights of the same names and sizes, and other constants."""
    read(build_model(tmp_path / "a.gguf", replace(TINY, slowed=True)), monkeypatch)
    others = {path.read_bytes() for path in folder.glob("*.graph")}
    for path in folder.glob("*.graph"):
        path.unlink()
    tiny = replace(TINY, slowed=True)
    right, _ = read(build_model(tmp_path / "b.gguf", tiny, seed=6), monkeypatch)
    for path in folder.glob("*.graph"):
        path.write_bytes(others.pop())
    with pytest.warns(VkschedWarning, match="it has another key"):
        got, written = read(loaded(tmp_path / "b.gguf"), monkeypatch)
    assert written == 2 and np.array_equal(got, right)


# -- where nothing is kept -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["few layers", "no folder", "in memory", "a folder in its way", "code that has changed"]
)
def test_nothing_is_retained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, how: str
) -> None:
    model = build_model(tmp_path / "m.gguf")
    assert (tmp_path / "m.gguf").stat().st_size > MIN_MAPPED_BYTES
    if how == "few layers":
        monkeypatch.setattr(deferred_step, "MIN_LAYERS", 3)
    elif how == "no folder":
        monkeypatch.setattr(graph_cache, "folder_of", lambda name: None)
    elif how == "code that has changed":
        monkeypatch.setattr(graph_cache, "loaded_code", lambda: None)
    elif how == "in memory":
        from vksched.importers import load_gguf

        model = load_gguf((tmp_path / "m.gguf").read_bytes())
    else:
        folder.parent.write_text("a file")
    for _ in range(2):
        _, written = read(model, monkeypatch)
        assert written == 2 and not folder.exists()


@pytest.mark.parametrize("how", ["placed", "several devices", "a config"])
def test_only_steps_of_one_device_are_retained(tmp_path: Path, folder: Path, how: str) -> None:
    model = build_model(tmp_path / "m.gguf")
    devices = CARD * 2 if how == "several devices" else ["cpu"]
    if not devices:
        pytest.skip("no Vulkan device")
    config: Any = {} if how == "a config" else None
    with vs.Scheduler(devices, config=config) as sched:
        placement = {"*": "cpu"} if how == "placed" else None
        SlotSteps(sched, model, 32, 1, placement).prefill(0, TEXT, 0)
    assert not folder.exists()


def test_constants_of_a_graph_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_document, "MAX_BYTES", 100)
    model = build_model(tmp_path / "m.gguf")
    cache = model.cache(32)
    step = model.step(cache, 1)
    graph = build_graph(step.logits, step.updates)[0]
    assert encode_graph(graph, StepLeaves(model, cache)) is None
    other = build_model(tmp_path / "other.gguf")
    monkeypatch.setattr(graph_document, "MAX_BYTES", 1 << 20)
    assert encode_graph(graph, StepLeaves(model, cache)) is not None
    assert encode_graph(graph, StepLeaves(other, cache)) is None, (
        "these are another model's weights"
    )
    assert encode_graph(graph, StepLeaves(model, other.cache(32))) is None, (
        "these are another cache's states"
    )


def test_a_plan_is_retained_with_the_code_that_built_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def file() -> CachedGraph:
        return CachedGraph(hash_of(step_key(model, cache, 1), ""), leaves)

    model = build_model(tmp_path / "m.gguf")
    cache = model.cache(32)
    leaves = StepLeaves(model, cache)
    step = model.step(cache, 1)
    file().write(build_graph(step.logits, step.updates)[0], None)
    read_file = file()
    stored = read_file.read(lambda graph: None)
    assert stored is not None
    code = package_code.loaded_code()
    monkeypatch.setattr(graph_cache, "loaded_code", lambda: [*(code or ()), ("planner.py", 1, 1)])
    read_file.write(stored.graph, None)
    assert file().read(lambda graph: None) is None, "the file that made the plan is another one"


def test_files_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(graph_cache, "MAX_FILES", 2)
    model = build_model(tmp_path / "m.gguf")
    cache = model.cache(32)
    for size in (1, 2, 4):
        step = model.step(cache, size)
        graph = build_graph(step.logits, step.updates)[0]
        key = hash_of(step_key(model, cache, size), "")
        CachedGraph(key, StepLeaves(model, cache)).write(graph, None)
    assert len(list(folder.glob("*.graph"))) == 2


def test_what_processes_left_half_written_goes(tmp_path: Path) -> None:
    names = ("old.json", "new.json", "ended.tmp", "under_way.tmp")
    for number, name in enumerate(names):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (number, number))
    os.utime(tmp_path / "under_way.tmp")
    disk_cache.remove_old(tmp_path, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"new.json", "under_way.tmp"}


def test_a_folder_without_locks_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def refused(self: object) -> None:
        raise NotImplementedError("no locks here")

    monkeypatch.setattr("filelock.FileLock.__enter__", refused)
    assert read(build_model(tmp_path / "m.gguf"), monkeypatch)[1] == 2
    assert not list(folder.glob("*.graph"))
