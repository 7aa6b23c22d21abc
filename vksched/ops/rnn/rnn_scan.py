"""The op `rnn_scan`: all time steps of a recurrent layer whose input projection is precomputed.

    gates, r, state -> (time + states, direction, batch, hidden): h of each time step, the last
    states

Shapes of the operands: `Operands`; attributes: `Cell`. Examples: tests/ops/test_ops.py.
"""

from __future__ import annotations

from ...common.dtypes import FLOAT32, INT32, INT64, Shape, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.op import Op, Work, register
from ...ir.tensor import Tensor, apply
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..layout.control import optimization_barrier
from .cell import ATTRS, DEFAULTS, Cell, Operands, cell_of, operands_of
from .rnn_cpu import CPU_KERNEL, rnn_scan_reference
from .rnn_kernels import KERNEL
from .rnn_native import rnn_program
from .rnn_unrolled import unrolled

OP = "rnn_scan"


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    cell = cell_of(attrs)
    functions = len(DEFAULTS[cell.kind])
    if any(len(names) != functions for names in cell.activations):
        raise ShapeError(
            f"[{OP}] expected {functions} activations of {cell.kind} for each direction, got "
            f"{cell.activations}"
        )
    if len(inputs) != 3 + cell.own + cell.masked:
        raise ShapeError(
            f"[{OP}] expected {3 + cell.own + cell.masked} operands, got {len(inputs)}"
        )
    args, count = operands_of(cell, inputs), len(cell.backwards)
    if args.gates.rank != 4 or args.gates.shape[3] % cell.gates:
        raise ShapeError(
            f"[{OP}] expected gates (direction, time, batch, {cell.gates} * hidden), got "
            f"{args.gates.shape}"
        )
    _, time, batch, columns = args.gates.shape
    hidden = columns // cell.gates
    wanted: dict[str, Shape] = {
        "gates": (count, time, batch, columns),
        "r": (count, hidden, columns),
        "state": (cell.states, count, batch, hidden),
        "own": (count, columns),
        "lengths": (batch,),
    }
    for name, shape in wanted.items():
        operand = getattr(args, name)
        if operand is not None and operand.shape != shape:
            raise ShapeError(f"[{OP}] expected {name} of shape {shape}, got {operand.shape}")
        if operand is not None and name != "lengths" and operand.dtype != FLOAT32:
            raise DTypeError(f"[{OP}] expected {name} of float32, got {operand.dtype}")
    if args.lengths is not None and args.lengths.dtype not in (INT32, INT64):
        raise DTypeError(f"[{OP}] expected lengths of int32 or int64, got {args.lengths.dtype}")
    return TensorType((time + cell.states, count, batch, hidden), FLOAT32)


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    """Estimate the work: time steps are sequential, and each one reads the weights."""
    gates, r = inputs[:2]
    _, time, batch, _ = gates.shape
    moved = gates.device_bytes + output.device_bytes + time * r.device_bytes
    return Work(2.0 * batch * time * r.size, float(moved), float(time * r.shape[1]))


register(
    Op(
        OP,
        _infer,
        rnn_scan_reference,
        KERNEL,
        attrs=ATTRS,
        operands=(3, 5),
        work=_work,
        cpu=CPU_KERNEL,
        native_program=rnn_program,
    )
)


@gradient(OP)
def _gradient(call: VjpContext) -> VjpResult:
    """Differentiate the unrolled layer, which recomputes the forward pass."""
    operands = tuple(optimization_barrier(x, call.grad) for x in call.inputs)
    cell = cell_of(call.attrs)
    return call.through(unrolled(cell, operands_of(cell, operands)), operands)


def rnn_scan(cell: Cell, args: Operands[Tensor], name: str | None = None) -> Tensor:
    """Compute all time steps of a layer."""
    optional = (args.own, args.lengths)
    operands = (args.gates, args.r, args.state, *(t for t in optional if t is not None))
    return apply(OP, operands, cell.attrs, name)
