"""Device kernels of recurrent layers.

    groups   state -> result -> some time steps -> more time steps -> ...          one dispatch each
    steps    state -> result, work -> h @ r -> step -> h @ r -> ...      two dispatches for a step

Between two dispatches the states are in the last rows of the result, so a submission may end there.
With `groups`, a workgroup has some sequences of one direction, with their states in shared memory;
each weight is read once for all of them. With many weights, or on a CPU driver, a separate matrix
product (`steps`) reads them faster than one workgroup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...common.dtypes import FLOAT32, WORD_BYTES, TensorType
from ...common.errors import UnsupportedOp
from ...ir.attrs import Attrs
from ...ir.op import OUTPUT, SCRATCH, VIEW_ALIGN_WORDS, Call, Dispatch, Kernel
from ...topology.limits import Limits
from ..layout.strided_copy import COPIES, WHOLE_COPIES, copy_run, copy_strided
from ..linalg.matmul_kernels import product
from ..linalg.matmul_shaders import SHADERS as PRODUCTS
from ..lowering.chunking import check_serial
from ..lowering.strides import LOOP_STEPS, MAX_DISPATCHES, SERIAL_STEPS, spread
from .cell import GATES, NAMED, Cell, Operands, cell_of, operands_of

SEQUENCES = (1, 4)
"""Sequences of a workgroup."""
STEPS = "steps"
"""The variant with two dispatches per time step."""
GROUP_WEIGHTS = 1 << 18
"""Number of weights that one workgroup reads in the time of two dispatches."""
_AREAS = 4
"""Arrays of a state's size in shared memory, as in shaders/rnn/rnn_scan.comp."""
_STATE_WORDS = 256
"""Granularity of these arrays in words."""
_UNROLLED = 4
"""Weights of a gate that an invocation reads per iteration."""
_BUSY_GROUPS = 64
"""Number of workgroups that occupy a GPU; more sequences share a workgroup."""
_ACTIVATION_BITS = 2
SHADERS = {kind: f"rnn_scan_{kind}" for kind in GATES}
STEP_SHADERS = {kind: f"rnn_step_{kind}" for kind in GATES}


