"""Configs are read whole, or refused with the line and what to try; the schema says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

import vksched as vs
from vksched.ir.precision import PRECISIONS
from vksched.parallel.config import read_config as read
from vksched.parallel.config.config_types import SCHEDULES, Config, Pipeline, Section, Shard
from vksched.parallel.config.read_config import read_config

SCHEMA = json.loads(Path(read.__file__).with_name("schema.json").read_text("utf-8"))

GOOD = """
encoder.0: {devices: [vulkan:0, vulkan:1], shard: {axis: 0}, backward: encoder.0.backward}
encoder.0.backward: {devices: [vulkan:1]}
head:
  devices: [vulkan:0, vulkan:1]
  shard: {weights: columns, ratio: 3:1}
pipeline: {stages: [encoder.0, head], microbatches: 8, schedule: zero-bubble}
"""

BAD = {
    "unknown key": (
        "a: {device: [cpu]}",
        "line 1: expected devices, shard, backward, precision in a, got",
    ),
    "unknown key of a shard": ("a: {shard: {axes: 0}}", "got axes; try axis"),
    "one device as text": ("a: {devices: cpu}", "expected a list of names as a.devices, got cpu"),
    "a device twice": ("a: {devices: [cpu, cpu], shard: auto}", "expected each name once"),
    "devices without shard": ("\na: {devices: [x, y]}", "line 2: expected a shard for the 2"),
    "axis and weights": ("a: {shard: {axis: 0, weights: rows}}", "expected either axis or weights"),
    "axis of text": ("a: {shard: {axis: first}}", "expected a whole number as a.shard.axis"),
    "weights": ("a: {shard: {weights: column}}", "got column; try columns"),
    "ratio of zero": ("a: {devices: [x, y], shard: {axis: 0, ratio: 3:0}}", "got 3:0; try 3:1"),
    "backward of nothing": ("a: {backward: 3}", "expected a name as a.backward, got 3"),
    "a name with a dot": (".a: {}", "expected the name of a signal, got '.a'"),
    "no stages": ("pipeline: {microbatches: 2}", "expected stages in pipeline, got none"),
    "no microbatches": ("pipeline: {stages: [a], microbatches: 0}", "expected 1 microbatch or"),
    "schedule": ("pipeline: {stages: [a], microbatches: 1, schedule: 1f1}", "try 1f1b"),
    "axis of microbatches": (
        "pipeline: {stages: [a], microbatches: 1, axis: -1}",
        "expected pipeline.axis of 0 or more, got -1",
    ),
    "half": ("pipeline: {stages: [a], microbatches: 2.5}", "expected a whole number"),
    "a part of a ratio": ("a: {devices: [x, y], shard: {axis: 0, ratio: ²:1}}", "got ²:1; try 3:1"),
    "no mapping": ("[a, b]", "expected names of signals, got [a, b]"),
}
"""What the schema refuses as well."""

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)
"""Ten thousand million values of ten lines."""

BAD_LINKS = {
    "digits of another script": (
        "pipeline: {stages: [a], microbatches: ٤}",
        "expected a whole number",
    ),
    "a ratio of no devices": (
        "a: {shard: {axis: 0, ratio: 3:1}}",
        "expected devices of a with its ratio, got none; try auto",
    ),
    "a number in quotes": (
        "pipeline: {stages: [a], microbatches: '4'}",
        "expected a whole number as pipeline.microbatches, got '4'",
    ),
    "more digits than a number has": (
        f"pipeline: {{stages: [a], microbatches: {'9' * 5000}}}",
        "expected a whole number as pipeline.microbatches, got 999",
    ),
    "a type of its own": ("a: !card {devices: [cpu]}", "expected plain values, got the type !card"),
    "a bomb": (BOMB, "expected at most 100000 values, aliases repeated"),
    "in itself": ("a: &a {devices: *a}", "expected a few levels of YAML, got too many"),
    "deep": (f"a: {'[' * 9000}{']' * 9000}", "expected a few levels of YAML, got too many"),
    "large": ("a: {}\n" * 90_000, "expected at most 262144 characters, got more"),
    "two documents": ("a: {}\n---\nb: {}", "line 2: expected YAML, got but found another"),
    "a mapping as a name": ("{a: 1}: {}", "line 1: expected a name, got a mapping"),
    "ratio of three": (
        "a: {devices: [x, y], shard: {axis: 0, ratio: [3, 1, 1]}}",
        "expected a ratio for each of the 2 devices of a, got [3, 1, 1]; try auto",
    ),
    "backward nowhere": ("head: {backward: haed.b}", "expected a section as backward of head"),
    "backward in a circle": (
        "a: {backward: b}\nb: {backward: c}\nc: {backward: b}",
        "backward without a circle, got a -> b -> c -> b",
    ),
    "not YAML": ("a: [", "expected YAML, got"),
    "a name twice": ("a: {}\na: {}", "line 2: expected a once, got it again"),
}


def config_of(text: str, folder: Path) -> Config:
    file = folder / "train.yaml"
    file.write_text(text, "utf-8")
    return read_config(file)


def plain(text: str) -> Any:
    """A YAML text as plain data; 3:1 stays a text as in the reader."""
    return yaml.load(text, yaml.BaseLoader)


def as_numbers(value: Any) -> Any:
    """Texts of digits as numbers, as the reader takes them."""
    if isinstance(value, dict):
        return {key: as_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_numbers(each) for each in value]
    return int(value) if str(value).lstrip("-").isdigit() else value


def test_a_file_becomes_values(tmp_path: Path) -> None:
    config = config_of(GOOD, tmp_path)
    two = ("vulkan:0", "vulkan:1")
    assert config.sections == {
        "encoder.0": Section("encoder.0", two, Shard(axis=0), "encoder.0.backward", 2),
        "encoder.0.backward": Section("encoder.0.backward", ("vulkan:1",), line=3),
        "head": Section("head", two, Shard(weights="columns", ratio=(3, 1)), line=4),
    }
    assert config.pipeline == Pipeline(("encoder.0", "head"), 8, "zero-bubble", line=7)
    assert config.source == "train.yaml"


def test_a_dict_says_the_same(tmp_path: Path) -> None:
    values = as_numbers(plain(GOOD))
    found, wanted = read_config(values), config_of(GOOD, tmp_path)
    assert [s.shard for s in found.sections.values()] == [s.shard for s in wanted.sections.values()]
    assert list(found.sections) == list(wanted.sections)


@pytest.mark.parametrize("case", [*BAD, *BAD_LINKS])
def test_what_is_wrong_is_reported(case: str, tmp_path: Path) -> None:
    text, message = (BAD | BAD_LINKS)[case]
    with pytest.raises(vs.PlanError) as caught:
        config_of(text, tmp_path)
    assert message in str(caught.value)
    assert "train.yaml" in str(caught.value)


@pytest.mark.parametrize("case", BAD)
def test_the_schema_refuses_what_the_reader_refuses(case: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(as_numbers(plain(BAD[case][0])), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "a: {shard: auto}",
        "a: {}",
        "a.*.b: {devices: [cpu]}",
        "a: {devices: [x, y], shard: {weights: rows, ratio: auto}}",
        "a: {devices: [x, y], shard: {axis: -1, ratio: [2, 1]}}",
        "pipeline: {stages: [a], microbatches: 1, axis: 1, devices: [x, x]}",
    ],
)
def test_the_schema_takes_what_the_reader_takes(text: str, tmp_path: Path) -> None:
    config_of(text, tmp_path)
    jsonschema.validate(as_numbers(plain(text)), SCHEMA)


def test_reader_and_schema_know_the_same_words() -> None:
    of = SCHEMA["$defs"]
    assert tuple(of["section"]["properties"]) == read.KEYS["section"]
    assert tuple(of["section"]["properties"]["precision"]["enum"]) == PRECISIONS
    assert set(of["shard"]["oneOf"][1]["properties"]) == set(read.KEYS["shard"])
    assert set(of["pipeline"]["properties"]) == set(read.KEYS["pipeline"])
    assert tuple(of["pipeline"]["properties"]["schedule"]["enum"]) == SCHEDULES


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(vs.PlanError, match=r"expected a readable YAML file, got .*no\.yaml"):
        read_config(tmp_path / "no.yaml")


@pytest.mark.parametrize("name", [".", "x\0y", "x" * 5000], ids=["folder", "zero", "long"])
def test_names_of_no_file(name: str) -> None:
    with pytest.raises(vs.PlanError, match="expected a readable YAML file"):
        read_config(name)


def test_a_file_of_bytes(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_bytes(b"\x00\xff\xfe")
    with pytest.raises(vs.PlanError, match="expected a readable YAML file"):
        read_config(file)
    with pytest.raises(vs.PlanError):
        read_config("/dev/zero")


def test_aliases_stand_for_what_they_name(tmp_path: Path) -> None:
    config = config_of("a: &x {devices: [cpu]}\nb: *x\n", tmp_path)
    assert config.sections["b"].devices == ("cpu",)


def test_dicts_that_are_no_configs() -> None:
    inside: dict[str, Any] = {}
    inside["a"] = inside
    with pytest.raises(vs.PlanError, match="expected a few levels of a dict, got too many"):
        read_config(inside)
    with pytest.raises(vs.PlanError, match="expected 1 once, got it again"):
        read_config({1: {}, "1": {}})
    for wrong in (3, None, b"train.yaml", ["a"]):
        with pytest.raises(vs.PlanError, match="expected a file name or a dict"):
            read_config(wrong)  # type: ignore[arg-type]
    feeds = {"a": {"devices": ("x", "y"), "shard": {"axis": np.int64(0), "ratio": (3, 1)}}}
    assert read_config(feeds).sections["a"].shard == Shard(axis=0, ratio=(3, 1))


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert not config_of("# nothing\n", tmp_path).sections
