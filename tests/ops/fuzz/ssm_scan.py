"""Draws of selective state spaces: any sizes, rates per head or per state."""

from __future__ import annotations

from hypothesis import strategies as st

from vksched.testing.op_cases.linalg.ssm_scan import scan
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick


def _ssm_scan(pick: Pick) -> OpSample:
    batch, time, groups, each, head_dim = (pick(st.integers(0, most)) for most in (3, 6, 2, 3, 19))
    sizes = batch, time, (groups + 1) * (each + 1), head_dim, groups + 1, pick(st.integers(1, 20))
    return scan(sizes, per_head=pick(st.booleans()))


DRAWS: dict[str, Draw] = {"ssm_scan": _ssm_scan}
