"""Conversion of a scheduler's `cluster` argument: a Cluster, or the address of a Ray cluster."""

from __future__ import annotations

from ..common.errors import DeviceError
from .cluster import Cluster
from .ray_cluster import find


def as_cluster(cluster: Cluster | str) -> Cluster:
    """Return a Cluster, or the workers of the Ray cluster at an address ("auto",
    "ray://HOST:PORT").

    Raises
    ------
    VkschedError
        There is no Ray cluster at the address.
    """
    if isinstance(cluster, Cluster):
        return cluster
    if not isinstance(cluster, str):
        raise DeviceError(f'[cluster] expected a vs.Cluster or "auto", got {cluster!r}')
    return find(cluster)
