"""Recurrent layers on the CPU: native loops, as processors with wide vectors and as others take
them, in pieces, and numpy where these are not built.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.evaluate import compute, compute_into
from vksched.ir.op import get_op
from vksched.ops.lowering import native_kernels
from vksched.testing.op_cases.linalg.rnn import CASES, layer
from vksched.testing.op_cases.op_sample import OpSample

native: Any = native_kernels.native
needs_native = pytest.mark.skipif(
    not hasattr(native, "rnn_scan"), reason="the native loops are not built"
)
SIZES = [(3, batch, hidden) for batch in (1, 2, 3, 7, 8) for hidden in (1, 8, 13, 32, 65)]
KINDS = [
    *(("rnn", {}), ("gru", {}), ("gru", {"linear": True}), ("lstm", {})),
    *(("gru", {"linear": True, "own": True}), ("lstm", {"own": True}), ("lstm", {"coupled": True})),
]


def host_of(case: OpSample) -> Any:
    host = get_op(case.op).cpu
    assert host is not None
    return host


def computed(case: OpSample) -> NDArray:
    out = np.full(case.result_type().shape, np.nan, np.float32)
    host_of(case).compute(case.inputs, Attrs(case.attrs), out)
    return out


def exact(case: OpSample) -> NDArray:
    """Return the reference's result in float64."""
    wide = (x.astype(np.float64) if x.dtype == np.float32 else x for x in case.inputs)
    return get_op(case.op).reference(tuple(wide), Attrs(case.attrs))


def close(got: NDArray, case: OpSample) -> None:
    np.testing.assert_allclose(got, exact(case), 1e-5, 1e-5)


@needs_native
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_loops_equal_the_reference(
    kind: tuple[str, dict[str, Any]], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def rnn_scan(*operands: Any) -> None:
        calls.append(operands)
        loop(*operands, wide=wide)

    loop = native.rnn_scan
    monkeypatch.setattr(native, "rnn_scan", rnn_scan)
    for directions, lengths in (("f", ()), ("fb", ()), ("b", (2, 0, 3, 1, 9, 2, 3, 3))):
        for sizes in SIZES:
            case = layer(kind[0], sizes, directions, lengths=lengths[: sizes[1]], **kind[1])
            close(computed(case), case)
    assert len(calls) == 3 * len(SIZES)


@needs_native
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_loops_run_every_case(case: OpSample) -> None:
    if case.result_type().size:
        close(computed(case), case)


@pytest.mark.parametrize("built", [True, False])
def test_pieces_make_the_whole(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(native_kernels, "native", None)
    for kind in ("rnn", "gru", "lstm"):
        lengths = tuple(range(40, 53))
        case = layer(kind, (60, 13, 70), "fb", lengths=lengths)
        out = np.full(case.result_type().shape, np.nan, np.float32)
        pieces = list(host_of(case).cut(case.inputs, Attrs(case.attrs), out))
        assert len(pieces) > 2
        for inputs, part in pieces:
            host_of(case).compute(inputs, Attrs(case.attrs), part)
        close(out, case)


def test_a_short_call_is_one_piece() -> None:
    case = layer("lstm", (4, 8, 32), "fb")
    out = np.empty(case.result_type().shape, np.float32)
    ((inputs, part),) = host_of(case).cut(case.inputs, Attrs(case.attrs), out)
    assert inputs is case.inputs and part is out


@needs_native
def test_operands_may_lie_anyhow() -> None:
    """As a transposed view has them, for one turn and for many; or at any byte, as in a file."""
    for time in (1, 9):
        case = layer("gru", (time, 3, 21))
        gates, r, state = case.inputs
        transposed = np.ascontiguousarray(r.swapaxes(1, 2)).swapaxes(1, 2)
        odd = np.frombuffer(b"?" + r.tobytes(), np.uint8)[1:].view(np.float32).reshape(r.shape)
        back = np.ascontiguousarray(gates[:, ::-1])[:, ::-1]
        assert not odd.flags.aligned and transposed.strides[2] != 4
        for values in ((gates, transposed), (gates, odd), (back, r)):
            out = np.empty(case.result_type().shape, np.float32)
            host_of(case).compute((*values, state), Attrs(case.attrs), out)
            close(out, case)


@needs_native
def test_nan_and_large_values_stay_in_their_sequence() -> None:
    case = layer("lstm", (3, 5, 16))
    gates = case.inputs[0].copy()
    gates[0, 1, 2, 3], gates[0, 0, 0], gates[0, 0, 4] = np.nan, 1e30, -np.inf
    changed = OpSample(case.op, (gates, *case.inputs[1:]), case.attrs)
    got, wanted = computed(changed), changed.expected()
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    assert np.isnan(got[1:, :, 2]).any() and np.isfinite(got[:, :, [0, 1, 3]]).all()


@needs_native
def test_loops_refuse_what_they_would_read_beyond() -> None:
    case = layer("lstm", (3, 2, 8), own=True, lengths=(1, 2))
    gates, r, state, own, lengths = case.inputs
    long = lengths.astype(np.int64)
    out = np.empty(case.result_type().shape, np.float32)
    ways = ("lstm", (False,), (("sigmoid", "tanh", "tanh"),), 0.0, False, False)
    run = partial(native.rnn_scan, *ways)
    run(gates, r, state, own, long, out)
    for wrong in (
        (gates[..., :-1], r, state, own, long, out),
        (gates, r[:, :-1], state, own, long, out),
        (gates, r, state[:1], own, long, out),
        (gates, r, state, own[:, :-1], long, out),
        (gates, r, state, own, long[:1], out),
        (gates, r, state, own, lengths, out),
        (gates, r, state, own, long, out[:-1]),
        (gates[:, :, :, ::-1], r, state, own, long, out),
    ):
        with pytest.raises(ValueError, match="expected"):
            run(*wrong)
    with pytest.raises(ValueError, match="sigmoid, tanh or relu"):
        native.rnn_scan(
            "rnn", (False,), (("elu",),), 0.0, False, False, gates, r, state, None, None, out
        )


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_time_steps_without_sequences_take_no_time(kind: str) -> None:
    gates, states = {"rnn": (1, 1), "gru": (3, 1), "lstm": (4, 2)}[kind]
    shapes = (1, 1 << 33, 0, 3 * gates), (1, 3, 3 * gates), (states, 1, 0, 3)
    inputs = tuple(np.zeros(shape, np.float32) for shape in shapes)
    attrs = Attrs(
        {
            "kind": kind,
            "backwards": (False,),
            "activations": (
                {"rnn": ("tanh",), "gru": ("sigmoid", "tanh")}.get(
                    kind, ("sigmoid", "tanh", "tanh")
                ),
            ),
            "clip": 0.0,
            "input_forget": False,
            "linear_before_reset": False,
            "own": False,
            "masked": False,
        }
    )
    op = get_op("rnn_scan")
    result = compute(op, inputs, attrs)
    assert result.shape == ((1 << 33) + states, 1, 0, 3)
    compute_into(op, inputs, attrs, result)
