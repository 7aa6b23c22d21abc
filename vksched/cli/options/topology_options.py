"""Options that select a topology: the local one, a file or a preset, and what-if changes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ...planner.what_if import MachineChange
    from ...topology.device_spec import DeviceSpec
    from ...topology.topology import Topology

topology_option = click.option(
    "--topology",
    "topology_file",
    metavar="FILE|preset:NAME",
    help=(
        "Plan for a topology in a YAML or JSON file, or for a preset; see vksched devices "
        "--presets."
    ),
)
what_if_option = click.option(
    "--what-if",
    "what_ifs",
    multiple=True,
    metavar="CHANGE",
    help=(
        'Predict a run after a change: "-DEVICE" or "+preset:CARD@LINK", several separated by '
        "commas (repeatable)."
    ),
)


def topology_of(
    devices: str | None, topology_file: str | None
) -> tuple[Topology, dict[str, str], bool]:
    """Return the topology, aliases of its devices, and whether the CPU competes. devices: named
    local devices. topology_file: a file or preset instead.
    """
    if devices is not None and topology_file is not None:
        raise click.UsageError("--devices and --topology exclude each other.")
    if topology_file is not None:
        from ...topology.topology_file import load_topology

        return load_topology(topology_file), {}, False
    return (*local_topology(devices), names_cpu(devices))


def changes_of(topology: Topology, changes: Sequence[str]) -> list[MachineChange]:
    """Return the topology after each change."""
    from ...planner.what_if import MachineChange, changed

    return [MachineChange(text, changed(topology, text)) for text in changes]


def local_topology(names: str | None) -> tuple[Topology, dict[str, str]]:
    """Return the measured topology of the named or default devices, and aliases of its devices."""
    from ...runtime.vulkan import device_probe
    from ...topology.links import Links
    from ...topology.topology import Topology
    from ...tuning.autotuner import Tuner
    from ...tuning.calibrator import Calibrator
    from ...tuning.measurement import mode_of

    mode = mode_of("auto")
    tuner, calibrator = Tuner(mode), Calibrator(mode)
    if names is None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            wanted = [info.name for info in device_probe.default_devices()]
        for warning in caught:
            click.echo(str(warning.message), err=True)
    else:
        wanted = [name.strip() for name in names.split(",")]
    specs: list[DeviceSpec] = []
    aliases: dict[str, str] = {}
    for alias in wanted:
        info = device_probe.resolve(alias)
        if info.name == "cpu":
            continue
        count = 1 + sum(spec.name.partition("#")[0] == info.name for spec in specs)
        name = info.name if count == 1 else f"{info.name}#{count}"
        aliases.setdefault(alias, name)
        from ...runtime.vulkan.device_check import with_checked_kernels

        spec = with_checked_kernels(device_probe.device_spec(info, name), info, runs=False)
        specs.append(tuner.tuned(spec))
    specs.append(device_probe.device_spec(device_probe.cpu_device()))
    links = Links(calibrator.links_of(specs))
    return Topology(tuple(map(calibrator.costed, specs)), links), aliases


def names_cpu(names: str | None) -> bool:
    """Return True if the CPU competes with other devices: it is named, or no device is."""
    return names is None or "cpu" in [name.strip() for name in names.split(",")]
