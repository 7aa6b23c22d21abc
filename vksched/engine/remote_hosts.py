"""The other computers of a scheduler, as the engine sees them: devices, links, and who carries out
their parts of a plan.

    vksched/cluster --join--> Hosts --devices--> DeviceSet      --host, transport--> ClusterExecutor
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from ..distributed.protocols import TensorTransport, Worker
from ..runtime.device import Device
from ..topology.links import Link


class Hosts(Protocol):
    """Computers that are connected. Their devices have the host before their name."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of all computers, also of those that are lost now."""

    @property
    def hosts(self) -> Mapping[str, Worker]:
        """The computers, by name."""

    @property
    def transport(self) -> TensorTransport:
        """The way of values to this process and from it."""

    def links(self) -> tuple[tuple[str, str, Link], ...]:
        """Return the links between the memory of computers, as a `Topology` has them."""

    def rejoin(self, host: str) -> Sequence[Device]:
        """Connect to a lost computer anew, and returns its devices; those of one that is there as
        they are.

        Raises:
            DeviceError: it cannot be reached.
        """

    def watch(
        self, returned: Callable[[str], None], left_out: Callable[[], Collection[str]]
    ) -> None:
        """Has a function called with the name of each computer that can be reached again.

        left_out: returns those that are out of use as somebody did not reach them: all others must
        reach them, too.
        """

    def close(self) -> None:
        """End all connections; safe to call twice."""
