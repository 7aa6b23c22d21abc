"""Mutants of parts are carried out as their graphs say, or refused; see fuzz_parts.py.

VKSCHED_MUTANTS=100000 reads that many, VKSCHED_MUTANTS_SEED=2 others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import selection
from conftest import needs_linux
from mutants import FOLDERS, read_mutants

MUTANTS = int(os.environ.get("VKSCHED_MUTANTS", selection.by_tier(300, 4000, 20000)))
SEED = os.environ.get("VKSCHED_MUTANTS_SEED", "1")
SCRIPT = str(Path(__file__).with_name("fuzz_host_plans.py"))


@needs_linux
@pytest.mark.scales
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "python",
    [pytest.param((), id="plain"), pytest.param(("-O",), id="optimized", marks=selection.THOROUGH)],
)
def test_mutants_of_parts_run_as_their_graphs_say_or_are_refused(python: tuple[str, ...]) -> None:
    """With -O nothing rests on `assert`."""
    wrong, loaded, refused, ran = read_mutants(SCRIPT, SEED, 0, MUTANTS, python=python)
    assert not wrong, "\n".join(wrong)
    assert loaded + refused == MUTANTS
    assert 0.05 * MUTANTS < ran <= loaded and refused > 0.5 * MUTANTS


def test_forged_parts_are_refused_without_assertions() -> None:
    code = (
        "import json\nimport numpy as np\nfrom graphs import A, B, chain, make_plan\n"
        "from cut_plans import spread\nfrom test_part_documents import WRONG\n"
        "from vksched.common.errors import PlanError\n"
        "from vksched.planner.partition.host_partition import cut\n"
        "from vksched.plan.multi_host.host_plan_codec import encode_host_plan, decode_host_plan\n"
        "assert not __debug__\n"
        "part = cut(spread(make_plan(*chain([A, B])), ('node1', 'node2')))[1]\n"
        "document = json.loads(json.dumps(encode_host_plan(part, str)))\n"
        "one = np.ones(1, np.float32)\ndecode_host_plan(document, lambda digest: one)\n"
        "for name, change in WRONG.items():\n"
        "    try:\n        decode_host_plan(change(document), lambda digest: one)\n"
        "    except PlanError:\n        continue\n"
        "    print(name)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, FOLDERS))}
    command = [sys.executable, "-O", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
