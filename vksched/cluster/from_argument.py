"""What a scheduler is given as its cluster: workers by their addresses, or those of a Ray
cluster.
"""

from __future__ import annotations

from ..common.errors import DeviceError
from .cluster import Cluster
from .ray_cluster import find


def as_cluster(cluster: Cluster | str) -> Cluster:
    """Return a cluster that is given, or that of Ray at an address: "auto", "ray://HOST:PORT".

    Raises:
        VkschedError: there is none.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if not isinstance(cluster, str):
        raise DeviceError(f'[cluster] expected a vs.Cluster or "auto", got {cluster!r}')
    return find(cluster)
