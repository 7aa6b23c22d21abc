"""The failures of one test that goes through many cases, reported together.

    with failures.of(case.id):
        check(case)

Every case runs, whatever failed before it. The report names each failed case, with its error, and
the command that runs it alone. Examples: tests/project/test_selection.py.
"""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

MAX_SHOWN = 20
"""Failures with their errors in a report; of others it gives the number."""
COMMAND = "python -m pytest"


class CasesFailed(AssertionError):
    """Some cases of a test failed."""


@dataclass
class Failures:
    """The cases of one test as they run.

    Parameters
    ----------
    test
        The test's node id.
    only
        Run the cases whose names contain this alone; "" runs all.
    """

    test: str
    only: str = ""
    errors: list[tuple[str, BaseException]] = field(default_factory=list)
    count: int = 0

    def wants(self, name: str) -> bool:
        """Return whether a case is to run."""
        return self.only in name

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Run a case, and keep its error."""
        self.count += 1
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            self.errors.append((name, error))

    def raise_all(self) -> None:
        """Raise `CasesFailed` if a case failed, or if `--case` fits none."""
        if self.only and not self.count:
            raise CasesFailed(f"expected a case whose name contains {self.only!r}, got none")
        if not self.errors:
            return
        lines = [f"{len(self.errors)} of {self.count} cases failed"]
        for name, error in self.errors[:MAX_SHOWN]:
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = "".join(traceback.format_exception_only(error)).strip()
            lines += [
                "",
                f"case    {name}",
                f"error   {text}",
                f"at      {place.filename}:{place.lineno}, in {place.name}",
                f"repeat  {COMMAND} {shlex.quote(self.test)} --case {shlex.quote(name)}",
            ]
        left = [name for name, _ in self.errors[MAX_SHOWN:]]
        if left:
            lines += ["", f"and {len(left)} others: {'; '.join(left)}"]
        raise CasesFailed("\n".join(lines)) from self.errors[0][1]
