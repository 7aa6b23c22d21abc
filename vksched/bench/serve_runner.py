"""`vksched serve` as a runner of serving cases: a server process on one device."""

from __future__ import annotations

import sys

from ..common.dtypes import NDArray
from ..common.errors import VkschedError
from .baselines.server_process import ServerProcess
from .baselines.serving_job import ServingJob
from .baselines.workloads import Spec

SHARED = ("file", "slots", "context", "cache_type", "precision")
"""Parameters of cases that use the same server."""


class OwnServer:
    """A server of vksched on one device, for all cases with its parameters."""

    def __init__(self, device: str, spec: Spec) -> None:
        self._what = [spec[key] for key in SHARED]
        command = [sys.executable, "-m", "vksched", "serve", spec["file"], "--devices", device]
        command += ["--slots", str(spec["slots"]), "--ctx-size", str(spec["context"])]
        command += ["--cache-type", spec["cache_type"], "--precision", spec["precision"]]
        command += ["--cache-ram", "0"]
        try:
            self.process = ServerProcess(lambda port: [*command, "--port", str(port)])
        except RuntimeError as error:
            raise VkschedError(f"[bench] vksched serve on {device}: {error}") from error

    def fits(self, spec: Spec) -> bool:
        """Return True if a case uses this server."""
        return self._what == [spec[key] for key in SHARED]

    def close(self) -> None:
        self.process.close()


class ServerRun:
    """A case on a server of vksched."""

    def __init__(self, server: OwnServer, spec: Spec) -> None:
        self._job = ServingJob(server.process, spec)

    def result(self) -> NDArray:
        """Return the tokens of each answer."""
        try:
            return self._job.result()
        except (OSError, RuntimeError) as error:
            raise VkschedError(f"[bench] vksched serve: {error}") from error

    def seconds(self) -> float:
        """Return the seconds of a load."""
        try:
            return self._job.sample()
        except (OSError, RuntimeError) as error:
            raise VkschedError(f"[bench] vksched serve: {error}") from error

    def latencies_s(self) -> dict[str, float]:
        return self._job.latencies_s()

    def close(self) -> None:
        """Do nothing: the next case uses the same server."""
