"""Presets: every card and machine of the package says what it must, and stands in the wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vksched as vs
from vksched.topology.device_spec import GIB
from vksched.topology.link_presets import WAYS
from vksched.topology.presets import (
    BYTES_SHARE,
    FLOPS_SHARE,
    PREFIX,
    card,
    card_names,
    topology_data,
    topology_names,
)
from vksched.topology.topology_file import load_topology

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "vksched" / "topology" / "data"


@pytest.mark.parametrize("name", card_names())
def test_a_card_has_figures_of_its_size(name: str) -> None:
    found = card(name)
    spec = found.spec()
    assert found.source == "public specifications" and 2015 <= found.year <= 2030
    assert spec.name == name and spec.kind == "null" and "by its specification" in spec.label
    # on chips of these years no figure is beyond these
    assert 1e12 <= found.flops_per_s <= 2e14 and 3e10 <= found.bytes_per_s <= 4e12
    assert 4 * GIB <= found.memory_bytes <= 128 * GIB
    assert 0 < found.idle_watts < found.busy_watts <= 600
    assert spec.flops_per_s == FLOPS_SHARE * found.flops_per_s
    assert spec.bytes_per_s == BYTES_SHARE * found.bytes_per_s
    assert 0 < spec.memory_bytes < found.memory_bytes
    assert (spec.busy_watts, spec.idle_watts) == (found.busy_watts, found.idle_watts)
    assert spec.max_buffer_bytes <= spec.limits.max_buffer_bytes
    assert found.integrated == (found.link == "memory") == spec.unified_memory
    assert found.way == WAYS[found.link]
    least = vs.DeviceSpec("", "").limits
    for field in ("max_invocations", "shared_bytes", "storage_buffers", "max_buffer_bytes"):
        assert getattr(spec.limits, field) >= getattr(least, field)


def test_a_card_may_have_another_name() -> None:
    assert card("rx6600").spec("second").name == "second"


@pytest.mark.parametrize("name", topology_names())
def test_a_machine_is_one(name: str) -> None:
    topology = load_topology(PREFIX + name)
    assert topology_data(name)["about"] and topology.verify() is topology
    assert vs.Topology.from_dict(topology.as_dict()) == topology
    host = topology.devices[-1]
    assert host.submit_s < 1e-5 and host.label
    for device in topology.devices[:-1]:
        link = topology.links.between(host.name, device.name)
        assert link != topology.links.default and link.latency_s > 0
        assert device.flops_per_s > host.flops_per_s


def test_the_machines_that_are_promised() -> None:
    counts = {name: len(load_topology(PREFIX + name).devices) - 1 for name in topology_names()}
    assert counts == {"eight-cards": 8, "laptop": 2, "network-64": 64, "two-cards": 2}
    laptop = load_topology("preset:laptop")
    assert [d.unified_memory for d in laptop.devices] == [False, True, True]
    two = load_topology("preset:two-cards")
    assert two.links.between("cpu", "fast") == WAYS["pcie4x16"]
    assert two.links.between("cpu", "small") == WAYS["pcie4x4"]
    assert two.devices[0].flops_per_s > 2 * two.devices[1].flops_per_s


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("two-card", "among the machines eight-cards, .*two-cards, got 'two-card'; try two-cards"),
        ("rx6600", "rx6600 is one of the cards"),
        ("../cards/rx6600", "expected a preset"),
        ("", "expected a preset among the machines"),
    ],
)
def test_an_unknown_machine_is_reported_with_what_is_near(name: str, match: str) -> None:
    with pytest.raises(vs.PlanError, match=r"\[topology\] .*" + match):
        load_topology(PREFIX + name)


def test_wheels_carry_the_files(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    here = {path.relative_to(ROOT).as_posix() for path in DATA.rglob("*.json")}
    assert len(here) == len(card_names()) + len(topology_names()) and here <= held
