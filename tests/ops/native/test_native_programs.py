"""Native programs: calls as loops of native programs, against the references of ops."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.cpu_kernel import SHARES
from vksched.ir.native_program import Loop, NativeProgram
from vksched.ir.op import all_ops
from vksched.ops.lowering import native_kernels
from vksched.testing.kernel_runner import check
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES

pytestmark = pytest.mark.skipif(
    not native_kernels.has_programs(), reason="native programs are not built"
)
native: Any = native_kernels.native


def native_program_of(case: OpSample) -> NativeProgram | None:
    """Return the native program of a case whose operands all have elements."""
    make, output = case.declaration.native_program, case.result_type()
    if make is None or not all(t.size for t in (output, *case.types)):
        return None
    return make(case.types, output, Attrs(case.attrs))


def run(
    case: OpSample,
    native_program: NativeProgram,
    wide: bool = True,
    begin: Callable[[Any], None] | None = None,
) -> NDArray:
    """Run a native program. begin: is given the program when it begins."""
    inputs = list(map(np.ascontiguousarray, case.inputs))
    wanted = case.expected()
    out = (
        case.inputs[0].copy()
        if case.op == "dynamic_update_slice"
        else np.empty(wanted.shape, wanted.dtype)
    )
    if case.op != "dynamic_update_slice":
        out.view(np.uint8 if out.ndim else out.dtype)[...] = 77
    built = [np.full(loop.elements, np.nan, np.float32) for loop in native_program.loops[:-1]]
    arrays = [*inputs, *built, out]
    first = len(inputs)
    steps = [
        (loop.name, [*loop.operands, first + at], loop.int_params, loop.float_params, loop.pieces)
        for at, loop in enumerate(native_program.loops)
    ]
    if case.op == "dynamic_update_slice":  # writes where the data lies
        steps = [(name, [len(arrays) - 1, *at[1:]], *reported) for name, at, *reported in steps]
    slots = list(range(len(arrays)))
    program = native.Program(steps, [array.nbytes for array in arrays], slots, wide)
    program.run(arrays, None if begin is None else lambda: begin(program))
    return out


RECIPES = [
    (case, native_program)
    for case in CASES
    if (native_program := native_program_of(case)) is not None
]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("op", sorted({case.op for case, _ in RECIPES}))
def test_native_programs_equal_the_references(op: str, wide: bool) -> None:
    for case, native_program in RECIPES:
        if case.op == op:
            with np.errstate(all="ignore"):
                check(case, run(case, native_program, wide), case.expected(), "native loops")


def test_what_matters_has_a_native_program() -> None:
    ops = {case.op for case, _ in RECIPES}
    assert ops >= {
        "add",
        "mul",
        "silu",
        "relu",
        "layer_norm",
        "rms_norm",
        "fused_elementwise",
        "dynamic_update_slice",
    }
    assert ops >= {
        "quantized_linear",
        "rotary_embedding",
        "attention",
        "attention_with_kvcache",
        "cast",
    }
    assert ops >= {"conv", "max_pool", "average_pool", "reduce_mean", "reduce_max", "gather"}
    assert ops >= {"floor", "ceil", "trunc", "round"}
    assert ops >= {"rnn_scan"} or not native_kernels.rnn_functions()
    assert ops >= {"transpose", "slice", "concat", "expand", "pad", "clip", "tanh", "hard_swish"}


@pytest.mark.parametrize(
    "op", ["quantized_linear", "attention_with_kvcache", "rnn_scan", "ssm_scan"]
)
def test_pieces_that_several_threads_take_make_the_same(op: str) -> None:
    helpers: list[threading.Thread] = []

    def begin(program: Any) -> None:
        for _ in range(3):
            helpers.append(threading.Thread(target=program.help))
            helpers[-1].start()

    tried = 0
    for case, native_program in RECIPES:
        if case.op == op and native_program.loops[0].pieces > 1:
            alone = run(case, native_program)
            for _ in range(5):
                np.testing.assert_array_equal(run(case, native_program, begin=begin), alone)
            tried += 1
    for helper in helpers:
        helper.join()
    assert tried


@pytest.mark.skipif(SHARES == 1, reason="there is one core")
@pytest.mark.parametrize(
    ("x", "w", "groups", "pieces"),
    [
        ((2, 24, 40, 49), (91, 24, 1, 1), 1, (91, SHARES)),  # spans of places
        ((1, 96, 7, 7), (640, 96, 1, 1), 1, (-(-640 // 8 // SHARES) * 8, 1)),
        ((1, 72, 31, 33), (72, 1, 3, 3), 72, (16 * -(-5 // min(4, SHARES)), 1)),
    ],
)
def test_pieces_of_convolutions(
    x: tuple[int, ...], w: tuple[int, ...], groups: int, pieces: tuple[int, int]
) -> None:
    """By spans of places, or by channels; all make the bits of one piece."""
    plain = next(c for c in CASES if c.op == "conv")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in (x, w, w[:1])]
    padding = (w[2] // 2,) * 2
    attrs = {"stride": (1, 1), "dilation": (1, 1), "begin": padding, "end": padding}
    case = replace(plain, inputs=tuple(inputs), attrs={**attrs, "groups": groups})
    native_program = native_program_of(case)
    assert native_program is not None
    (loop,) = native_program.loops
    assert loop.int_params[4:6] == pieces and loop.pieces > 1
    whole = (*loop.int_params[:4], w[0], 1, *loop.int_params[6:])
    alone = run(case, NativeProgram((replace(loop, int_params=whole, pieces=x[0]),)))
    assert run(case, native_program).tobytes() == alone.tobytes()
    check(case, alone, case.expected(), "native loops")


def test_one_channel_of_many_places_is_one_piece() -> None:
    """Its loop takes all places: spans of it would each compute and step on those of the others."""
    plain = next(c for c in CASES if c.op == "conv")
    rng = np.random.default_rng(0)
    shapes = (2, 30, 400, 300), (1, 30, 1, 1)
    inputs = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    attrs = {"stride": (1, 1), "dilation": (1, 1), "begin": (0, 0), "end": (0, 0), "groups": 1}
    case = replace(plain, inputs=tuple(inputs), attrs=attrs)
    native_program = native_program_of(case)
    assert (
        native_program is not None
        and native_program.loops[0].int_params[5] == 1
        and native_program.loops[0].pieces == 2
    )
    check(case, run(case, native_program), case.expected(), "native loops")


@pytest.mark.skipif(SHARES == 1, reason="there is one core")
def test_pieces_of_attention_are_heads() -> None:
    """Also those of which a value that is not finite has no weight."""
    plain = next(c for c in CASES if c.op == "attention" and c.name == "causal")
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 8, 64, 32), np.float32) for _ in range(3))
    v[1, 3, 63] = np.inf  # that the last query sees alone
    case = replace(plain, inputs=(q, k, v))
    native_program = native_program_of(case)
    assert native_program is not None and native_program.loops[0].pieces > 1
    helpers: list[threading.Thread] = []

    def begin(program: Any) -> None:
        helpers.append(threading.Thread(target=program.help))
        helpers[-1].start()

    built = run(case, native_program, begin=begin)
    helpers[0].join()
    check(case, built, case.expected(), "in pieces")


def test_a_run_that_nobody_helps_ends() -> None:
    case, native_program = next(
        (c, r) for c, r in RECIPES if c.op == "attention_with_kvcache" and r.loops[0].pieces > 1
    )
    check(case, run(case, native_program, begin=lambda program: None), case.expected(), "alone")


def test_who_cannot_call_helpers_leaves_the_program_as_it_was() -> None:
    x, out = np.ones(4, np.float32), np.empty(4, np.float32)
    program = native.Program([("concat", [0, 1], (1, 4), (), 1)], [16, 16], [0, 1])

    def fail() -> None:
        raise RuntimeError("no more threads")

    with pytest.raises(RuntimeError, match="no more threads"):
        program.run([x, out], fail)
    program.help()  # ends at once
    program.run([x, out])
    np.testing.assert_array_equal(out, x)


# a right one: [0, 0, 0, 1], (1, 1, 1, 1, 0, 0, 0, 0, 1), (0.0,), 1
WRONG_LAYERS = [
    ([0, 0, 0, 1], (2, 1, 1, 1, 0, 0, 0, 0, 1), (0.0,), 1),
    ([0, 0, 0, 1], (1, 1, 1, 1, 0, 0, 0, 0, 3), (0.0,), 1),
    ([0, 0, 0, 1], (1, 1, 1, 1, 0, 0, 0, 0, -1), (0.0,), 1),
    ([0, 0, 0, 1], (1, 1, 1, 1, 0, 0, 0, 0, 1), (0.0,), 2),
    ([0, 0, 0, 1], (1, 1, 1, 1, 0, 0, 1, 0, 1), (0.0,), 1),
    ([0, 0, 0, 1], (1, 1, 1, 1, 0, 0, 0, 0, 1), (), 1),
    ([0, 0, 1], (1, 1, 1, 1, 0, 0, 0, 0, 1), (0.0,), 1),
]


def test_what_does_not_fit_is_refused() -> None:
    x, out = np.ones(4, np.float32), np.empty(4, np.float32)
    step: tuple[object, ...] = ("concat", [0, 1], (1, 4), (), 1)
    with pytest.raises(KeyError):
        native.Program([("konkat", [0, 1], (1, 4), (), 1)], [16, 16], [0, 1])
    for wrong in (
        ("concat", [0, 2], (1, 4), (), 1),
        ("concat", [0, 1], (1,), (), 1),
        ("concat", [0, 1], (1, 4), (), 0),
        ("softmax", [0, 1], (1,), (), 1),
        ("softmax", [0], (1, 4), (), 1),
        ("gather", [0, 1], (1, 4, 1, 1, 0), (), 1),
        ("copy", [0, 1], (1, 4), (), 1),
        ("reduce", [0, 1], (0, 1, 4), (), 1),
        ("fused_elementwise", [0, 1], (1, 4, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 1, 0), (0.0, 0.0), 1),
        ("fused_elementwise", [0, 1], (1, 4, 1, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0), (0.0,), 1),
        ("conv", [0, 1, 2], (1, 1, 1, 1, 1, 1, 0), (), 1),
        ("pool", [0, 1], (1, 0), (), 1),
        *(("rnn_scan", *reported) for reported in WRONG_LAYERS if native_kernels.rnn_functions()),
    ):
        with pytest.raises(ValueError):
            native.Program([wrong], [16, 16], [0, 1])
    program = native.Program([step], [16, 16], [0, 1])
    with pytest.raises(ValueError):
        program.run([x])
    with pytest.raises(BufferError):
        program.run([x[:3], out])
    with pytest.raises((BufferError, ValueError)):
        program.run([np.ones(8, np.float32)[::2], out])
    constant = out.copy()
    constant.flags.writeable = False
    with pytest.raises((BufferError, ValueError)):
        program.run([x, constant])
    with pytest.raises(ValueError):
        native.Program([step], [16, 16], [0]).run([x])  # nothing is bound to slot 1


def test_weights_that_count_for_nothing_hide_what_they_weigh() -> None:
    """NaN beyond the keys in use, and a score of -inf."""
    q, k, v = (np.ones((1, 1, rows, 4), np.float32) for rows in (1, 3, 3))
    v[0, 0, 1], v[0, 0, 2] = np.inf, np.nan
    k[0, 0, 1] = -np.inf
    reported = vs.attention(*map(vs.constant, (q, k, v)), kv_len=vs.constant(np.array(2, np.int32)))
    case = OpSample(reported.op, (q, k, v, np.array(2, np.int32)), dict(reported.attrs))
    native_program = native_program_of(case)
    assert native_program is not None
    np.testing.assert_array_equal(run(case, native_program), np.ones((1, 1, 1, 4), np.float32))


@pytest.mark.parametrize("cache_type", [np.float32, np.float16])
@pytest.mark.parametrize(("depth", "window"), [(64, None), (20, None), (44, 30)])
def test_rows_of_attention_have_the_bits_that_each_has_alone(
    cache_type: type, depth: int, window: int | None
) -> None:
    """Several pieces of queries and heads, and blocks of keys at other places."""
    rng = np.random.default_rng(depth)
    queries, keys, used = 150, 3000, 77
    q, new_k, new_v = (
        rng.standard_normal((1, heads, queries, depth), np.float32) for heads in (6, 2, 2)
    )
    k, v = (rng.standard_normal((1, 2, keys, depth), np.float32).astype(cache_type) for _ in "kv")

    def attended(q: NDArray, past: int) -> tuple[NDArray, NativeProgram]:
        inputs = (q, k, v, np.array(used, np.int32), new_k, new_v)
        reported = vs.attention(
            *map(vs.constant, inputs[:3]),
            kv_len=vs.constant(inputs[3]),
            k_new=vs.constant(new_k),
            v_new=vs.constant(new_v),
            causal=True,
            past_len=past,
            window=(window, None),
        )
        case = OpSample(reported.op, inputs, dict(reported.attrs))
        program = native_program_of(case)
        assert program is not None
        return run(case, program), program

    together, program = attended(q, 0)
    assert program.loops[0].pieces > 6
    for query in (0, 1, 31, 32, 99, 149):
        alone, _ = attended(np.ascontiguousarray(q[:, :, query : query + 1]), query)
        np.testing.assert_array_equal(together[:, :, query : query + 1], alone)


def test_a_loop_says_how_large_it_is() -> None:
    """A large call is several pieces, or has no recipe: numpy takes it in pieces."""
    big = vs.input("x", (1 << 10, 1 << 10)).type
    add, softmax = (all_ops()[name].native_program for name in ("add", "softmax"))
    assert add is not None and softmax is not None
    built = add((big, big), big, Attrs({}))
    assert built is not None and built.loops[0].pieces > 1 and built.loops[0].work == big.size
    assert softmax((big,), big, Attrs({"axis": 1})) is None
    assert Loop("neg", (0,), 1, (1,)).pieces == 1
