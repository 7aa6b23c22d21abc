"""Choose split: layers, a pipeline or replicas, by the predicted tokens per second.

    layers     |--0--|--1--|              one engine; a device waits while another one works
    pipeline   |--0--|--1--|              one engine for each device, half of the requests each:
                     |--0--|--1--|        a device works on one while the other has the rest
    replicas   |-----0-----|              one engine for each device, with all layers
               |-----1-----|

Problem: a second device raises the rate only if the time of a step depends on its rows, because
each engine has fewer of them; and it depends on transfers, memory and equal speeds which way is
best. Method: predict the round of each engine by simulated plans, and compare the rates for the
same number of requests. A split with more engines must be faster by a margin. Complexity: 2 to 5
plans for each kind of device and split. Examples: tests/generation/device_split/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...common.errors import PlanError
from ...plan.costs.node_cost import estimated_text
from ...planner.search.select import MARGIN_ESTIMATED, MARGIN_MEASURED, known
from ..batching.slots_for_memory import MAX_SLOTS
from ..compiled_steps import CompiledSteps, CompilingScheduler
from .device_subset import DeviceSubset
from .engine_forecast import EngineForecast, EngineForecaster, tokens_per_s
from .slot_memory import slots_by_memory
from .split_choice import (
    AUTO,
    LAYERS,
    PIPELINE,
    REPLICAS,
    SPLITS,
    EnginePlan,
    SplitChoice,
    SplitForecast,
)

if TYPE_CHECKING:
    from ...engine.request_precision import Precision
    from ...importers.gguf.model import LanguageModel
    from ..speculation.speculation import Speculation


@dataclass(frozen=True)
class SplitRequest:
    """The model and the options of its engines. slots: the number of all slots; None selects it by
    the memory of the devices. speculation: its draft model needs memory, too.
    """

    scheduler: CompilingScheduler
    model: LanguageModel
    length: int
    slots: int | None = None
    cache_type: str | None = None
    precision: Precision | None = None
    speculation: Speculation | None = None

    def steps(self, scheduler: CompilingScheduler, slots: int, in_flight: int = 1) -> CompiledSteps:
        """Return the steps of an engine, of which nothing is compiled; their placement is
        decided.
        """
        steps = CompiledSteps(
            *(scheduler, self.model, self.length, None, None, self.cache_type, self.precision),
            prefetch=False,
            slots=slots,
            in_flight=in_flight,
        )
        steps.decide()
        return steps

    def slots_of_engine(
        self, scheduler: CompilingScheduler, in_flight: int = 1, replicas: int = 1
    ) -> int:
        """Return the maximum number of slots of an engine by the memory of its devices.

        Parameters
        ----------
        in_flight
            The number of engines with the same devices.
        replicas
            The number of engines with devices of their own; their draft models share a scheduler
            if the speculation has one.
        """
        draft, sharing = None, in_flight
        if self.speculation is not None:
            draft = self.speculation.draft_steps(scheduler, self.length)
            if self.speculation.scheduler is not None:
                sharing *= replicas
        steps = self.steps(scheduler, 1, in_flight)
        return slots_by_memory(steps, in_flight, draft=draft, draft_engines=sharing)


class Impossible(Exception):
    """A split cannot be used; the message names the reason."""


def choose_split(request: SplitRequest, split: str = AUTO) -> SplitChoice:
    """Return the requested split, or the fastest one.

    Raises
    ------
    PlanError
        The split is unknown, or it is not possible with these devices.
    """
    if split not in SPLITS:
        raise PlanError(f"[split] expected one of {', '.join(SPLITS)}, got {split!r}")
    cards = _cards(request.scheduler)
    if split == AUTO and (reason := _only_layers(request, cards)):
        return SplitChoice(LAYERS, _layers(request, None)[1], reason)
    forecasts: dict[str, SplitForecast] = {}
    plans: dict[str, tuple[EnginePlan, ...]] = {}
    impossible: dict[str, str] = {}
    for name in _SPLITS if split == AUTO else (split,):
        try:
            forecasts[name], plans[name] = _SPLITS[name](request, cards)
        except Impossible as error:
            impossible[name] = str(error)
    if split in impossible:
        raise PlanError(
            f"[split] expected devices for {split}: {impossible[split]}; try another split of "
            f"{', '.join(SPLITS)}"
        )
    notes: tuple[str, ...] = ()
    topology = request.scheduler.topology
    is_known = known(topology, [topology.index(name) for name in cards])
    if not is_known:
        notes = (f"times are {estimated_text(topology)}; try vksched calibrate",)
    best = _best(forecasts, MARGIN_MEASURED if is_known else MARGIN_ESTIMATED)
    reason = "as requested" if split != AUTO else _reason(best, forecasts)
    return SplitChoice(best, plans[best], reason, forecasts, impossible, notes)


def _cards(scheduler: CompilingScheduler) -> list[str]:
    """Return the names of the working GPUs, one for each memory."""
    topology = scheduler.topology
    able = [spec.kind != "cpu" and not spec.disabled_reason for spec in topology.devices]
    first = (next((d for d in node if able[d]), None) for node in topology.memory_nodes)
    return [topology.devices[d].name for d in first if d is not None]


def _only_layers(request: SplitRequest, cards: Sequence[str]) -> str:
    """Return the reason that there is nothing to compare; "" if there is not."""
    topology = request.scheduler.topology
    if len(cards) < 2:
        return "one GPU" if cards else "no GPU"
    if len({topology.queues[topology.index(name)] for name in cards}) < 2:
        return "all devices compute on the same cores"
    if request.slots == 1:
        return "one slot"
    if request.scheduler.policy != AUTO:
        return f"policy {request.scheduler.policy}"
    return ""


Candidate = tuple[SplitForecast, tuple[EnginePlan, ...]]


def _layers(request: SplitRequest, cards: Sequence[str] | None) -> Candidate:
    """Return the forecast and plan of one engine. cards: None skips the forecast."""
    slots = request.slots or request.slots_of_engine(request.scheduler)
    if cards is None:
        return SplitForecast((), 0.0), (EnginePlan(slots),)
    forecaster = EngineForecaster(request.steps(request.scheduler, slots))
    rows = min(slots, request.slots or MAX_SLOTS)
    return _candidate(request, [forecaster.forecast(rows)], [EnginePlan(slots)])


def _pipeline(request: SplitRequest, cards: Sequence[str]) -> Candidate:
    """Return the forecast and plan of one engine for each device, over all devices."""
    count = min(len(cards), request.slots or len(cards))
    if count < 2:
        raise Impossible(f"it needs 2 GPUs and 2 slots, got {len(cards)} and {request.slots}")
    if request.scheduler.policy != AUTO:
        raise Impossible(f"it needs the policy auto, got {request.scheduler.policy}")
    by_memory = 0 if request.slots else request.slots_of_engine(request.scheduler, count)
    slots = _parts(request.slots, count) if request.slots else [by_memory] * count
    steps = request.steps(request.scheduler, slots[0], count)
    forecaster = EngineForecaster(steps, count)
    if len(forecaster.devices) < 2:
        raise Impossible(f"all layers would be on {forecaster.devices[0]}")
    clients = _parts(request.slots or MAX_SLOTS, count)
    rows = [min(each, most) for each, most in zip(clients, slots, strict=True)]
    engines = [forecaster.forecast(each) for each in rows]
    return _candidate(request, engines, [EnginePlan(each) for each in slots])


def _replicas(request: SplitRequest, cards: Sequence[str]) -> Candidate:
    """Return the forecast and plan of one engine for each device that holds the whole model."""
    found: list[tuple[str, int, EngineForecaster]] = []
    partial = []
    for name in cards:
        subset = DeviceSubset(request.scheduler, [name])
        most = request.slots or request.slots_of_engine(subset, replicas=len(cards))
        forecaster = EngineForecaster(request.steps(subset, most))
        if forecaster.devices == (name,):
            found.append((name, most, forecaster))
        else:
            partial.append(name)
    if len(found) < 2:
        why = f"; the model does not fit on {', '.join(partial)}" if partial else ""
        raise Impossible(f"it needs 2 GPUs that hold the whole model, got {len(found)}{why}")
    clients = request.slots or MAX_SLOTS
    if clients < len(found):
        raise Impossible(f"it needs a slot for each of {len(found)} GPUs, got {clients}")
    rows = _distributed(clients, [most for _, most, _ in found], _round_times(request, found))
    used = list(zip(found, rows, strict=True))
    engines = [forecaster.forecast(count) for (_, _, forecaster), count in used]
    plans = [
        EnginePlan(count if request.slots else most, (name,)) for (name, most, _), count in used
    ]
    return _candidate(request, engines, plans)


_SPLITS: dict[str, Callable[[SplitRequest, Sequence[str]], Candidate]] = {
    LAYERS: _layers,
    REPLICAS: _replicas,
    PIPELINE: _pipeline,
}
"""The splits, the simplest first."""


def _round_times(
    request: SplitRequest, found: Sequence[tuple[str, int, EngineForecaster]]
) -> Callable[[int, int], float]:
    """Return a function from engine and rows to the time of its round. Equal devices share it."""
    topology = request.scheduler.topology
    specs = [
        replace(topology.devices[topology.index(name)], name="", memory_node="", memory_bytes=0)
        for name, _, _ in found
    ]
    first = [specs.index(spec) for spec in specs]
    known_s: dict[tuple[int, int], float] = {}

    def round_s(engine: int, rows: int) -> float:
        key = first[engine], rows
        if key not in known_s:
            known_s[key] = found[key[0]][2].forecast(rows).round_s
        return known_s[key]

    return round_s


def _distributed(
    clients: int, most: Sequence[int], round_s: Callable[[int, int], float]
) -> list[int]:
    """Return the number of requests of each engine, at least one: each further request goes where
    its round ends first.
    """
    rows = [1] * len(most)
    for _ in range(min(clients, sum(most)) - len(most)):
        free = [e for e, count in enumerate(rows) if count < most[e]]
        best = min(free, key=lambda e: (round_s(e, rows[e] + 1), rows[e]))
        rows[best] += 1
    return rows


def _parts(whole: int, count: int) -> list[int]:
    """Return a number in `count` nearly equal parts, the largest first."""
    least, more = divmod(whole, count)
    return [least + (part < more) for part in range(count)]


def _candidate(
    request: SplitRequest, engines: Sequence[EngineForecast], plans: Sequence[EnginePlan]
) -> Candidate:
    rate = tokens_per_s(engines, request.scheduler.topology)
    speeds = [engine.speeds for engine in engines]
    plans = [replace(p, speeds=s) for p, s in zip(plans, speeds, strict=True)]
    return SplitForecast(tuple(engines), rate), tuple(plans)


def _best(forecasts: dict[str, SplitForecast], margin: float) -> str:
    """Return the split with the highest rate; a later one must win by the margin."""
    best, *others = forecasts
    for name in others:
        if forecasts[name].tokens_per_s > (1 + margin) * forecasts[best].tokens_per_s:
            best = name
        elif best != LAYERS and forecasts[name].tokens_per_s > forecasts[best].tokens_per_s:
            best = name
    return best


def _reason(best: str, forecasts: dict[str, SplitForecast]) -> str:
    """Return the reason for a choice in numbers."""
    rates = {name: forecast.tokens_per_s for name, forecast in forecasts.items()}
    if best != LAYERS:
        return f"{rates[best] / rates[LAYERS]:.2f} times the predicted tokens/s of {LAYERS}"
    others = [name for name in rates if name != LAYERS]
    if not others:
        return "no other split is possible"
    other = max(others, key=lambda name: rates[name])
    return f"{other} would write {rates[other] / rates[LAYERS]:.2f} times the tokens/s, too few"
