"""`vksched devices`: list devices, their limits and the default devices."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...runtime.vulkan.device_probe import DeviceInfo

GIB = 1 << 30
WIDE_COLUMNS = 150
"""Minimum width for one row per device; narrower tables stack cells."""


@click.command()
@click.option(
    "--presets",
    is_flag=True,
    help="List the presets of GPUs, machines and links for --topology and --what-if.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Also show optional features beyond Vulkan 1.1."
)
@click.option("--json", "as_json", is_flag=True, help="Print all properties as JSON.")
def devices(presets: bool, verbose: bool, as_json: bool) -> None:
    """List devices, their limits and the default devices."""
    if presets:
        from ..options import inputs

        inputs.exclude("--presets", {"--verbose": verbose})
        show_presets(as_json)
        return
    from ...runtime.vulkan import device_probe

    found = device_probe.survey()
    if as_json:
        click.echo(json.dumps([_as_plain(info) for info in found.devices], indent=2))
    else:
        from ...common.console import PrintableConsole

        console = PrintableConsole()
        console.print(device_table(found.devices, console.width))
        if verbose:
            console.print(feature_table(found.devices))
    if found.reason is not None:
        click.echo(f"cpu only: {found.reason}", err=True)
    for note in found.notes:
        if note not in (found.reason or ""):
            click.echo(f"driver left out: {note}", err=True)


def show_presets(as_json: bool) -> None:
    """Print the presets of GPUs, machines and links."""
    from ...topology.link_presets import LANE_BYTES_PER_S, LANES, WAYS
    from ...topology.presets import card, card_names, topology_data, topology_names
    from ..options import inputs

    cards = [card(name) for name in card_names()]
    topologies = {name: str(topology_data(name)["about"]) for name in topology_names()}
    if as_json:
        plain = [dataclasses.asdict(each) for each in cards]
        for entry in plain:
            del entry["limits"]["tuned"]
        data = {
            "cards": plain,
            "machines": [{"name": name, "about": about} for name, about in topologies.items()],
            "links": {name: dataclasses.asdict(link) for name, link in WAYS.items()},
        }
        click.echo(json.dumps(data, indent=2))
        return
    table = inputs.table("card", "label", "GiB", "TFLOPS", "GB/s", "plug", "watts", left=2)
    for each in cards:
        table.add_row(
            each.name,
            each.label,
            f"{each.memory_bytes / GIB:g}",
            f"{each.flops_per_s / 1e12:.3g}",
            f"{each.bytes_per_s / 1e9:.0f}",
            each.link,
            f"{each.busy_watts:g}",
        )
    inputs.print_table(table)
    sources = ", ".join(dict.fromkeys(each.source for each in cards))
    click.echo(f"TFLOPS of float32, GB/s of the memory, watts of the board: {sources}")
    click.echo()
    rows = inputs.table("topology", "", left=2)
    for name, about in topologies.items():
        rows.add_row(name, about)
    inputs.print_table(rows)
    others = ", ".join(name for name in WAYS if not name.startswith("pcie"))
    lanes = ", ".join(map(str, LANES))
    click.echo(
        f"links: pcie4x16 and others of generation {min(LANE_BYTES_PER_S)} to "
        f"{max(LANE_BYTES_PER_S)} with {lanes} lanes; {others}"
    )


def device_table(found: tuple[DeviceInfo, ...], width: int) -> RenderableType:
    """Return the table of devices for a terminal of `width` columns."""
    from rich import box
    from rich.table import Table

    wide = width >= WIDE_COLUMNS
    about = ["device", "type", "driver", "UUID"] if wide else ["device"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    short = ("name", "UUID", "GiB free") if wide else ("name", "GiB free", "limits")
    for name in ["name", *about, "GiB free", "limits"]:
        table.add_column(name, no_wrap=name in short, overflow="fold")
    table.add_column("default", overflow="fold")
    for info in found:
        cells = [info.label, f"{info.vendor} {info.type}".strip(), info.driver, info.uuid[:8]]
        limits = _limits(info)
        if not wide:
            cells[3] = info.uuid and f"uuid {info.uuid[:8]}"
            cells = ["\n".join(filter(None, cells))]
        free, total = info.memory_free_bytes / GIB, info.memory_total_bytes / GIB
        cells = [
            info.name,
            *cells,
            f"{free:.1f} of {total:.1f}",
            (", " if wide else "\n").join(limits),
            f"no: {info.why_not}" if info.why_not else "yes",
        ]
        table.add_row(*cells, style="" if info.default else "dim")
    return table


def feature_table(found: tuple[DeviceInfo, ...]) -> RenderableType:
    """Return the table of optional features beyond Vulkan 1.1; it excludes the CPU."""
    from rich import box
    from rich.table import Table

    from ...topology.limits import FEATURES

    cards = [info for info in found if info.name != "cpu"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("\nbeyond Vulkan 1.1", no_wrap=True)
    for info in cards:
        table.add_column(f"\n{info.name}", overflow="fold")
    for name in FEATURES:
        cells = [_format_value(getattr(info.limits, name)) for info in cards]
        table.add_row(name.replace("_", " "), *cells)
    return table if cards else ""


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return "\n".join(map(str, value)) or "no"
    return "yes" if value else "no"


def _as_plain(info: DeviceInfo) -> dict[str, object]:
    plain = dataclasses.asdict(info)
    if plain["limits"]:
        del plain["limits"]["tuned"]  # measured by `vksched tune`
    return plain


def _limits(info: DeviceInfo) -> list[str]:
    """Return the limits that determine kernels and their speed; the CPU has none."""
    if info.name == "cpu":
        return []
    limits = info.limits
    return [
        f"group {limits.max_invocations}",
        f"shared {_size(limits.shared_bytes)}",
        f"buffers {_count(limits.storage_buffers)}",
        f"each {_size(info.max_buffer_bytes)}",
        f"subgroup {limits.subgroup_size}",
    ]


def _size(count: int) -> str:
    for unit, name in ((GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.4g} {name}"
    return f"{count} B"


def _count(number: int) -> str:
    return str(number) if number < 10_000 else "10000+"
