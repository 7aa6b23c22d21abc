"""Fixtures of the tests of clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import Nodes


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Nodes]:
    """Starts nodes in this process."""
    made = Nodes(tmp_path)
    yield made
    made.close()
