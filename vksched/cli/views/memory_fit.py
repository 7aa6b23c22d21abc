"""Output of `vksched info` for a language model on a topology: memory fit and predicted speed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from ..options import inputs
from ..options.topology_options import topology_of

if TYPE_CHECKING:
    from ...generation.layer_placement.forecast import Forecast, PlacedLayers
    from ...importers.gguf.model import LanguageModel
    from ...planner.what_if import Outcome

OWN_NOTES = ("auto: ", "passes: ", "override: ")
"""Prefixes of notes about the rest of a plan, which is small, and about the placement of layers."""


class MemoryFit:
    """A model on a topology, and without each of its devices. ctx: context length in tokens, by
    default that of a chat. cache_type: element type of the KV cache, by default that of a chat.
    """

    def __init__(
        self,
        model: LanguageModel,
        devices: str | None,
        topology_file: str | None,
        ctx: int | None,
        cache_type: str | None,
    ) -> None:
        from ...generation.chat import CONTEXT
        from ...generation.compiled_steps import sizes_of
        from ...generation.device_precision import AUTO, placement_cache_type
        from ...generation.layer_placement.forecast import Forecaster

        self.ctx = min(CONTEXT, model.hyper.context) if ctx is None else ctx
        topology, _, with_cpu = topology_of(devices, topology_file)
        self._cache_type = cache_type or placement_cache_type(topology, AUTO)
        sizes = sizes_of(self.ctx)
        forecaster = Forecaster(model, self.ctx, sizes, with_cpu, self._cache_type, AUTO)
        self._found = forecaster.compare(topology)
        self._rows: list[tuple[Outcome, Forecast | None]] = [
            (row, forecaster.forecast(row.topology)) for row in self._found.rows
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data. what_if: the first row is the unchanged topology."""
        from ...generation.layer_placement.forecast import as_dict

        return {
            "ctx": self.ctx,
            "cache_type": self._cache_type,
            "what_if": [
                {**outcome, "fits": None if forecast is None else as_dict(forecast)}
                for outcome, (_, forecast) in zip(self._found.as_dict(), self._rows, strict=True)
            ],
        }

    def show(self) -> None:
        """Print tables: memory use of the topology, and speed with and without each GPU."""
        outcome, here = self._rows[0]
        click.echo(f"with a context of {self.ctx:,} tokens, kept as {self._cache_type}:\n")
        if here is None:
            click.echo(f"it does not fit: {outcome.why_not}")
        else:
            self._show_held(here)
        rows = inputs.table("with and without", "written", "prompt", "layers")
        rows.columns[-1].justify = "left"
        for row, forecast in self._rows:
            rows.add_row(row.text, *_speeds(forecast), _shares(forecast) or row.why_not)
        inputs.print_table(rows, wide=True)
        for line in self._found.findings():
            click.echo(line)

    def _show_held(self, forecast: Forecast) -> None:
        from ...common.formatting import count_of, format_bytes, format_share

        rows = inputs.table(
            "device", "layers", "weights", "keys, values", "work", "of its memory", left=2
        )
        for held in forecast.held:
            sizes = map(format_bytes, (held.weight_bytes, held.cache_bytes, held.work_bytes))
            share = format_share(held.total_bytes, held.capacity_bytes)
            rows.add_row(held.device, _names(held), *sizes, share)
        inputs.print_table(rows, wide=True)
        for held in forecast.held:
            if held.away:
                layers = count_of(held.away, "layer")
                click.echo(f"the experts of {layers} of {held.device} are on the CPU\n")
        for note in forecast.notes:
            if not note.startswith(OWN_NOTES):
                click.echo(f"note: {note}")


def _names(held: PlacedLayers) -> str:
    return held.first if held.first == held.last else f"{held.first} .. {held.last}"


def _speeds(forecast: Forecast | None) -> tuple[str, str]:
    if forecast is None:
        return "", ""
    speeds = forecast.speeds
    return _speed(speeds.decode), _speed(speeds.prefill)


def _speed(per_s: float) -> str:
    return f"{per_s:,.0f} tokens/s" if per_s >= 100 else f"{per_s:.3g} tokens/s"


def _shares(forecast: Forecast | None) -> str:
    counts = Counter[str]()
    for held in () if forecast is None else forecast.held:
        counts[held.device] += held.layers
    return ", ".join(f"{device} {count}" for device, count in counts.items())
