"""scripts/checks/sanitize.py: native loops under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sanitize
from conftest import needs_linux


@needs_linux
def test_a_compiler_without_sanitizers_is_reported() -> None:
    with pytest.raises(sanitize.Missing, match="expected /bin/false to have sanitizers, got: noth"):
        sanitize.runtime("/bin/false")


@pytest.mark.thorough
@pytest.mark.release
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_loops_are_clean() -> None:
    """It fails, too, where the faults that it plants are not found."""
    done = subprocess.run(
        [sys.executable, sanitize.__file__],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    last = done.stdout.strip().splitlines()[-1]
    if done.returncode == sanitize.MISSING:
        pytest.skip(last)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "planted faults are found" in done.stdout
