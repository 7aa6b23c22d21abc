"""Links: how fast bytes go from one device to another, as plain data.

Links((("gpu:0", "cpu", Link(bytes_per_s=12e9, latency_s=10e-6)),)).between("cpu", "gpu:0")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

from ..common.errors import PlanError


@dataclass(frozen=True, slots=True)
class Link:
    """What a transfer takes: latency_s + bytes / bytes_per_s.

    bytes_per_s: infinity is legal. bandwidth: another word for bytes_per_s, for the constructor.

    Raises:
        PlanError: the bandwidth is no number.
    """

    bytes_per_s: float = 8e9
    latency_s: float = 0.0
    bandwidth: InitVar[float | None] = None

    def __post_init__(self, bandwidth: float | None) -> None:
        if bandwidth is None:
            return
        try:
            object.__setattr__(self, "bytes_per_s", float(bandwidth))
        except (TypeError, ValueError, OverflowError):
            raise PlanError(
                f"[link] expected bytes a second as bandwidth, got {bandwidth!r}; try 8e9"
            ) from None

    def seconds(self, size_bytes: float) -> float:
        """Return the time of one transfer."""
        return self.latency_s + size_bytes / self.bytes_per_s


NETWORK = Link(bytes_per_s=1.125e9, latency_s=50e-6)
"""Between two hosts where nobody has said more: ten gigabit Ethernet, see ways.py."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links by the names of two devices; one serves both ways unless the way back has its own.

    default: of pairs that are not named. network: the same between two hosts.
    """

    pairs: tuple[tuple[str, str, Link], ...] = ()
    default: Link = Link()
    network: Link = NETWORK
    _table: Mapping[tuple[str, str], Link] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        there = {(a, b): link for a, b, link in self.pairs}
        back = {(b, a): link for a, b, link in self.pairs}
        object.__setattr__(self, "_table", {**back, **there})

    def between(self, source: str, target: str) -> Link:
        """Return the link from one device to another."""
        return self._table.get((source, target), self.default)

    def over_network(self, source: str, target: str) -> Link:
        """Return the link from the memory of one host to that of another."""
        return self._table.get((source, target), self.network)

    def named(self, source: str, target: str) -> bool:
        """Whether a link from one device to another was given or measured, not the default."""
        return (source, target) in self._table
