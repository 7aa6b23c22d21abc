"""Tensor: a symbolic value in a graph under construction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Union

import numpy as np

from ..common.dtypes import (
    BOOL,
    DTYPES,
    FLOAT32,
    NARROW,
    NDArray,
    Shape,
    TensorType,
    as_ints,
    as_shape,
    canonical_dtype,
    is_uniform,
    numpy_dtype,
)
from ..common.errors import DTypeError, ShapeError, VkschedError
from ..storage.lazy_array import ArrayLike, LazyArray, as_array
from .attr_domains import leaf_attrs
from .attrs import Attrs, AttrValue
from .evaluate import infer
from .name_scope import current_scope, current_turn
from .op import Op, get_op, register
from .value_range import check_bounds

TensorLike = Union["Tensor", NDArray, bool, int, float, Sequence[Any]]

IDENTITY_HINT = (
    "`==` and `!=` of tensors compare identity; try vs.equal, or vs.cast of a bool tensor"
)


class Tensor:
    """Result of an op, an input or a weight. Compared and hashed by identity."""

    __slots__ = ("__weakref__", "_named", "attrs", "held", "inputs", "name", "op", "turn", "type")
    __array_ufunc__ = None  # makes numpy defer `array + tensor` to __radd__

    def __init__(
        self,
        op: str,
        inputs: tuple[Tensor, ...],
        attrs: Attrs,
        type: TensorType,
        name: str | None = None,
        data: ArrayLike | None = None,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.type = type
        self.name = current_scope() + (name or op)
        self._named = name is not None
        self.held = data
        self.turn = current_turn() if inputs else None

    @property
    def named(self) -> bool:
        """True if the user chose the name, which must then be unique in a graph."""
        return self._named

    @property
    def data(self) -> NDArray | None:
        """Return the array of a leaf, None for other tensors."""
        return None if self.held is None else as_array(self.held)

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def ndim(self) -> int:
        """The rank, under numpy's name."""
        return self.type.rank

    @property
    def size(self) -> int:
        return self.type.size

    @property
    def T(self) -> Tensor:
        """The transpose: all axes reversed."""
        return self.transpose()

    def __len__(self) -> int:
        if self.rank == 0:
            raise ShapeError("[Tensor] expected axes to have a length, got a scalar; try x.size")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<Tensor {self.name}: {self.type} = {self.op}>"

    def __bool__(self) -> bool:
        raise VkschedError(
            "[Tensor] expected a value, got a graph node: it has none before it runs; "
            "try vs.where or vs.equal instead of `if` or `==`"
        )

    def __array__(self, *_: object, **__: object) -> NDArray:
        raise VkschedError(
            "[Tensor] expected an array, got a graph node: it has no value before it runs"
        )

    def __add__(self, other: TensorLike) -> Tensor:
        return binary("add", self, other)

    def __radd__(self, other: TensorLike) -> Tensor:
        return binary("add", other, self)

    def __sub__(self, other: TensorLike) -> Tensor:
        return binary("sub", self, other)

    def __rsub__(self, other: TensorLike) -> Tensor:
        return binary("sub", other, self)

    def __mul__(self, other: TensorLike) -> Tensor:
        return binary("mul", self, other)

    def __rmul__(self, other: TensorLike) -> Tensor:
        return binary("mul", other, self)

    def __truediv__(self, other: TensorLike) -> Tensor:
        return binary("div", self, other)

    def __rtruediv__(self, other: TensorLike) -> Tensor:
        return binary("div", other, self)

    def __floordiv__(self, other: TensorLike) -> Tensor:
        return binary("floor_divide", self, other)

    def __rfloordiv__(self, other: TensorLike) -> Tensor:
        return binary("floor_divide", other, self)

    def __mod__(self, other: TensorLike) -> Tensor:
        return binary("remainder", self, other)

    def __rmod__(self, other: TensorLike) -> Tensor:
        return binary("remainder", other, self)

    def __and__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_and", self, other)

    def __rand__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_and", other, self)

    def __or__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_or", self, other)

    def __ror__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_or", other, self)

    def __xor__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_xor", self, other)

    def __rxor__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_xor", other, self)

    def __lshift__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_left_shift", self, other)

    def __rlshift__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_left_shift", other, self)

    def __rshift__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_right_shift", self, other)

    def __rrshift__(self, other: TensorLike) -> Tensor:
        return binary("bitwise_right_shift", other, self)

    def __pow__(self, other: TensorLike) -> Tensor:
        return binary("pow", self, other)

    def __rpow__(self, other: TensorLike) -> Tensor:
        return binary("pow", other, self)

    def __lt__(self, other: TensorLike) -> Tensor:
        return binary("less", self, other)

    def __le__(self, other: TensorLike) -> Tensor:
        return binary("less_equal", self, other)

    def __gt__(self, other: TensorLike) -> Tensor:
        return binary("greater", self, other)

    def __ge__(self, other: TensorLike) -> Tensor:
        return binary("greater_equal", self, other)

    def __pos__(self) -> Tensor:
        return apply("positive", (self,))

    def __invert__(self) -> Tensor:
        return apply("bitwise_invert", (self,))

    def __neg__(self) -> Tensor:
        return apply("neg", (self,))

    def __abs__(self) -> Tensor:
        return apply("abs", (self,))

    def __matmul__(self, other: TensorLike) -> Tensor:
        return _method("matmul", self, as_tensor(other, like=self))

    def __rmatmul__(self, other: TensorLike) -> Tensor:
        return _method("matmul", as_tensor(other, like=self), self)

    def __getitem__(self, key: Any) -> Tensor:
        return _method("getitem", self, key)

    def __iter__(self) -> Iterator[Tensor]:
        raise VkschedError("[Tensor] cannot be iterated; try indexing with x[i] or vs.slice")

    def reshape(self, *shape: Any) -> Tensor:
        """Call `vs.reshape`."""
        return _method("reshape", self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Tensor:
        """Call `vs.transpose`."""
        return _method("transpose", self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    def astype(self, dtype: object) -> Tensor:
        """Call `vs.cast`."""
        return _method("cast", self, dtype)


_methods: dict[str, Callable[..., Tensor]] = {}


def register_method(name: str, builder: Callable[..., Tensor]) -> None:
    """Add the builder of an op family that is declared later as a method, e.g. matmul, reshape."""
    _methods[name] = builder


def _method(name: str, *arguments: Any) -> Tensor:
    return _methods[name](*arguments)


def apply(
    op: str,
    inputs: Sequence[Tensor],
    attrs: Mapping[str, AttrValue] | None = None,
    name: str | None = None,
) -> Tensor:
    """Create a node. Errors of the type rule include the node's name and operand types."""
    if name is not None and not isinstance(name, str):
        raise VkschedError(f"[{op}] expected a name, got {name!r}")
    declared, frozen = get_op(op), Attrs(attrs)
    types = tuple(t.type for t in inputs)
    try:
        result = infer(declared, types, frozen)
    except VkschedError as error:
        where = f"{current_scope()}{name or op}({', '.join(map(str, types))})"
        raise type(error)(f"{error} (in {where})") from None
    return Tensor(op, tuple(inputs), frozen, result, name)


def as_tensor(value: TensorLike, like: Tensor | None = None) -> Tensor:
    """Return a Tensor unchanged, another value as a constant.

    Python and numpy scalars, and sequences of them, are converted to the element type of `like`,
    unless that loses more than digits; arrays keep theirs. A Python bool is rejected, because it is
    most likely the result of `==`.

    Raises
    ------
    DTypeError
        The value does not fit the type of `like`, or is a Python bool.
    """
    if isinstance(value, Tensor):
        return value
    if like is None and isinstance(value, bool):
        raise DTypeError(f"[constant] expected a tensor, got {value}; {IDENTITY_HINT}")
    if like is not None and not isinstance(value, np.ndarray):
        value = convert("constant", value, like.dtype)
    return constant(value)


def _holds_bool(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_bool, value))
    array = isinstance(value, np.ndarray) and value.dtype.kind == "b"
    return array or isinstance(value, (bool, np.bool_))


def convert(what: str, value: object, dtype: str) -> NDArray:
    """Convert scalars or sequences of them to an array of an element type.

    Raises
    ------
    DTypeError
        They are not numbers of one shape, or lose more than digits.
    """
    try:
        array = np.asarray(value)
    except (ValueError, OverflowError, TypeError) as error:
        raise DTypeError(
            f"[{what}] expected numbers of one shape, got {value!r}: {error}"
        ) from None
    if dtype != BOOL and _holds_bool(value):
        shown = repr(value) if array.size < 8 else f"bools {array.shape}"
        raise DTypeError(f"[{what}] expected numbers of {dtype}, got {shown}; {IDENTITY_HINT}")
    kinds = "b" if dtype == BOOL else "iuf"
    with np.errstate(all="ignore"):
        out = array.astype(numpy_dtype(dtype)) if array.dtype.kind in kinds else None
        lost = out is not None and (
            not np.array_equal(np.isfinite(out), np.isfinite(array))
            if out.dtype.kind == "f"
            else not np.array_equal(out, array)
        )
        if out is None or lost:
            shown = repr(value) if array.size < 8 else f"{array.dtype} {array.shape}"
            raise DTypeError(f"[{what}] expected values of {dtype}, got {shown}; try vs.cast")
    return out


def one_value(op: str, value: object, dtype: str) -> NDArray:
    """Return a number as an array of one element; bool accepts 0 and 1."""
    if dtype == BOOL and isinstance(value, (int, float, np.integer)) and value in (0, 1):
        value = bool(value)
    array = convert(op, value, dtype)
    if array.shape != ():
        raise ShapeError(f"[{op}] expected one value, got {value!r}")
    return array


def binary(op: str, a: TensorLike, b: TensorLike, name: str | None = None) -> Tensor:
    """Create a node with two operands; one of them may be a Python or numpy value."""
    if isinstance(a, Tensor):
        return apply(op, (a, as_tensor(b, like=a)), name=name)
    right = as_tensor(b)
    return apply(op, (as_tensor(a, like=right), right), name=name)


def leaf_infer(_inputs: tuple[TensorType, ...], attrs: Attrs) -> TensorType:
    """Return the type of a leaf, which is an attribute."""
    type_ = TensorType(attrs.as_ints("shape"), attrs.as_str("dtype"))
    if "low" in attrs or "high" in attrs:
        check_bounds("input", (attrs.get("low"), attrs.get("high")), type_)
    return type_


def no_reference(_inputs: tuple[NDArray, ...], attrs: Attrs) -> NDArray:
    """Raise an error: leaves are not computed."""
    raise VkschedError("[leaf] leaves have no reference")


for _name in ("input", "weight", "constant"):
    register(
        Op(
            _name,
            leaf_infer,
            no_reference,
            None,
            attrs=leaf_attrs((*DTYPES, *NARROW) if _name == "weight" else DTYPES),
            operands=(0, 0),
            leaf=True,
            any_dtype=True,
        )
    )


def _leaf(
    op: str,
    type_: TensorType,
    name: str | None,
    data: ArrayLike | None,
    more: Mapping[str, AttrValue] | None = None,
) -> Tensor:
    attrs = Attrs({**_attrs_of(type_), **more}) if more else _attrs_of(type_)
    return Tensor(op, (), attrs, type_, name, data)


@lru_cache(1024)
def _attrs_of(type_: TensorType) -> Attrs:
    return Attrs({"shape": type_.shape, "dtype": type_.dtype})


def input(
    name: str,
    shape: int | Sequence[int],
    dtype: object = FLOAT32,
    bounds: tuple[int, int] | None = None,
) -> Tensor:
    """Declare an input of the graph, passed by name to every run. Name scopes do not prefix it.

    bounds: minimum and maximum of an integer input, checked in every run. An int64 input needs
    bounds to run on a device, which has 32-bit integers.
    """
    if not isinstance(name, str) or not name:
        raise VkschedError(f"[input] expected a name, got {name!r}")
    type_ = TensorType(as_shape(shape), canonical_dtype(dtype))
    more = bounds_attrs("input", bounds, type_)
    tensor = _leaf("input", type_, name, None, more)
    tensor.name = name
    return tensor


def bounds_attrs(
    op: str, bounds: tuple[int, int] | None, type_: TensorType
) -> dict[str, AttrValue]:
    """Return the attributes for the bounds of an integer leaf."""
    if bounds is None:
        return {}
    ends = as_ints(op, "bounds", bounds)
    check_bounds(op, ends, type_)
    return {"low": ends[0], "high": ends[1]}


def weight(array: Any, name: str | None = None) -> Tensor:
    """Create a weight: a constant array that is uploaded once and shared by all graphs.

    A C-contiguous array is not copied; do not change it afterwards. Integers of 8 and 16 bits are
    stored unchanged, for `vs.dequantize_linear` only.
    """
    if isinstance(array, LazyArray):
        return _leaf("weight", TensorType(array.shape, canonical_dtype(array.dtype)), name, array)
    return from_array("weight", array, name)


def constant(value: Any, name: str | None = None) -> Tensor:
    """Create a small constant; Python floats become float32, ints int32."""
    return from_array("constant", value, name)


def _is_fixed(value: object) -> bool:
    """Return True if an array is read-only and owns its memory."""
    return isinstance(value, np.ndarray) and value.flags.owndata and not value.flags.writeable


def from_array(
    op: str,
    value: Any,
    name: str | None,
    more: Callable[[TensorType], Mapping[str, AttrValue]] = lambda type_: {},
) -> Tensor:
    """Create a leaf from an array.

    The array is not copied for a weight, if it is read-only, or for a state with one uniform value.
    more: further attributes.
    """
    if name is not None and not isinstance(name, str):
        raise VkschedError(f"[{op}] expected a name, got {name!r}")
    try:
        if op == "state" and isinstance(value, np.ndarray) and is_uniform(value):
            array = np.broadcast_to(np.array(value.flat[0]), value.shape)
        elif op == "weight" or _is_fixed(value):
            array = np.asarray(value)
        else:
            array = np.array(value)
    except (ValueError, TypeError) as error:
        raise DTypeError(f"[{op}] expected numbers of one shape, got {value!r}: {error}") from None
    if not isinstance(value, (np.ndarray, np.generic)):
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        elif array.dtype == np.int64:
            if array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
                raise DTypeError(f"[{op}] expected values that fit int32, got {value!r}")
            array = array.astype(np.int32)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        dtype = canonical_dtype(array.dtype, NARROW if op == "weight" else ())
    except DTypeError as error:
        raise DTypeError(
            f"[{op}]{name and ' ' + name or ''} expected one of {', '.join(DTYPES)}, "
            f"got {array.dtype}; "
            f"try array.astype(numpy.{'int32' if array.dtype.kind in 'iu' else 'float32'})"
        ) from error
    whole = op == "state" and is_uniform(array)
    data = array.view() if whole else np.ascontiguousarray(array).reshape(array.shape).view()
    data.flags.writeable = False
    try:
        type_ = TensorType(data.shape, dtype)
    except ShapeError as error:
        raise ShapeError(f"[{op}] {name or ''} {error}") from None
    return _leaf(op, type_, name, data, more(type_))
