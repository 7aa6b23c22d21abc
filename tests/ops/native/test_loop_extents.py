"""Native programs whose numbers make no sense: what a loop would reach beyond a slot is refused
before it runs, and what is taken writes nothing but its result.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from selection import by_tier

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ir.native_program import Loop
from vksched.ops.lowering import native_kernels as loops
from vksched.testing.op_cases.op_sample import OpSample
from vksched.testing.op_table import CASES

pytestmark = pytest.mark.skipif(not loops.has_programs(), reason="native programs are not built")
native: Any = loops.native

GUARD = 256
"""Bytes around each array."""
FAR = (-1, 0, 1, 2, 1 << 20, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63), -(1 << 40))


@dataclass(frozen=True)
class LoopProgram:
    """A program of loops, and the bytes of its slots."""

    loops: tuple[tuple[Loop, tuple[int, ...]], ...]
    sizes: tuple[int, ...]

    def program(self) -> Any:
        steps = [
            (one.name, at, one.int_params, one.float_params, one.pieces) for one, at in self.loops
        ]
        return native.Program(steps, list(self.sizes), list(range(len(self.sizes))))

    def with_numbers(self, number: int, numbers: tuple[int, ...]) -> LoopProgram:
        """The same with other numbers of one loop."""
        loop, slots = self.loops[number]
        changed = (replace(loop, int_params=numbers), slots)
        return replace(self, loops=(*self.loops[:number], changed, *self.loops[number + 1 :]))


def loop_program_of(case: OpSample) -> tuple[LoopProgram, list[NDArray]] | None:
    """Return the program of a case, and what its operands hold."""
    make, output = case.declaration.native_program, case.result_type()
    if make is None or not all(t.size for t in (output, *case.types)):
        return None
    native_program = make(case.types, output, Attrs(case.attrs))
    if native_program is None or sum(t.size for t in (output, *case.types)) > 1 << 14:
        return None
    inputs = list(map(np.ascontiguousarray, case.inputs))
    built = [4 * loop.elements for loop in native_program.loops[:-1]]
    in_place = case.op == "dynamic_update_slice"
    last = len(inputs) + len(built)
    slots = tuple(
        (loop, ((last, *loop.operands[1:]) if in_place else loop.operands) + (len(inputs) + at,))
        for at, loop in enumerate(native_program.loops)
    )
    sizes = (*(x.nbytes for x in inputs), *built, output.host_bytes)
    return LoopProgram(slots, sizes), inputs


def programs() -> Iterator[tuple[str, LoopProgram, list[NDArray]]]:
    """Yield some programs of each op."""
    for op in sorted({case.op for case in CASES}):
        found = (built for case in CASES if case.op == op and (built := loop_program_of(case)))
        for reported, values in islice(found, 6):
            yield op, reported, values


PROGRAMS = list(programs())


def run_guarded(info: LoopProgram, values: list[NDArray]) -> None:
    """Run a program; fails where it writes outside of its slots."""
    arrays, memories = [], []
    for slot, size in enumerate(info.sizes):
        memory = np.full(size + 2 * GUARD, 0xA5, np.uint8)
        array = memory[GUARD : GUARD + size]
        if slot < len(values):
            array[:] = values[slot].reshape(-1).view(np.uint8)
        arrays.append(array)
        memories.append(memory)
    info.program().run(arrays)
    for memory in memories:
        assert (memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all()


def test_all_kinds_of_loops_are_tried() -> None:
    kinds = {
        loop.name.partition(" ")[0] for _, reported, _ in PROGRAMS for loop, _ in reported.loops
    }
    assert kinds >= {
        "fused_elementwise",
        "concat",
        "copy",
        "gather",
        "quantized_linear",
        "norm",
        "reduce",
    }
    assert kinds >= {
        "attention",
        "attention_with_kvcache",
        "rotary_embedding",
        "softmax",
        "ssm_scan",
        "dynamic_update_slice",
    }
    assert kinds >= {"conv", "conv_transpose", "pool", "rnn_scan"} or not loops.conv_epilogue_ops()


def test_a_slot_that_is_too_small_is_refused() -> None:
    """The result's by one element, and an operand's without any."""
    for op, reported, _ in PROGRAMS:
        reported.program()
        read = {slot for _, slots in reported.loops for slot in slots}
        for slot, size in enumerate(reported.sizes):
            if slot not in read:
                continue
            less = (
                size - 4 if slot == len(reported.sizes) - 1 and op != "dynamic_update_slice" else 0
            )
            sizes = (*reported.sizes[:slot], max(less, 0), *reported.sizes[slot + 1 :])
            with pytest.raises(ValueError, match="one is too small"):
                replace(reported, sizes=sizes).program()


@pytest.mark.scales
def test_numbers_of_no_sense_do_no_harm() -> None:
    """Each number of a loop in turn is one that is far off; an eighth of them in `make test`."""
    rng, refused, ran, share = random.Random(0), 0, 0, by_tier(1, 3, 8) / 8
    for _, reported, values in PROGRAMS:
        for number, (loop, _) in enumerate(reported.loops):
            for at in range(len(loop.int_params)):
                if rng.random() >= share:
                    continue
                own = loop.int_params[at]
                for value in (own + 1, own - 1, rng.choice(FAR), rng.choice(FAR)):
                    numbers = (*loop.int_params[:at], value, *loop.int_params[at + 1 :])
                    try:
                        run_guarded(reported.with_numbers(number, numbers), values)
                    except (ValueError, IndexError, KeyError, MemoryError):
                        refused += 1
                    else:
                        ran += 1
    assert refused > share * 1000 and ran > share * 100


@pytest.mark.parametrize(
    ("name", "slots", "numbers", "float_params"),
    [
        ("reduce", [0, 1], (2, 1, 2, 0), ()),
        ("norm", [0, 1], (1 << 62, 0, 1, 0, 0), (0.0,)),
        ("softmax", [0, 1], (4, 0), ()),
        ("concat", [0, 1], (1 << 40, 0), ()),
        ("gather", [0, 1, 2], (1 << 62, 1, 0, 1, 0), ()),
        ("matmul", [0, 1, 2], (1, 1, 1, 1 << 62, 0, 0, 0, 0, 0, 1, 0), ()),
    ],
)
def test_loops_over_nothing_do_not_go_on_for_ever(
    name: str, slots: list[int], numbers: tuple[int, ...], float_params: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError):
        native.Program([(name, slots, numbers, float_params, 1)], [16] * len(slots), slots)


def test_scores_of_a_piece_are_bounded() -> None:
    """Strides of 0 make any number of heads and keys fit into small arrays: the product of both
    exceeds 64 bits here, and the memory of the scores would be too small.
    """
    heads, cache = 11_500_000, 1 << 39
    new = -(-(1 << 64) // heads) - 8 - cache
    head = (1, heads, 1, 1, 4, 4, cache, new, heads, 1)
    numbers = (*head, 0, 1, 1, 1, 0, -(1 << 40), 1 << 40, 0, 0, 0, *(0,) * 24)
    step = ("attention_with_kvcache", list(range(9)), numbers, (1.0, 0.0), 1)
    with pytest.raises(ValueError, match="scores"):
        native.Program([step], [16, 16, 16, 8, *(16,) * 5], list(range(9)))
