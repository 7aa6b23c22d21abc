"""What an op is: one declaration with its type rule, numpy reference, kernel and cost, kept in one
registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

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
"""Operand index of the submission's status word: a kernel that meets bad data sets it (see
`IndexOutOfRange`).
"""
SCRATCH = -3
"""Operand index of a kernel's first scratch buffer; SCRATCH - i is the one numbered i."""


@dataclass(frozen=True, slots=True)
class ShaderProgram:
    """What the runtime writes into the module of a fused elementwise op or an epilogue
    (runtime/vulkan/spirv_patch.py).

    calls: the shader function of each step and the registers that are its operands: from 0 on what
        goes in, from REGISTERS on the words, then the results of the steps.
    words: constants and parameters.
    """

    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    words: tuple[int, ...] = ()


REGISTERS = 6
"""Of what goes into a fused elementwise op, whether it takes as much or not."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One kernel launch, as data.

    operands: for each binding 0..n-1 of the shader the tensor bound there: an input's index,
        OUTPUT, STATUS or SCRATCH - i.
    push: the push constants after the word offsets of the operands (which come first, in binding
        order, and are filled in by the runtime); the names are those of the shader's push block,
        arrays as tuples.
    constants: specialisation constants by the shader's own names; what is not named keeps its
        default.
    shifts: words added to the operands' offsets, for a dispatch that covers a part of its tensors.
    barrier: this dispatch reads what an earlier dispatch of the same node wrote, or writes where
        one read or wrote.
    apart: it copies the operand that the op keeps (see `InPlace`) to the result; where the two are
        one place it is left out.
    partial: its results are parts of sums, to which later dispatches add.
    steps: those of the fused elementwise op or epilogue that the shader carries.
    subgroup: the size that its subgroups are to have, all of them full, where it relies on one; 0:
        any.
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


EPILOGUE = "epilogue"
"""The attribute of a product or convolution that says what follows in its kernel: epilogue.py."""


@dataclass(frozen=True, slots=True)
class Call:
    """The types and attributes of one use of an op on a device with these limits.

    variant: which of the kernel's variants runs it; "" leaves that to `lower`, which sets it.
    """

    inputs: tuple[TensorType, ...]
    output: TensorType
    attrs: Attrs
    limits: Limits = field(default_factory=Limits)
    variant: str = ""

    @property
    def without_epilogue(self) -> Call:
        """The same without what follows it."""
        epilogue = self.attrs.get(EPILOGUE)
        if not isinstance(epilogue, tuple):
            return self
        own = self.inputs[: -1 if epilogue[0] == 2 else None]
        attrs = Attrs({name: value for name, value in self.attrs.items() if name != EPILOGUE})
        return replace(self, inputs=own, attrs=attrs)


def no_scratch(call: Call) -> tuple[int, ...]:
    """No scratch buffers."""
    return ()


def no_u32(call: Call) -> Call | None:
    """Float16 is always converted."""
    return None


def no_fp16(call: Call) -> tuple[int, ...]:
    """Float16 is always converted."""
    return ()


def fp16_operands(call: Call) -> tuple[int, ...]:
    """Return the operands of a call that are float16, OUTPUT for its result."""
    types = (*enumerate(call.inputs), (OUTPUT, call.output))
    return tuple(operand for operand, type_ in types if type_.dtype == FLOAT16)


def no_variants(call: Call) -> tuple[str, ...]:
    """Nothing to choose."""
    return ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a device runs an op: the shader variants it may use and the rule that chooses among them.

    lower: Call -> dispatches; empty for an empty result that needs no work. Raises UnsupportedOp
        with the reason when this device cannot run this call.
    scratch: Call -> words of each scratch buffer (operands SCRATCH, SCRATCH - 1, ...): memory with
        any content that only the dispatches of this call see.
    as_u32: a call that moves float16 -> the same on words of two, or None where pairs are parted.
    takes_fp16: Call -> those of `fp16_operands` that the kernel reads or writes packed; lower and
        scratch see float16 there, and float32 in place of the others.
    variants: Call -> the names of the algorithms that can run this call on this device, the best
        guess first; empty where there is nothing to choose. The others see one in `call.variant`.
        Asked with the types of the call; the others see what float16 becomes.
    """

    shaders: tuple[str, ...]
    lower: Callable[[Call], tuple[Dispatch, ...]]
    scratch: Callable[[Call], tuple[int, ...]] = no_scratch
    as_u32: Callable[[Call], Call | None] = no_u32
    variants: Callable[[Call], tuple[str, ...]] = no_variants
    takes_fp16: Callable[[Call], tuple[int, ...]] = no_fp16


