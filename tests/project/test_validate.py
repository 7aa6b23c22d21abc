"""The reading of the validation layer's messages (scripts/checks/validate.py); no Vulkan needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import validate
from conftest import needs_posix

MESSAGE = (
    "SYNC-HAZARD-READ-AFTER-WRITE(ERROR / SPEC): msgNum: 7 - Validation Error: "
    "[ SYNC-HAZARD-READ-AFTER-WRITE ] Object 0: handle = 0x1, type = VK_OBJECT_TYPE_BUFFER;\n"
    "    Objects: 1\n"
)


@needs_posix
def test_every_writer_is_heard_though_each_opens_the_log_anew(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    script = f"for i in 1 2 3; do sh -c 'echo message '$i' > {pipe}'; done; exit 5"
    code, text = validate.run_under_layer(["sh", "-c", script], pipe, {"PATH": "/usr/bin:/bin"})
    assert (code, text) == (5, "message 1\nmessage 2\nmessage 3\n")
    assert not pipe.exists()


@needs_posix
def test_more_than_a_pipe_holds_is_heard(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    script = f"i=0; while [ $i -lt 3000 ]; do printf '%0100d\\n' $i; i=$((i+1)); done > {pipe}"
    code, text = validate.run_under_layer(["sh", "-c", script], pipe, {"PATH": "/usr/bin:/bin"})
    assert code == 0 and len(text) == 3000 * 101 and text.endswith("2999\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (MESSAGE * 2, {"SYNC-HAZARD-READ-AFTER-WRITE": 2}),
        ("something the layer said\n", {"other": 1}),
    ],
)
def test_messages_are_counted_by_identifier(text: str, expected: dict[str, int]) -> None:
    assert validate.summarize(text) == expected


@pytest.mark.parametrize(
    ("version", "known", "expected", "absent"),
    [
        ("1.3.239", "enables", "enables = VK_VALIDATION_FEATURE_ENABLE_SYNC", "validate_sync"),
        ("1.3.275", "validate_sync", "validate_sync = true", "enables"),
        ("1.3.275", "validate_sync", "validate_sync = true", validate.SHADER_ACCESSES),
        ("1.4.309", validate.SHADER_ACCESSES, f"{validate.SHADER_ACCESSES} = true", "enables"),
    ],
)
def test_settings_are_those_that_the_layer_knows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    known: str,
    expected: str,
    absent: str,
) -> None:
    monkeypatch.setattr(validate, "FOLDER", tmp_path)
    manifest = tmp_path / "layer.json"
    features = {"settings": [{"key": known}]}
    manifest.write_text(json.dumps({"layer": {"api_version": version, "features": features}}))
    environ = validate.layer_environment(manifest, tmp_path / "pipe")
    settings = Path(environ["VK_LAYER_SETTINGS_PATH"]).read_text()
    assert f"khronos_validation.{expected}" in settings
    assert f"khronos_validation.{absent}" not in settings
    assert environ["VK_INSTANCE_LAYERS"] == "VK_LAYER_KHRONOS_validation"
