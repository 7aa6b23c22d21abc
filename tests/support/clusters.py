"""Credentials of a cluster, made once for all tests of a process."""

from __future__ import annotations

from functools import cache

import pytest

from vksched.distributed.wire.credentials import Credentials


@cache
def make_credentials() -> Credentials:
    """Return credentials; skips where they cannot be made."""
    pytest.importorskip("cryptography", reason="credentials are made by cryptography")
    return Credentials.make()


@cache
def others() -> Credentials:
    """Return those of another cluster."""
    make_credentials()
    return Credentials.make()
