"""What a config says, as plain values: checked, with all defaults filled in.

    encoder.0: {devices: [vulkan:0, vulkan:1], shard: {axis: 0, ratio: auto}}
    head: {devices: [vulkan:0, vulkan:1], shard: {weights: columns}}
    pipeline: {stages: [encoder.0, encoder.1, head], microbatches: 8, schedule: zero-bubble}

A section belongs to the values of a signal: those whose name begins with its name and a dot, as
`vs.signal` names them; or, for names with *, ? or [, to those that match it. Of several the longest
one wins.
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
"""zero-bubble is zb-h2 where its memory suffices, else zb-h1."""


@dataclass(frozen=True, slots=True)
class Shard:
    """How values of a signal are cut over its devices: one of the three.

    axis: of the values that come in, such as 0 for the examples of a batch. weights: "columns" or
    "rows" of what products read. auto: what simulation finds best, "not at all" included.
    ratio: how much each device takes, such as (3, 1); "auto" by what devices cost; () evenly.
    """

    axis: int | None = None
    weights: str = ""
    auto: bool = False
    ratio: tuple[int, ...] | str = ()


@dataclass(frozen=True, slots=True)
class Section:
    """What a config says of a signal. devices: names as `vksched devices` prints them; () all.
    backward: the section for its backward pass; "" where that is this one. precision: of its
    products, convolutions and attention; "" as without the section. line: in the file, 0 if
    there is none.
    """

    name: str
    devices: tuple[str, ...] = ()
    shard: Shard | None = None
    backward: str = ""
    line: int = 0
    precision: str = ""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """stages: signals in their order. devices: of the stages, one each or taken in turns; () those
    of the sections. axis: of the inputs, cut into microbatches. schedule: one of SCHEDULES.
    """

    stages: tuple[str, ...]
    microbatches: int
    schedule: str = AUTO
    axis: int = 0
    devices: tuple[str, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Config:
    """sections: by name, in the order of the file. source: the file, for messages."""

    sections: Mapping[str, Section] = field(default_factory=dict)
    pipeline: Pipeline | None = None
    source: str = "config"

    def without(self, gone: Collection[str]) -> Config:
        """Returns what is left of the config where some devices are not there. A signal that has
        no device left may run anywhere.
        """
        sections = {name: _without(each, gone) for name, each in self.sections.items()}
        pipeline = self.pipeline
        if pipeline is not None:
            left = tuple(device for device in pipeline.devices if device not in gone)
            pipeline = replace(pipeline, devices=left)
        return replace(self, sections=sections, pipeline=pipeline)


def _without(section: Section, gone: Collection[str]) -> Section:
    if not any(device in gone for device in section.devices):
        return section
    kept = [i for i, device in enumerate(section.devices) if device not in gone]
    devices, shard = tuple(section.devices[i] for i in kept), section.shard
    if shard is not None and isinstance(shard.ratio, tuple) and shard.ratio:
        shard = replace(shard, ratio=tuple(shard.ratio[i] for i in kept))
    return replace(section, devices=devices, shard=shard if devices else None)
