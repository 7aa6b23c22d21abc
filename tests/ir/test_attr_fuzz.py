"""Calls of strangers, drawn for every op: refused by its rule, or run by all ways without harm.

What goes wrong may end a process, so each draw is a process of its own. Failures name the call.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import fuzzed_attrs
import pytest
from fuzzed_attrs import changed_types, stranger
from selection import spread

from vksched.ir.op import computing_ops

PROGRAM = Path(fuzzed_attrs.__file__)


def try_calls(tmp_path: Path, seed: int, count: int, timeout_s: float) -> dict[str, int]:
    """Run the program; return how many calls were valid, and how many were refused."""
    last = tmp_path / "last"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(PROGRAM), str(seed), str(count), str(last)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    example = last.read_text().partition("\0")[0] if last.exists() else "none"
    assert done.returncode == 0, f"ended by {done.returncode} at {example}\n{done.stderr[-4000:]}"
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_drawn_calls_of_strangers_do_no_harm(tmp_path: Path) -> None:
    found = try_calls(tmp_path, 0, 6, 120)
    ops = len(computing_ops())
    assert sum(found.values()) >= 6 * ops and min(found.values()) > ops


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", spread(range(1, 5), 0, 1))
def test_many_drawn_calls_of_strangers_do_no_harm(tmp_path: Path, seed: int) -> None:
    found = try_calls(tmp_path, seed, 250, 800)
    assert min(found.values()) > 3_000


def test_draws_change_attributes_and_operands() -> None:
    """So that the program tries what it should."""
    rng, seen = random.Random(0), set[str]()
    bases = [each for _, own in fuzzed_attrs.bases_of(("conv", "reduce_sum")) for each in own]
    for _ in range(2000):
        built = stranger(rng, bases)
        base = next(b for b in bases if b.op == built.op)
        seen.add("missing" if base.attrs.keys() - built.attrs.keys() else "")
        seen.add("extra" if built.attrs.keys() - base.attrs.keys() else "")
        for value in built.attrs.values():
            flat = value if isinstance(value, tuple) else (value,)
            seen.update(type(each).__name__ for each in flat)
            seen.update("negative" for each in flat if isinstance(each, int) and each < 0)
            seen.update("huge" for each in flat if isinstance(each, int) and each >= 2**62)
    assert seen >= {"missing", "extra", "negative", "huge", "str", "float", "NoneType", "tuple"}
    operands = {changed_types(rng, bases[0].inputs) for _ in range(200)}
    assert {len(types) for types in operands} >= {2, 3, 4}
    assert len({t.dtype for types in operands for t in types}) > 5
    assert {0, 1, 8} & {t.rank for types in operands for t in types}
