"""Cluster: the workers on other hosts that a scheduler uses.

    vksched cluster key cluster.key                               once; copy it to each host
    vksched worker --listen ADDRESS --credentials cluster.key     on each host
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
    """Workers by their addresses.

    Parameters
    ----------
    workers
        The address of each worker, as HOST:PORT.
    credentials
        The key of the cluster, or the path of its file.
    security
        "tls", or "plain" for a network that nobody else can reach. It must match the workers'.
    locate
        Returns the current address of a lost worker by its name, or None if it runs nowhere. By
        default a worker is expected at its previous address.

    Raises
    ------
    DeviceError
        The list of workers is empty.
    VkschedError
        An address, the credentials or the security mode is invalid.
    """

    workers: Sequence[str]
    credentials: Credentials | str | os.PathLike[str]
    security: str = "tls"
    locate: Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        from ..distributed.wire.credentials import (
            Credentials,  # only clusters need ssl
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
        """Connect to all workers and measure the links between them.

        Raises
        ------
        DeviceError
            A worker cannot be reached or does not belong to this cluster.
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
