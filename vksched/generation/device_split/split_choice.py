"""SplitChoice: how several GPUs serve a model, with the predicted rates of all ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...common.formatting import count_of
from ..batching.engine_load import EngineSpeeds
from .engine_forecast import EngineForecast

AUTO, LAYERS, PIPELINE, REPLICAS = "auto", "layers", "pipeline", "replicas"
SPLITS = (AUTO, LAYERS, PIPELINE, REPLICAS)
"""The values of `split`.

layers: one engine, whose layers are on the devices that make a request fastest. pipeline: one
engine for each device; all of them share the devices, and their steps overlap. replicas: one engine
for each device, with the whole model.
"""


@dataclass(frozen=True)
class EnginePlan:
    """An engine to build.

    Parameters
    ----------
    slots
        The number of its slots.
    devices
        Its own devices; none if it uses all of the scheduler.
    speeds
        The predicted times of its steps.
    """

    slots: int
    devices: tuple[str, ...] = ()
    speeds: EngineSpeeds = EngineSpeeds()


@dataclass(frozen=True)
class SplitForecast:
    """The prediction for one split."""

    engines: tuple[EngineForecast, ...]
    tokens_per_s: float


@dataclass(frozen=True)
class SplitChoice:
    """The chosen split.

    Parameters
    ----------
    split
        "layers", "pipeline" or "replicas".
    engines
        The engines to build.
    reason
        The reason for the choice.
    forecasts
        The prediction for each split that was compared.
    impossible
        The reason for each split that cannot be used.
    notes
        Remarks on the predictions.
    """

    split: str
    engines: tuple[EnginePlan, ...]
    reason: str
    forecasts: Mapping[str, SplitForecast] = field(default_factory=dict)
    impossible: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        """The number of slots of all engines."""
        return sum(engine.slots for engine in self.engines)

    def explain(self) -> str:
        """Return the choice as text: the reason, and a line for each split."""
        slots = " + ".join(str(engine.slots) for engine in self.engines)
        lines = [f"split {self.split}, {slots} slots: {self.reason}"]
        for split, forecast in self.forecasts.items():
            ways = dict.fromkeys(" > ".join(engine.devices) for engine in forecast.engines)
            rows = " + ".join(str(engine.rows) for engine in forecast.engines)
            about = f"{count_of(len(forecast.engines), 'engine')} on {', '.join(ways)}"
            rate = f"{forecast.tokens_per_s:,.0f} tokens/s"
            lines.append(f"  {split:<9} {rate:>16}  {about}, {rows} requests")
        lines += [f"  {split:<9} {'':>16}  {why}" for split, why in self.impossible.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])
