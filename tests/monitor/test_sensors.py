"""Temperatures: what Linux tells of a card, and nothing where it tells none."""

from __future__ import annotations

from pathlib import Path

import pytest

from vksched.monitor import sensors

CARD = "0000:03:00.0"


@pytest.fixture
def hwmon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a card's sensors, as Linux has it, with none in it."""
    monkeypatch.setattr(sensors, "DEVICES", tmp_path)
    path = tmp_path / CARD / "hwmon" / "hwmon4"
    path.mkdir(parents=True)
    return path


def test_the_first_temperature_is_taken(hwmon: Path) -> None:
    (hwmon / "temp1_input").write_text("41000\n")
    (hwmon / "temp2_input").write_text("55000\n")
    assert sensors.temperature_c(CARD) == 41.0


def test_drivers_that_begin_to_count_later_are_read_too(hwmon: Path) -> None:
    (hwmon / "temp2_input").write_text("55500\n")
    assert sensors.temperature_c(CARD) == 55.5


@pytest.mark.parametrize("text", ["", "warm", "-300000", "9000000"])
def test_nonsense_is_none(hwmon: Path, text: str) -> None:
    (hwmon / "temp1_input").write_text(text)
    assert sensors.temperature_c(CARD) is None


@pytest.mark.parametrize("pci", ["", "../../etc", "0000:03:00.0/../x", "0000:04:00.0", "*"])
def test_no_other_file_is_looked_at(hwmon: Path, pci: str) -> None:
    (hwmon / "temp1_input").write_text("41000\n")
    assert sensors.temperature_c(pci) is None
