"""Engine forecast: the predicted times of an engine's steps, by simulated plans.

    CompiledSteps --plan of a decode step of 4 rows--> simulate --> seconds, busy time of devices
                  --plan of a prompt chunk-----------> simulate

The steps of engines that share their devices are simulated as concurrent runs of one plan:

    engine 0   |--vulkan:0--|--vulkan:1--|--vulkan:0--|
    engine 1                |--vulkan:0--|--vulkan:1--|--vulkan:0--|

Complexity: a plan for each number of rows, and one of a prompt chunk. Examples:
tests/generation/device_split/test_choose_split.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...plan.simulation.simulate_plan import program_of, run_program
from ...topology.topology import Topology
from ..batching.engine_load import EngineSpeeds
from ..compiled_steps import SIZES, CompiledSteps, StepSize
from ..layer_placement.partition_layers import WRITTEN
from ..slot_steps import ROW_COUNTS

STEPS = 4
"""The number of simulated steps of each engine."""


@dataclass(frozen=True)
class EngineForecast:
    """The predicted round of an engine: a prompt chunk and WRITTEN tokens for each of its rows.

    Parameters
    ----------
    devices
        The devices of its layers, in the order of the layers.
    rows
        The number of requests that run at the same time.
    round_s
        The time of a round in seconds, while the engines that share its devices run.
    busy_s
        The busy time of each device in a round, in seconds.
    speeds
        The predicted times of its steps.
    """

    devices: tuple[str, ...]
    rows: int
    round_s: float
    busy_s: Mapping[str, float]
    speeds: EngineSpeeds


class EngineForecaster:
    """Predicts the rounds of an engine.

    steps: its steps, of which nothing is compiled. engines: the number of engines with the same
    devices.
    """

    def __init__(self, steps: CompiledSteps, engines: int = 1) -> None:
        steps.decide()
        self.steps = steps
        self._engines = engines
        self._chunk = max(size for size in steps.sizes if size <= SIZES[-1])
        self._times: dict[StepSize, tuple[float, Mapping[str, float]]] = {}

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the layers, in the order of the layers."""
        placed, topology = self.steps.layer_placement, self.steps.scheduler.topology
        if placed is None:
            return (next(spec.name for spec in topology.devices if not spec.disabled_reason),)
        used = (placed.topology.devices[d].name for d in placed.partition.devices)
        return tuple(dict.fromkeys(used))

    def forecast(self, rows: int) -> EngineForecast:
        """Return the predicted round of a number of requests."""
        prompt = StepSize(self._chunk, 1)
        steps = [(WRITTEN, StepSize(1, graph)) for graph in _graphs(rows)] + [(rows, prompt)]
        busy_s: dict[str, float] = {}
        for times, size in steps:
            for name, seconds in self._time(size)[1].items():
                busy_s[name] = busy_s.get(name, 0.0) + times * seconds
        decode_s = sum(self._time(StepSize(1, graph))[0] for graph in _graphs(rows))
        return EngineForecast(
            self.devices,
            rows,
            sum(times * self._time(size)[0] for times, size in steps),
            busy_s,
            EngineSpeeds(self._time(prompt)[0] / self._chunk, {rows: decode_s}),
        )

    def _time(self, size: StepSize) -> tuple[float, Mapping[str, float]]:
        """Return the time of a step in seconds, and the busy time of each device."""
        if size not in self._times:
            program, count = program_of(self.steps.reserve(size)), self._engines
            busy_s = run_program(program, 1).busy_s
            together = run_program(program, STEPS * count, count)
            self._times[size] = count * together.seconds_per_run, busy_s
        return self._times[size]


def _graphs(rows: int) -> list[int]:
    """Return the rows of the graphs of a decode step."""
    whole, rest = divmod(rows, ROW_COUNTS[-1])
    fitting = [count for count in ROW_COUNTS if count >= rest > 0]
    return [ROW_COUNTS[-1]] * whole + fitting[:1]


def tokens_per_s(engines: Sequence[EngineForecast], topology: Topology) -> float:
    """Return the tokens per second of engines that run at the same time.

    If a device, or the cores of a host, would be busy for more than all of the time, as with
    software drivers, all engines are slower by this factor.
    """
    queues = {
        spec.name: queue for spec, queue in zip(topology.devices, topology.queues, strict=True)
    }
    loads: dict[int, float] = {}
    for engine in engines:
        for name, busy_s in engine.busy_s.items():
            loads[queues[name]] = loads.get(queues[name], 0.0) + busy_s / engine.round_s
    factor = max(1.0, *loads.values())
    return sum(WRITTEN * engine.rows / engine.round_s for engine in engines) / factor
