"""Nodes in the process of the tests, and schedulers that use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import clusters

import vksched as vs
from vksched.cluster.worker_process import ClusterWorker


class StartedWorkers:
    """Starts nodes that serve the CPU, and closes them all."""

    def __init__(self, folder: Path, models: Sequence[Path] = (), onnx_ops: bool = False) -> None:
        self._folder = folder
        self._options: dict[str, Any] = {"models": models, "onnx_ops": onnx_ops}
        self._workers: list[ClusterWorker] = []

    def __call__(self, name: str, address: str = "127.0.0.1:0") -> ClusterWorker:
        """Return a new node. address: address of an earlier node, to replace it."""
        about = clusters.make_credentials(), "tls", ["cpu"]
        cache = self._folder / name
        self._workers.append(
            ClusterWorker(name, address, *about, cache_folder=cache, **self._options)
        )
        return self._workers[-1]

    def close(self) -> None:
        for node in self._workers:
            node.close()


def on_cpus(nodes: Sequence[ClusterWorker], **more: Any) -> vs.Scheduler:
    """Return a scheduler whose results are numpy's, wherever they are computed."""
    return vs.Scheduler([f"{node.name}/cpu" for node in nodes], cluster=cluster(nodes), **more)


def cluster(nodes: Sequence[ClusterWorker]) -> vs.Cluster:
    return vs.Cluster([node.address for node in nodes], clusters.make_credentials())
