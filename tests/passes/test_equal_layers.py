"""Equal layers: passes that see a few of them make the same graph as passes that see all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import language
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from selection import examples, spread
from test_gguf_golden import build_golden

import vksched as vs
from vksched import passes
from vksched.importers.gguf.model import LanguageModel
from vksched.ir.build_graph import build_graph
from vksched.ir.graph import Graph
from vksched.ir.tensor import Tensor
from vksched.passes import RewriteConstraints, optimize
from vksched.passes.collapse_layers import MIN_LAYERS, VISIBLE_LAYERS, collapse_repeated_layers
from vksched.topology.limits import Limits

DEPTH = 12
LEFT_OUT = ("gemma3n", "gemma4")
"""Models with a table that has columns for each layer."""
DECODERS = [
    name
    for name in language.NAMES
    if name not in language.ENCODERS and not name.startswith(LEFT_OUT)
]
CONSTRAINTS = {
    "numpy": RewriteConstraints(),
    "vulkan": RewriteConstraints(limits=Limits(storage_buffers=8), memory_bytes=1 << 30),
    "least": RewriteConstraints(limits=replace(Limits(), storage_buffers=4), memory_bytes=1 << 30),
}


def whole(graph: Graph, constraints: RewriteConstraints, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """What passes make that see all layers."""
    with monkeypatch.context() as patch:
        patch.setattr(passes, "collapse_repeated_layers", lambda *_: None)
        return optimize(graph, constraints)


def check_same(
    graph: Graph, constraints: RewriteConstraints, monkeypatch: pytest.MonkeyPatch
) -> Graph:
    """Return the graph after passes; it is equal either way, down to ids, names and owners."""
    built, wanted = optimize(graph, constraints), whole(graph, constraints, monkeypatch)
    assert list(map(str, built.nodes)) == list(map(str, wanted.nodes))
    assert built.nodes == wanted.nodes
    assert (built.outputs, built.backed_up_states) == (wanted.outputs, wanted.backed_up_states)
    assert dict(built.aliases) == dict(wanted.aliases)
    for got, expected in ((built.data, wanted.data), (built.initial, wanted.initial)):
        assert got.keys() == expected.keys()
        for node_id, held in got.items():
            other = expected[node_id]
            assert held is other or np.array_equal(np.asarray(held), np.asarray(other))
    assert built.key == wanted.key
    return built


# -- language models -------------------------------------------------------------------------------


def deep(model: LanguageModel) -> LanguageModel:
    """Return a model with the layers of another again and again."""
    file, layers = model.file, model.hyper.layers
    period = file.metadata.get(f"{model.architecture}.full_attention_interval", 1)
    layers -= layers % period if layers > period else 0
    tensors = {name: t for name, t in file.tensors.items() if not name.startswith("blk.")}
    for number in range(DEPTH):
        start = f"blk.{number % layers}."
        for name, tensor in file.tensors.items():
            if name.startswith(start):
                own = f"blk.{number}.{name[len(start) :]}"
                tensors[own] = replace(tensor, name=own)
    keys: dict[str, Any] = {
        key: _longer(value, model.hyper.layers) for key, value in file.metadata.items()
    }
    keys[f"{model.architecture}.block_count"] = DEPTH
    return LanguageModel(
        replace(file, metadata=MappingProxyType(keys), tensors=MappingProxyType(tensors))
    )


def _longer(value: Any, layers: int) -> Any:
    if isinstance(value, np.ndarray) and len(value) == layers:
        return np.resize(value, DEPTH)
    return value


@pytest.mark.parametrize("name", spread(DECODERS, 15))
def test_architectures_come_out_as_they_were(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = deep(build_golden(language.load(name), tmp_path))
    if model.hyper.layers != DEPTH or not model.hyper.causal:
        pytest.skip("no decoder of layers")
    cache = model.cache(16)
    for tokens, parts in ((1, 1), (8, 2)):
        step = model.step(cache, tokens, parts)
        graph, _ = build_graph(step.logits, step.updates)
        for constraints in CONSTRAINTS.values():
            check_same(graph, constraints, monkeypatch)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3", "gpt2", "qwen3moe"])
def test_most_layers_are_left_out(name: str, tmp_path: Path) -> None:
    model = deep(build_golden(language.load(name), tmp_path))
    step = model.step(model.cache(16), 1)
    graph, _ = build_graph(step.logits, step.updates)
    short = collapse_repeated_layers(graph, RewriteConstraints())
    assert short is not None and short.last == DEPTH - 1
    assert list(short.left_out) == list(range(short.first + 2, DEPTH - 2))
    assert any(node.name.startswith("blk.11.") for node in short.graph.nodes)


# -- graphs by hand --------------------------------------------------------------------------------

RNG = np.random.default_rng(7)
Layer = Callable[[int, Tensor], Tensor]


def plain(number: int, x: Tensor) -> Tensor:
    w = vs.weight(RNG.standard_normal((4, 4)).astype(np.float32), "w")
    y = vs.relu(vs.matmul(x, w) * 1.0 + 0.5)
    return x + y


def stacked(layer: Layer, depth: int = DEPTH) -> dict[int, Tensor]:
    """Return the results of layers behind each other."""
    x, built = vs.input("x", (3, 4)), {}
    for number in range(depth):
        with vs.name_scope(f"net.{number}"):
            built[number] = x = layer(number, x)
    return built


def graph_of(outputs: Mapping[str, Tensor]) -> Graph:
    return build_graph(outputs)[0]


@pytest.mark.parametrize("constraints", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_layers_by_hand(constraints: RewriteConstraints, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of({"y": vs.softmax(stacked(plain)[DEPTH - 1])})
    short = collapse_repeated_layers(graph, constraints)
    assert short is not None and len(short.left_out) == DEPTH - 5  # the first reads the input
    built = check_same(graph, constraints, monkeypatch)
    assert "net.5.mul" in built.aliases  # by 1: gone, and still known


def test_too_few_layers_are_not_worth_it() -> None:
    most = VISIBLE_LAYERS + MIN_LAYERS  # and the first, which reads the input
    assert (
        collapse_repeated_layers(
            graph_of({"y": stacked(plain, most)[most - 1]}), RewriteConstraints()
        )
        is None
    )
    assert (
        collapse_repeated_layers(
            graph_of({"y": stacked(plain, most + 1)[most]}), RewriteConstraints()
        )
        is not None
    )


def odd(number: int, x: Tensor) -> Tensor:
    """One layer adds something else."""
    return plain(number, x) + (2.0 if number == 6 else 1.0)


def test_layers_that_differ_are_all_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of({"y": stacked(odd)[DEPTH - 1]})
    assert collapse_repeated_layers(graph, RewriteConstraints()) is None
    check_same(graph, RewriteConstraints(), monkeypatch)


@pytest.mark.parametrize("period", [2, 3, 6])
def test_kinds_of_layers_that_take_turns(period: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def layer(number: int, x: Tensor) -> Tensor:
        return plain(number, x) if number % period else vs.softmax(plain(number, x))

    graph = graph_of({"y": stacked(layer, 8 * period + 1)[8 * period]})
    short = collapse_repeated_layers(graph, RewriteConstraints())
    assert short is not None and len(short.left_out) >= 3
    check_same(graph, RewriteConstraints(), monkeypatch)


@pytest.mark.parametrize("name", ["net.{}.", "net.0{}.", "net.{}/", "{}.", "net{}.1.", "net.١{}."])
def test_names_of_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = vs.input("x", (3, 4))
    for number in range(DEPTH):
        w = vs.weight(RNG.standard_normal((4, 4)).astype(np.float32), f"{name.format(number)}w")
        x = vs.matmul(x, w, name=f"{name.format(number)}a")
        x = vs.relu(x * 1.0, name=f"{name.format(number)}b")
    graph = graph_of({"y": vs.softmax(x)})
    check_same(graph, RewriteConstraints(), monkeypatch)


def test_layer_that_somebody_else_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    built = stacked(plain)
    for graph in (
        graph_of({"y": built[DEPTH - 1], "inner": built[5]}),
        graph_of({"y": built[DEPTH - 1] + built[5]}),
        graph_of({"y": built[DEPTH - 1] + built[DEPTH - 2]}),
        graph_of({"y": built[DEPTH - 1] + built[2]}),
    ):
        check_same(graph, RewriteConstraints(), monkeypatch)


def test_values_that_are_observed_or_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of({"y": stacked(plain, 24)[23]})
    seen = RewriteConstraints(frozenset({"net.12.matmul"}))
    pinned_devices = {
        n.name: f"gpu:{n.name.split('.')[1] > '15'}" for n in graph.nodes if "." in n.name
    }
    for constraints in (
        seen,
        RewriteConstraints(pinned_devices=pinned_devices),
        replace(seen, pinned_devices=pinned_devices),
    ):
        assert (
            collapse_repeated_layers(graph, constraints) is not None
        )  # the longer run, and then the other one
        check_same(graph, constraints, monkeypatch)


def test_layers_that_share_what_the_first_one_built(monkeypatch: pytest.MonkeyPatch) -> None:
    t = vs.input("t", (3, 4))

    def layer(number: int, x: Tensor) -> Tensor:
        return plain(number, x) * vs.exp(t)  # equal calls become one

    graph = graph_of({"y": stacked(layer)[DEPTH - 1]})
    assert collapse_repeated_layers(graph, RewriteConstraints()) is not None
    check_same(graph, RewriteConstraints(), monkeypatch)


def test_rule_that_looks_at_weights_sees_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = vs.input("x", (1, 32, 24, 24))
    for number in range(DEPTH):
        with vs.name_scope(f"net.{number}"):
            w = vs.weight(RNG.standard_normal((32, 32, 3, 3)).astype(np.float32), "w")
            x = vs.relu(vs.conv(x, w, padding=1))
    graph = graph_of({"y": x})
    assert collapse_repeated_layers(graph, CONSTRAINTS["vulkan"]) is not None
    built = check_same(graph, CONSTRAINTS["vulkan"], monkeypatch)
    assert any("winograd" in node.op for node in built.nodes)


def test_states_of_layers_keep_their_owners(monkeypatch: pytest.MonkeyPatch) -> None:
    x, updates = vs.input("x", (3, 4)), {}
    for number in range(DEPTH):
        with vs.name_scope(f"net.{number}"):
            stored = vs.state(np.full((3, 4), number, np.float32), "kept", backup=number == 0)
            x = plain(number, x) + stored
            updates[stored] = stored * 0.5 + x
    graph, ids = build_graph(x, updates)
    assert collapse_repeated_layers(graph, RewriteConstraints()) is not None
    built = check_same(graph, RewriteConstraints(), monkeypatch)
    for stored in updates:
        owned = [i for i, key in built.keys.items() if key is stored]
        assert [built.nodes[i].name for i in owned] == [graph.nodes[ids[stored]].name]


def test_layers_whose_nodes_come_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chains through the same layers: theirs are stretches that stand apart."""
    x, y = vs.input("x", (3, 4)), vs.input("y", (3, 4))
    for number in range(DEPTH):
        with vs.name_scope(f"net.{number}"):
            x, y = plain(number, x), vs.tanh(y + 1.0)
    check_same(graph_of({"x": x, "y": y}), RewriteConstraints(), monkeypatch)
    check_same(graph_of({"z": x + y}), RewriteConstraints(), monkeypatch)


