"""The op `ssm_scan`: all time steps of a selective state space (Mamba).

    state[t] = exp(dt[t] a) * state[t - 1] + dt[t] * outer(b[t], x[t])        one state per head
    y[t] = c[t] @ state[t]
    x, dt, a, b, c, state -> (batch, time + d_state, heads, head_dim): y, the last states

Mamba 1 has heads of one channel, and a value of `a` for each of its states. Mamba 2 has one value
for each head. The kernels are in ssm_scan_kernels.py, the gradient in ssm_scan_chunked.py.

Sources: https://arxiv.org/abs/2312.00752, https://arxiv.org/abs/2405.21060
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...common.dtypes import FLOAT32, NDArray, Shape, TensorType
from ...common.errors import DTypeError, ShapeError
from ...ir.attrs import Attrs
from ...ir.op import Op, Work, register
from ...ir.sharding_rule import REPLICATE, Factor, Sharded, sharding
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient
from ..layout.control import optimization_barrier
from .ssm_scan_chunked import chunked
from .ssm_scan_kernels import KERNEL, ssm_scan_program

OP = "ssm_scan"
_NAMES = ("x", "dt", "a", "b", "c", "state")


def _infer(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    x, _, a, b, *_ = inputs
    for name, operand in zip(_NAMES, inputs, strict=True):
        if operand.dtype != FLOAT32:
            raise DTypeError(f"[{OP}] expected {name} of float32, got {operand.dtype}; try vs.cast")
    if x.rank != 4 or b.rank != 4:
        raise ShapeError(
            f"[{OP}] expected x (batch, time, heads, head_dim) and b (batch, time, groups, "
            f"d_state), got {x.shape} and {b.shape}"
        )
    batch, time, heads, head_dim = x.shape
    groups, d_state = b.shape[2:]
    if not groups or heads % groups or not d_state:
        raise ShapeError(
            f"[{OP}] expected b of 1 or more states and of groups that divide {heads} heads, got "
            f"{b.shape}"
        )
    of_groups = (batch, time, groups, d_state)
    wanted: dict[str, tuple[Shape, ...]] = {
        "dt": ((batch, time, heads),),
        "a": ((heads, d_state), (heads, 1)),
        "b": (of_groups,),
        "c": (of_groups,),
        "state": ((batch, d_state, heads, head_dim),),
    }
    for name, operand in zip(_NAMES[1:], inputs[1:], strict=True):
        if operand.shape not in wanted[name]:
            shapes = " or ".join(map(str, wanted[name]))
            raise ShapeError(f"[{OP}] expected {name} of shape {shapes}, got {operand.shape}")
    return TensorType((batch, time + d_state, heads, head_dim), FLOAT32)


def _reference(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    x, dt, a, b, c, state = inputs
    time, each = x.shape[1], x.shape[2] // b.shape[2]
    out: NDArray = np.empty((len(x), time + state.shape[1], *x.shape[2:]), x.dtype)
    state = np.moveaxis(state, 1, -1)  # (batch, heads, head_dim, d_state)
    with np.errstate(all="ignore"):
        for t in range(time):
            step = dt[:, t, :, None]
            enter, leave = (np.repeat(v[:, t], each, axis=1)[:, :, None] for v in (b, c))
            decay = np.exp(step * a)[:, :, None]
            state = decay * state + (step * x[:, t])[..., None] * enter
            out[:, t] = (state * leave).sum(-1)
    out[:, time:] = np.moveaxis(state, -1, 1)
    return out


def _work(inputs: tuple[TensorType, ...], output: TensorType, attrs: Attrs) -> Work:
    x, states = inputs[0], inputs[3].shape[3]
    moved = sum(t.device_bytes for t in inputs) + output.device_bytes
    return Work(6.0 * x.size * states, float(moved), float(x.shape[1] * states))


register(
    Op(
        OP,
        _infer,
        _reference,
        KERNEL,
        attrs={},
        operands=(6, 6),
        work=_work,
        native_program=ssm_scan_program,
    )
)


@gradient(OP)
def _gradient(call: VjpContext) -> VjpResult:
    """Differentiate the chunked form, which recomputes the forward pass."""
    operands = tuple(optimization_barrier(x, call.grad) for x in call.inputs)
    return call.through(chunked(*operands), operands)


@sharding(OP)
def _sharding(call: Sharded) -> Iterable[Factor]:
    """Yield the factors of sequences, of heads with their groups, and of channels of heads."""
    batch, _, heads, head_dim = call.inputs[0].shape
    groups = call.inputs[3].shape[2]
    yield Factor((0, 0, REPLICATE, 0, 0, 0), 0, batch)
    of_groups = 2 if groups > 1 else REPLICATE
    yield Factor((2, 2, 0, of_groups, of_groups, 2), 2, groups if groups > 1 else heads)
    yield Factor((3, REPLICATE, REPLICATE, REPLICATE, REPLICATE, 3), 3, head_dim)


def ssm_scan(
    x: TensorLike,
    dt: TensorLike,
    a: TensorLike,
    b: TensorLike,
    c: TensorLike,
    state: TensorLike,
    *,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the last states of a selective state space (Mamba 1 and 2).

    A time step with dt = 0 does not change the states.

    Parameters
    ----------
    x
        The inputs.
    dt
        The time steps, after softplus.
    a
        The rates, usually negative: one for each state of a head (Mamba 1), or one for each head
        (Mamba 2).
    b, c
        The input and output projections of each time step. A group serves adjacent heads.
    state
        The states before the first time step.

    Shapes
    ------
    x
        (batch, time, heads, head_dim)
    dt
        (batch, time, heads)
    a
        (heads, d_state) or (heads, 1)
    b, c
        (batch, time, groups, d_state)
    state
        (batch, d_state, heads, head_dim)
    result
        x's shape, and state's shape

    Raises
    ------
    ShapeError, DTypeError
        The operands do not match.
    """
    first = as_tensor(x)
    operands = (first, *(as_tensor(t, like=first) for t in (dt, a, b, c, state)))
    out = apply(OP, operands, name=name)
    time = first.shape[1]
    return out[:, :time], out[:, time:]
