"""Oracles of argmax, argmin and nonzero, in plain Python."""

from __future__ import annotations

from itertools import product

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import OpSample

from .common import Oracle


def arg(largest: bool) -> Oracle:
    def key(value: float) -> tuple[bool, float]:
        return (value != value, 0 if value != value else value if largest else -value)

    def oracle(case: OpSample) -> NDArray:
        x, axes = case.inputs[0], case.attrs["axes"]
        assert isinstance(axes, tuple)
        last = bool(case.attrs["select_last_index"])
        remaining = [a for a in range(x.ndim) if a not in axes]
        rows = x.transpose((*remaining, *map(int, axes))).reshape(  # type: ignore[arg-type]
            *(x.shape[a] for a in remaining),
            int(np.prod([x.shape[int(a)] for a in axes])),  # type: ignore[arg-type]
        )
        found = []
        for row in rows.reshape(-1, rows.shape[-1]).tolist():
            best = max(map(key, row))
            where = [i for i, v in enumerate(row) if key(v) == best]
            found.append(where[-1 if last else 0])
        expected = case.expected()
        return np.asarray(found, expected.dtype).reshape(expected.shape)

    return oracle


def nonzero(case: OpSample) -> NDArray:
    x, size = case.inputs[0], int(case.attrs["size"])  # type: ignore[arg-type]
    places = [place for place in product(*map(range, x.shape)) if x[place] != 0][:size]
    padding = [(case.attrs["fill_value"],) * x.ndim] * (size - len(places))
    columns = [*places, *padding]
    return np.asarray(columns, case.expected().dtype).reshape(size, x.ndim).T


ORACLES: dict[str, Oracle] = {
    "argmax": arg(True),
    "argmin": arg(False),
    "nonzero": nonzero,
}
