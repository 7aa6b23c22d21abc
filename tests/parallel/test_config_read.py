"""Configs are read whole, or refused with the line and what to try; the schema says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import vksched as vs
from vksched.parallel.config import read
from vksched.parallel.config.read import read_config
from vksched.parallel.config.value import SCHEDULES, Config, Pipeline, Section, Shard

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
    "unknown key": ("a: {device: [cpu]}", "line 1: expected devices, shard, backward in a, got"),
    "unknown key of a shard": ("a: {shard: {axes: 0}}", "got axes; try axis"),
    "one device as text": ("a: {devices: cpu}", "expected a list of names as a.devices, got cpu"),
    "a device twice": ("a: {devices: [cpu, cpu], shard: auto}", "expected each name once"),
    "devices without shard": ("\na: {devices: [x, y]}", "line 2: expected a shard beside the 2"),
    "axis and weights": ("a: {shard: {axis: 0, weights: rows}}", "expected either axis or weights"),
    "axis of text": ("a: {shard: {axis: first}}", "expected a whole number as a.shard.axis"),
    "weights": ("a: {shard: {weights: column}}", "got column; try columns"),
    "ratio of zero": ("a: {devices: [x, y], shard: {axis: 0, ratio: 3:0}}", "got 3:0; try 3:1"),
    "backward of nothing": ("a: {backward: 3}", "expected a name as a.backward, got 3"),
    "a name with a dot": (".a: {}", "expected the name of a signal, got '.a'"),
    "no stages": ("pipeline: {microbatches: 2}", "expected stages in pipeline, got none"),
    "no microbatches": ("pipeline: {stages: [a], microbatches: 0}", "expected 1 microbatch or"),
    "schedule": ("pipeline: {stages: [a], microbatches: 1, schedule: 1f1}", "try 1f1b"),
    "no mapping": ("[a, b]", "expected names of signals, got [a, b]"),
}
"""What the schema refuses as well."""

BAD_LINKS = {
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
    given = as_numbers(plain(GOOD))
    found, wanted = read_config(given), config_of(GOOD, tmp_path)
    assert [s.shard for s in found.sections.values()] == [s.shard for s in wanted.sections.values()]
    assert list(found.sections) == list(wanted.sections)


@pytest.mark.parametrize("case", [*BAD, *BAD_LINKS])
def test_what_is_wrong_is_told(case: str, tmp_path: Path) -> None:
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
    assert set(of["shard"]["oneOf"][1]["properties"]) == set(read.KEYS["shard"])
    assert set(of["pipeline"]["properties"]) == set(read.KEYS["pipeline"])
    assert tuple(of["pipeline"]["properties"]["schedule"]["enum"]) == SCHEDULES


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(vs.PlanError, match=r"expected a readable YAML file, got .*no\.yaml"):
        read_config(tmp_path / "no.yaml")


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    assert not config_of("# nothing\n", tmp_path).sections
