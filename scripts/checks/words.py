"""Lint of names and docstrings: the code uses the field's terms.

    python scripts/checks/words.py [PATH ...]  # without paths: DEFAULTS

It refuses identifiers with a part of a private dialect (REFUSED), docstrings that do not begin with
an imperative ("Returns ...", "Yields ...", "Whether ..."), and parameters whose text begins
with "of". It prints each place, and exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REFUSED = {
    "told": "format, serialize, record or report",
    "said": "format or message",
    "given": "value, argument or the thing itself",
    "made": "built, created or the thing itself",
    "kept": "cached, retained or stored",
    "beside": "merged, sibling, overhead or concurrent",
    "turned": "transposed, rotated or alternating",
    "wishes": "constraints or hints",
}
OVERRIDES = frozenset({"connection_made"})
"""Methods that other libraries name and call."""
DEFAULTS = ("vksched", "benchmarks", "scripts", "examples", "tests")
PART = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
BEGINNINGS = {"Returns": "Return", "Yields": "Yield", "Whether": "Return True if"}
PARAMETER = re.compile(r"(?:^|[.;]\s+|\n\s*)(\w+): of\b")


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the names that a module binds, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of a module, and texts below constants, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            if isinstance(text, str):
                yield node.lineno, text.strip()


def problems(source: str) -> Iterator[str]:
    """Yield a line for each refused name and docstring of a module's source."""
    tree, seen = ast.parse(source), set()
    for line, name in identifiers(tree):
        for part in PART.findall(name):
            remedy = REFUSED.get(part.lower())
            if remedy is not None and name not in seen | OVERRIDES:
                seen.add(name)
                yield f"{line}: {name}: expected a name without {part!r}; try {remedy}"
    for line, text in docstrings(tree):
        first = text.partition(" ")[0]
        if first in BEGINNINGS:
            yield f"{line}: a docstring begins with {first!r}; try {BEGINNINGS[first]!r}"
        for found in PARAMETER.finditer(text):
            yield f"{line}: '{found[1]}: of ...'; begin with a noun"


def main() -> int:
    """Check files; return 1 if there is a problem."""
    roots = [Path(name) for name in sys.argv[1:]] or [ROOT / name for name in DEFAULTS]
    found = False
    for root in roots:
        for path in [root] if root.is_file() else sorted(root.rglob("*.py")):
            for problem in problems(path.read_text("utf-8")):
                print(f"{path}:{problem}")
                found = True
    return int(found)


if __name__ == "__main__":
    sys.exit(main())
