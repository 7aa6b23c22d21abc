"""`vksched cluster`: the key of a cluster, its workers on Ray, and their devices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...cluster.ray_cluster import RayWorker

GIB = 1 << 30
_address = click.option(
    "--address",
    default="auto",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the Ray cluster; auto: the local one.",
)
security_option = click.option(
    "--security",
    type=click.Choice(["tls", "plain"]),
    default="tls",
    show_default=True,
    help="tls, or plain: authenticated but not encrypted.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")


@click.group()
def cluster() -> None:
    """Use several hosts in one plan."""


@cluster.command()
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
def key(path: Path) -> None:
    """Create the key of a new cluster: a file to copy to each of its hosts."""
    from ...distributed.wire.credentials import Credentials

    Credentials.make().save(path)
    click.echo(f"{path}: copy it to each computer of the cluster; it must stay this user's alone")


@cluster.command()
@_address
@security_option
@_json
def start(address: str, security: str, as_json: bool) -> None:
    """Start a worker on each host of a Ray cluster that has none."""
    from ...cluster import ray_cluster

    _show(ray_cluster.start(address, security), as_json)


@cluster.command()
@_address
@_json
def status(address: str, as_json: bool) -> None:
    """List the workers that run on a Ray cluster."""
    from ...cluster import ray_cluster

    _show(ray_cluster.workers(address), as_json)


@cluster.command()
@_address
def stop(address: str) -> None:
    """Stop all workers on a Ray cluster; drivers continue without them."""
    from ...cluster import ray_cluster

    ended = ray_cluster.stop(address)
    click.echo(f"ended {', '.join(ended)}" if ended else "no node runs")


@cluster.command()
@click.option(
    "--worker",
    "workers",
    multiple=True,
    metavar="HOST:PORT",
    help="Address of a running worker (repeatable).",
)
@click.option("--credentials", type=click.Path(path_type=Path), help="Key file of the workers.")
@security_option
@_address
@_json
def devices(
    workers: tuple[str, ...],
    credentials: Path | None,
    security: str,
    address: str,
    as_json: bool,
) -> None:
    """List the devices of workers, and measure the links between hosts.

    Without --worker, those of a Ray cluster.
    """
    from ...cluster.cluster import Cluster
    from ...cluster.from_argument import as_cluster
    from ...topology.device_spec import spec_as_dict
    from ..options import inputs

    if workers and credentials is None:
        raise click.UsageError("--worker needs --credentials, the key of these workers")
    if credentials is not None and not workers:
        raise click.UsageError(
            "--credentials needs --worker, the addresses of workers with this key"
        )
    if workers:
        inputs.exclude("--worker", {"--address": address != "auto"})
    else:
        inputs.need({"--security plain": security != "tls"}, "--worker")
    cluster = (
        Cluster(workers, credentials, security) if workers and credentials else as_cluster(address)
    )
    joined = cluster.join()
    try:
        specs, links = [device.spec for device in joined.devices], joined.links()
    finally:
        joined.close()
    if as_json:
        between = [
            {"between": [a, b], "bytes_per_s": link.bytes_per_s, "latency_s": link.latency_s}
            for a, b, link in links
        ]
        data = {"devices": [spec_as_dict(spec) for spec in specs], "links": between}
        click.echo(json.dumps(data, indent=2))
        return
    from ...common.console import PrintableConsole

    console = PrintableConsole()
    table = inputs.table("device", "label", "free GiB", left=2)
    for spec in specs:
        table.add_row(spec.name, spec.label, f"{spec.memory_bytes / GIB:.1f}")
    console.print(table)
    table = inputs.table("from", "to", "GB/s", "latency us", left=2)
    for a, b, link in links:
        table.add_row(a, b, f"{link.bytes_per_s / 1e9:.2f}", f"{link.latency_s * 1e6:.0f}")
    console.print(table)


def _show(workers: Sequence[RayWorker], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([node._asdict() for node in workers], indent=2))
        return
    if not workers:
        click.echo("no worker runs; try `vksched cluster start`")
        return
    from ...common.console import PrintableConsole
    from ..options import inputs

    table = inputs.table("node", "address", "devices", "drivers", left=3)
    for node in workers:
        table.add_row(node.name, node.address, ", ".join(node.devices), str(node.drivers))
    PrintableConsole().print(table)
