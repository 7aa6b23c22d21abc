"""Prediction: the expected time of a run, and of each of its splits.

`simulate` returns the time of a run. This module adds the times of each split: its nodes by op, at
the calibrated pace and at the pace of recent runs, and the measured part of them.

    split 3 on gpu:0   fixed 80 us | matmul 1.2 ms (measured) | softmax 90 us (estimated)

Complexity: O(nodes). Examples: tests/plan/test_predict.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..costs import node_cost
from ..types.plan_types import PlanValue, Split
from .simulate_plan import simulate, split_overhead_seconds


@dataclass(frozen=True, slots=True)
class SplitPrediction:
    """The expected times of one split.

    fixed_s: seconds on its device without its nodes, copies included. first_s: for each op, the
    seconds of its nodes at the calibrated pace. now_s: the seconds at the pace of recent runs.
    known_s: the part of now_s that rests on measurements. is_fixed_measured: True if fixed_s does.
    """

    split: int
    device: str
    fixed_s: float
    first_s: Mapping[str, float]
    now_s: Mapping[str, float]
    known_s: Mapping[str, float]
    is_fixed_measured: bool

    @property
    def device_s(self) -> float:
        """The expected time on the device."""
        return self.fixed_s + sum(self.now_s.values())

    @property
    def measured_s(self) -> float:
        """The part of `device_s` that rests on measurements."""
        known_s = sum(self.known_s.values())
        return known_s + (self.fixed_s if self.is_fixed_measured else 0.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The expected times of a run. seconds: the time of a whole run, from its inputs to its
    outputs.
    """

    seconds: float
    splits: tuple[SplitPrediction, ...]


def predict(plan: PlanValue) -> Prediction:
    """Return the expected times of a run without concurrent runs."""
    splits = tuple(predict_split(plan, split) for split in plan.splits)
    return Prediction(simulate(plan).seconds, splits)


def predict_split(plan: PlanValue, split: Split) -> SplitPrediction:
    """Return the expected times of one split on its device."""
    graph, spec = plan.graph, plan.topology.devices[split.device]
    first: dict[str, float] = {}
    now: dict[str, float] = {}
    known: dict[str, float] = {}
    asked: dict[int, tuple[node_cost.Cost, node_cost.Cost]] = {}
    for node in (graph.nodes[n] for n in split.nodes):
        call, op = graph.signatures[node.id], node.op
        if call not in asked:
            asked[call] = (
                node_cost.first_cost(spec, graph, node), node_cost.node_cost(spec, graph, node)
            )  # fmt: skip
        at_first, expected = asked[call]
        first[op] = first.get(op, 0.0) + at_first.seconds
        now[op] = now.get(op, 0.0) + expected.seconds
        known[op] = known.get(op, 0.0) + (expected.seconds if expected.measured else 0.0)
    fixed_s = split_overhead_seconds(plan, split)
    calibrated = bool(spec.costs.calls)
    return SplitPrediction(split.id, spec.name, fixed_s, first, now, known, calibrated)


def streams(plan: PlanValue, split: Split) -> bool:
    """Return True if a split copies weights from host memory."""
    return any(copy.node in plan.graph.data for copy in split.uploads)
