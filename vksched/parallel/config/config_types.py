"""Config types: the checked contents of a config, with all defaults.

    encoder.0: {devices: [vulkan:0, vulkan:1], shard: {axis: 0, ratio: auto}}
    head: {devices: [vulkan:0, vulkan:1], shard: {weights: columns}}
    pipeline: {stages: [encoder.0, encoder.1, head], microbatches: 8, schedule: zero-bubble}

A section applies to the values of a signal: those whose names begin with its name and a dot, as
`vs.signal` names them; or, for names with *, ? or [, to those that match it. The longest matching
name takes precedence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

AUTO = "auto"
COLUMNS, ROWS = WEIGHTS = ("columns", "rows")
SCHEDULES = (
    "auto",
    "gpipe",
    "1f1b",
    "interleaved",
    "zero-bubble",
    "zb-h1",
    "zb-h2",
    "dualpipe",
)
"""zero-bubble is zb-h2 if its memory suffices, else zb-h1."""


@dataclass(frozen=True, slots=True)
class Shard:
    """How the values of a signal are sharded over its devices; `axis`, `weights` or `auto` is set.

    Parameters
    ----------
    axis
        The axis of the inputs of the signal, such as 0 for the examples of a batch.
    weights
        "columns" or "rows" of the weights of matmuls.
    auto
        Choose the fastest by simulation, no sharding included.
    ratio
        The shares of the devices, such as (3, 1); "auto" by their costs; () evenly.
    """

    axis: int | None = None
    weights: str = ""
    auto: bool = False
    ratio: tuple[int, ...] | str = ()


@dataclass(frozen=True, slots=True)
class Section:
    """The section of a signal in a config.

    Parameters
    ----------
    name
        The signal.
    devices
        Names as `vksched devices` prints them; () for all.
    shard
        How its values are sharded.
    backward
        The section of its backward pass; "" for this one.
    line
        The line in the file, 0 if there is none.
    precision
        The precision mode of its matmuls, convolutions and attention; "" for the default.
    """

    name: str
    devices: tuple[str, ...] = ()
    shard: Shard | None = None
    backward: str = ""
    line: int = 0
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The pipeline of a config.

    Parameters
    ----------
    stages
        The signals, in order.
    microbatches
        The number of microbatches.
    schedule
        One of SCHEDULES.
    axis
        The axis of the inputs that is split into microbatches.
    devices
        The devices of the stages, one each or repeated in order; () for those of the sections.
    line
        The line in the file, 0 if there is none.
    """

    stages: tuple[str, ...]
    microbatches: int
    schedule: str = AUTO
    axis: int = 0
    devices: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """The sections by name, in the order of the file, the pipeline, and the name of the file."""

    sections: Mapping[str, Section] = field(default_factory=dict)
    pipeline: Pipeline | None = None
    source: str = "config"

    def without(self, gone: Collection[str]) -> Config:
        """Return the config without some devices; a signal without any runs anywhere."""
        sections = {name: _without(each, gone) for name, each in self.sections.items()}
        pipeline = self.pipeline
        if pipeline is not None:
            left = tuple(device for device in pipeline.devices if device not in gone)
            pipeline = replace(pipeline, devices=left)
        return replace(self, sections=sections, pipeline=pipeline)


def _without(section: Section, gone: Collection[str]) -> Section:
    if not any(device in gone for device in section.devices):
        return section
    remaining = [i for i, device in enumerate(section.devices) if device not in gone]
    devices, shard = tuple(section.devices[i] for i in remaining), section.shard
    if shard is not None and isinstance(shard.ratio, tuple) and shard.ratio:
        shard = replace(shard, ratio=tuple(shard.ratio[i] for i in remaining))
    return replace(section, devices=devices, shard=shard if devices else None)