@dataclass(frozen=True, slots=True)
class Work:
    """What one call costs: arithmetic operations and bytes moved.

    rounds: steps that one invocation takes one after the other, where that is what takes the time.
    """

    flops: float
    bytes_moved: float
    rounds: float = 0.0


def elementwise_work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """One operation per result; every operand read once, the result written once."""
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(float(output.size), float(moved))


@dataclass(frozen=True, slots=True)
class InPlace:
    """How the result of an op may lie where an operand does. Nothing of such an op can fail.

    kept: the operand of which all that the op does not write stays as it is; no other one may lie
        there. None: any operand of the result's shape, as each element of the result needs that
        element alone of those, and kernels read it before they write.
    write: (operands, attrs, array) -> None: how numpy writes the result into an array that holds
        operand `kept`, without memory of its own. None: numpy cannot.
    """

    kept: int | None = None
    write: Callable[[tuple[NDArray, ...], Attrs, NDArray], None] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One op, declared once.

    infer: (input types, attrs) -> result type; raises ShapeError or DTypeError. It sees calls whose
        operands and attributes are as `operands` and `attrs` say, and checks what these have to do
        with each other.
    reference: (input arrays, attrs) -> array; numpy: the CPU fallback and the oracle of the tests.
        It may return a view of an input; it must not write to one.
    kernel: None means that only the CPU runs the op.
    view: (input types, attrs) -> first element of the result within input 0 when the result is that
        input's memory unchanged, else None. An op whose calls are always views needs no kernel.
    """

    name: str
    infer: Callable[[tuple[TensorType, ...], Attrs], TensorType]
    reference: Callable[[tuple[NDArray, ...], Attrs], NDArray]
    kernel: Kernel | None
    attrs: Mapping[str, Domain] | None = field(kw_only=True, hash=False, compare=False)
    """The domain of each attribute; None for an opaque op, which checks its own."""
    operands: tuple[int, int] = field(kw_only=True)
    """The least and the largest number of operands."""
    view: Callable[[tuple[TensorType, ...], Attrs], int | None] | None = None
    work: Callable[[tuple[TensorType, ...], TensorType, Attrs], Work] = elementwise_work
    leaf: bool = False
    """A value that comes from outside: input, weight, constant."""
    stateful: bool = False
    """It reads or writes memory that outlives the run, and computes nothing."""
    roundable_operands: tuple[int, ...] = ()
    """Operands whose elements meet in products: those that a `precision` lets devices round."""
    indices: tuple[int, ...] = ()
    """Operands that hold positions: int32 or int64, whatever the type of the others."""
    any_dtype: bool = False
    """It moves elements or names its own types: rule and reference see every dtype as it is. Those
    of other ops see float16 as float32, and their rule float64 as float32 and int64 as int32 too.
    """
    accepts_int8_weights: bool = False
    """It reads weights of 8 and 16 bits, which others refuse."""
    is_dequantize: bool = False
    """Its result is operand 0 for those who read it, in more bits: it is placed where that lies."""
    opaque: bool = False
    """Declared by an importer for nodes of a file that no op of ours expresses; CPU only."""
    cpu: CpuKernel | None = None
    """How the CPU backend runs it, where that can be better than the reference."""
    native_program: NativeProgramRule | None = None
    """How native loops run it, or write it where an operand lies (`InPlace.write`)."""
    in_place: InPlace | None = None
    """Whether the result may lie where an operand does."""
    cpu_only_reason: str = ""
    """Why no device but the CPU runs it; empty where there is a kernel or every call is a view."""


_REGISTRY: dict[str, Op] = {}

VIEW_ALIGN_WORDS = 4
"""Every tensor, views too, starts at a multiple of this many words, so kernels may read 16 bytes at
once.
"""


def register(op: Op) -> Op:
    """Add an op to the registry and returns it."""
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
    """Return the names of our own ops that compute something, sorted."""
    left_out = [name for name, op in _REGISTRY.items() if op.leaf or op.stateful or op.opaque]
    return tuple(sorted(_REGISTRY.keys() - set(left_out)))


def all_ops() -> dict[str, Op]:
    """Return every op by name."""
    return dict(_REGISTRY)


def view_offset(op: Op, inputs: tuple[TensorType, ...], attrs: Attrs) -> int | None:
    """Return the word in input 0 at which the result lies when the call is a view, else None."""
    offset = op.view(inputs, attrs) if op.view is not None else None
    if offset is None:
        return None
    elements = VIEW_ALIGN_WORDS * elements_of_word(inputs[0].dtype)
    return offset * VIEW_ALIGN_WORDS // elements if offset % elements == 0 else None
