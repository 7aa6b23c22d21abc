"""Ops that change no value, only how a graph is taken: where gradients stop, and what is computed
after what.
"""

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
    """x itself, taken for a constant by `grad`, as jax.lax.stop_gradient. A view."""
    return apply("stop_gradient", (as_tensor(x),), name=name)


def optimization_barrier(x: TensorLike, event: Tensor) -> Tensor:
    """A copy of x that is made once `event` is there; its values do not matter.

    What reads it is another computation than what reads x: equal calls of both are not made one.
    It is no view, as a view is there as soon as what it shows.
    """
    return apply("optimization_barrier", (as_tensor(x), event))
