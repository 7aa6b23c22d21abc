"""`vksched worker`: serve this host's devices to drivers on other hosts."""

from __future__ import annotations

import math
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

import click

from .cluster import security_option

GB = 10**9
LOOK_S = 0.1
"""Interval of the checks for a stop signal, in seconds."""


def _number(_: click.Context, option: click.Parameter, value: float) -> float:
    """Refuse NaN, which passes every range check."""
    if math.isnan(value):
        raise click.BadParameter("expected a number of seconds, got nan", param=option)
    return value


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:7700",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to listen on; 127.0.0.1 is reachable from this host only.",
)
@click.option("--name", help="Name of this host in plans.  [default: host name]")
@click.option(
    "--credentials",
    type=click.Path(path_type=Path),
    required=True,
    help="Key file of the cluster, created by `vksched cluster key`.",
)
@security_option
@click.option(
    "--devices", metavar="A,B", help="Comma-separated devices to serve, in addition to the CPU."
)
@click.option(
    "--cache",
    "cache_gb",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    metavar="GB",
    help="Maximum disk space for weights of drivers, in GB.",
)
@click.option(
    "--weight-dir",
    "folders",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    metavar="DIR",
    help=(
        "Folder with model files that drivers may load weights from; no other files are read "
        "(repeatable)."
    ),
)
@click.option(
    "--onnx-ops",
    is_flag=True,
    help=(
        "Also run ONNX nodes that vksched cannot express. Drivers can then occupy this host "
        "indefinitely, and use any amount of memory."
    ),
)
@click.option(
    "--peers",
    metavar="A,B",
    help=(
        "Only addresses to connect to for drivers, for example 10.0.0.0/24 or node2:7700. "
        "[default: any worker that a driver names]"
    ),
)
@click.option(
    "--heartbeat-timeout",
    "heartbeat_timeout_s",
    type=click.FloatRange(1, 3600),
    callback=_number,
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds without a heartbeat before a peer is considered dead.",
)
def worker(
    listen: str,
    name: str | None,
    credentials: Path,
    security: str,
    devices: str | None,
    cache_gb: int,
    folders: tuple[Path, ...],
    onnx_ops: bool,
    peers: str | None,
    heartbeat_timeout_s: float,
) -> None:
    """Serve this host's devices to drivers of the cluster, until Ctrl-C.

    Every holder of the key may run graphs here. docs/guides/distributed-execution.md explains which
    ports to open and which not.
    """
    from ...cluster.worker_process import ClusterWorker
    from ...distributed.wire.credentials import Credentials
    from ...distributed.wire.heartbeat import HEARTBEAT_MONITOR

    HEARTBEAT_MONITOR.timeout_s = heartbeat_timeout_s
    _allow_files()
    ended: list[int] = []  # no event: a signal may arrive while this thread holds its lock
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    named = None if devices is None else [each.strip() for each in devices.split(",")]
    worker = ClusterWorker(
        name or socket.gethostname(),
        listen,
        Credentials.load(credentials),
        security,
        named,
        cache_bytes=cache_gb * GB,
        models=folders,
        onnx_ops=onnx_ops,
        peers=None if peers is None else peers.split(","),
    )
    try:
        click.echo(f"{worker.name} listens at {worker.address} with {', '.join(worker.devices)}")
        while not ended:
            time.sleep(LOOK_S)
    finally:
        worker.close()


def _allow_files() -> None:
    """Raise this process's limit of open files: each large weight and each connection needs one."""
    if sys.platform == "win32":
        return
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # some systems allow fewer than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
