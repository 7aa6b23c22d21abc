"""Links: latency and bandwidth between devices, as plain data.

Links((("gpu:0", "cpu", Link(bytes_per_s=12e9, latency_s=10e-6)),)).between("cpu", "gpu:0")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

from ..common.errors import PlanError


@dataclass(frozen=True, slots=True)
class Link:
    """The cost of a transfer: latency_s + bytes / bytes_per_s.

    Parameters
    ----------
    bytes_per_s
        The rate, which may be infinite.
    bandwidth
        An alias of bytes_per_s in the constructor.

    Raises
    ------
    PlanError
        The bandwidth is not a number.
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
"""The default link between two hosts: ten gigabit Ethernet, see link_presets.py."""


@dataclass(frozen=True, slots=True)
class Links:
    """Links between pairs of devices by name. A link serves both directions unless the reverse one
    has its own.

    Parameters
    ----------
    default
        The link of other pairs.
    network
        The link of other pairs of hosts.
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
        """Return the network link from one host to another, by the names of their memories."""
        return self._table.get((source, target), self.network)

    def named(self, source: str, target: str) -> bool:
        """Return True if the link from one device to another was specified or measured, not the
        default.
        """
        return (source, target) in self._table
