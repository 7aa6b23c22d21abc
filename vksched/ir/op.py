"""Op: declaration of type rule, numpy reference, kernel and cost, and the registry of ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..common.dtypes import FLOAT16, NDArray, TensorType, elements_of_word
from ..common.errors import UnsupportedOp, VkschedError
from ..topology.limits import Limits
from .attr_domains import Domain
from .attrs import Attrs
from .cpu_kernel import CpuKernel
from .native_program import NativeProgramRule

OUTPUT = -1
"""Operand index of the node's result in `Dispatch.operands`."""
STATUS = -2
"""Operand index of the submission's status word, set on invalid data (see `IndexOutOfRange`)."""
COUNTERS = -3
"""Operand index of a call's counters: words that are 0 before and after its dispatches."""
SCRATCH = -4
"""Operand index of a kernel's first scratch buffer; buffer i has the index SCRATCH - i."""


@dataclass(frozen=True, slots=True)
class ShaderProgram:
    """Program that the runtime inserts into a fused elementwise op or an epilogue (spirv_patch.py).

    Parameters
    ----------
    calls
        For each step its shader function and operand registers: inputs from 0 on, words from
        REGISTERS on, then the results of the steps.
    words
        Constants and parameters.
    """

    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    words: tuple[int, ...] = ()


