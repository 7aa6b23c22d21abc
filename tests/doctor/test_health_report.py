"""The report's file: round trip, no paths, and a schema that refuses other files."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from vksched.common.errors import VkschedError
from vksched.doctor.health_report import (
    DeviceHealth,
    Finding,
    HealthReport,
    KernelFailure,
    KernelProof,
    Measurement,
    System,
    read_report,
)

PROOF = KernelProof(90, 80, 9, (KernelFailure("matmul", "3 x 5", "nmse 1 in /home/ann/x/y.spv"),))
CARD = DeviceHealth(
    name="vulkan:0",
    label="Radeon RX 6600",
    type="discrete",
    vendor="AMD",
    driver="radv Mesa 25.0.1",
    api_version="1.3.296",
    memory_bytes=8 << 30,
    limits={"max_groups": (65535, 65535, 65535), "float16": True, "matrices": ("a",)},
    missing=("matrices",),
    faults=(),
    proof=PROOF,
    measured=(Measurement("copy in memory", "GB/s", 201.5, {"llama.cpp": 3.0}),),
)
REPORT = HealthReport(
    System(
        "Linux 6.1", "x86_64", "3.11.7", "0.1.0", "1.3.239", ("radeon_icd.json",), ("VK_LAYER_x",)
    ),
    (CARD, deepcopy(CARD)),
    (Finding("problem", "drivers", "no file C:\\Users\\ann\\icd.json, /usr/share/vulkan/a.json"),),
    "1 to mend",
)


def saved(folder: Path, data: Any) -> Path:
    path = folder / "report.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_comes_back_without_folders(tmp_path: Path) -> None:
    REPORT.save(tmp_path / "report.json")
    text = (tmp_path / "report.json").read_text()
    assert "ann" not in text
    assert "share" not in text
    back = read_report(tmp_path / "report.json")
    assert back.findings[0].text == "no file <path>, <path>"
    assert back.devices[0].proof is not None
    assert back.devices[0].proof.failures[0].error == "nmse 1 in <path>"
    assert back.as_dict() == REPORT.as_dict()
    assert back.has_problem


@pytest.mark.parametrize("home", ["/root", "/", "C:\\Users\\Ann Smith", None])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no file C:\\Users\\Ann Smith\\icd.json: gone", "no file <path>: gone"),
        ("no file /home/ann/My Documents/tax 2024/vk.json", "no file <path>"),
        ("file:///home/ann/x.so: bad", "file://<path>: bad"),
        ("see https://x.org/a ; /home/ann/b", "see https://x.org/a ; <path>"),
        ("25.4 GFLOP/s, 3 GB/s and/or tokens/s", "25.4 GFLOP/s, 3 GB/s and/or tokens/s"),
    ],
)
def test_names_of_users_do_not_leave(
    monkeypatch: pytest.MonkeyPatch, home: str | None, text: str, shown: str
) -> None:
    def find_home() -> PurePath:
        if home is None:
            raise RuntimeError("no home")
        return (PureWindowsPath if "\\" in home else PurePosixPath)(home)

    monkeypatch.setattr(Path, "home", find_home)
    report = HealthReport(REPORT.system, (), (Finding("note", "drivers", text),), "")
    assert report.as_dict()["findings"][0]["text"] == shown


def test_a_home_outside_of_the_usual_places_leaves_no_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "home", lambda: PurePosixPath("/data/Ann Smith"))
    report = HealthReport(REPORT.system, (), (Finding("note", "a", "in /data/Ann Smith/x y"),), "")
    assert report.as_dict()["findings"][0]["text"] == "in <path>"


def test_addresses_of_sources_stay() -> None:
    finding = Finding("note", "vulkan:0", "fault", "see https://github.com/a/b/issues/1")
    report = HealthReport(REPORT.system, (), (finding,), "")
    assert report.as_dict()["findings"][0]["remedy"] == finding.remedy


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a document."""
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    return [path, *(place for key in keys for place in places(data[key], (*path, key)))]


DOCUMENT = json.loads(json.dumps(REPORT.as_dict()))


@pytest.mark.parametrize("place", places(DOCUMENT)[1:], ids=lambda p: ".".join(map(str, p)))
def test_a_changed_value_is_refused_or_read(tmp_path: Path, place: tuple[Any, ...]) -> None:
    for other in (None, [], {}, True, "x", -1, 1 << 70, float("nan")):
        data = deepcopy(DOCUMENT)
        holder = data
        for key in place[:-1]:
            holder = holder[key]
        before = holder[place[-1]]
        holder[place[-1]] = other
        alike = type(before) is type(other) or {type(before), type(other)} <= {int, float}
        free = "limits" in place and place[-1] != "limits"
        try:
            read_report(saved(tmp_path, data))
        except VkschedError as error:
            assert "expected" in str(error)
        else:
            assert alike or free or (before and place[-1] == "proof" and other is None)


def test_a_missing_key_is_refused(tmp_path: Path) -> None:
    for key in DOCUMENT["devices"][0]:
        data = deepcopy(DOCUMENT)
        del data["devices"][0][key]
        with pytest.raises(VkschedError, match=key):
            read_report(saved(tmp_path, data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"expected a file of `vksched doctor --output`, report.json is none"),
        ("[" * 100_000, "expected a file of `vksched doctor --output`"),
        (json.dumps({**DOCUMENT, "format": 7}), "expected format 1, got 7"),
        (json.dumps({**DOCUMENT, "verdict": "x" * (5 << 20)}), "expected at most 4 MiB"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "report.json").write_text(content)
    with pytest.raises(VkschedError, match=message):
        read_report(tmp_path / "report.json")


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(VkschedError, match="cannot read .*: No such file"):
        read_report(tmp_path / "none.json")
    with pytest.raises(VkschedError, match="cannot write .*: Is a directory"):
        REPORT.save(tmp_path)
