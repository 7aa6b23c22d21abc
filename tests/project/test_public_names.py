"""The public names of the package: each is there, and type checkers know it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import vksched as vs

SOURCE = Path(vs.__file__)


def typed_names() -> set[str]:
    """The names that the block for type checkers binds, but for the ops."""
    tree = ast.parse(SOURCE.read_text("utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )
    names = {
        alias.asname or alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assigned = {
        name.id
        for node in block.body
        if isinstance(node, ast.Assign)
        for name in ast.walk(node.targets[0])
        if isinstance(name, ast.Name)
    }
    return {name for name in names | assigned if name != "*" and not name.startswith("_")}


def test_type_checkers_see_the_names_that_there_are() -> None:
    assert typed_names() == set(vs._PUBLIC)


def test_every_public_name_can_be_had() -> None:
    for name in vs.__all__:
        assert getattr(vs, name) is not None, name
    assert set(vs.__all__) <= set(dir(vs))


def test_a_tensor_loads_no_scheduler() -> None:
    code = (
        "import sys, vksched; vksched.Tensor; "
        "print([m for m in sys.modules if m.startswith(('vksched.scheduler', 'vksched.runtime'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