REGISTERS = 6
"""Number of input registers of a fused elementwise op, whether they are used or not."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch, as data.

    Parameters
    ----------
    operands
        The tensor of each shader binding 0..n-1: an input's index, OUTPUT, STATUS,
        COUNTERS or SCRATCH - i.
    push
        Push constants by the names in the shader's push block, arrays as tuples. The runtime
        prepends the word offsets of the operands, in binding order.
    constants
        Specialization constants by name; others have their defaults.
    shifts
        Words to add to the operands' offsets, for a dispatch that covers a part of its tensors.
    barrier
        This dispatch has a data hazard with an earlier dispatch of its node.
    apart
        This dispatch copies the operand that the op updates (see `InPlace`) to the result; it is
        omitted if both are one memory range.
    partial
        The results are partial sums, to which later dispatches add.
    steps
        Steps of the fused elementwise op or epilogue in the shader.
    subgroup
        Required subgroup size, with full subgroups; 0: any.
    """

    shader: str
    operands: tuple[int, ...]
    groups: tuple[int, int, int]
    push: tuple[tuple[str, int | float | tuple[int, ...]], ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    shifts: tuple[int, ...] = ()
    barrier: bool = False
    apart: bool = False
    partial: bool = False
    steps: ShaderProgram = ShaderProgram()
    subgroup: int = 0


Count = int | tuple[int, ...]
"""A number of elements in use, or the values of an operand that holds one for each example."""
EPILOGUE = "epilogue"
"""Attribute of a matmul or convolution with the fused epilogue: epilogue.py."""


@dataclass(frozen=True, slots=True)
class Call:
    """Types and attributes of one use of an op on a device with these limits.

    Parameters
    ----------
    variant
        The kernel variant to run; "" lets `lower` choose.
    """

    inputs: tuple[TensorType, ...]
    output: TensorType
    attrs: Attrs
    limits: Limits = field(default_factory=Limits)
    variant: str = ""

    @property
    def without_epilogue(self) -> Call:
        """Return this call without its epilogue."""
        epilogue = self.attrs.get(EPILOGUE)
        if not isinstance(epilogue, tuple):
            return self
        own = self.inputs[: -1 if epilogue[0] == 2 else None]
        attrs = Attrs({name: value for name, value in self.attrs.items() if name != EPILOGUE})
        return replace(self, inputs=own, attrs=attrs)


def no_scratch(call: Call) -> tuple[int, ...]:
    """Return no scratch buffers."""
    return ()


def no_counters(call: Call) -> int:
    """Return 0: no workgroup waits for others of its dispatch."""
    return 0


def no_u32(call: Call) -> Call | None:
    """Return None: float16 is always converted."""
    return None


def no_fp16(call: Call) -> tuple[int, ...]:
    """Return no operands: float16 is always converted."""
    return ()


def fp16_operands(call: Call) -> tuple[int, ...]:
    """Return the float16 operands of a call, with OUTPUT for the result."""
    types = (*enumerate(call.inputs), (OUTPUT, call.output))
    return tuple(operand for operand, type_ in types if type_.dtype == FLOAT16)


def no_variants(call: Call) -> tuple[str, ...]:
    """Return no variants: there is nothing to choose."""
    return ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """Device implementation of an op: its shader variants and the rule that chooses among them.

    Parameters
    ----------
    lower
        Call -> dispatches; empty for an empty result. Raises UnsupportedOp with the reason if the
        device does not support the call.
    scratch
        Call -> words of each scratch buffer (operands SCRATCH, SCRATCH - 1, ...): uninitialized
        memory that is private to the dispatches of this call.
    as_u32
        A call that moves float16 -> an equivalent call on 32-bit words, or None if it splits a
        word.
    takes_fp16
        Call -> the subset of `fp16_operands` that the kernel reads or writes packed. lower and
        scratch see these as float16, the others as float32.
    variants
        Call -> names of the algorithms that support this call on this device, the best guess first;
        empty if there is no choice. The other rules read `call.variant`. This rule gets the
        original types; the others get the types after float16 conversion.
    counters
        Call -> words of its counters (operand COUNTERS), by which workgroups find the last one of a
        dispatch. They are private to the call.
    """

    shaders: tuple[str, ...]
    lower: Callable[[Call], tuple[Dispatch, ...]]
    scratch: Callable[[Call], tuple[int, ...]] = no_scratch
    as_u32: Callable[[Call], Call | None] = no_u32
    variants: Callable[[Call], tuple[str, ...]] = no_variants
    takes_fp16: Callable[[Call], tuple[int, ...]] = no_fp16
    counters: Callable[[Call], int] = no_counters


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of a call: arithmetic operations and bytes moved.

    Parameters
    ----------
    rounds
        Sequential iterations of one invocation, if they dominate the time.
    """

    flops: float
    bytes_moved: float
    rounds: float = 0.0


def elementwise_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Return the cost of one operation per result, with all operands and the result moved once."""
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(float(output.size), float(moved))


@dataclass(frozen=True, slots=True)
class InPlace:
    """In-place execution: the result of an op may overwrite an operand. The op must not fail.

    Parameters
    ----------
    kept
        The operand that the op updates partially; no other operand can be overwritten. None: any
        operand of the result's shape, because each result element only depends on the operand
        elements at its position, which kernels read before they write.
    write
        (operands, attrs, array) -> None: writes the result into an array that holds operand
        `updated_operand`, without an allocation. None: not supported by numpy.
    """

    updated_operand: int | None = None
    write: Callable[[tuple[NDArray, ...], Attrs, NDArray], None] | None = None


class EarlyWrite(NamedTuple):
    """Rows that a call writes into a state: their operand, that of the state and of the start, as
    in `dynamic_update_slice` with this axis.
    """

    state: int
    rows: int
    start: int
    axis: int


@dataclass(frozen=True, slots=True)
class Op:
    """Declaration of an op.

    Parameters
    ----------
    infer
        (input types, attrs) -> result type. Raises ShapeError or DTypeError. The operand count and
        the domains of attributes were checked before; this rule checks relations between them.
    reference
        (input arrays, attrs) -> array, in numpy: the CPU fallback and the oracle of the tests. It
        may return a view of an input, and must not write to one.
    kernel
        Device implementation; None for an op that only the CPU supports.
    view
        (input types, attrs) -> offset of the result in input 0 in elements, if the result is a view
        of it, else None. An op whose calls are always views needs no kernel.
    """

    name: str
    infer: Callable[[tuple[TensorType, ...], Attrs], TensorType]
    reference: Callable[[tuple[NDArray, ...], Attrs], NDArray]
    kernel: Kernel | None
    attrs: Mapping[str, Domain] | None = field(kw_only=True, hash=False, compare=False)
    """Domain of each attribute; None for an opaque op, which checks its own attributes."""
    operands: tuple[int, int] = field(kw_only=True)
    """Minimum and maximum number of operands."""
    view: Callable[[tuple[TensorType, ...], Attrs], int | None] | None = None
    work: Callable[[tuple[TensorType, ...], TensorType, Attrs], Work] = elementwise_work
    leaf: bool = False
    """True for inputs, weights and constants."""
    stateful: bool = False
    """True if the op reads or writes memory that outlives the run, and computes nothing."""
    early_writes: Callable[[tuple[TensorType, ...]], tuple[EarlyWrite, ...]] = lambda inputs: ()
    """The rows that kernels may write into states before the run updates them; see
    early_writes.py.
    """
    roundable_operands: tuple[int, ...] = ()
    """Operands of the contraction, which a `precision` permits devices to round."""
    typical_counts: Callable[[tuple[TensorType, ...], Attrs], Mapping[int, tuple[Count, ...]]] = (
        lambda inputs, attrs: {}
    )
    """By operand that holds a number of elements in use: the number that `work` assumes, with which
    calls are timed, then others for which kernels are compared.
    """
    indices: tuple[int, ...] = ()
    """Operands with indices: int32 or int64, independent of the other operands."""
    any_dtype: bool = False
    """True if the op only moves elements or computes its own result type.

    Rule and reference then get the original dtypes. For other ops float16 is converted to float32,
    and the rule sees float64 as float32 and int64 as int32.
    """
    float32_result: bool = False
    """True if float16 operands do not make the result float16, and may differ from other operands:
    they are float32 values that are stored as float16.
    """
    accepts_int8_weights: bool = False
    """True if the op accepts weights of 8 and 16 bits."""
    is_dequantize: bool = False
    """True if the result is operand 0 in a wider type; it is placed on the device of operand 0."""
    opaque: bool = False
    """True for ops that an importer declares for nodes of a file without an equivalent; CPU only.
    """
    cpu: CpuKernel | None = None
    """CPU kernel, if one is faster than the reference."""
    native_program: NativeProgramRule | None = None
    """Native loops of the call, or of its in-place write (`InPlace.write`)."""
    in_place: InPlace | None = None
    """In-place execution, or None if the result cannot overwrite an operand."""
    cpu_only_reason: str = ""
    """Reason why only the CPU supports the op; empty if it has a kernel or all calls are views."""


_REGISTRY: dict[str, Op] = {}

VIEW_ALIGN_WORDS = 4
"""Alignment of all tensors, including views, in words: kernels may load 16 bytes at once."""


def register(op: Op) -> Op:
    """Add an op to the registry and return it."""
    if op.name in _REGISTRY:
        raise VkschedError(f"[register] op {op.name!r} is declared twice")
    _REGISTRY[op.name] = op
    return op


def get_op(name: str) -> Op:
    """Return the declaration of an op by name."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise UnsupportedOp(f"[{name}] no such op; known: {', '.join(sorted(_REGISTRY))}") from None


def computing_ops() -> tuple[str, ...]:
    """Return the names of built-in ops that compute a result, sorted."""
    left_out = [name for name, op in _REGISTRY.items() if op.leaf or op.stateful or op.opaque]
    return tuple(sorted(_REGISTRY.keys() - set(left_out)))


def all_ops() -> dict[str, Op]:
    """Return all ops by name."""
    return dict(_REGISTRY)


def view_offset(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    """Return the word offset of a view's result within input 0, or None for other calls."""
    offset = op.view(inputs, attrs) if op.view is not None else None
    if offset is None:
        return None
    elements = VIEW_ALIGN_WORDS * elements_of_word(inputs[0].dtype)
    return offset * VIEW_ALIGN_WORDS // elements if offset % elements == 0 else None
