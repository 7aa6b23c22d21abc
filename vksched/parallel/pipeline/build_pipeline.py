"""Build a pipeline: split a graph into microbatches of stages, each with a device and a position.

    graph --microbatch.py--------> the nodes computed for each microbatch
          --stage_assignment.py--> the stage and phase of each node
          --schedules------------> the order of actions; positions of nodes follow from it

Each position of a device becomes a split. Complexity: O(edges * microbatches). Examples:
tests/parallel/test_arrange.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...common.errors import PlanError
from ...ir.graph import Graph
from ...ir.graph_builder import BuildResult
from ..config.config_types import AUTO, Pipeline
from ..config.match_sections import covers, is_backward
from ..sharding.cost_oracle import CostOracle
from .dualpipe import dualpipe
from .gpipe_1f1b import gpipe, one_f_one_b
from .interleaved_1f1b import interleaved
from .microbatch import Batcher, Microbatches, Slot, find_batches
from .schedule_types import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, PipelineSchedule
from .simulate_schedule import PhaseTimes, Simulated, simulate
from .stage_assignment import Place, find_phases, find_places
from .zero_bubble import zb_h1, zb_h2


@dataclass(frozen=True)
class BuiltPipeline:
    """A graph of microbatches, the simulated schedule, and a note on the choice."""

    result: BuildResult
    simulated: Simulated
    note: str


def arrange(
    graph: Graph,
    pipeline: Pipeline,
    devices: Sequence[str],
    oracle: CostOracle,
    shown: Sequence[int],
) -> BuiltPipeline:
    """Return the graph as a pipeline.

    pipeline: with stages that exist. devices: the device of each stage. shown: nodes whose full
    values are needed, besides the outputs.

    Raises
    ------
    PlanError
        The batch cannot be split, or the schedule does not support the number of stages.
    """
    stages = pipeline.stages

    def is_first(name: str) -> bool:
        return covers(stages[0], name) and not is_backward(name)

    batches = find_batches(graph, pipeline.microbatches, pipeline.axis, is_first)
    places = find_places(graph, stages, batches.strategies.keys())
    phases = find_phases(graph, places, batches.added_up)
    times = _times(graph, phases, devices, oracle, pipeline.microbatches)
    training = any(place.phase == BACKWARD for place in places.values())
    work = _Work(graph, batches, phases, devices, shown)
    found = _schedules(pipeline, devices, training)
    result, simulated = work.best([simulate(schedule, times) for schedule in found], oracle)
    return BuiltPipeline(result, simulated, _describe(simulated, pipeline))


@dataclass(frozen=True)
class _Work:
    """The parts of a pipeline that do not depend on the schedule."""

    graph: Graph
    batches: Microbatches
    phases: Mapping[int, Place]
    devices: Sequence[str]
    shown: Sequence[int]

    def best(self, found: Sequence[Simulated], oracle: CostOracle) -> tuple[BuildResult, Simulated]:
        """Return the graph and the schedule whose plan is fastest, which may be a slower schedule
        if memory is short. Schedules that take longer than the best plan so far are not planned.
        """
        first, *others = sorted(found, key=lambda simulated: simulated.makespan_s)
        best = self.build(first), first
        if not others:
            return best
        least_s = oracle.run_seconds(best[0])
        for simulated in others:
            if simulated.makespan_s >= least_s:
                break
            result = self.build(simulated)
            # if none fits, planning fails for the last one, which needs the least memory
            if (run_s := oracle.run_seconds(result)) < least_s or least_s == math.inf:
                best, least_s = (result, simulated), run_s
        return best

    def build(self, simulated: Simulated) -> BuildResult:
        """Return the graph in the order of a schedule."""
        schedule = simulated.schedule
        # a stable sort: actions of zero length keep the order of the simulation
        order = sorted(simulated.start_s, key=lambda action: simulated.start_s[action])
        positions = {action: position for position, action in enumerate(order, 1)}
        workers = _workers(schedule, self.devices)

        def slot(node: int, microbatch: int) -> Slot:
            place = self.phases[node]
            action = Action(place.phase, place.stage, microbatch)
            if action not in positions:
                action = Action(BACKWARD, place.stage, microbatch)
            return Slot(workers[schedule.device_of[action]], positions[action])

        return Batcher(self.graph, self.batches, slot).run(self.shown)


def _workers(schedule: PipelineSchedule, devices: Sequence[str]) -> Sequence[str]:
    """Return the device of each worker of a schedule, which has one stage or several."""
    return devices if schedule.devices == len(devices) else list(dict.fromkeys(devices))


def _schedules(
    pipeline: Pipeline, devices: Sequence[str], training: bool
) -> list[PipelineSchedule]:
    """Return the candidate schedules."""
    count, batches = len(devices), pipeline.microbatches
    if not training:
        return [gpipe(count, batches, training=False)]
    builders: dict[str, Callable[[], PipelineSchedule]] = {
        "gpipe": lambda: gpipe(count, batches),
        "1f1b": lambda: one_f_one_b(count, batches),
        "interleaved": lambda: _interleaved(devices, batches),
        "zb-h1": lambda: zb_h1(count, batches),
        "zb-h2": lambda: zb_h2(count, batches),
        "dualpipe": lambda: dualpipe(count, batches),
    }
    if pipeline.schedule == "zero-bubble":
        return [builders["zb-h2"](), builders["zb-h1"]()]
    if pipeline.schedule != AUTO:
        return [builders[pipeline.schedule]()]
    found = [builders[name]() for name in ("1f1b", "zb-h1", "zb-h2")]
    try:
        found.append(builders["interleaved"]())
    except PlanError:  # unsuitable number of stages
        pass
    if len(set(devices)) < count:
        # the others assume a device for each stage
        found = found[-1:] if found[-1].name == "interleaved" else found[:1]
    return found


def _interleaved(devices: Sequence[str], microbatches: int) -> PipelineSchedule:
    workers = list(dict.fromkeys(devices))
    rounds, rest = divmod(len(devices), len(workers))
    if rest or list(devices) != workers * rounds or rounds < 2:
        raise PlanError(
            "[config] pipeline: expected stages on the same devices round by round for "
            f"interleaved, such as a, b, a, b, got {', '.join(devices)}; try devices: [a, b] for "
            "4 stages"
        )
    return interleaved(len(workers), microbatches, rounds)


def _times(
    graph: Graph,
    phases: Mapping[int, Place],
    devices: Sequence[str],
    oracle: CostOracle,
    microbatches: int,
) -> list[PhaseTimes]:
    """Return the times of the phases of each stage for one microbatch."""
    seconds: Counter[tuple[int, str]] = Counter()
    for node, place in phases.items():
        took = oracle.seconds(graph, node, devices[place.stage])
        seconds[place.stage, place.phase] += took / microbatches  # type: ignore[assignment]
    return [
        PhaseTimes(*(seconds[stage, phase] for phase in (FORWARD, INPUTS, WEIGHTS)))
        for stage in range(len(devices))
    ]


def stage_devices(
    pipeline: Pipeline, of_sections: Mapping[str, Sequence[str]], known: Sequence[str]
) -> list[str]:
    """Return the device of each stage. of_sections: the devices of the sections of stages. known:
    all devices of the machine, the CPU last.
    """
    defaults = _cycle(pipeline.devices or known[:-1] or known)
    out: list[str] = []
    for stage in pipeline.stages:
        device = next(defaults)
        own = of_sections.get(stage, ())
        out.append(own[0] if own and not pipeline.devices else device)
    return out


def _cycle(devices: Sequence[str]) -> Iterator[str]:
    while True:
        yield from devices


def matching(pipeline: Pipeline, names: Iterable[str]) -> Pipeline | None:
    """Return a pipeline without stages that match no name; None if no stage is left."""
    names = list(names)
    there = tuple(s for s in pipeline.stages if any(covers(s, name) for name in names))
    return replace(pipeline, stages=there) if there else None


def _describe(simulated: Simulated, pipeline: Pipeline) -> str:
    schedule = simulated.schedule
    return (
        f"pipeline: {schedule.name}, {schedule.stages} stages, {pipeline.microbatches} "
        f"microbatches, idle {simulated.bubble_share:.1%} by costs, at most "
        f"{max(simulated.peak_held)} microbatches held"
    )
