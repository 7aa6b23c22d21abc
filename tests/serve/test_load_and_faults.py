"""A server with right and wrong clients whose device is lost: the short form of serve_load.py."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from load_server import SIMULATED
from serve_load import Settings, run


def test_wrong_clients_and_lost_devices_change_no_answer() -> None:
    settings = Settings(
        SIMULATED, 6, seconds=10, seed=7, lose_every_s=3, restore_after_s=1, patience_s=3
    )
    load, _, _ = asyncio.run(run(settings))
    assert load.violations == []
    assert load.losses >= 2
    rights = [name for name in load.counts if name.startswith("right")]
    assert rights and len(load.counts) >= 5
