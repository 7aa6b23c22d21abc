"""Mutants of files of the cache change nothing but times, or are set aside; see fuzz_kept.py.

VKSCHED_MUTANTS=10000 reads that many, VKSCHED_MUTANTS_SEED=2 others.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import needs_linux
from mutants import read_mutants
from selection import by_tier

MUTANTS = int(os.environ.get("VKSCHED_MUTANTS", by_tier(48, 500, 4000)))
SEED = os.environ.get("VKSCHED_MUTANTS_SEED", "1")
SCRIPT = str(Path(__file__).with_name("fuzz_caches.py"))


@needs_linux
@pytest.mark.scales
@pytest.mark.timeout(1200)
def test_mutants_of_retained_files_change_times_alone() -> None:
    wrong, loaded, refused, ran = read_mutants(SCRIPT, SEED, 0, MUTANTS)
    assert not wrong, "\n".join(wrong)
    assert loaded + refused == MUTANTS
    assert loaded > 0.05 * MUTANTS and refused > 0.3 * MUTANTS and ran > 0.5 * loaded
