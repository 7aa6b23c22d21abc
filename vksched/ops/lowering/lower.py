"""Lowering of a call to dispatches on a device with given limits, and its memory requirements.

Planner, runtime and tests access kernels only through this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
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
    (INT32, INT32): "copy",  # one of them is an int64 whose values fit
}
"""Cast shaders between types of one family, which other ops use too."""
OVERFLOW_NAN = "_nan"
"""The suffix of the cast to float16 that turns values beyond its range into NaN."""
CONVERTER_SHADERS = both_readings((*CONVERTERS.values(), f"fp16_pack{OVERFLOW_NAN}"))
SCRATCH_ALIGN_WORDS = 16
"""Alignment of scratch buffers in words."""


@dataclass(frozen=True)
class Lowering:
    """Dispatches in order, the words of each scratch buffer by number, and those of counters."""

    dispatches: tuple[Dispatch, ...]
    scratch: tuple[int, ...] = ()
    counters: int = 0

    def run(self, in_place: bool) -> tuple[Dispatch, ...]:
        """Return the dispatches to execute.

        Parameters
        ----------
        in_place
            The result overwrites the operand that the op updates, so copies of that operand are
            omitted.
        """
        left = [each for each in self.dispatches if not (in_place and each.apart)]
        if left and left[0].barrier:  # the barrier is for the omitted copy
            left[0] = replace(left[0], barrier=False)
        return tuple(left)

    @cached_property
    def scratch_words(self) -> int:
        """Total words of all scratch buffers."""
        return sum(_aligned(words) for words in self.scratch)

    def scratch_offset(self, number: int) -> int:
        """Return the offset of a scratch buffer among all scratch buffers, in words."""
        return [0, *accumulate(_aligned(words) for words in self.scratch)][number]


def _aligned(words: int) -> int:
    return -(-max(words, 1) // SCRATCH_ALIGN_WORDS) * SCRATCH_ALIGN_WORDS


# -- types and values --------------------------------------------------------------------------


# -- kernels -----------------------------------------------------------------------------------


def lower(op: Op, call: Call) -> Lowering:
    """Return the dispatches of a call; empty for an empty result.

    int64 is computed as int32: the caller guarantees that the values fit.

    Raises
    ------
    UnsupportedOp
        A device with these limits does not support the call; the message is the reason.
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
        converter += OVERFLOW_NAN if call.attrs.get("overflow_nan") else ""
        lowering = Lowering(_convert(converter, 0, OUTPUT, call.output.size, call.limits))
    elif any(t.dtype in NARROW for t in types) and op.kernel.as_u32 is not no_u32:
        lowering = _lower_narrow(op.kernel, call)
    else:
        lowering = _lower_fp16(op.kernel, call)
    _check(lowering, call.limits)
    return lowering


def _as_computed(call: Call) -> Call:
    """Return a call with int64 replaced by int32."""
    if all(t.dtype != INT64 for t in (*call.inputs, call.output)):
        return call
    inputs = tuple(t.as_dtype(INT32) if t.dtype == INT64 else t for t in call.inputs)
    output = call.output.as_dtype(INT32) if call.output.dtype == INT64 else call.output
    return replace(call, inputs=inputs, output=output)


def _lowered(kernel: Kernel, call: Call) -> Lowering:
    return Lowering(kernel.lower(call), kernel.scratch(call), kernel.counters(call))


def _converted(kernel: Kernel, call: Call) -> set[int]:
    """Return the float16 operands that a kernel does not support directly."""
    return set(fp16_operands(call)) - set(kernel.takes_fp16(call))


def _lower_fp16(kernel: Kernel, call: Call) -> Lowering:
    """Lower a call with float16 operands that the kernel does not support: convert them to float32
    in scratch memory, and convert the result back.

        unpack x -> s1 | the kernel: s1, ... -> s2 | pack s2 -> result

    A kernel that only moves whole words of rows needs no conversion.
    """
    converted = _converted(kernel, call)
    if not converted:
        return _lowered(kernel, call)
    words = kernel.as_u32(call)
    if words is not None:
        return _lowered(kernel, words)
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
            apart=False,  # unpacked copies never alias
        )
        for i, d in enumerate(inner)
    )
    dispatches = (*before, *inner, *(replace(d, barrier=True) for d in after))
    return Lowering(dispatches, tuple(scratch), kernel.counters(wide))


def _lower_narrow(kernel: Kernel, call: Call) -> Lowering:
    """Lower a call that moves rows of 8- or 16-bit integers that fill whole words."""
    words = kernel.as_u32(call)
    if words is None:
        raise UnsupportedOp("rows of no whole words; try vs.dequantize_linear before it")
    return _lowered(kernel, words)


def choice_of(op: Op, call: Call) -> Choice:
    """Return the variant that `lower` uses for a call, the alternatives, and the reason."""
    if op.kernel is None:
        return Choice()
    return choose(op.name, op.kernel.variants, _as_computed(call))


def cache_key(op: Op, call: Call) -> str:
    """Return the key under which the tuned variant of a call is stored."""
    return call_key(op.name, _as_computed(call))


def variants_of(op: Op, call: Call) -> tuple[str, ...]:
    """Return the variants that support a call, the best guess first.

    The result is ("",) if there is no choice or only the CPU supports the call.
    """
    try:
        return choice_of(op, replace(call, variant="")).of or ("",)
    except UnsupportedOp:
        return ("",)  # `lower` reports the reason


def conversion_bytes(op: Op, call: Call) -> int:
    """Return the bytes moved by float16 conversions, in addition to the op's own work."""
    if not fp16_operands(call) or op.kernel is None or op.name == "cast":
        return 0
    call = chosen(op.name, op.kernel.variants, _as_computed(call))
    if op.kernel.as_u32(call):
        return 0
    types = (*call.inputs, call.output)  # the packed value, and the unpacked one of twice the size
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
            f"it needs {needed} bytes in addition to its result, over the largest buffer of "
            f"{limits.max_buffer_bytes}"
        )
