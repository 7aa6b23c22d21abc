"""Calibration: measurements of one device and the resulting costs and links, as plain data.

    samples (op, bound, size, factor) --mean per kind and size--> curves of the op,
                                                                  of its family, of any op
    seconds of transfers by size ------fit----------------------> Link each way

A factor is the measured time of a call divided by its estimate from rough speeds. It is valid for
these speeds only, which are stored with it. Complexity: O(samples). Examples:
tests/tuning/test_calibration.py.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from ..common.errors import VkschedError
from ..ir.op import get_op
from ..plan.costs.node_cost import COPIES, family_of
from ..topology.device_spec import DeviceSpec
from ..topology.links import Link
from ..topology.perf_model import ANY, MIN_S, Curve, PerfModel

MIN_SHARE = 0.05
"""Minimum share of a short call's time that is not its launch, because the launch was measured on
other calls.
"""
MAX_SAMPLES = 4096
"""Maximum number of samples of one device."""
FIT_ROUNDS = 20
MAX_RELATIVE_ERROR = 0.1
"""Transfers whose relative distance from the line is larger get a lower weight."""
MAX_BYTES_PER_S = 1e15
"""Upper bound of a rate, for transfers that take no time."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured call.

    Parameters
    ----------
    op
        The call signature, see `node_cost.call_signature`.
    bound
        Its limiting resource.
    size
        log2 of the estimated seconds.
    factor
        Measured seconds without the launch, divided by the estimate.
    shaders
        Hash of the shaders; "" on devices without shaders.
    """

    op: str
    bound: str
    size: float
    factor: float
    shaders: str = ""

    @property
    def name(self) -> str:
        """The name of the op."""
        return self.op.partition("+")[0]

    @property
    def place(self) -> tuple[str, str, int]:
        """The key of the sample: a newer one with the same op, limiting resource and size class
        replaces it.
        """
        return self.op, self.bound, round(self.size)

    def seconds(self, launch_s: float) -> float:
        """Return the measured seconds of the call, launch included."""
        return launch_s + self.factor * math.pow(2.0, self.size)

    def taking(self, taken_s: float, launch_s: float) -> Sample:
        """Return a sample of the same call with other measured seconds, launch included."""
        estimate_s = math.pow(2.0, self.size)
        return sample_of(self.op, estimate_s, self.bound, taken_s, launch_s, self.shaders)


@dataclass(frozen=True, slots=True)
class Overheads:
    """Overheads of calls and submissions; see `PerfModel`."""

    launch_s: float = 0.0
    start_s: float = 0.0
    submit_s: float = 0.0
    fence_s: float = 0.0
    run_s: float = 0.0
    alone_s: float = 0.0


@dataclass(frozen=True)
class Calibration:
    """Measurements of one device.

    Attributes
    ----------
    speeds
        The rough speeds that factors refer to.
    link_in, link_out
        The links from and to the memory of the host.
    when
        The day of the last measurement.
    spent_s, starts
        Seconds that schedulers spent on measuring without being asked, and their number.
    pace
        The factor by which calls took longer in runs than by samples.
    seen
        The day of the last run that updated `pace`.
    guessed
        Whether the overheads are typical ones of similar devices, not measured ones.
    """

    speeds: tuple[float, float, float]
    overheads: Overheads | None = None
    link_in: Link | None = None
    link_out: Link | None = None
    samples: tuple[Sample, ...] = ()
    flops_per_s: float = 0.0
    bytes_per_s: float = 0.0
    when: str = ""
    spent_s: float = 0.0
    starts: int = 0
    pace: float = 1.0
    seen: str = ""
    guessed: bool = False

    @cached_property
    def costs(self) -> PerfModel:
        """The costs for the planner."""
        return _costs(self)

    def __bool__(self) -> bool:
        return self.overheads is not None

    def plus(self, newer: Calibration) -> Calibration:
        """Return this calibration updated with newer measurements; only the newer ones if speeds
        have changed.

        Newer samples replace samples with equal keys. Over MAX_SAMPLES, old ones are dropped.
        Guessed overheads do not replace measured ones.
        """
        if newer.speeds != self.speeds:
            return newer
        surer = self if not newer or (newer.guessed and self) else newer
        fresh = {sample.place: sample for sample in newer.samples}
        old = [sample for sample in self.samples if sample.place not in fresh]
        samples = {s.place: s for s in old[: max(0, MAX_SAMPLES - len(fresh))]} | fresh
        return replace(
            newer,
            overheads=surer.overheads,
            guessed=surer.guessed,
            link_in=newer.link_in or self.link_in,
            link_out=newer.link_out or self.link_out,
            samples=tuple(sorted(samples.values(), key=lambda sample: sample.place)),
            flops_per_s=max(self.flops_per_s, newer.flops_per_s),
            bytes_per_s=max(self.bytes_per_s, newer.bytes_per_s),
            when=max(self.when, newer.when),
            spent_s=self.spent_s + newer.spent_s,
            starts=self.starts + newer.starts,
            seen=max(self.seen, newer.seen),
        )

    def at_own_pace(self) -> Calibration:
        """Return a copy with the pace merged into the samples."""
        if self.pace == 1:
            return self
        overheads = self.overheads
        if overheads is not None:
            overheads = replace(overheads, launch_s=self.pace * overheads.launch_s)
        samples = tuple(
            s if s.op in COPIES else replace(s, factor=s.factor * self.pace) for s in self.samples
        )
        return replace(self, overheads=overheads, samples=samples, pace=1.0, seen="")

    def recovered(self, today: datetime.date) -> Calibration:
        """Return a copy in which half of the slowness in runs is forgotten for each day since: the
        device may have been hot or busy, and is to be tried again.
        """
        if self.pace <= 1 or not self.seen:
            return self
        days = max(0, (today - datetime.date.fromisoformat(self.seen)).days)
        return replace(self, pace=self.pace ** (0.5**days)) if days else self

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration as plain data; `from_dict` reads it."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Calibration:
        """Return a calibration from plain data; invalid data raises KeyError, TypeError or
        ValueError.
        """
        flops_per_s, bytes_per_s, loop_latency_s = map(_positive, data["speeds"])
        overheads = data["overheads"]
        if overheads is not None:
            overheads = Overheads(**{name: _least(value) for name, value in overheads.items()})
        return Calibration(
            (flops_per_s, bytes_per_s, loop_latency_s),
            overheads,
            _link(data["link_in"]),
            _link(data["link_out"]),
            tuple(
                Sample(
                    str(each["op"]),
                    str(each["bound"]),
                    _finite(each["size"]),
                    _positive(each["factor"]),
                    str(each["shaders"]),
                )
                for each in data["samples"]
            ),
            _least(data["flops_per_s"]),
            _least(data["bytes_per_s"]),
            str(data["when"]),
            _least(data.get("spent_s", 0.0)),
            int(_least(data.get("starts", 0))),
            _positive(data.get("pace", 1.0)),
            _day(data.get("seen", "")),
            bool(data.get("guessed", False)),
        )


def speeds_of(spec: DeviceSpec) -> tuple[float, float, float]:
    """Return the rough speeds that factors of a device refer to."""
    return spec.flops_per_s, spec.bytes_per_s, spec.loop_latency_s


def sample_of(
    op: str, estimate_s: float, bound: str, taken_s: float, launch_s: float, shaders: str = ""
) -> Sample:
    """Return the sample of a call with measured seconds, launch included."""
    estimate_s = max(estimate_s, MIN_S)
    work_s = max(taken_s - launch_s, MIN_SHARE * taken_s, MIN_S)
    return Sample(op, bound, math.log2(estimate_s), work_s / estimate_s, shaders)


def fit_link(taken: Sequence[tuple[float, float]]) -> Link:
    """Return the link that fits transfers best: latency_s + bytes / bytes_per_s.

    Parameters
    ----------
    taken
        Pairs of bytes and seconds, for at least two sizes.
    """
    weights = [1.0] * len(taken)
    latency_s, per_byte_s = 0.0, 0.0
    for _ in range(FIT_ROUNDS):
        latency_s, per_byte_s = _line(taken, weights)
        off = [abs(latency_s + per_byte_s * size - s) / s if s > 0 else 0.0 for size, s in taken]
        weights = [min(1.0, MAX_RELATIVE_ERROR / max(each, 1e-12)) for each in off]
    if per_byte_s * MAX_BYTES_PER_S <= 1:
        return Link(MAX_BYTES_PER_S, latency_s)
    return Link(1 / per_byte_s, latency_s)


def through(first: Link, then: Link) -> Link:
    """Return the link of two links in series."""
    per_byte_s = 1 / first.bytes_per_s + 1 / then.bytes_per_s
    return Link(1 / per_byte_s, first.latency_s + then.latency_s)


def _line(taken: Sequence[tuple[float, float]], weights: Sequence[float]) -> tuple[float, float]:
    """Return nonnegative (a, b) of the weighted least-squares line a + b * bytes."""
    ww = w1 = wx = w1x = wxx = 0.0
    for (size, seconds), weight in zip(taken, weights, strict=True):
        if seconds <= 0:
            continue
        each = weight / (seconds * seconds)
        ww += each
        w1 += each * size
        wxx += each * size * size
        wx += each * seconds
        w1x += each * size * seconds
    if ww == 0:
        return 0.0, 0.0
    spread = ww * wxx - w1 * w1
    b = (ww * w1x - w1 * wx) / spread if spread > 0 else 0.0
    a = (wx - b * w1) / ww
    if b < 0:
        return wx / ww, 0.0
    if a < 0:
        return 0.0, w1x / wxx
    return a, b


def _costs(of: Calibration) -> PerfModel:
    """Return the costs for the planner: calls at the pace that runs showed."""
    if of.overheads is None:
        return PerfModel()
    overheads = replace(of.overheads, launch_s=of.pace * of.overheads.launch_s)
    found: dict[str, dict[int, list[Sample]]] = {}
    plain = {(sample.op, sample.bound) for sample in of.samples if sample.op == sample.name}
    for sample in of.samples:
        for kind in _kinds(sample):
            if kind == f"{sample.name}/{sample.bound}" and (
                sample.op != sample.name and (sample.name, sample.bound) in plain
            ):
                continue  # plain calls of the op have their own samples
            found.setdefault(kind, {}).setdefault(round(sample.size), []).append(sample)
    curves = tuple(
        Curve(kind, _points(found[kind].values(), 1.0 if kind.startswith(COPIES) else of.pace))
        for kind in sorted(found)
    )
    return PerfModel(
        curves,
        **asdict(overheads),
        flops_per_s=of.flops_per_s,
        bytes_per_s=of.bytes_per_s,
        calls=max(1, len(of.samples)),
        when=of.when,
    )


def _kinds(sample: Sample) -> list[str]:
    own = f"{sample.op}/{sample.bound}"
    if sample.op in COPIES:
        return [own]
    with suppress(VkschedError):  # the op may not exist any more
        op = get_op(sample.name)
        kinds = (own, *(f"{each}/{sample.bound}" for each in (op.name, family_of(op), ANY)))
        return list(dict.fromkeys(kinds))
    return []


def _points(groups: Iterable[Sequence[Sample]], pace: float) -> tuple[tuple[float, float], ...]:
    """Return the geometric mean of each size class, multiplied by the pace."""
    return tuple(
        sorted(
            (
                sum(s.size for s in group) / len(group),
                pace * math.exp(sum(math.log(s.factor) for s in group) / len(group)),
            )
            for group in groups
        )
    )


def _link(data: Mapping[str, Any] | None) -> Link | None:
    if data is None:
        return None
    return Link(_positive(data["bytes_per_s"]), _least(data["latency_s"]))


def _day(value: Any) -> str:
    """Return an ISO day, or ""."""
    return datetime.date.fromisoformat(value).isoformat() if value else ""


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {value!r}")
    return number


def _least(value: Any) -> float:
    if _finite(value) < 0:
        raise ValueError(f"expected a number of 0 or more, got {value!r}")
    return float(value)


def _positive(value: Any) -> float:
    if not _finite(value) > 0:
        raise ValueError(f"expected a number above 0, got {value!r}")
    return float(value)
