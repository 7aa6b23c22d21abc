"""Identity ops that control the graph: where gradients stop, and which ops run first."""

from __future__ import annotations

from functools import partial

from ...common.dtypes import NDArray, TensorType
from ...ir.attrs import Attrs
from ...ir.op import Kernel, Op, Work, register
from ...ir.tensor import Tensor, TensorLike, apply, as_tensor
from ...ir.vjp import VjpContext, VjpResult, gradient, no_gradient
from .strided_copy import WHOLE_COPIES, copy_words


def _first(inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    return inputs[0]


def _same(inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    return inputs[0]


register(
    Op(
        "stop_gradient",
        _first,
        _same,
        None,
        attrs={},
        operands=(1, 1),
        view=lambda inputs, attrs: 0,
        work=lambda inputs, output, attrs: Work(0.0, 0.0),
        any_dtype=True,
    )
)
register(
    Op(
        "optimization_barrier",
        _first,
        _same,
        Kernel(WHOLE_COPIES, partial(copy_words, 0), as_u32=lambda call: call),
        attrs={},
        operands=(2, 2),
        work=lambda inputs, output, attrs: Work(0.0, 2.0 * output.device_bytes),
        any_dtype=True,
    )
)
no_gradient("is there to stop it", "stop_gradient")


@gradient("optimization_barrier")
def _optimization_barrier_gradient(call: VjpContext) -> VjpResult:
    return call.grad, None


def stop_gradient(x: TensorLike, *, name: str | None = None) -> Tensor:
    """Return x as a constant for `grad`, as jax.lax.stop_gradient. Returns a view."""
    return apply("stop_gradient", (as_tensor(x),), name=name)


def optimization_barrier(x: TensorLike, event: Tensor) -> Tensor:
    """Return a copy of x that is computed after `event`, whose values are ignored.

    Calls on the copy are not merged with equal calls on x. The result is no view, because views are
    available as soon as their base.
    """
    return apply("optimization_barrier", (as_tensor(x), event))
