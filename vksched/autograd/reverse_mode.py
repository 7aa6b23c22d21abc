"""Reverse-mode differentiation: build the gradients of results with respect to earlier tensors.

    wrt ── a ── b ── loss           topological order: operands first
    dwrt ─ da ─ db ─ 1              reverse order, one rule for each call

The gradients from all users of a tensor are summed, then its own rule propagates the sum to its
operands. Tensors that do not depend on a requested one are skipped. Time is linear in the calls
between. Examples: tests/autograd/test_grad.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, overload

from ..common.errors import DTypeError, GradientError, ShapeError, VkschedError
from ..ir.graph import topological_order
from ..ir.name_scope import backward_scope
from ..ir.tensor import Tensor, TensorLike, as_tensor
from ..ir.vjp import VjpContext, is_smooth, rule_of, why_no_gradient
from ..ops.creation.create import ones_like, zeros_like
from ..ops.layout.pad import pad
from ..ops.layout.reshape import concat
from .checkpoint import Recomputed

Key = TypeVar("Key")
Wanted = Tensor | Sequence[Tensor] | Mapping[Key, Tensor]
Gradients = Tensor | tuple[Tensor, ...] | dict[Key, Tensor]
MISSING = ("error", "zeros")


@overload
def grad(loss: Tensor, wrt: Tensor, *, missing: str = "error") -> Tensor: ...
@overload
def grad(
    loss: Tensor, wrt: Mapping[Key, Tensor], *, missing: str = "error"
) -> dict[Key, Tensor]: ...
@overload
def grad(loss: Tensor, wrt: Sequence[Tensor], *, missing: str = "error") -> tuple[Tensor, ...]: ...
def grad(loss: Tensor, wrt: Wanted[Key], *, missing: str = "error") -> Gradients[Key]:
    """Return the gradient of a scalar loss with respect to tensors.

    Parameters
    ----------
    loss
        A float tensor with one element.
    wrt
        Inputs, weights, states or intermediate values: a tensor, a sequence or a dict of tensors.
    missing
        "error" or "zeros": the gradient of a tensor that the loss does not depend on
        differentiably.

    Returns
    -------
    Tensor, tuple or dict
        The gradients, with the structure of `wrt`, each of the shape and type of its tensor.

    Raises
    ------
    GradientError
        The loss does not depend on a tensor, or only through ops without a gradient, such as
        argmax.
    DTypeError
        A tensor is not of floats.
    ShapeError
        The loss has several elements.
    """
    return value_and_grad(loss, wrt, missing=missing)[1]


@overload
def value_and_grad(
    loss: Tensor, wrt: Tensor, *, missing: str = "error"
) -> tuple[Tensor, Tensor]: ...
@overload
def value_and_grad(
    loss: Tensor, wrt: Mapping[Key, Tensor], *, missing: str = "error"
) -> tuple[Tensor, dict[Key, Tensor]]: ...
@overload
def value_and_grad(
    loss: Tensor, wrt: Sequence[Tensor], *, missing: str = "error"
) -> tuple[Tensor, tuple[Tensor, ...]]: ...
def value_and_grad(
    loss: Tensor, wrt: Wanted[Key], *, missing: str = "error"
) -> tuple[Tensor, Gradients[Key]]:
    """Return the loss and `grad(loss, wrt)`, as jax.value_and_grad."""
    if not isinstance(loss, Tensor):
        raise GradientError(f"[grad] expected a Tensor as loss, got {loss!r}")
    if not is_smooth(loss):
        raise DTypeError(f"[grad] expected a loss of floats, got {loss.type}; try vs.cast")
    if loss.size != 1:
        raise ShapeError(
            f"[grad] expected a loss of one element, got {loss.type}; try vs.reduce_mean, "
            "or vs.vjp for gradients by several"
        )
    with backward_scope(loss.name):
        one = ones_like(loss)
    return loss, _arranged(wrt, _pull_back((loss,), (one,), _listed(wrt), missing, "grad"))


@overload
def vjp(
    outputs: Tensor | Sequence[Tensor],
    cotangents: TensorLike | Sequence[TensorLike],
    wrt: Tensor,
    *,
    missing: str = "error",
) -> Tensor: ...
@overload
def vjp(
    outputs: Tensor | Sequence[Tensor],
    cotangents: TensorLike | Sequence[TensorLike],
    wrt: Mapping[Key, Tensor],
    *,
    missing: str = "error",
) -> dict[Key, Tensor]: ...
@overload
def vjp(
    outputs: Tensor | Sequence[Tensor],
    cotangents: TensorLike | Sequence[TensorLike],
    wrt: Sequence[Tensor],
    *,
    missing: str = "error",
) -> tuple[Tensor, ...]: ...
def vjp(
    outputs: Tensor | Sequence[Tensor],
    cotangents: TensorLike | Sequence[TensorLike],
    wrt: Wanted[Key],
    *,
    missing: str = "error",
) -> Gradients[Key]:
    """Return the vector-Jacobian product of outputs with respect to tensors, as jax.vjp.

    This is the gradient of the sum of all products of outputs and cotangents.

    Parameters
    ----------
    outputs
        A tensor or a sequence of tensors.
    cotangents
        A value for each output, of its shape.
    wrt, missing
        As in `grad`.

    Returns
    -------
    Tensor, tuple or dict
        The products, with the structure of `wrt`.

    Raises
    ------
    GradientError
        As in `grad`.
    ShapeError, DTypeError
        A cotangent has another type than its output.
    """
    several = not isinstance(outputs, Tensor)
    listed: Sequence[TensorLike] = cotangents if several else (cotangents,)  # type: ignore[assignment]
    results = tuple(outputs) if not isinstance(outputs, Tensor) else (outputs,)
    if len(listed) != len(results):
        raise ShapeError(
            f"[vjp] expected a cotangent for each of {len(results)} outputs, got {len(listed)}"
        )
    tensors = tuple(as_tensor(c, like=o) for c, o in zip(listed, results, strict=True))
    for output, cotangent in zip(results, tensors, strict=True):
        if not is_smooth(output):
            raise DTypeError(f"[vjp] expected outputs of floats, got {output.name}: {output.type}")
        if cotangent.type != output.type:
            raise ShapeError(
                f"[vjp] expected a cotangent of {output.type} for {output.name}, got "
                f"{cotangent.type}"
            )
    return _arranged(wrt, _pull_back(results, tensors, _listed(wrt), missing, "vjp"))


def _listed(wrt: Wanted[Key]) -> tuple[Tensor, ...]:
    if isinstance(wrt, Tensor):
        return (wrt,)
    listed = tuple(wrt.values() if isinstance(wrt, Mapping) else wrt)
    for tensor in listed:
        if not isinstance(tensor, Tensor):
            raise GradientError(f"[grad] expected Tensors as wrt, got {tensor!r}")
    return listed


def _arranged(wrt: Wanted[Key], gradients: tuple[Tensor, ...]) -> Gradients[Key]:
    if isinstance(wrt, Tensor):
        return gradients[0]
    return dict(zip(wrt, gradients, strict=True)) if isinstance(wrt, Mapping) else gradients


def _pull_back(
    outputs: tuple[Tensor, ...],
    cotangents: tuple[Tensor, ...],
    wrt: tuple[Tensor, ...],
    missing: str,
    what: str,
    stop: tuple[Tensor, ...] = (),
) -> tuple[Tensor, ...]:
    """Return the gradient with respect to each tensor of `wrt`.

    what: the name of the caller in errors. stop: tensors that are not differentiated further.
    """
    if missing not in MISSING:
        raise GradientError(f"[{what}] expected missing as one of {MISSING}, got {missing!r}")
    for tensor in wrt:
        if not is_smooth(tensor):
            raise DTypeError(
                f"[{what}] expected tensors of floats as wrt, got {tensor.name}: {tensor.type}"
            )
    order = topological_order(outputs, stop=frozenset(stop))
    on_path = _between(order, wrt)
    grads: dict[Tensor, Tensor] = {}
    for output, cotangent in zip(outputs, cotangents, strict=True):
        if output in on_path:
            _add(grads, output, cotangent)
    recomputed = Recomputed()
    for tensor in reversed(order):
        if tensor not in grads or why_no_gradient(tensor.op):
            continue
        wanted = tuple(i in on_path for i in tensor.inputs)
        if any(wanted):
            operand_grads = _pulled(tensor, grads[tensor], wanted, recomputed, what)
            for operand, pulled in zip(tensor.inputs, operand_grads, strict=True):
                if pulled is not None and operand in on_path:
                    _add(grads, operand, pulled)
    if missing == "error":
        for tensor in wrt:
            if tensor not in grads:
                raise GradientError(_why_none(tensor, order, what))
    return tuple(grads[t] if t in grads else zeros_like(t) for t in wrt)


def _between(order: Sequence[Tensor], wrt: tuple[Tensor, ...]) -> set[Tensor]:
    """Return the requested tensors and the differentiable tensors that depend on them."""
    found = set(wrt)
    for tensor in order:
        if is_smooth(tensor) and not why_no_gradient(tensor.op):
            if any(i in found for i in tensor.inputs):
                found.add(tensor)
    return found


def _add(grads: dict[Tensor, Tensor], tensor: Tensor, pulled: Tensor) -> None:
    with backward_scope(tensor.name):
        grads[tensor] = _sum(grads[tensor], pulled) if tensor in grads else pulled


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """Return the sum of two gradients. Gradients of adjacent slices, padded with zeros, are
    concatenated, so that those of a split become one concat.
    """
    for first, second in ((a, b), (b, a)):
        at, behind = _along(first), _along(second)
        if at and behind and at[0] == behind[0]:
            (axis, begin, _), (_, start, left) = at, behind
            x, y = first.inputs[0], second.inputs[0]
            if begin + x.shape[axis] == start:
                whole = concat([*_parts(x, axis), *_parts(y, axis)], axis)
                return pad(whole, ((begin, left),), axes=[axis]) if begin or left else whole
    return a + b


def _parts(x: Tensor, axis: int) -> tuple[Tensor, ...]:
    return x.inputs if x.op == "concat" and x.attrs["axis"] == axis else (x,)


def _along(grad: Tensor) -> tuple[int, int, int] | None:
    """Return the axis along which a gradient is a slice padded with zeros, and the zeros before and
    after it; None for other gradients.
    """
    if grad.op != "pad" or grad.attrs["value"] != 0:
        return None
    pads = list(zip(grad.attrs.as_ints("begins"), grad.attrs.as_ints("ends"), strict=True))
    padded = [axis for axis, around in enumerate(pads) if any(around)]
    if len(padded) != 1 or min(pads[padded[0]]) < 0:
        return None
    return padded[0], *pads[padded[0]]


def _pulled(
    tensor: Tensor, gradient: Tensor, wanted: tuple[bool, ...], recomputed: Recomputed, what: str
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the operands of a call by its rule; None if not needed."""
    rule = rule_of(tensor.op)
    if rule is None:
        raise GradientError(
            f"[{what}] {tensor.op} has no gradient rule (in {tensor.name}); try vs.stop_gradient "
            "around it, or other ops"
        )
    inputs, output = recomputed.values_for(tensor, gradient)

    def through(result: Tensor, operands: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
        used = tuple(o for o, want in zip(operands, wanted, strict=True) if want)
        pulled = iter(_pull_back((result,), (gradient,), used, "zeros", what, stop=operands))
        return tuple(next(pulled) if want else None for want in wanted)

    with backward_scope(tensor.name):
        try:
            grads = rule(VjpContext(inputs, output, gradient, tensor.attrs, wanted, through))
        except VkschedError as error:
            raise type(error)(f"{error} (in the gradient of {tensor.name})") from error
    types = tuple(t.type for t in tensor.inputs)
    if len(grads) != len(types) or any(
        m is not None and m.type != t for m, t in zip(grads, types, strict=True)
    ):
        gave = ", ".join("None" if m is None else str(m.type) for m in grads)
        raise GradientError(
            f"[{what}] the rule of {tensor.op} gave {gave} for operands of "
            f"{', '.join(map(str, types))} (in {tensor.name}); the rule is wrong"
        )
    return grads


def _why_none(tensor: Tensor, order: Sequence[Tensor], what: str) -> str:
    """Return the error message for a tensor without a gradient."""
    reached, ends = {tensor}, {}
    for each in order:
        if any(i in reached for i in each.inputs):
            why = why_no_gradient(each.op) or ("" if is_smooth(each) else f"gives {each.dtype}")
            if why:
                ends[each.op] = why
            else:
                reached.add(each)
    if not ends:
        return (
            f"[{what}] expected a tensor that the result depends on, got {tensor.name}, which does "
            'not go into it; try missing="zeros"'
        )
    stops = " and ".join(f"{op}, which {why}" for op, why in ends.items())
    return (
        f"[{what}] expected a tensor that the result depends on smoothly, got {tensor.name}, which "
        f'goes into it through {stops}; try missing="zeros", or other ops'
    )
