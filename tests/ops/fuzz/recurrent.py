"""Draws of recurrent layers: any kind, directions, activations and optional operands."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from vksched.ops.rnn.cell import DEFAULTS, GATES, NAMED, STATES, Cell
from vksched.testing.op_cases.op_sample import OpSample

from .common import Draw, Pick, array


def _rnn_scan(pick: Pick) -> OpSample:
    kind = pick(st.sampled_from(sorted(GATES)))
    time, batch, hidden = (pick(st.integers(0, most)) for most in (4, 6, 19))
    back = tuple(pick(st.lists(st.booleans(), min_size=1, max_size=2)))
    names = tuple(tuple(pick(st.sampled_from(NAMED)) for _ in DEFAULTS[kind]) for _ in back)
    cell = Cell(
        kind,
        back,
        names,
        clip=pick(st.sampled_from((0.0, 0.25, 3.0))),
        coupled=pick(st.booleans()),
        linear=pick(st.booleans()),
        own=kind != "rnn" and pick(st.booleans()),
        masked=pick(st.booleans()),
    )
    columns, count = GATES[kind] * hidden, len(back)
    shapes: list[tuple[int, ...]] = [(count, time, batch, columns), (count, hidden, columns)]
    shapes += [(STATES[kind], count, batch, hidden), *([(count, columns)] * cell.own)]
    # of relu and large weights states grow without end
    inputs = [array(pick, "float32", shape) * np.float32(0.1) for shape in shapes]
    if cell.masked:
        lengths = pick(st.lists(st.integers(-1, time + 1), min_size=batch, max_size=batch))
        inputs.append(np.asarray(lengths, np.int32))
    return OpSample("rnn_scan", tuple(inputs), cell.attrs, nmse=1e-8)


DRAWS: dict[str, Draw] = {"rnn_scan": _rnn_scan}
