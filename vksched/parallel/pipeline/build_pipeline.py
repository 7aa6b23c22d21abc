"""A graph arranged as a pipeline: microbatches of stages, each with a device and a turn.

    graph --microbatch.py--> what is computed for each microbatch
          --stages.py-----> the stage and phase of each node
          --schedules-----> which device does what, when; turns are positions in that order

The turns of a device are its splits. Complexity: O(edges * microbatches). Examples:
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
from .microbatch import Batcher, Batches, Slot, find_batches
from .schedule_types import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action, PipelineSchedule
from .simulate_schedule import PhaseTimes, Simulated, simulate
from .stage_assignment import Place, find_phases, find_places
from .zero_bubble import zb_h1, zb_h2


@dataclass(frozen=True)
class Arranged:
    """made: the graph of microbatches. simulated: its schedule. note: what was done."""

    made: BuildResult
    simulated: Simulated
    note: str


def arrange(
    graph: Graph,
    pipeline: Pipeline,
    devices: Sequence[str],
    oracle: CostOracle,
    shown: Sequence[int],
) -> Arranged:
    """Return the graph as a pipeline.

    pipeline: with stages that are there. devices: of each stage. shown: nodes that somebody wants
    to see whole, beside the outputs.

    Raises:
        PlanError: the batch cannot be cut so, or the schedule is not for so many stages.
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
    made, simulated = work.best([simulate(schedule, times) for schedule in found], oracle)
    return Arranged(made, simulated, _describe(simulated, pipeline))


@dataclass(frozen=True)
class _Work:
    graph: Graph
    batches: Batches
    phases: Mapping[int, Place]
    devices: Sequence[str]
    shown: Sequence[int]

    def best(self, found: Sequence[Simulated], oracle: CostOracle) -> tuple[BuildResult, Simulated]:
        """Return the schedule whose plan takes the shortest, which may be another one where memory
        is tight. No plan is made of one that takes longer by itself than the best plan so far.
        """
        first, *others = sorted(found, key=lambda simulated: simulated.makespan_s)
        best = self.made(first), first
        if not others:
            return best
        least_s = oracle.run_seconds(best[0])
        for simulated in others:
            if simulated.makespan_s >= least_s:
                break
            made = self.made(simulated)
            # where memory suffices for none, planning says so of the last one, which holds least
            if (run_s := oracle.run_seconds(made)) < least_s or least_s == math.inf:
                best, least_s = (made, simulated), run_s
        return best

    def made(self, simulated: Simulated) -> BuildResult:
        """Return the graph in the order of a schedule."""
        schedule = simulated.schedule
        # the sort is stable: actions of no length stay in the order in which they were carried out
        order = sorted(simulated.start_s, key=lambda action: simulated.start_s[action])
        turns = {action: turn for turn, action in enumerate(order, 1)}
        workers = _workers(schedule, self.devices)

        def slot(node: int, microbatch: int) -> Slot:
            place = self.phases[node]
            action = Action(place.phase, place.stage, microbatch)
            if action not in turns:
                action = Action(BACKWARD, place.stage, microbatch)
            return Slot(workers[schedule.device_of[action]], turns[action])

        return Batcher(self.graph, self.batches, slot).run(self.shown)


def _workers(schedule: PipelineSchedule, devices: Sequence[str]) -> Sequence[str]:
    """Return the device of each worker of a schedule: one for each stage, or for several."""
    return devices if schedule.devices == len(devices) else list(dict.fromkeys(devices))


def _schedules(
    pipeline: Pipeline, devices: Sequence[str], training: bool
) -> list[PipelineSchedule]:
    """Return the schedules that come into question."""
    count, batches = len(devices), pipeline.microbatches
    if not training:
        return [gpipe(count, batches, training=False)]
    makers: dict[str, Callable[[], PipelineSchedule]] = {
        "gpipe": lambda: gpipe(count, batches),
        "1f1b": lambda: one_f_one_b(count, batches),
        "interleaved": lambda: _interleaved(devices, batches),
        "zb-h1": lambda: zb_h1(count, batches),
        "zb-h2": lambda: zb_h2(count, batches),
        "dualpipe": lambda: dualpipe(count, batches),
    }
    if pipeline.schedule == "zero-bubble":
        return [makers["zb-h2"](), makers["zb-h1"]()]
    if pipeline.schedule != AUTO:
        return [makers[pipeline.schedule]()]
    found = [makers[name]() for name in ("1f1b", "zb-h1", "zb-h2")]
    try:
        found.append(makers["interleaved"]())
    except PlanError:  # not so many stages
        pass
    if len(set(devices)) < count:
        # the others take each stage for a device of its own
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
    """Return for each stage what its phases take for one microbatch."""
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
    """Return the device of each stage. of_sections: those of sections of the same names. known:
    all devices of the machine, the CPU last.
    """
    turns = _in_turns(pipeline.devices or known[:-1] or known)
    out: list[str] = []
    for stage in pipeline.stages:
        device = next(turns)
        own = of_sections.get(stage, ())
        out.append(own[0] if own and not pipeline.devices else device)
    return out


def _in_turns(devices: Sequence[str]) -> Iterator[str]:
    while True:
        yield from devices


def matching(pipeline: Pipeline, names: Iterable[str]) -> Pipeline | None:
    """Return a pipeline with those stages that some name belongs to; None where there is none."""
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
