"""What holds on every system: text files name their encoding, and file names suit Windows."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = [
    *sorted(ROOT.glob("vksched/**/*.py")),
    *sorted(ROOT.glob("examples/*.py")),
    *sorted(ROOT.glob("benchmarks/**/*.py")),
    ROOT / "build_shaders.py",
]
"""What people run on other systems than ours."""

MODES = {"open": 1, "fdopen": 1, "TemporaryFile": 0, "NamedTemporaryFile": 0}
"""Where calls take the mode."""
ENCODINGS = {"open": 3, "fdopen": 3, "read_text": 0, "write_text": 1}
"""Where calls take the encoding."""
STARTS = ("run", "Popen", "check_output")


def without_encoding(source: str) -> list[int]:
    """Return the lines of calls that take the system's encoding, whatever that is."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return sorted(call.lineno for call in calls if _is_text(call) and not _has_encoding(call))


def _name(call: ast.Call) -> tuple[str, str]:
    """Return the called name, and its module or value, as far as it has a name."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, getattr(call.func.value, "id", "?")
    return getattr(call.func, "id", ""), ""


def _has_encoding(call: ast.Call) -> bool:
    names = {k.arg for k in call.keywords}
    return "encoding" in names or len(call.args) > ENCODINGS.get(_name(call)[0], 99)


def _is_text(call: ast.Call) -> bool:
    name, owner = _name(call)
    keywords = {k.arg: k.value for k in call.keywords}
    if name in STARTS:
        text = keywords.get("text")
        return owner == "subprocess" and isinstance(text, ast.Constant) and bool(text.value)
    if name == "open" and owner:
        at = 0  # of a path; os.open has no mode, and other things are opened without one
        if owner == "os" or not call.args:
            return False
    elif name in MODES:
        at = MODES[name]
    else:
        return name in ("read_text", "write_text")
    mode = keywords.get("mode", call.args[at] if len(call.args) > at else None)
    if mode is None:
        return name in ("open", "fdopen")
    value = getattr(mode, "value", None)
    return isinstance(value, str) and set(value) <= set("rwaxt+")


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("open(p)\nopen(p, 'rb')\nopen(p, 'w')", [1, 3]),
        ("open(p, encoding='utf-8')\nopen(p, 'w', encoding='utf-8')", []),
        ("p.open('w')\np.open()\nos.open(p, 0)\np.open('rb')", [1]),
        ("p.read_text()\np.read_text('utf-8')\np.write_text(x)", [1, 3]),
        ("subprocess.run(c, text=True)\nsubprocess.run(c)\nsched.run(text=True)", [1]),
        ("tempfile.TemporaryFile('w+')\ntempfile.TemporaryFile()\nos.fdopen(1, 'w')", [1, 3]),
    ],
)
def test_calls_without_an_encoding_are_found(source: str, lines: list[int]) -> None:
    assert without_encoding(source) == lines


def test_text_files_name_their_encoding() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in without_encoding(path.read_text(encoding="utf-8"))
    ]
    assert not found, f"Windows would take another encoding: {found}"


def test_file_names_suit_windows() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("no git here")
    names = [name for name in listed.stdout.decode().split("\0") if name]
    assert names
    assert not [name for name in names if set(name) & set('<>:"\\|?*')]
    lower = [name.lower() for name in names]
    assert len(set(lower)) == len(lower), "names that differ by case only"
