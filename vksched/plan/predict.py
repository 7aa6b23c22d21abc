"""Predict: how long a run of a plan will take, and each of its splits.

The host goes through the splits as the executor does. It stages what comes in, waits for what it
needs, submits, and waits at the end. Each device does its splits one after the other:

    host    stage x | submit 0 | . . wait 0 . . | stage h | submit 1 | . . . wait 1 . . . | fetch y
    null:0                     |-- split 0 --|
    null:1                                                           |----- split 1 -----|

Complexity: O(nodes). Examples: tests/plan/test_predict.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph import Graph
from ..types import numpy_dtype
from . import cost
from .value import HOST, PlanValue, Split


@dataclass(frozen=True, slots=True)
class SplitPrediction:
    """One split. fixed_s: what it takes on its device beside its nodes, copies included. first_s:
    by op, what its nodes take on a device that works as it did when it was measured. now_s: the
    same at the pace that late runs showed. known_s: the part of that which rests on measurements;
    beside_known: whether fixed_s does.
    """

    split: int
    device: str
    fixed_s: float
    first_s: Mapping[str, float]
    now_s: Mapping[str, float]
    known_s: Mapping[str, float]
    beside_known: bool

    @property
    def device_s(self) -> float:
        """The expected time on the device."""
        return self.fixed_s + sum(self.now_s.values())

    @property
    def measured_s(self) -> float:
        """The part of `device_s` that rests on measurements."""
        known_s = sum(self.known_s.values())
        return known_s + (self.fixed_s if self.beside_known else 0.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """seconds: of a whole run, from its inputs to its outputs."""

    seconds: float
    splits: tuple[SplitPrediction, ...]


def predict(plan: PlanValue) -> Prediction:
    """Returns the expected times of a run that no other run holds up."""
    graph, devices = plan.graph, plan.machine.devices
    between, host_name = plan.machine.links.between, devices[-1].name
    splits = tuple(predict_split(plan, split) for split in plan.splits)
    used = {split.device for split in plan.splits}
    now_s = max((devices[d].costs.run_s for d in used), default=0.0)
    free_s = dict.fromkeys(used, 0.0)
    end_s: dict[int, float] = {}

    def wait(split_id: int) -> None:
        nonlocal now_s
        now_s = max(now_s, end_s[split_id]) + devices[plan.splits[split_id].device].costs.fence_s

    for split, expected in zip(plan.splits, splits, strict=True):
        spec = devices[split.device]
        for step in ("inputs", "values"):
            for copy in split.copies_in:
                if (copy.source == HOST) != (step == "inputs") or copy.node in graph.data:
                    continue
                if spec.kind != "cpu":
                    size = host_bytes(graph, copy.node)
                    taken_s = between(host_name, spec.name).seconds(size)
                    now_s += max(0.0, taken_s - cost.copy_seconds(spec, cost.COPY_IN, size))
            for split_id in split.waits if step == "inputs" else ():
                wait(split_id)
        now_s += spec.costs.submit_s
        free_s[split.device] = max(now_s, free_s[split.device]) + expected.device_s
        end_s[split.id] = free_s[split.device]
    for split_id in plan.final_waits:
        wait(split_id)
    makers = {copy.node: split.device for split in plan.splits for copy in split.copies_out}
    for _, node in graph.outputs:
        spec = devices[makers.get(node, makers.get(graph.root(node), len(devices) - 1))]
        if spec.costs.calls and spec.kind != "cpu":
            size = host_bytes(graph, node)
            taken_s = between(spec.name, host_name).seconds(size)
            now_s += max(0.0, taken_s - cost.copy_seconds(spec, cost.COPY_OUT, size))
    return Prediction(now_s, splits)


def predict_split(plan: PlanValue, split: Split) -> SplitPrediction:
    """Returns what one split is expected to take on its device, by its own clock."""
    graph, spec = plan.graph, plan.machine.devices[split.device]
    first: dict[str, float] = {}
    now: dict[str, float] = {}
    known: dict[str, float] = {}
    asked: dict[int, tuple[cost.Cost, cost.Cost]] = {}
    for node in (graph.nodes[n] for n in split.nodes):
        call, op = graph.signatures[node.id], node.op
        if call not in asked:
            asked[call] = (
                cost.first_cost(spec, graph, node), cost.node_cost(spec, graph, node)
            )  # fmt: skip
        at_first, expected = asked[call]
        first[op] = first.get(op, 0.0) + at_first.seconds
        now[op] = now.get(op, 0.0) + expected.seconds
        known[op] = known.get(op, 0.0) + (expected.seconds if expected.measured else 0.0)
    fixed_s, calibrated = _fixed_s(plan, split), bool(spec.costs.calls)
    return SplitPrediction(split.id, spec.name, fixed_s, first, now, known, calibrated)


def host_bytes(graph: Graph, node: int) -> int:
    """Returns what a value takes as numpy has it."""
    type_ = graph.nodes[node].type
    return int(type_.size * numpy_dtype(type_.dtype).itemsize)


def streams(plan: PlanValue, split: Split) -> bool:
    """Whether a split copies weights from host memory."""
    return any(copy.node in plan.graph.data for copy in split.copies_in)


def _fixed_s(plan: PlanValue, split: Split) -> float:
    """Returns what a split takes on its device beside its nodes. Where nobody has measured what a
    submission takes, its rough cost counts as the device's.
    """
    graph, spec = plan.graph, plan.machine.devices[split.device]
    fixed_s = spec.costs.start_s if spec.costs.calls else spec.submit_s
    if spec.kind == "cpu":
        return fixed_s
    link = plan.machine.links.between(plan.machine.devices[-1].name, spec.name)
    for way, copies in ((cost.COPY_IN, split.copies_in), (cost.COPY_OUT, split.copies_out)):
        for copy in copies:
            size = graph.nodes[copy.node].type.device_bytes
            taken_s = cost.copy_seconds(spec, way, size)
            if not taken_s and copy.node in graph.data:
                taken_s = size / link.bytes_per_s
            fixed_s += taken_s
    return fixed_s
