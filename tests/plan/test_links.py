"""Links between devices: plain data of a machine, and what a simulated device takes from them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import vksched as vs

PAIRS = vs.Links((("a", "cpu", vs.Link(2e9, 1e-5)), ("cpu", "a", vs.Link(1e9))), vs.Link(5e8))


def test_a_link_serves_both_ways_unless_the_way_back_has_its_own() -> None:
    assert PAIRS.between("a", "cpu") == vs.Link(2e9, 1e-5)
    assert PAIRS.between("cpu", "a") == vs.Link(1e9)
    assert vs.Links(PAIRS.pairs[:1]).between("cpu", "a") == vs.Link(2e9, 1e-5)
    assert PAIRS.between("b", "a") == vs.Link(5e8)
    assert vs.Link(2e9, 1e-5).seconds(4e9) == pytest.approx(2.00001)


def test_the_way_between_devices_goes_by_the_host() -> None:
    devices = tuple(vs.DeviceSpec(name, "null") for name in "ab")
    topology = vs.Topology((*devices, vs.DeviceSpec("cpu", "cpu")), PAIRS)
    assert topology.way(0, 2) == vs.Link(2e9, 1e-5) and topology.way(2, 0) == vs.Link(1e9)
    there, back = topology.way(0, 1), topology.way(1, 0)
    for size_bytes in (1, 1e9):
        assert there.seconds(size_bytes) == pytest.approx(1e-5 + size_bytes * (1 / 2e9 + 1 / 5e8))
        assert back.seconds(size_bytes) == pytest.approx(size_bytes * (1 / 5e8 + 1 / 1e9))
    free = vs.Topology(topology.devices, vs.Links(default=vs.Link(float("inf"))))
    assert free.way(0, 1).seconds(1e12) == 0.0


def test_links_are_part_of_a_machine_as_data() -> None:
    devices = (vs.DeviceSpec("a", "null"), vs.DeviceSpec("cpu", "cpu"))
    topology = vs.Topology(devices, vs.Links(PAIRS.pairs))
    assert vs.Topology.from_dict(json.loads(json.dumps(topology.as_dict()))) == topology
    assert "links" not in vs.Topology(devices).as_dict()


@pytest.mark.parametrize(
    ("links", "wanted"),
    [
        (5, 'expected "between" with two of a, cpu'),
        ([{"between": ["a"]}], 'expected "between"'),
        ([{"between": ["a", "c"]}], 'expected "between"'),
        ([{"between": [["a"], "cpu"]}], 'expected "between"'),
        ([{"between": ["a", "cpu"], "speed": 1}], "no field 'speed'"),
        ([{"between": ["a", "cpu"], "bytes_per_s": 0}], "expected at least 1 byte a second"),
    ],
)
def test_links_that_are_wrong_are_refused(links: object, wanted: str) -> None:
    data = {"devices": [{"name": "a", "kind": "null"}, {"name": "cpu", "kind": "cpu"}]}
    with pytest.raises(vs.PlanError, match=wanted):
        vs.Topology.from_dict({**data, "links": links})


def test_a_null_device_takes_as_long_as_its_link() -> None:
    clock = vs.SimulatedClock()
    took = []
    for link in (vs.Link(1e6), vs.Link(1e6, 0.5)):
        device = vs.SimulatedDevice(vs.DeviceSpec("null:0", "null"), clock, link=link)
        with vs.Scheduler([device]) as sched:
            assert sched.topology.links.between("cpu", "null:0") == link
            run = sched.compile(vs.relu(vs.input("x", (1000,))))
            start = clock.now()
            run(x=np.ones(1000, np.float32))
            took.append(clock.now() - start)
    assert took[1] - took[0] == pytest.approx(2 * 0.5, rel=0.01)  # there and back
