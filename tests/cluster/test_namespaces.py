"""Nodes in networks of their own, which the kernel cuts and slows: see support/namespaces.py.

`VKSCHED_CHAOS=all` has each fault come before each message of the driver.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clusters
import namespaces
import pytest
from namespaces import FAULTS, run_inside
from selection import spread
from test_chaos import ALL_S, REQUESTED

INSIDE = Path(namespaces.__file__).with_name("inside_networks.py")
MESSAGES = 60
"""Of the driver in a conversation."""
PROCESSES = 3
LIMIT_S = 110.0


@pytest.fixture(autouse=True, scope="module")
def _networks() -> None:
    clusters.make_credentials()
    if text := namespaces.why_not():
        pytest.skip(text)


@pytest.mark.parametrize("count", spread([2, 3, 5], 1))
def test_models_over_nodes_give_the_numbers_of_one_process_to_the_bit(count: int) -> None:
    text = run_inside(INSIDE, "models", str(count), limit_s=LIMIT_S)
    assert text.count("the numbers of one process") == 4


@pytest.mark.thorough
@pytest.mark.timeout(ALL_S)
def test_results_are_right_or_one_error_tells_why() -> None:
    count = str(MESSAGES) if REQUESTED == "all" else "1"
    faults = list(FAULTS)

    def line_of(first: int) -> str:
        return run_inside(INSIDE, count, *faults[first::PROCESSES], limit_s=ALL_S)

    with ThreadPoolExecutor(PROCESSES) as threads:
        print(*threads.map(line_of, range(PROCESSES)), sep="")
