"""Lowering: one call of an op as dispatches on a device with given limits, and what they need.

The one door to kernels: planner, runtime and tests come through here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

from ...common.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, INT64, NARROW
from ...common.errors import UnsupportedOp
from ...ir.op import (
    OUTPUT,
    SCRATCH,
    Call,
    Dispatch,
    Kernel,
    Op,
    fp16_operands,
    no_u32,
)
from ...topology.limits import Limits
from .variants import Choice, call_key, choose, chosen
from .vec4 import both_readings, launch_run, reading

CONVERTERS = {
    (FLOAT32, FLOAT16): "fp16_pack",
    (FLOAT16, FLOAT32): "fp16_unpack",
    (INT32, INT32): "copy",  # one of them is an int64 that fits
}
"""Shaders of a cast between two types of one family, used by other ops too."""
CONVERTER_SHADERS = both_readings(CONVERTERS.values())
SCRATCH_ALIGN_WORDS = 16
"""Every scratch buffer starts at a multiple of this many words."""


@dataclass(frozen=True, slots=True)
class Lowering:
    """dispatches: in order. scratch: words of each scratch buffer that they use, by number."""

    dispatches: tuple[Dispatch, ...]
    scratch: tuple[int, ...] = ()

    def run(self, in_place: bool) -> tuple[Dispatch, ...]:
        """Return the dispatches that run. in_place: the result lies where the operand lies that
        the op keeps, so nothing copies that.
        """
        left = [each for each in self.dispatches if not (in_place and each.apart)]
        if left and left[0].barrier:  # what it would wait for is left out
            left[0] = replace(left[0], barrier=False)
        return tuple(left)

    @property
    def scratch_words(self) -> int:
        """Words of all scratch buffers, one behind the other."""
        return sum(_aligned(words) for words in self.scratch)

    def scratch_offset(self, number: int) -> int:
        """Return where a scratch buffer starts among all of them, in words."""
        return [0, *accumulate(_aligned(words) for words in self.scratch)][number]


def _aligned(words: int) -> int:
    return -(-max(words, 1) // SCRATCH_ALIGN_WORDS) * SCRATCH_ALIGN_WORDS


# -- types and values --------------------------------------------------------------------------


# -- kernels -----------------------------------------------------------------------------------


def lower(op: Op, call: Call) -> Lowering:
    """Return the dispatches of a call; none for an empty result that needs no work.

    int64 is computed as int32: the caller knows that the values fit.

    Raises:
        UnsupportedOp: a device with these limits cannot run this call; the text says why.
    """
    types = (*call.inputs, call.output)
    if any(t.dtype == FLOAT64 for t in types):
        raise UnsupportedOp("float64 is computed by numpy only; try vs.cast to float32")
    if op.kernel is None:
        raise UnsupportedOp(
            f"{op.name} has no kernel{op.cpu_only_reason and ': '}{op.cpu_only_reason}"
        )
    call = chosen(op.name, op.kernel.variants, _as_computed(call))
    converter = op.name == "cast" and CONVERTERS.get((call.inputs[0].dtype, call.output.dtype))
    if converter:
        lowering = Lowering(_convert(converter, 0, OUTPUT, call.output.size, call.limits))
    elif any(t.dtype in NARROW for t in types) and op.kernel.as_u32 is not no_u32:
        lowering = _lower_narrow(op.kernel, call)
    else:
        lowering = _lower_fp16(op.kernel, call)
    _check(lowering, call.limits)
    return lowering


def _as_computed(call: Call) -> Call:
    """Return a call with int64 as the int32 that it is computed as."""
    if all(t.dtype != INT64 for t in (*call.inputs, call.output)):
        return call
    inputs = tuple(t.as_dtype(INT32) if t.dtype == INT64 else t for t in call.inputs)
    output = call.output.as_dtype(INT32) if call.output.dtype == INT64 else call.output
    return replace(call, inputs=inputs, output=output)


def _converted(kernel: Kernel, call: Call) -> set[int]:
    """Return the operands of float16 that a kernel does not take as they are."""
    return set(fp16_operands(call)) - set(kernel.takes_fp16(call))


def _lower_fp16(kernel: Kernel, call: Call) -> Lowering:
    """A call whose float16 is unpacked to float32 in scratch memory, and packed at the end, where
    the kernel does not take it as it is.

    unpack x -> s1 | the kernel: s1, ... -> s2 | pack s2 -> result

    A kernel that only moves rows of whole words does so without.
    """
    converted = _converted(kernel, call)
    if not converted:
        return Lowering(kernel.lower(call), kernel.scratch(call))
    words = kernel.as_u32(call)
    if words is not None:
        return Lowering(kernel.lower(words), kernel.scratch(words))
    wide = replace(
        call,
        inputs=tuple(
            t.as_dtype(FLOAT32) if i in converted else t for i, t in enumerate(call.inputs)
        ),
        output=call.output.as_dtype(FLOAT32) if OUTPUT in converted else call.output,
    )
    scratch = list(kernel.scratch(wide))
    inner = kernel.lower(wide)
    place = {}
    before: list[Dispatch] = []
    after: tuple[Dispatch, ...] = ()
    for operand, type_ in (*enumerate(call.inputs), (OUTPUT, call.output)):
        if operand not in converted or not type_.size:
            continue
        place[operand] = SCRATCH - len(scratch)
        scratch.append(type_.size)
        if operand == OUTPUT:
            after = _convert("fp16_pack", place[operand], OUTPUT, type_.size, call.limits)
        elif any(operand in dispatch.operands for dispatch in inner):
            before += _convert("fp16_unpack", operand, place[operand], type_.size, call.limits)
    inner = tuple(
        replace(
            d,
            operands=tuple(place.get(o, o) for o in d.operands),
            barrier=d.barrier or not i,
            apart=False,  # unpacked, the two are never one place
        )
        for i, d in enumerate(inner)
    )
    return Lowering((*before, *inner, *(replace(d, barrier=True) for d in after)), tuple(scratch))


def _lower_narrow(kernel: Kernel, call: Call) -> Lowering:
    """A call that moves rows of integers of 8 and 16 bits, whole words each."""
    words = kernel.as_u32(call)
    if words is None:
        raise UnsupportedOp("rows of no whole words; try vs.dequantize_linear before it")
    return Lowering(kernel.lower(words), kernel.scratch(words))


def choice_of(op: Op, call: Call) -> Choice:
    """Return the variant by which `lower` runs a call, those it could be, and why it is that."""
    if op.kernel is None:
        return Choice()
    return choose(op.name, op.kernel.variants, _as_computed(call))


def cache_key(op: Op, call: Call) -> str:
    """Return a call as the text under which its tuned choice is kept."""
    return call_key(op.name, _as_computed(call))


def variants_of(op: Op, call: Call) -> tuple[str, ...]:
    """Return the variants that can run a call, the best guess first; ("",) with nothing to choose
    or where numpy computes it.
    """
    try:
        return choice_of(op, replace(call, variant="")).of or ("",)
    except UnsupportedOp:
        return ("",)  # `lower` says why


def conversion_bytes(op: Op, call: Call) -> int:
    """Returns what unpacking and packing float16 moves beside the op's own work on a device."""
    if not fp16_operands(call) or op.kernel is None or op.name == "cast":
        return 0
    call = chosen(op.name, op.kernel.variants, _as_computed(call))
    if op.kernel.as_u32(call):
        return 0
    types = (*call.inputs, call.output)  # packed, unpacked, and twice as wide inside
    return sum((2 + 4 + 2) * types[i].size for i in _converted(op.kernel, call))


def _convert(
    shader: str, source: int, target: int, count: int, limits: Limits
) -> tuple[Dispatch, ...]:
    if not count:
        return ()
    push = (("count", count),)
    groups, constants = launch_run(-(-count // 4), limits)
    named = reading(shader, limits)
    return (Dispatch(named, (source, target), groups, push, constants),)


def _check(lowering: Lowering, limits: Limits) -> None:
    for dispatch in lowering.dispatches:
        if len(dispatch.operands) > limits.storage_buffers:
            raise UnsupportedOp(
                f"{dispatch.shader} binds {len(dispatch.operands)} buffers, the device "
                f"allows {limits.storage_buffers}"
            )
        if any(g > m for g, m in zip(dispatch.groups, limits.max_groups, strict=True)):
            raise UnsupportedOp(f"{dispatch.shader} needs {dispatch.groups} groups")
    needed = lowering.scratch_words * 4
    if needed > limits.max_buffer_bytes:
        raise UnsupportedOp(
            f"it needs {needed} bytes beside its result, over the largest buffer of "
            f"{limits.max_buffer_bytes}"
        )
