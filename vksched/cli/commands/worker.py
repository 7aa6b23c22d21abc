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
    help="Where to wait for callers; 127.0.0.1 is reached from this computer alone.",
)
@click.option("--name", help="What plans call this computer. [default: its own name]")
@click.option(
    "--credentials",
    type=click.Path(path_type=Path),
    required=True,
    help="The cluster's key, as `vksched cluster key` makes it.",
)
@security_option
@click.option("--devices", metavar="A,B", help="Serve these devices, and the CPU.")
@click.option(
    "--cache",
    "cache_gb",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    metavar="GB",
    help="What weights of callers may take on disk.",
)
@click.option(
    "--weight-dir",
    "folders",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    multiple=True,
    metavar="DIR",
    help="Read weights there that callers have in files of the same name; nothing else is opened. "
    "May be given several times.",
)
@click.option(
    "--onnx-ops",
    is_flag=True,
    help="Compute nodes of ONNX files, too, that no op of vksched expresses. Callers can then keep "
    "this computer busy for ever, and take any memory.",
)
@click.option(
    "--peers",
    metavar="A,B",
    help="Connect to these addresses alone for callers, as 10.0.0.0/24 or node2:7700; without it, "
    "wherever a caller says that another node is.",
)
@click.option(
    "--heartbeat-timeout",
    "heartbeat_timeout_s",
    type=click.FloatRange(1, 3600),
    callback=_number,
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="After so long without a sign of life a caller or another node is lost.",
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
