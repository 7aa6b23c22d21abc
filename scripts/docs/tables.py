"""Tables that are stored as JSON and shown as Markdown.

A file holds named lists of tables. The site's pages name them; see docs_pages.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table of text cells. notes: lines above it. numeric: align all columns but the first right.

    Rows may be shorter than the header; missing cells are empty.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    numeric: bool = False

    def as_markdown(self) -> str:
        """Return the notes and the table."""
        align = "--:" if self.numeric else "---"
        lines = [*self.notes, ""] if self.notes else []
        lines.append(_row(self.columns))
        lines.append("|---|" + f"{align}|" * (len(self.columns) - 1))
        return "\n".join([*lines, *map(_row, self.rows)])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Table:
        """Return the table that `as_dict` encoded."""
        rows = tuple(tuple(row) for row in data["rows"])
        return cls(tuple(data["columns"]), rows, tuple(data["notes"]), data["numeric"])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def write_tables(path: Path, tables: Mapping[str, Sequence[Table]], **more: object) -> None:
    """Write named tables, one row a line, and other values beside them."""
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in more.items()]
    for name, group in tables.items():
        encoded = ",\n".join(map(_encode, group))
        parts.append(f" {json.dumps(name)}: [\n{encoded}\n ]")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", "utf-8")


def _encode(table: Table) -> str:
    head = {"notes": table.notes, "numeric": table.numeric, "columns": table.columns}
    opening = json.dumps(head, ensure_ascii=False)[:-1]
    rows = ",\n".join(f"   {json.dumps(row, ensure_ascii=False)}" for row in table.rows)
    return f'  {opening}, "rows": [\n{rows}\n  ]}}'


def read_tables(path: Path, name: str) -> list[Table]:
    """Return the tables of a name."""
    return [Table.from_dict(table) for table in json.loads(path.read_text("utf-8"))[name]]
