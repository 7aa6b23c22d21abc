"""Links: how fast bytes go from one device to another, as plain data.

Links((("gpu:0", "cpu", Link(bytes_per_s=12e9, latency_s=10e-6)),)).between("cpu", "gpu:0")
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """What a transfer takes: latency_s + bytes / bytes_per_s."""

    bytes_per_s: float = 8e9
    latency_s: float = 0.0

    def seconds(self, size_bytes: float) -> float:
        """Returns the time of one transfer."""
        return self.latency_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Links:
    """Links by the names of two devices; one serves both ways unless the way back has its own.

    default: of pairs that are not named.
    """

    pairs: tuple[tuple[str, str, Link], ...] = ()
    default: Link = Link()

    def between(self, source: str, target: str) -> Link:
        """Returns the link from one device to another."""
        there = {(a, b): link for a, b, link in self.pairs}
        return there.get((source, target)) or there.get((target, source)) or self.default
