"""Cut a graph into segments that run on devices, and segments that run in eager PyTorch.

    device    a   b       d   e          phase 0: a b    phase 2: d e
    eager           c                    phase 1: c

An op without a rule, or with an element type that vksched lacks, runs in eager PyTorch. The phase
of a node is the smallest one of its kind, even for devices and odd for eager PyTorch, that is not
less than the phases of its operands. All nodes of a phase form one segment, so values go forward
only, and the number of changes between the two is minimal. Complexity: O(nodes). Examples:
tests/torch_backend/test_torch_programs.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..common.errors import VkschedError
from .lower import CallLowering, declare_input, op_name, value_of

WITHOUT_WORK = frozenset(
    [
        *("alias", "view", "reshape", "_unsafe_view", "permute", "t", "transpose", "expand"),
        *("squeeze", "unsqueeze", "slice", "select", "detach", "getitem", "full", "empty"),
        *("sym_size", "scalar_tensor", "split_with_sizes", "lift_fresh_copy"),
    ]
)
"""Ops that only view or create values: alone they are not worth a transfer."""


VIEWS = frozenset(
    [
        *("alias", "view", "permute", "t", "transpose", "expand", "squeeze", "unsqueeze"),
        *("slice", "select", "diagonal", "detach", "as_strided", "unfold"),
    ]
)
"""Ops whose result shares memory with its first operand."""
LOWERING_ERRORS = (VkschedError, ValueError, TypeError, LookupError, ArithmeticError)
"""Errors of a rule that cannot express a call."""


@dataclass(frozen=True)
class Segment:
    """Nodes that run together.

    Attributes
    ----------
    inputs
        Nodes of earlier segments, and placeholders, that it reads.
    outputs
        Its nodes that later segments or the result read.
    """

    on_device: bool
    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


def find_unsupported(module: fx.GraphModule) -> dict[fx.Node, str]:
    """Return the nodes that cannot run on devices, with the reason."""
    trial, reasons = CallLowering(module), dict[fx.Node, str]()
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        try:
            missing = [a for a in node.all_input_nodes if a not in trial.values]
            if node.op == "placeholder":
                trial.values[node] = _stand_in(node)
            elif missing:
                source = missing[0]
                reasons[node] = f"reads {source.name}, {_type_text(source)}"
            else:
                trial.lower(node)
        except LOWERING_ERRORS as error:
            if node.op != "placeholder":
                reasons[node] = str(error).partition(" (in ")[0]
        if node in reasons:
            _declare_result(trial, node)
    return reasons


def _stand_in(node: fx.Node) -> Any:
    value = value_of(node)
    return declare_input(node.name, value) if isinstance(value, torch.Tensor) else value


def _declare_result(trial: CallLowering, node: fx.Node) -> None:
    """Let later nodes read the result of a node that runs in eager PyTorch."""
    value = value_of(node)
    if isinstance(value, (list, tuple)):
        parts = [_try_input(f"{node.name}.{i}", v) for i, v in enumerate(value)]
        trial.values[node] = parts
        return
    found = _try_input(node.name, value)
    if found is not None:
        trial.values[node] = found


def _try_input(name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    try:
        return declare_input(name, value)
    except VkschedError:
        return None


def _type_text(node: fx.Node) -> str:
    value = value_of(node)
    return str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__name__


def cut(module: fx.GraphModule, unsupported: Mapping[fx.Node, str]) -> list[Segment]:
    """Return the segments of a graph, in the order of their execution."""
    eager = {*unsupported, *_views_of_results(module)}
    phases: dict[fx.Node, int] = {}
    groups: dict[int, list[fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        parity = int(node in eager)
        if op_name(node) == "getitem" and node.args[0] in phases:
            phase = phases[node.args[0]]  # results of a call belong to it
        else:
            least = max((phases.get(a, 0) for a in node.all_input_nodes), default=0)
            phase = least + (least + parity) % 2
        phases[node] = phase
        groups.setdefault(phase, []).append(node)
    return [
        _segment(groups[phase], phase % 2 == 0 and _has_work(groups[phase]))
        for phase in sorted(groups)
    ]


def _views_of_results(module: fx.GraphModule) -> set[fx.Node]:
    """Return views of results that are results, too. PyTorch makes them, so they share memory."""
    results = set(next(n for n in module.graph.nodes if n.op == "output").all_input_nodes)
    views = set[fx.Node]()
    for node in module.graph.nodes:
        if node.op == "call_function" and base_name(node) in VIEWS:
            base = node.all_input_nodes[0]
            if base in views or (base in results and base.op == "call_function"):
                views.add(node)
    for node in reversed(module.graph.nodes):
        if node in views and not all(u.op == "output" or u in views for u in node.users):
            views.remove(node)  # a computation reads it
    return views


def base_name(node: fx.Node) -> str:
    """Return the name of an op without namespace and overload, for example "add"."""
    name = op_name(node)
    return name.partition("::")[2].partition(".")[0] or name


def _has_work(nodes: Sequence[fx.Node]) -> bool:
    return any(base_name(node) not in WITHOUT_WORK for node in nodes)


def _segment(nodes: Sequence[fx.Node], on_device: bool) -> Segment:
    inside = set(nodes)
    inputs = dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside)
    outputs = [n for n in nodes if any(user not in inside for user in n.users)]
    return Segment(on_device, tuple(nodes), tuple(inputs), tuple(outputs))


def eager_module(module: fx.GraphModule, segment: Segment) -> fx.GraphModule:
    """Return a module that runs a segment in eager PyTorch: inputs in order -> outputs in order."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in segment.inputs:
        copies[node] = graph.placeholder(node.name)
    for node in segment.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in segment.outputs))
    return fx.GraphModule(module, graph)
