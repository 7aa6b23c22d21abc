"""Recurrent layers on devices: a group has some sequences of one direction, and goes from turn to
turn.

    state -> last rows of the result -> some turns -> more turns -> ...         one dispatch each

The states lie in shared memory within a dispatch, and in the last rows of the result between two:
so a submission may end between them. Each weight that an invocation reads is for all sequences of
its group.
"""

from __future__ import annotations

from ...errors import UnsupportedOp
from ...machine.limits import Limits
from ...types import WORD_BYTES, TensorType
from ..core.op import OUTPUT, SCRATCH, VIEW_ALIGN_WORDS, Call, Dispatch, Kernel
from ..core.parts import check_dispatches, check_serial
from ..core.strides import LOOP_STEPS, SERIAL_STEPS
from ..moves.copies import COPIES, WHOLE_COPIES, copy_run, copy_strided
from .recurrent_cell import GATES, NAMED, Cell, Operands, cell_of, operands_of

SEQUENCES = (1, 4)
"""Of a group."""
_AREAS = 4
"""Places of a state in shared memory, as shaders/products/recurrent.comp has them."""
_ROOMS = 256
"""Words: in such steps places grow."""
_UNROLLED = 4
"""Weights of a gate that an invocation reads in one round."""
_BUSY_GROUPS = 64
"""So many groups keep a GPU busy: more sequences share one."""
_ACTIVATION_BITS = 2
SHADERS = {kind: f"recurrent_{kind}" for kind in GATES}


def _room(hidden: int) -> int:
    """Returns the words of a state in shared memory: few pipelines serve all sizes."""
    return max(1, -(-hidden // _ROOMS)) * _ROOMS


def _shared_bytes(sequences: int, hidden: int) -> int:
    return _AREAS * sequences * _room(hidden) * WORD_BYTES


def _variants(call: Call) -> tuple[str, ...]:
    """How many sequences a group has, the best guess first."""
    count, batch, hidden = call.output.shape[1:]
    fitting = [
        n
        for n in SEQUENCES
        if n < 2 * batch and _shared_bytes(n, hidden) <= call.limits.shared_bytes
    ]
    if not fitting or not call.output.size:
        return ()
    if call.limits.software:
        first = fitting[-1]
    else:
        busy = [n for n in fitting if count * -(-batch // n) >= _BUSY_GROUPS]
        first = busy[-1] if busy else fitting[0]
    return tuple(str(n) for n in (first, *(n for n in fitting if n != first)))


def _lanes(hidden: int, limits: Limits) -> int:
    """Returns the invocations of a group: one for each state, or one vector of a CPU driver."""
    if limits.software:
        return 8 if limits.subgroup_size >= 8 else 4
    most = min(limits.max_invocations, limits.max_local_size[0])
    return max(1, min(-(-hidden // 32) * 32, most))


def _codes(activations: tuple[str, ...]) -> int:
    """Returns the activations of a direction in one word, as the shader reads them."""
    codes = (NAMED.index(name) << _ACTIVATION_BITS * i for i, name in enumerate(activations))
    return sum(codes)


def _own_words(given: Operands[TensorType]) -> int:
    """Words of the own weights, as many that what follows starts a quad."""
    own = given.own
    return 0 if own is None else -(-own.size // VIEW_ALIGN_WORDS) * VIEW_ALIGN_WORDS


def _scratch(call: Call) -> tuple[int, ...]:
    """Both optional operands in one buffer, as devices may bind four."""
    given = operands_of(cell_of(call.attrs), call.inputs)
    if given.own is None or given.lengths is None or not call.output.size:
        return ()
    return (_own_words(given) + given.lengths.size,)


def _extra(given: Operands[TensorType], limits: Limits) -> tuple[int, int, tuple[Dispatch, ...]]:
    """Returns the operand with the optional ones, the word at which lengths lie in it, and how it
    is made.
    """
    if given.own is None and given.lengths is None:
        return 1, 0, ()  # it is not read
    if given.own is None or given.lengths is None:
        return 3, 0, ()
    copies = (
        copy_run(3, SCRATCH, given.own.size, limits),
        copy_run(4, SCRATCH, given.lengths.size, limits, to=_own_words(given)),
    )
    return SCRATCH, _own_words(given), copies


def _rounds(cell: Cell, hidden: int, sequences: int, lanes: int) -> tuple[int, int]:
    """Returns how often an invocation goes round its loops in a turn, and beside all turns, at
    most: some compilers write out none of those over sequences.
    """
    products = 2 if cell.kind == "gru" and not cell.linear else 1
    of_state = products * (hidden // _UNROLLED + hidden % _UNROLLED) + 8 * (sequences + 1)
    beside = 2 * -(-sequences * hidden // lanes)
    return -(-hidden // lanes) * of_state + 2, beside


def _lower(call: Call) -> tuple[Dispatch, ...]:
    if not call.output.size:
        return ()
    cell = cell_of(call.attrs)
    given = operands_of(cell, call.inputs)
    time, (count, batch, hidden) = given.gates.shape[1], call.output.shape[1:]
    if not call.variant:
        raise UnsupportedOp(
            f"[recurrent] a state of {hidden} values needs {_shared_bytes(1, hidden)} bytes of "
            f"shared memory, the device has {call.limits.shared_bytes}"
        )
    line = (1,)
    start = copy_strided(
        call, (given.state.size,), 2, (0, line), (time * count * batch * hidden, line)
    )
    extra, lengths_at, copies = _extra(given, call.limits)
    sequences, lanes = int(call.variant), _lanes(hidden, call.limits)
    rounds, beside = _rounds(cell, hidden, sequences, lanes)
    check_serial("recurrent", rounds + beside, call.limits)
    most = LOOP_STEPS if call.limits.software else SERIAL_STEPS
    step = (most - beside) // rounds
    check_dispatches("recurrent", -(-time // step))
    constants = (
        ("LOCAL_X", lanes),
        ("ROOM", _room(hidden)),
        ("SEQUENCES", sequences),
        ("FIRST_ACTIVATIONS", _codes(cell.activations[0])),
        ("OTHER_ACTIVATIONS", _codes(cell.activations[-1])),
        ("COUPLED", int(cell.coupled)),
        ("LINEAR", int(cell.linear)),
        ("HAS_OWN", int(cell.own)),
        ("HAS_LENGTHS", int(cell.masked)),
    )
    groups = min(count * -(-batch // sequences), call.limits.max_groups[0])
    fixed = (
        ("turns", time),
        ("directions", count),
        ("batch", batch),
        ("hidden", hidden),
        ("backwards", sum(1 << d for d, back in enumerate(cell.backwards) if back)),
        ("lengths_at", lengths_at),
        ("clip", cell.clip),
    )
    turns = tuple(
        Dispatch(
            SHADERS[cell.kind],
            (0, 1, extra, OUTPUT),
            (groups, 1, 1),
            (("first", at), ("end", min(at + step, time)), *fixed),
            constants,
            barrier=True,
        )
        for at in range(0, time, step)
    )
    return (*start, *copies, *turns)


KERNEL = Kernel((*SHADERS.values(), *COPIES, *WHOLE_COPIES), _lower, _scratch, variants=_variants)
