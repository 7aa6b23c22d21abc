"""The import rule of the design: what stands left may not import what stands right."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "vksched"
LAYERS = [
    ("errors", "types", "switches"),
    ("machine", "ops", "graph"),
    ("autograd", "passes", "importers"),
    ("plan",),
    ("runtime",),
    ("tuner",),
    ("engine",),
    ("models",),
    ("scheduler",),
    ("session", "onnx_backend"),
    ("cases",),
    ("bench",),
    ("cli",),
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
EVERYWHERE = {"trace"}
"""A leaf that all may import."""
ABOVE_ALL = {"__init__", "__main__"}
VERSION = {"__version__"}
"""What the command line takes from the package itself."""


def imported_layers(path: Path) -> set[str]:
    """Returns the top-level parts of vksched that a module imports, anywhere in it."""
    inside = path.relative_to(PACKAGE).parts
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = list(inside[: len(inside) - node.level])
            parts = base + (node.module.split(".") if node.module else [])
            names = [parts] if parts else [[alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vksched"):
            names = [(node.module or "").split(".")[1:] or [a.name for a in node.names]]
        elif isinstance(node, ast.Import):
            names = [a.name.split(".")[1:] for a in node.names if a.name.startswith("vksched.")]
        else:
            continue
        found |= {n[0] for n in names if n}
    return found


MODULES = sorted(p for p in PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_left_only(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ABOVE_ALL:
        return
    allowed = {n for n, r in RANK.items() if own in RANK and r <= RANK[own]} | EVERYWHERE | VERSION
    if own in EVERYWHERE:
        allowed = {"errors", "types"}
    assert imported_layers(path) - {own} <= allowed - ({own} if own in EVERYWHERE else set())


def test_one_file_alone_imports_each_native_module() -> None:
    told = {str(p.relative_to(PACKAGE)) for p in MODULES if "vksched_native" in p.read_text()}
    assert told == {"runtime/vulkan/binding.py", "bench/peers/kp.py", "ops/core/loops.py"}
    users = {
        (str(path.relative_to(PACKAGE)), module)
        for path in MODULES
        for module in re.findall(r"vksched_native(?:\.| import )(\w+)", path.read_text())
    }
    assert users == {
        ("runtime/vulkan/binding.py", "kp"),
        ("runtime/vulkan/binding.py", "companion"),
        ("bench/peers/kp.py", "kp"),
        ("ops/core/loops.py", "loops"),
    }


def test_every_module_has_a_place() -> None:
    known = set(RANK) | EVERYWHERE | ABOVE_ALL | {"spirv"}
    assert {p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in MODULES} <= known
