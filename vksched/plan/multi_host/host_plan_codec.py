"""Host plans as plain data, to be run on another host, and back.

    HostPlan --encode_host_plan--> JSON --decode_host_plan(weight=...) --> an equal HostPlan,
    verified

A weight is its type and the SHA-256 of its own bytes, as the graph holds it: quantized blocks stay
quantized. The decoder gets the bytes by that hash. A state is a name that both ends know; it has no
value on the worker until a run writes one. The document is untrusted: sizes and types are checked
against a schema before decoding, and the host plan is verified.

Complexity: O(nodes with a use in the host plan). Examples: tests/plan/test_part_documents.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypedDict

import numpy as np

from ...common.dtypes import NDArray, TensorType, numpy_dtype
from ...common.errors import DECODE_ERRORS, PlanError
from ...common.schema import Whole, check, parse
from ...ir.graph import Graph, Node
from ...storage.content_hash import digest_of, pieces_of
from ...storage.lazy_array import ArrayLike, LazyArray, as_array
from ...trace.format import DevicePlan, NodeDocument
from ..serialize.graph_codec import decode_node, encode_node
from ..serialize.plan_codec import decode_plan, encode_plan, topology_of
from .host_plan import HostPlan, Recv, Send, Steps, blank
from .verify_host_plans import verify_host_plan

MAX_NODES = 1 << 20
MAX_COPIES = 1 << 10
"""Maximum number of copies of a graph and a plan in a document."""
TransferRow = tuple[Whole, Whole | str, str | tuple[Whole, ...]]
"""Value, split and host of a send, or value, host and shown nodes of a receive."""


class PartNode(NodeDocument):
    id: Whole


class PartWeight(TypedDict):
    node: Whole
    hash: str


class PartState(TypedDict):
    node: Whole
    key: str


class PartDocument(DevicePlan):
    """size: the number of nodes of the whole graph; the ones that are not among "nodes" are blank.
    steps: the transfers at each position. every: `HostPlan.splits`. The others: as in `HostPlan`
    and `Graph`.
    """

    host: str
    size: Whole
    nodes: list[PartNode]
    outputs: tuple[tuple[str, Whole], ...]
    backed_up_states: tuple[Whole, ...]
    weights: list[PartWeight]
    states: list[PartState]
    numbers: tuple[Whole, ...]
    steps: list[tuple[Whole, list[TransferRow]]]
    inputs: tuple[Whole, ...]
    results: Whole
    every: Whole


WeightOf = Callable[[str], ArrayLike]
"""A function that returns the bytes or the array with a hash."""


def encode_host_plan(host_plan: HostPlan, state: Callable[[object], str]) -> dict[str, Any]:
    """Return a host plan in the form of `PartDocument`.

    state: a function from the key of a state in the graph to its name.
    """
    graph = host_plan.plan.graph
    there = (node for node in graph.nodes if node != blank(node.id))
    return {
        **encode_plan(host_plan.plan),
        "host": host_plan.host,
        "size": len(graph.nodes),
        "nodes": [{**encode_node(node), "id": node.id} for node in there],
        "outputs": [list(pair) for pair in graph.outputs],
        "backed_up_states": list(graph.backed_up_states),
        "weights": [{"node": n, "hash": digest_of(held)} for n, held in graph.data.items()],
        "states": [{"node": n, "key": state(graph.keys[n])} for n in graph.initial],
        "numbers": list(host_plan.numbers),
        "steps": [
            [at, list(map(_encode_transfer, steps))] for at, steps in host_plan.steps.items()
        ],
        "inputs": list(host_plan.inputs),
        "results": host_plan.results,
        "every": host_plan.splits,
    }


def _encode_transfer(step: Send | Recv) -> list[object]:
    if isinstance(step, Send):
        return [step.value, step.split, step.host]
    return [step.value, step.host, list(step.shown)]


def decode_host_plan(
    document: object,
    weight: WeightOf,
    state: Callable[[str], object] = lambda name: name,
    onnx_ops: bool = False,
) -> HostPlan:
    """Return a verified host plan from its document, or from the JSON of it.

    Weights that host plans share by hash and type have one key in all. state: a function from the
    name of a state to its key. onnx_ops: True to accept ops of ONNX files that only the CPU runs.

    Raises
    ------
    PlanError
        The document is invalid; the text gives the reason. Errors of `weight` propagate.
    """
    try:
        part: PartDocument = (
            parse(document, PartDocument, "the part")
            if isinstance(document, bytes)
            else check(document, PartDocument, "the part")
        )
        nodes = _decode_nodes(part, onnx_ops)
        types = {held["node"]: nodes[held["node"]].type for held in part["weights"]}
        initial = {held["node"]: _nothing(nodes[held["node"]]) for held in part["states"]}
    except DECODE_ERRORS as error:
        raise _unreadable(error) from error
    hashes = {held["node"]: held["hash"] for held in part["weights"]}
    found = {digest: weight(digest) for digest in dict.fromkeys(hashes.values())}
    keys: dict[int, object] = {node: (digest, types[node]) for node, digest in hashes.items()}
    keys.update((held["node"], state(held["key"])) for held in part["states"])
    try:
        data = {node: _typed(found[digest], types[node]) for node, digest in hashes.items()}
        graph = Graph(
            nodes,
            part["outputs"],
            MappingProxyType(data),
            MappingProxyType(keys),
            MappingProxyType(initial),
            part["backed_up_states"],
        ).verify()
        return verify_host_plan(
            HostPlan(
                part["host"],
                decode_plan(graph, topology_of(part), part),
                part["numbers"],
                _decode_transfers(part),
                part["inputs"],
                part["results"],
                part["every"],
            )
        )
    except DECODE_ERRORS as error:
        raise _unreadable(error) from error


def _decode_nodes(part: PartDocument, onnx_ops: bool) -> tuple[Node, ...]:
    size = part["size"]
    if not 0 <= size <= MAX_NODES:
        raise PlanError(f"expected at most {MAX_NODES} nodes, got {size}")
    if len(part["placements"]) != size:  # otherwise a few bytes could ask for a million nodes
        raise PlanError(f"expected {size} placements, got {len(part['placements'])}")
    if part["copies"] > MAX_COPIES:
        raise PlanError(f"expected at most {MAX_COPIES} copies, got {part['copies']}")
    there = {item["id"]: item for item in part["nodes"]}
    if len(there) != len(part["nodes"]) or not there.keys() <= set(range(size)):
        raise PlanError(f"expected ids from 0 to {size - 1}, each once")
    return tuple(
        decode_node(at, there[at], onnx_ops) if at in there else blank(at) for at in range(size)
    )


def _typed(held: ArrayLike, type_: TensorType) -> ArrayLike:
    """Return bytes as an array of a type; a lazy array stays lazy."""
    same = held.shape == type_.shape and held.dtype == numpy_dtype(type_.dtype)
    if same and isinstance(held, LazyArray):
        return held
    array = as_array(held)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.view(numpy_dtype(type_.dtype)).reshape(type_.shape)


def _nothing(node: Node) -> NDArray:
    """Return the value of a state before the first write."""
    return np.broadcast_to(np.zeros((), numpy_dtype(node.type.dtype)), node.type.shape)


def _decode_transfers(part: PartDocument) -> Steps:
    steps = {at: tuple(map(_decode_transfer, each)) for at, each in part["steps"]}
    if len(steps) != len(part["steps"]):
        raise PlanError("expected each position of steps once")
    return MappingProxyType(steps)


def _decode_transfer(item: TransferRow) -> Send | Recv:
    value, second, third = item
    if isinstance(second, int) and isinstance(third, str):
        return Send(value, second, third)
    if isinstance(second, str) and not isinstance(third, str):
        return Recv(value, second, third)
    raise PlanError(f"expected a send or a receive among the steps, got {item}")


class Weights(Mapping[str, list[NDArray]]):
    """The bytes of a host plan's weights by their hash, created on access."""

    def __init__(self, host_plan: HostPlan) -> None:
        self._held = {digest_of(held): held for held in host_plan.plan.graph.data.values()}

    def __getitem__(self, digest: str) -> list[NDArray]:
        return list(pieces_of(self._held[digest]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)


@dataclass(frozen=True)
class HostPlanCodec:
    """Encodes host plans as bytes for messages, and decodes them. onnx_ops: as in
    `decode_host_plan`.
    """

    onnx_ops: bool = False

    def write(self, host_plan: HostPlan, state: Callable[[object], str]) -> tuple[bytes, Weights]:
        """Return a host plan as JSON, and the bytes of its weights; see `encode_host_plan`."""
        document = encode_host_plan(host_plan, state)
        return json.dumps(document, separators=(",", ":")).encode(), Weights(host_plan)

    def read(self, text: bytes, weight: WeightOf, state: Callable[[str], object]) -> HostPlan:
        """Return the host plan; see `decode_host_plan`."""
        return decode_host_plan(text, weight, state, self.onnx_ops)


def _unreadable(error: BaseException) -> PlanError:
    return PlanError(f"[host plan] it cannot be decoded from its document: {error}")
