"""Cluster: the computers that a scheduler uses besides its own.

    vksched cluster key cluster.key                             once; copied to each computer
    vksched worker --listen ADDRESS --credentials cluster.key     on each computer
    vs.Scheduler(cluster=vs.Cluster(["10.0.0.2:7700"], "cluster.key"))

Examples: tests/cluster/test_schedulers.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..common.errors import DeviceError
from ..trace.events import Clock, SystemClock

if TYPE_CHECKING:
    from ..distributed.wire.credentials import Credentials
    from .connections import ClusterConnections


@dataclass(frozen=True)
class Cluster:
    """Nodes by their addresses.

    workers: HOST:PORT of each. credentials: the cluster's key, or the file that holds it. security:
    "tls", or "plain" for a wire that nobody else reaches; as the workers have it. locate: returns
    where a worker is now that was lost, by its name; None: it is nowhere. Without it, where it was.

    Raises:
        DeviceError: there is no worker. VkschedError: what is no address, key or security.
    """

    workers: Sequence[str]
    credentials: Credentials | str | os.PathLike[str]
    security: str = "tls"
    locate: Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        from ..distributed.wire.credentials import (
            Credentials,  # whoever has no cluster needs no ssl
        )
        from ..distributed.wire.tls import place_of

        texts = not isinstance(self.workers, str) and all(isinstance(a, str) for a in self.workers)
        if not texts or not self.workers:
            raise DeviceError(
                f'[cluster] expected the addresses of workers, as ["10.0.0.2:7700"], got '
                f"{self.workers!r}"
            )
        for address in self.workers:
            place_of(address)
        if not isinstance(self.credentials, (str, os.PathLike, Credentials)):
            raise DeviceError(
                "[cluster] expected the cluster's key, or the path of its file, got "
                f"{self.credentials!r}; try `vksched cluster key FILE`"
            )

    def join(self, clock: Clock | None = None) -> ClusterConnections:
        """Connect to all workers, and measures the links between them.

        Raises:
            DeviceError: one cannot be reached, or is none of this cluster.
        """
        from ..distributed.wire.credentials import Credentials
        from ..distributed.wire.tls import Security
        from .connections import ClusterConnections

        credentials = self.credentials
        key = (
            credentials
            if isinstance(credentials, Credentials)
            else Credentials.load(Path(credentials))
        )
        security = Security(key, self.security)
        return ClusterConnections(self.workers, security, clock or SystemClock(), self.locate)
