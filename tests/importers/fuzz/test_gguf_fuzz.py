"""Mutants of GGUF files are read, or refused as they should be; see fuzz_gguf.py.

VKSCHED_MUTANTS=100000 reads that many, VKSCHED_MUTANTS_SEED=2 others.
"""

from __future__ import annotations

import os

import pytest
from conftest import needs_linux
from mutants import read_mutants
from selection import by_tier

MUTANTS = int(os.environ.get("VKSCHED_MUTANTS", by_tier(200, 1500, 5000)))
SEED = os.environ.get("VKSCHED_MUTANTS_SEED", "1")


@pytest.mark.scales
@needs_linux
@pytest.mark.timeout(1200)
def test_mutants_load_or_are_refused() -> None:
    wrong, loaded, refused, _ = read_mutants("fuzz_gguf.py", SEED, 0, MUTANTS)
    assert not wrong, "\n".join(wrong)
    assert loaded + refused == MUTANTS
    assert loaded > 0.1 * MUTANTS and refused > 0.3 * MUTANTS
