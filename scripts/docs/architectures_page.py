"""Write the tables of architectures into docs/guides/gguf-language-models.md.

    python scripts/docs/architectures_page.py --write

The names are those of the package `gguf`. The last column of the first table is the network whose
logits the tests compare: a class of transformers (tests/importers/language/recipes.py), or another
architecture with the same network.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "importers"))

from language import TWINS  # noqa: E402
from language.recipes import RECIPES  # noqa: E402

from vksched.importers.gguf.architectures import KNOWN, UNSUPPORTED  # noqa: E402
from vksched.importers.gguf.architectures.model_names import MODEL_NAMES  # noqa: E402

PAGE = ROOT / "docs" / "guides" / "gguf-language-models.md"
BEGIN = "<!-- python scripts/docs/architectures_page.py --write: {} -->"
END = "<!-- end of the table -->"
TABLES = ("supported", "unsupported")


def supported() -> Iterator[str]:
    """Yield the lines of the table of supported architectures."""
    classes: dict[str, list[str]] = {}
    for recipe in RECIPES.values():
        own = classes.setdefault(recipe.architecture, [])
        if recipe.kind not in own:
            own.append(recipe.kind)
    yield from ("| architecture | models | compared with |", "|---|---|---|")
    for name in KNOWN:
        names = ", ".join(classes.get(name, ()))
        if name in TWINS:
            names = f"`{RECIPES[TWINS[name]].architecture}`"
        tried = names or "the published network in numpy"
        yield f"| `{name}` | {MODEL_NAMES[name]} | {tried} |"


def unsupported() -> Iterator[str]:
    """Yield the lines of the table of unsupported architectures."""
    yield from ("| architecture | models | missing |", "|---|---|---|")
    for name, other in sorted(UNSUPPORTED.items()):
        yield f"| `{name}` | {other.models} | {other.missing} |"


def written(page: str) -> str:
    """Return the page with its tables."""
    for kind, rows in zip(TABLES, (supported(), unsupported()), strict=True):
        before, begin, rest = page.partition(BEGIN.format(kind))
        if not begin or END not in rest:
            raise SystemExit(f"expected {BEGIN.format(kind)!r} and {END!r} in {PAGE.name}")
        table = "\n".join(rows)
        page = f"{before}{begin}\n\n{table}\n\n{END}{rest.partition(END)[2]}"
    return page


if __name__ == "__main__":
    text = written(PAGE.read_text("utf-8"))
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, "utf-8")
    else:
        print("\n".join((*supported(), "", *unsupported())))
