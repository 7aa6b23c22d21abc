"""What a scheduler is given as its cluster: workers by their addresses, or those of a Ray
cluster.
"""

from __future__ import annotations

from ..common.errors import DeviceError
from .cluster import Cluster
from .ray_cluster import find


def as_cluster(given: Cluster | str) -> Cluster:
    """Return a cluster that is given, or that of Ray at an address: "auto", "ray://HOST:PORT".

    Raises:
        VkschedError: there is none.
    """
    if isinstance(given, Cluster):
        return given
    if not isinstance(given, str):
        raise DeviceError(f'[cluster] expected a vs.Cluster or "auto", got {given!r}')
    return find(given)