def _padded_state_words(hidden: int) -> int:
    """Return the words of a state in shared memory, rounded up so that few pipelines suffice."""
    return max(1, -(-hidden // _STATE_WORDS)) * _STATE_WORDS


def _shared_bytes(sequences: int, hidden: int) -> int:
    return _AREAS * sequences * _padded_state_words(hidden) * WORD_BYTES


def _aligned(words: int) -> int:
    return -(-words // VIEW_ALIGN_WORDS) * VIEW_ALIGN_WORDS


def _codes(activations: tuple[str, ...]) -> int:
    """Return the activations of a direction, encoded in one word for the shader."""
    codes = (NAMED.index(name) << _ACTIVATION_BITS * i for i, name in enumerate(activations))
    return sum(codes)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A call for both variants; `states` is the number of elements of h of all sequences."""

    call: Call
    cell: Cell
    args: Operands[TensorType]
    time: int
    count: int
    batch: int
    hidden: int

    @property
    def limits(self) -> Limits:
        return self.call.limits

    @property
    def states(self) -> int:
        return self.count * self.batch * self.hidden

    @property
    def in_two_parts(self) -> bool:
        """Return True if a step has two consecutive products."""
        return self.cell.kind == "gru" and not self.cell.linear

    @property
    def own_words(self) -> int:
        """Return the words of the own weights, rounded up to a vec4."""
        return 0 if self.args.own is None else _aligned(self.args.own.size)

    @property
    def constants(self) -> tuple[tuple[str, int], ...]:
        return (
            ("FIRST_ACTIVATIONS", _codes(self.cell.activations[0])),
            ("OTHER_ACTIVATIONS", _codes(self.cell.activations[-1])),
            ("COUPLED", int(self.cell.coupled)),
            ("LINEAR", int(self.cell.linear)),
            ("HAS_OWN", int(self.cell.own)),
            ("HAS_LENGTHS", int(self.cell.masked)),
        )

    @property
    def push(self) -> tuple[tuple[str, int | float], ...]:
        backwards = sum(1 << d for d, back in enumerate(self.cell.backwards) if back)
        return (
            ("steps", self.time),
            ("directions", self.count),
            ("batch", self.batch),
            ("hidden", self.hidden),
            ("backwards", backwards),
            ("lengths_at", self.own_words if self.cell.masked else 0),
            ("clip", self.cell.clip),
        )

    def extra_words(self) -> tuple[int, ...]:
        """Return the words of a scratch buffer for both optional operands.

        Devices may bind only four buffers.
        """
        if self.args.own is None or self.args.lengths is None:
            return ()
        return (self.own_words + self.args.lengths.size,)

    def extra(self, scratch: int) -> tuple[int, tuple[Dispatch, ...]]:
        """Return the operand index of the optional operands, and the dispatches that merge them."""
        if self.args.own is None and self.args.lengths is None:
            return 1, ()  # it is not read
        if self.args.own is None or self.args.lengths is None:
            return 3, ()
        copies = (
            copy_run(3, scratch, self.args.own.size, self.limits),
            copy_run(4, scratch, self.args.lengths.size, self.limits, to=self.own_words),
        )
        return scratch, copies

    def start(self) -> tuple[Dispatch, ...]:
        """Return the dispatches that copy the states behind the rows of all time steps."""
        line = (1,)
        size, at = self.args.state.size, self.time * self.states
        return copy_strided(self.call, (size,), 2, (0, line), (at, line))


def _layer(call: Call) -> _Layer:
    cell = cell_of(call.attrs)
    args = operands_of(cell, call.inputs)
    return _Layer(call, cell, args, args.gates.shape[1], *call.output.shape[1:])


# -- variant selection -------------------------------------------------------------------------


def _variants(call: Call) -> tuple[str, ...]:
    """Return the variants: sequences of a workgroup, or step by step; the best guess first."""
    if not call.output.size:
        return ()
    layer = _layer(call)
    names = [str(n) for n in _fitting(layer)]
    if (2 + 2 * layer.in_two_parts) * layer.time < MAX_DISPATCHES:
        many = layer.cell.gates * layer.hidden**2 > GROUP_WEIGHTS
        names.insert(0 if many or call.limits.software else len(names), STEPS)
    return tuple(names)


def _fitting(layer: _Layer) -> list[int]:
    """Return the possible numbers of sequences of a workgroup, the best guess first."""
    most = layer.limits.shared_bytes
    fitting = [
        n for n in SEQUENCES if n < 2 * layer.batch and _shared_bytes(n, layer.hidden) <= most
    ]
    busy = [n for n in fitting if layer.count * -(-layer.batch // n) >= _BUSY_GROUPS]
    return sorted(fitting, reverse=layer.limits.software or len(busy) > 1)


# -- groups ------------------------------------------------------------------------------------


def _lanes(hidden: int, limits: Limits) -> int:
    """Return the invocations of a workgroup: one per state, or one vector of a CPU driver."""
    if limits.software:
        return 8 if limits.subgroup_size >= 8 else 4
    most = min(limits.max_invocations, limits.max_local_size[0])
    return max(1, min(-(-hidden // 32) * 32, most))


def _iterations(layer: _Layer, sequences: int, lanes: int) -> tuple[int, int]:
    """Return the maximum loop iterations of an invocation, per time step and in total outside.

    Some compilers do not unroll the loops over sequences.
    """
    hidden, products = layer.hidden, 1 + layer.in_two_parts
    of_state = products * (hidden // _UNROLLED + hidden % _UNROLLED) + 8 * (sequences + 1)
    other = 2 * -(-sequences * hidden // lanes)
    return -(-hidden // lanes) * of_state + 2, other


def _by_groups(layer: _Layer, sequences: int) -> Iterator[Dispatch]:
    lanes, time = _lanes(layer.hidden, layer.limits), layer.time
    rounds, other = _iterations(layer, sequences, lanes)
    check_serial("rnn_scan", rounds + other, layer.limits)
    most = LOOP_STEPS if layer.limits.software else SERIAL_STEPS
    step = (most - other) // rounds
    extra, copies = layer.extra(SCRATCH)
    yield from copies
    constants = (
        *layer.constants,
        ("LOCAL_X", lanes),
        ("ROOM", _padded_state_words(layer.hidden)),
        ("SEQUENCES", sequences),
    )
    groups = min(layer.count * -(-layer.batch // sequences), layer.limits.max_groups[0])
    for first in range(0, time, step):
        push = (("first", first), ("end", min(first + step, time)), *layer.push)
        operands = (0, 1, extra, OUTPUT)
        shader = SHADERS[layer.cell.kind]
        yield Dispatch(shader, operands, (groups, 1, 1), push, constants, barrier=True)


# -- time steps
# -------------------------------------------------------------------------------------

_WORK = SCRATCH


def _work_layout(layer: _Layer) -> tuple[int, int, int]:
    """Return the offsets of h and of reset * h in the work buffer, and the buffer's size.

    The product is stored at offset 0.
    """
    h_at = _aligned(layer.states * layer.cell.gates)
    reset_at = h_at + _aligned(layer.states)
    return h_at, reset_at, reset_at + layer.in_two_parts * _aligned(layer.states)


def _multiply_weights(layer: _Layer, at: int) -> Iterator[Dispatch]:
    """Yield the product of the states in the work buffer and the weights."""
    lead, columns = (layer.count, layer.batch), layer.cell.gates * layer.hidden
    call = Call(
        (TensorType((*lead, layer.hidden), FLOAT32), layer.args.r),
        TensorType((*lead, columns), FLOAT32),
        Attrs({"transpose_a": False, "transpose_b": False}),
        layer.limits,
    )
    place = {0: _WORK, OUTPUT: _WORK}
    for i, dispatch in enumerate(product(call)):
        shifts = dispatch.shifts or (0,) * len(dispatch.operands)
        yield replace(
            dispatch,
            operands=tuple(place.get(o, 1) for o in dispatch.operands),
            shifts=(shifts[0] + at, *shifts[1:]),
            barrier=dispatch.barrier or i == 0,
        )


def _by_time_steps(layer: _Layer) -> Iterator[Dispatch]:
    h_at, reset_at, _ = _work_layout(layer)
    extra, copies = layer.extra(SCRATCH - 1)
    yield from copies
    yield copy_run(2, _WORK, layer.states, layer.limits, to=h_at)
    shader, groups = STEP_SHADERS[layer.cell.kind], spread(layer.states, layer.limits)

    def part(number: int, step: int) -> Dispatch:
        push = (("step", step), ("h_at", h_at), ("reset_at", reset_at), *layer.push)
        constants = (*layer.constants, ("PART", number))
        operands = (0, extra, _WORK, OUTPUT)
        return Dispatch(shader, operands, groups, push, constants, barrier=True)

    for step in range(layer.time):
        yield from _multiply_weights(layer, h_at)
        if layer.in_two_parts:
            yield part(1, step)
            yield from _multiply_weights(layer, reset_at)
            yield part(2, step)
        else:
            yield part(0, step)


# -- both variants -----------------------------------------------------------------------------


def _scratch(call: Call) -> tuple[int, ...]:
    if not call.output.size:
        return ()
    layer = _layer(call)
    work = (_work_layout(layer)[2],) if call.variant == STEPS else ()
    return (*work, *layer.extra_words())


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if not call.output.size:
        return ()
    layer = _layer(call)
    if not call.variant:
        raise UnsupportedOp(
            f"[rnn_scan] {layer.time} steps of {layer.hidden} values need as many dispatches, or "
            f"{_shared_bytes(1, layer.hidden)} bytes of shared memory; the device has "
            f"{layer.limits.shared_bytes}"
        )
    if call.variant == STEPS:
        dispatches = (*layer.start(), *_by_time_steps(layer))
    else:
        dispatches = (*layer.start(), *_by_groups(layer, int(call.variant)))
    if len(dispatches) > MAX_DISPATCHES:
        raise UnsupportedOp(
            f"[rnn_scan] it needs {len(dispatches)} dispatches, over {MAX_DISPATCHES}"
        )
    return dispatches


KERNEL = Kernel(
    (*SHADERS.values(), *STEP_SHADERS.values(), *PRODUCTS, *COPIES, *WHOLE_COPIES),
    _lower,
    _scratch,
    variants=_variants,
)