# -- random layers ---------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "matmul": lambda a, _: vs.matmul(a, vs.weight(np.ones((4, 4), np.float32), "w")),
    "linear": lambda a, _: vs.linear(a, vs.weight(np.ones((4, 4), np.float32), "w")),
    "norm": lambda a, _: vs.rms_norm(a, vs.weight(np.ones(4, np.float32), "w")),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "twice": lambda a, _: a * 2.0,
    "once": lambda a, _: a * 1.0,
    "gelu": lambda a, _: vs.gelu(a),
    "silu": lambda a, _: a * vs.sigmoid(a),
    "turned": lambda a, _: vs.transpose(vs.relu(vs.transpose(a, (1, 0))), (1, 0)),
    "flat": lambda a, _: vs.reshape(vs.reshape(a, (-1,)), (4, 4)),
    "shifted": lambda a, _: a + vs.constant(np.arange(4, dtype=np.float32)),
    "softmax": lambda a, b: vs.matmul(vs.softmax(vs.matmul(a, b) * 0.5), a),
}
Program = list[tuple[str, int, int]]


def layers_of(streams: list[Program], depth: int, period: int) -> list[Tensor]:
    """Return the results of layers of a few values each, by steps that read existing tensors: the
    values, one that all layers share, and results of earlier steps. period: kinds of layers.
    """
    shared = vs.input("shared", (4, 4))
    values = [vs.input(f"x{i}", (4, 4)) for i in range(len(streams))]
    for number in range(depth):
        with vs.name_scope(f"net.{number}"):
            inputs = [*values, shared]
            for which, program in enumerate(streams):
                known = [inputs[which], *inputs]
                if number % period:
                    program = program[::-1] * (1 + number % period)
                for count, (op, a, b) in enumerate(program):
                    with vs.name_scope(f"{which}{count}"):
                        known.append(STEPS[op](known[a % len(known)], known[b % len(known)]))
                values[which] = known[-1]
    return values


@example(
    streams=[[("add", 0, 0)], [("linear", 0, 0)]], joined=False, period=2, constraints="least"
)  # the first value is one chain, which stands before all layers
@settings(max_examples=examples(15), deadline=None)
@given(
    streams=st.lists(
        st.lists(
            st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)),
            min_size=1,
            max_size=5,
        ),
        min_size=1,
        max_size=2,
    ),
    joined=st.booleans(),
    period=st.integers(1, 3),
    constraints=st.sampled_from(sorted(CONSTRAINTS)),
)
def test_random_layers(streams: list[Program], joined: bool, period: int, constraints: str) -> None:
    values = layers_of(streams, DEPTH + 3 if period == 1 else 8 * period, period)
    built = [sum(values[1:], values[0])] if joined else values
    graph = graph_of({f"y{i}": vs.softmax(each) for i, each in enumerate(built)})
    with pytest.MonkeyPatch.context() as patch:
        check_same(graph, CONSTRAINTS[constraints], patch)
