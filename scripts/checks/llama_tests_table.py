"""The table of llama.cpp's server tests in docs/guides/serving.md.

    python scripts/checks/llama_tests_table.py            # print it
    python scripts/checks/llama_tests_table.py --write    # write it into the page

    tests that are selected in each file --minus llama_tests_failures.json--> passed | failed | why

The tests are collected, not run; `llama_tests.py` runs them, and checks that no other tests fail.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from llama_tests import CHECKS, FAILURES, FILES, ROOT, environment, sources

PAGE = ROOT / "docs" / "guides" / "serving.md"
BEGIN = "<!-- table: python scripts/checks/llama_tests_table.py --write -->"
END = "<!-- end of the table -->"
KINDS = (
    ("option", ("[shim]", "process died")),
    ("endpoint", ("404", "'content'", "501")),
    ("status", ("400", "401", "403", "exceed_context")),
)
"""The kinds of reasons, each with parts of them; the first that fits counts."""
OTHER = "other"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the table into the page")
    parser.add_argument("--source", type=Path, help="an unpacked source distribution")
    args = parser.parse_args()
    failures = json.loads(FAILURES.read_text(encoding="utf-8"))
    lines = table(collected(sources(args.source)), failures)
    print("\n".join(lines))
    if args.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_table(text, lines), encoding="utf-8")
    return 0


def collected(tests: Path) -> list[str]:
    """Return the files of all tests that `llama_tests.py` runs, one entry for each test."""
    command = [str(environment(tests)), "-m", "pytest", "--collect-only", "-q", "-m", "not slow"]
    command += ["-p", "llama_tests_plugin", *(f"unit/{name}" for name in FILES)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CHECKS), str(tests)])}
    done = subprocess.run(command, cwd=tests, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"[llama_tests] {' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    names = (line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line)
    return [name.rpartition("/")[2] for name in names]


def kind_of(reason: str) -> str:
    """Return the kind of the reason of a failure."""
    found = (kind for kind, parts in KINDS if any(part in reason for part in parts))
    return next(found, OTHER)


def table(files: Iterable[str], failures: Mapping[str, str]) -> list[str]:
    """Return the table in Markdown. files: the file of each test; failures: reasons by test."""
    tests = Counter(files)
    kinds: dict[str, Counter[str]] = {name: Counter() for name in tests}
    for name, reason in failures.items():
        kinds[name.partition("::")[0]][kind_of(reason)] += 1
    rows = [_row(f"`{name}`", count, kinds[name]) for name, count in sorted(tests.items())]
    rows.append(_row("all", tests.total(), sum(kinds.values(), Counter())))
    head = ["passed or skipped", "failed", *(kind for kind, _ in KINDS), OTHER]
    return [f"| file | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|", *rows]


def _row(name: str, tests: int, kinds: Counter[str]) -> str:
    failed = kinds.total()
    counts = [kinds[kind] for kind in (*(kind for kind, _ in KINDS), OTHER)]
    return f"| {' | '.join(map(str, (name, tests - failed, failed, *counts)))} |"


def with_table(page: str, lines: Iterable[str]) -> str:
    """Return the page with a table between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"expected {BEGIN!r} and {END!r} in {PAGE.name}")
    text = "\n".join(lines)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
