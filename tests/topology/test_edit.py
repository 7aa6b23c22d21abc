"""A machine with a device less or more: names, links, and what is refused."""

from __future__ import annotations

import pytest

import vksched as vs
from vksched.topology.edit import alone, changed, some, with_device, without
from vksched.topology.link_presets import WAYS
from vksched.topology.links import Link
from vksched.topology.presets import card
from vksched.topology.topology_file import load_topology

TWO = load_topology("preset:two-cards")


def names(topology: vs.Topology) -> list[str]:
    return [spec.name for spec in topology.devices]


def test_a_device_less_takes_its_links_along() -> None:
    left = without(TWO, "fast")
    assert names(left) == ["small", "cpu"] and [a for a, _, _ in left.links.pairs] == ["small"]
    assert left.devices[0] == TWO.devices[1]
    assert names(without(left, "small")) == ["cpu"]
    assert names(TWO) == ["fast", "small", "cpu"]


def test_a_device_alone_has_the_cpu() -> None:
    assert names(alone(TWO, "small")) == ["small", "cpu"]
    assert names(alone(TWO, "cpu")) == ["cpu"] and not alone(TWO, "cpu").links.pairs


def test_some_devices_keep_their_order() -> None:
    assert names(some(TWO, ["small", "fast"])) == ["fast", "small", "cpu"]
    assert names(some(TWO, [])) == ["cpu"]
    with pytest.raises(vs.PlanError, match="expected one of fast, small, got 'slow'"):
        some(TWO, ["slow"])


def test_a_device_more_is_the_last_before_the_cpu_and_has_a_name_of_its_own() -> None:
    link = Link(3e9, 1e-5)
    more = with_device(TWO, card("rx6600").spec("small"), link)
    assert names(more) == ["fast", "small", "small#2", "cpu"]
    assert more.links.between("cpu", "small#2") == link
    assert names(with_device(more, card("rx6600").spec("small")))[-2:] == ["small#3", "cpu"]
    unnamed = with_device(TWO, card("rx6600").spec())
    assert unnamed.links.between("cpu", "rx6600") == TWO.links.default


def test_a_device_more_on_another_host_is_the_last_before_the_cpu_of_that_host() -> None:
    kinds = {"node1/null:0": "null", "node1/cpu": "cpu", "node2/null:0": "null", "cpu": "cpu"}
    hosts = vs.Topology(tuple(vs.DeviceSpec(name, kind) for name, kind in kinds.items()))
    link = Link(3e9, 1e-5)
    more = with_device(hosts, hosts.devices[0], link)
    assert names(more)[:3] == ["node1/null:0", "node1/null:0#2", "node1/cpu"]
    assert more.link_in(1) == more.link_out(1) == link
    last = with_device(more, hosts.devices[2], link)  # of a host without a CPU
    assert names(last)[-3:] == ["node2/null:0", "node2/null:0#2", "cpu"]
    assert last.link_in(4) == link


def test_changes_as_text() -> None:
    one = changed(TWO, "-small, +preset:rx6600@pcie3x4,+preset:rx6600")
    assert names(one) == ["fast", "rx6600", "rx6600#2", "cpu"]
    assert one.links.between("rx6600", "cpu") == WAYS["pcie3x4"]
    assert one.links.between("rx6600#2", "cpu") == WAYS["pcie4x8"]
    assert changed(TWO, "+preset:rx6600@pcie5x16").links.between("rx6600", "cpu") == WAYS["pcie4x8"]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("-smal", "expected one of fast, small, got 'smal'; try small"),
        ("-cpu", "cpu cannot be removed: it runs ops that no other device supports"),
        ("-fast,-fast", "expected one of small, got 'fast'"),
        ("-fast,-small,-fast", "expected a device to remove, got 'fast': there is only cpu"),
        ("fast", r"expected -DEVICE, \+preset:CARD or \+preset:CARD@LINK, got 'fast'; try -fast$"),
        ("+rx6600", r"got '\+rx6600'; try \+preset:rx6600$"),
        ("preset:rx6600@pcie4x4", r"; try \+preset:rx6600@pcie4x4$"),
        ("fsat", r"got 'fsat'$"),
        ("-", "got '-'"),
        ("", "got ''"),
        ("+preset:rx660", "try rx6600"),
        ("+preset:rx6600@pcie4x15", "expected the name of a link"),
        ("+preset:two-cards", "two-cards is one of the machines"),
    ],
)
def test_changes_that_make_no_sense_are_reported(text: str, match: str) -> None:
    with pytest.raises(vs.PlanError, match=match):
        changed(TWO, text)
