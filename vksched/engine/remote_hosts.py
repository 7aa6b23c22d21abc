"""Remote hosts: the engine's interface to the other hosts of a scheduler: devices, links, and the
workers that execute their parts of a plan.

    vksched/cluster --join--> Hosts --devices--> DeviceSet      --host, transport--> ClusterExecutor
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from ..distributed.protocols import TensorTransport, Worker
from ..runtime.device import Device
from ..topology.links import Link


class Hosts(Protocol):
    """Connected hosts. The names of their devices have the host's name as a prefix."""

    @property
    def devices(self) -> Sequence[Device]:
        """The devices of all hosts, including hosts that are lost."""

    @property
    def hosts(self) -> Mapping[str, Worker]:
        """The workers by host name."""

    @property
    def transport(self) -> TensorTransport:
        """The transport of tensors to and from this process."""

    def links(self) -> tuple[tuple[str, str, Link], ...]:
        """Return the links between the memory of hosts, in the form of a `Topology`."""

    def rejoin(self, host: str) -> Sequence[Device]:
        """Reconnect to a lost host and return its devices; return the current devices of a
        connected one.

        Raises
        ------
        DeviceError
            It cannot be reached.
        """

    def watch(
        self, returned: Callable[[str], None], left_out: Callable[[], Collection[str]]
    ) -> None:
        """Register a callback for hosts that can be reached again.

        returned: called with the host's name. left_out: returns the hosts that another host could
        not reach; all other hosts must reach them, too.
        """

    def close(self) -> None:
        """Close all connections; idempotent."""
