"""Nodes as processes of their own, as `vksched worker` starts them, for tests and benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

STOP_S = 60
PATIENT = ["--heartbeat-timeout", "100"]
"""A computer that has much to do may leave a process without a turn for seconds."""


class NodeProcess:
    """One node on a free port of this computer. address: HOST:PORT."""

    def __init__(
        self, key: Path, name: str, devices: str, folder: Path, security: str = "tls"
    ) -> None:
        options = ["--listen", "127.0.0.1:0", "--name", name, "--devices", devices]
        options += ["--credentials", str(key), "--security", security, *PATIENT]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vksched", "worker", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "VKSCHED_CACHE": str(folder / name)},
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        if " listens at " not in self.line:
            raise AssertionError(self.process.communicate(timeout=STOP_S)[1])
        self.address = self.line.split(" listens at ")[1].split(" with ")[0]

    def stop(self) -> tuple[int, str]:
        """End it as a service does; returns its exit code and what it said on stderr."""
        self.process.terminate()
        _, text = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, text


@contextmanager
def node_processes(
    key: Path, folder: Path, devices: str, names: Sequence[str], security: str = "tls"
) -> Iterator[dict[str, NodeProcess]]:
    """Nodes that run until the block ends."""
    nodes: dict[str, NodeProcess] = {}
    try:
        for name in names:
            nodes[name] = NodeProcess(key, name, devices, folder, security)
        yield nodes
    finally:
        for node in nodes.values():
            if node.process.poll() is None:
                node.process.kill()
            node.process.communicate(timeout=STOP_S)
