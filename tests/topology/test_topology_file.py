"""Machines written by people, in YAML and JSON: what is taken, and what is refused with a hint."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

import vksched as vs
from vksched.topology import topology_file
from vksched.topology.device_spec import GIB
from vksched.topology.limits import Limits
from vksched.topology.link_presets import WAYS, slower, way
from vksched.topology.links import Link
from vksched.topology.topology_file import load_topology, read_yaml, topology_of

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "data" / "two_cards.yaml"
CARD = {"name": "card", "memory_gib": 8, "tflops": 4.5, "gb_per_s": 170}


def yaml_file(folder: Path, text: str) -> Path:
    pytest.importorskip("yaml")
    path = folder / "machine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


# -- what is taken ---------------------------------------------------------------------------------


def test_the_example_has_a_preset_and_a_card_by_hand() -> None:
    pytest.importorskip("yaml")
    topology = load_topology(EXAMPLE)
    assert [d.name for d in topology.devices] == ["fast", "old", "cpu"]
    fast, old, cpu = topology.devices
    assert fast.label == "AMD Radeon RX 7900 XTX, by its specification"
    assert (old.kind, old.memory_bytes, old.flops_per_s) == ("null", 3.5 * GIB, 2.2e12)
    assert (old.bytes_per_s, old.submit_s, old.limits.shared_bytes) == (1.2e11, 4e-5, 32768)
    assert old.limits.max_local_size == (1024, 1024, 64) and old.limits.push_bytes == 128
    assert cpu.submit_s == 2e-6
    assert topology.links.between("cpu", "fast") == way("pcie4x16")
    assert topology.links.between("old", "cpu") == Link(5e9, 12e-6)


def test_yaml_and_json_say_the_same(tmp_path: Path) -> None:
    text = "devices:\n- {name: card, memory_gib: 8, tflops: 4.5, gb_per_s: 170}\n"
    (tmp_path / "m.json").write_text(json.dumps({"devices": [CARD]}))
    topology = load_topology(tmp_path / "m.json")
    assert load_topology(yaml_file(tmp_path, text)) == topology
    card = topology.devices[0]
    assert (card.name, card.kind, card.memory_bytes) == ("card", "null", 8 * GIB)
    assert (card.flops_per_s, card.bytes_per_s) == (4.5e12, 1.7e11)


def test_what_a_plan_prints_is_taken(tmp_path: Path) -> None:
    topology = topology_of({"devices": [{**CARD, "link": "pcie3x8"}]})
    (tmp_path / "plan.json").write_text(json.dumps({"nodes": 3, "topology": topology.as_dict()}))
    assert load_topology(str(tmp_path / "plan.json")) == topology
    assert topology_of(topology.as_dict()) == topology == vs.Topology.from_dict(topology.as_dict())


def test_one_entry_may_stand_for_several_devices() -> None:
    host = {"name": "host", "kind": "cpu"}
    topology = topology_of({"devices": [{**CARD, "count": 3, "link": "ethernet10g"}, host]})
    assert [d.name for d in topology.devices] == ["card:0", "card:1", "card:2", "host"]
    for device in topology.devices[:-1]:
        assert topology.links.between("host", device.name) == WAYS["ethernet10g"]
    assert topology_of({"devices": [{**CARD, "count": 1}]}).devices[0].name == "card:0"


def test_a_card_is_no_faster_than_its_plug_nor_than_its_slot() -> None:
    rx6600 = {"name": "card", "preset": "rx6600"}
    between = [
        topology_of({"devices": [{**rx6600, **more}]}).links.between("cpu", "card")
        for more in ({}, {"link": "pcie4x16"}, {"link": "pcie3x4"}, {"link": "ethernet10g"})
    ]
    assert between[0] == between[1] == WAYS["pcie4x8"]
    assert between[2] == WAYS["pcie3x4"]
    assert between[3].bytes_per_s == 0.9 * 10e9 / 8 and between[3].latency_s == 50e-6
    assert slower(Link(1e9, 2e-6), Link(2e9, 3e-6)) == Link(1e9, 3e-6)


def test_own_figures_count_before_those_of_the_preset() -> None:
    own = {"preset": "rx6600", "name": "mine", "memory_gib": 4, "limits": {"push_bytes": 128}}
    mine = topology_of({"devices": [own]}).devices[0]
    plain = topology_of({"devices": [{"preset": "rx6600"}]}).devices[0]
    assert plain.name == "rx6600" and mine.flops_per_s == plain.flops_per_s
    assert (mine.memory_bytes, mine.limits.push_bytes) == (4 * GIB, 128)
    assert mine.limits.shared_bytes == plain.limits.shared_bytes


def test_links_between_devices_by_name_and_by_figures() -> None:
    devices = [{**CARD, "name": name} for name in "abc"]
    links = [
        {"between": ["a", "b"], "link": "pcie4x8"},
        {"between": ["b", "c"], "gb_per_s": 50, "latency_us": 3},
        {"between": ["a", "cpu"], "link": "pcie4x8", "latency_s": 1e-3},
    ]
    found = topology_of({"devices": devices, "links": links, "about": "three cards"}).links
    assert found.between("b", "a") == WAYS["pcie4x8"]
    assert found.between("b", "c") == Link(5e10, 3e-6)
    assert found.between("cpu", "a") == Link(WAYS["pcie4x8"].bytes_per_s, 1e-3)


@pytest.mark.parametrize("ends", [["card", "cpu"], ["cpu", "card"]])
@pytest.mark.parametrize("own", [{"preset": "rx6600"}, {"link": "pcie4x16"}])
def test_a_link_that_is_named_replaces_the_devices_own_both_ways(
    own: dict[str, object], ends: list[str]
) -> None:
    links = [{"between": ends, "gb_per_s": 1, "latency_us": 0}]
    found = topology_of({"devices": [{**CARD, **own}], "links": links}).links
    assert found.between("card", "cpu") == found.between("cpu", "card") == Link(1e9)


def test_each_way_may_have_a_link_of_its_own() -> None:
    links = [
        {"between": ["card", "cpu"], "gb_per_s": 1},
        {"between": ["cpu", "card"], "gb_per_s": 2},
    ]
    found = topology_of({"devices": [CARD], "links": links}).links
    assert found.between("card", "cpu") == Link(1e9) and found.between("cpu", "card") == Link(2e9)
    with pytest.raises(vs.PlanError, match="expected one link from card to cpu, got two"):
        topology_of({"devices": [CARD], "links": [links[0], links[0]]})


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "match"),
    [
        ({"memory": 8}, "device 0 has no field 'memory'; try memory_gib"),
        ({"gb_per_second": 8}, "no field 'gb_per_second'; try gb_per_s"),
        ({"preset": "rx660"}, "among the cards .*rx6600.*got 'rx660'; try rx6600"),
        ({"preset": "laptop"}, "got 'laptop'; laptop is one of the machines"),
        ({"preset": 3}, "expected a text as preset of device 0, got 3"),
        ({"memory_bytes": 5}, "expected one of memory_(gib|bytes) and memory_bytes.*got both"),
        ({"memory_gib": "8"}, "expected a number of 0 or more as memory_gib of device 0, got '8'"),
        ({"tflops": True}, "expected a number of 0 or more as tflops"),
        ({"tflops": -1}, "expected a number of 0 or more as tflops of device 0, got -1"),
        ({"tflops": 0}, "expected speeds of at least 1 a second for device 0, got 0 flops_per_s"),
        ({"tflops": 10**400}, "expected a number of 0 or more as tflops"),
        ({"gb_per_s": float("inf")}, "expected a number of 0 or more as gb_per_s"),
        ({"gb_per_s": 1e-300}, "expected speeds of at least 1 a second"),
        ({"memory_gib": float("inf")}, "expected a number of 0 or more as memory_gib"),
        ({"memory_gib": float("nan")}, "expected a number of 0 or more as memory_gib"),
        ({"memory_gib": 1e300}, "expected a number of 0 or more as memory_gib"),
        ({"max_buffer_bytes": 10**400}, "expected a whole number of 0 or more as max_buffer_bytes"),
        ({"submit_s": 10**400}, "expected a number of 0 or more as submit_s"),
        (
            {"costs": {"launch_s": 10**400}},
            "expected the costs of device 0 as PerfModel.as_dict gives",
        ),
        ({"slowdown": 0}, "expected a slowdown above 0 for device 0"),
        ({"name": 5}, "expected a text as name of device 0, got 5"),
        ({"disable_aliasing": "no"}, "expected true or false as disable_aliasing"),
        ({"count": 0}, "expected a count of 1 to 4096 for device 0, got 0"),
        ({"count": True}, "expected a count"),
        ({"count": 2, "name": ""}, "expected a text as name of device 0"),
        ({"link": "pcie4x15"}, "expected the name of a link, got 'pcie4x15'; try pcie4x1"),
        ({"link": "wire"}, "try .*pcie4x16"),
        ({"link": 8}, "expected the name of a link, as pcie4x16, or its bytes_per_s"),
        ({"link": {"speed": 8}}, "the link of device 0 has no field 'speed'"),
        ({"link": {"gb_per_s": 0}}, "a speed above 0 for the link of device 0"),
        ({"link": {"gb_per_s": 10**400}}, "0 or more as gb_per_s of the link of device 0"),
        ({"link": {"latency_us": -1}}, "0 or more as latency_us of the link of device 0"),
        ({"kind": "gpu"}, "a kind of vulkan, null, cpu"),
        ({"limits": {"shared": 1}}, "limits of device 0 has no field 'shared'"),
        ({"limits": {"max_invocations": 0}}, "max_invocations above 0 .* has at least 128$"),
        ({"limits": {"max_local_size": [9, 9, 0]}}, r"max_local_size .* least \(128, 128, 64\)$"),
        ({"limits": {"max_groups": [0, 1, 1]}}, r"max_groups above 0 .* 65535\)$"),
        ({"limits": {"shared_bytes": 0}}, "shared_bytes above 0 .* at least 16384$"),
        ({"limits": {"push_bytes": 0}}, "push_bytes above 0 for the limits of device 0, got 0; "),
        ({"limits": {"storage_buffers": 0}}, "storage_buffers above 0 .* at least 4$"),
        ({"limits": {"max_buffer_bytes": 0}}, "max_buffer_bytes above 0 .* at least 134217728$"),
        ({"limits": {"subgroup_size": 0}}, "subgroup_size above 0 .* at least 1$"),
    ],
)
def test_wrong_devices_are_refused_with_a_hint(entry: dict[str, object], match: str) -> None:
    with pytest.raises(vs.PlanError, match=r"^\[topology\] .*" + match):
        topology_of({"devices": [{**CARD, **entry}]})


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"devices": [CARD], "link": []}, "no top-level key 'link'; try links"),
        ({"devices": [CARD], "about": 3}, "expected a text as about"),
        ({"devices": ["card"]}, "expected a mapping for device 0, got 'card'"),
        ({"devices": [CARD, CARD]}, "expected distinct device names"),
        ({"devices": [CARD], "links": [3]}, 'expected "between" with two of card, cpu'),
        ({"devices": [CARD], "links": [{"between": ["card"]}]}, 'expected "between"'),
        ({"devices": [CARD], "links": [{"between": ["card"] * 2}]}, 'expected "between" with two'),
        ({"devices": [CARD], "links": [{"betwen": []}]}, "link 0 has no field 'betwen'; try betw"),
        (["card"], "expected {"),
        (None, "expected {"),
    ],
)
def test_what_is_no_machine_is_refused(data: object, match: str) -> None:
    with pytest.raises(vs.PlanError, match=match):
        topology_of(data)


def test_the_near_name_of_a_link_is_a_link() -> None:
    for name in ("pcie4", "ethernet10", "thunderbolt", "memmory"):
        with pytest.raises(vs.PlanError) as found:
            way(name)
        assert str(found.value).rpartition("try ")[2] in WAYS


# -- formats ---------------------------------------------------------------------------------------


def test_words_and_numbers_of_yaml_are_those_of_1_2() -> None:
    pytest.importorskip("yaml")
    text = """
        numbers: [1, -2, 3.5, 9e12, 1e-6, .5, 8_000, +4]
        words: [no, on, y, 1:30, pcie4x16, vulkan:1, 1.2.3, e5, "7", 'true']
        flags: [true, False, null, ~]
        empty:
        again: &card {a: 1}
        same: *card
    """
    found = read_yaml(text)
    assert found == {
        "numbers": [1, -2, 3.5, 9e12, 1e-6, 0.5, 8000, 4],
        "words": ["no", "on", "y", "1:30", "pcie4x16", "vulkan:1", "1.2.3", "e5", "7", "true"],
        "flags": [True, False, None, None],
        "empty": None,
        "again": {"a": 1},
        "same": {"a": 1},
    }
    assert isinstance(found, dict) and isinstance(found["numbers"][3], float)
    assert read_yaml("") is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: the key 'a' is not unique"),
        ("a: [1", "line 1"),
        ("a: !!python/object:os.system {}", "line 1: expected no tag"),
        ("a: !mine x", "line 1: expected no tag, got !mine"),
        ("? [a]\n: 1", "line 1: a key is no text"),
        ("a: &x [*x]", "a value contains itself"),
    ],
)
def test_yaml_that_would_surprise_is_refused(text: str, match: str, tmp_path: Path) -> None:
    path = yaml_file(tmp_path, text)
    with pytest.raises(vs.PlanError, match=r"\[topology\] cannot read .*machine.yaml: .*") as found:
        load_topology(path)
    assert match in str(found.value) and "\n" not in str(found.value)


def test_json_says_a_key_once(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"devices": [], "devices": []}')
    with pytest.raises(vs.PlanError, match="the key 'devices' is not unique"):
        load_topology(tmp_path / "m.json")


def test_what_cannot_be_read_is_reported(tmp_path: Path) -> None:
    with pytest.raises(vs.PlanError, match=r"cannot read .*none.json: No such file"):
        load_topology(tmp_path / "none.json")
    (tmp_path / "m.json").write_bytes(b"\xff\xfe")
    with pytest.raises(vs.PlanError, match=r"cannot read .*m.json: UnicodeDecodeError"):
        load_topology(tmp_path / "m.json")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(vs.PlanError, match=r"cannot read .*deep.json: RecursionError"):
        load_topology(tmp_path / "deep.json")


def test_without_pyyaml_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    (tmp_path / "m.yaml").write_text("devices: []")
    with pytest.raises(vs.PlanError, match=r'try pip install "vksched\[yaml\]", or .* JSON'):
        load_topology(tmp_path / "m.yaml")
    (tmp_path / "m.json").write_text(json.dumps({"devices": [CARD]}))
    assert load_topology(tmp_path / "m.json").devices[0].name == "card"


@pytest.mark.parametrize("kind", ["sequences", "mappings"])
def test_aliases_of_aliases_are_refused(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    lines = ["a0: &a0 [x, x]" if kind == "sequences" else "a0: &a0 {x: 1, y: 1}"]
    for level in range(1, 40):  # 2**40 values in 40 lines
        past = f"*a{level - 1}"
        both = f"[{past}, {past}]" if kind == "sequences" else f"{{x: {past}, y: {past}}}"
        lines.append(f"a{level}: &a{level} {both}")
    path = yaml_file(tmp_path, "\n".join(lines))
    with pytest.raises(vs.PlanError, match="line 1: expected at most 200,000 values, got more"):
        load_topology(path)


def test_files_that_are_too_long_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '{"devices": [{"name": "a", "kind": "null"}]}'
    path = tmp_path / "machine.json"
    path.write_text(text)
    monkeypatch.setattr(topology_file, "MAX_JSON_CHARS", len(text))
    assert load_topology(path).devices[0].name == "a"
    monkeypatch.setattr(topology_file, "MAX_JSON_CHARS", len(text) - 1)
    with pytest.raises(vs.PlanError, match="expected at most 43 characters of a machine, got more"):
        load_topology(path)


def test_machines_of_too_many_devices_are_refused() -> None:
    entry = {"name": "a", "count": 4096}
    assert len(topology_of({"devices": [entry]}).devices) == 4096 + 1
    with pytest.raises(vs.PlanError, match="expected at most 4096 devices, got more"):
        topology_of({"devices": [entry, {**entry, "name": "b"}]})


def test_what_is_infinite_is_a_word_in_files() -> None:
    cards = [vs.DeviceSpec(name, "null", offload_flops_per_byte=math.inf) for name in "ab"]
    links = vs.Links((("a", "cpu", vs.Link(math.inf, 1e-6)),))
    topology = vs.Topology((*cards, vs.DeviceSpec("cpu", "cpu")), links)
    text = json.dumps(topology.as_dict(), allow_nan=False)
    assert '"offload_flops_per_byte": "infinite"' in text and '"bytes_per_s": "infinite"' in text
    assert topology_of(json.loads(text)) == topology == vs.Topology.from_dict(json.loads(text))
    with pytest.raises(vs.PlanError, match="a number of 0 or more as flops_per_s of device 0"):
        topology_of({"devices": [{"name": "a", "flops_per_s": "infinite"}]})


def test_limits_of_any_length_are_lists_in_files() -> None:
    limits = Limits(matrices=("float16*float16+float32 16x16x16",), subgroup_sizes=(32, 64))
    topology = vs.Topology((vs.DeviceSpec("a", "null", limits=limits), vs.DeviceSpec("cpu", "cpu")))
    text = json.dumps(topology.as_dict(), allow_nan=False)
    assert topology_of(json.loads(text)) == topology == vs.Topology.from_dict(json.loads(text))
    for wrong, what in (
        ({"matrices": "float16"}, "a list as matrices of the limits of device 0, got 'float16'"),
        ({"matrices": [16]}, "a text as each of matrices of the limits of device 0, got 16"),
        ({"subgroup_sizes": [0]}, "subgroup_sizes above 0"),
        ({"subgroup_sizes": ["32"]}, "a whole number of 0 or more as each of subgroup_sizes"),
    ):
        with pytest.raises(vs.PlanError, match=what):
            topology_of({"devices": [{"name": "a", "limits": wrong}]})


def test_limits_may_have_an_unknown_number_of_cores() -> None:
    for cores in (0, 132):
        topology = topology_of({"devices": [{"name": "a", "limits": {"cores": cores}}]})
        assert topology.devices[0].limits.cores == cores
        assert topology_of(topology.as_dict()) == topology
    with pytest.raises(vs.PlanError, match="a whole number of 0 or more as cores"):
        topology_of({"devices": [{"name": "a", "limits": {"cores": -1}}]})
