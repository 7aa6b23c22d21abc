"""Mutants of ONNX files are read and run, or refused as they should be; see fuzz_onnx.py.

VKSCHED_MUTANTS=100000 reads that many, VKSCHED_MUTANTS_SEED=2 others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import THOROUGH, needs_linux
from mutants import SCRIPTS, read_mutants
from selection import by_tier

MUTANTS = int(os.environ.get("VKSCHED_MUTANTS", by_tier(150, 1500, 5000)))
SEED = os.environ.get("VKSCHED_MUTANTS_SEED", "1")
PARTS = 4 if THOROUGH else 1


@needs_linux
@pytest.mark.scales
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_mutants_load_or_are_refused(part: int) -> None:
    first, end = (MUTANTS * p // PARTS for p in (part, part + 1))
    wrong, loaded, refused, ran = read_mutants("fuzz_onnx.py", SEED, first, end - first, "--run")
    assert not wrong, "\n".join(wrong)
    assert loaded + refused == end - first
    assert ran > 0.4 * loaded
    assert loaded > 0.05 * (end - first) and refused > 0.3 * (end - first)


@needs_linux
def test_the_watch_sees_what_it_is_for(tmp_path: Path) -> None:
    code = (
        "import mmap, os, sys\nfrom pathlib import Path\nfrom mutants import Watch, left_behind\n"
        "folder = Path(sys.argv[1])\nwatch = Watch(folder)\nwatch.armed = True\n"
        "(folder / 'in').write_bytes(b'1')\nassert not watch.outside\n"
        "open('/etc/passwd').close()\nassert watch.outside == ['/etc/passwd'], watch.outside\n"
        "watch.armed = False\nassert not left_behind(folder)\nfile = open(folder / 'in', 'rb')\n"
        "kept = mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ)\nfile.close()\n"
        "assert left_behind(folder).count('in') == 2  # the map and its descriptor\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path.resolve())]
    env = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert not done.returncode, done.stderr
