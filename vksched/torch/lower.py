"""Lower fx nodes of ATen calls to Tensors, one call at a time.

    node: aten.add.Tensor(a, 2)  --find_rule-->  add(call, Tensor a, 2)  -->  Tensor

Rules compute in the element types of PyTorch. A float16 call that no kernel supports is computed as
float32 and rounded once. Examples: tests/torch_backend/test_torch_rules.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..common.dtypes import FLOAT16, FLOAT32, Shape
from ..common.errors import UnsupportedOp, VkschedError
from ..ir.name_scope import name_scope
from ..ir.tensor import Tensor, constant, input
from ..ops import cast
from .convert import STORAGE, storage_of, to_array
from .rules import Call, find_rule

IGNORED = ("device", "layout", "pin_memory", "memory_format", "generator")
"""Arguments that do not affect the values of a result."""
INT64_LIMIT = (1 << 24) - 1
"""The maximum magnitude of int64 inputs on devices, which have 32 bits: sums and small products
still fit. A call with larger values runs in eager PyTorch.
"""
AS_STRIDED = "aten::as_strided.default"
"""The op that reads memory beyond its operand."""
SEED = "seed"
"""The name of the input for the seed of random numbers."""


def value_of(node: fx.Node) -> Any:
    """Return the example value of a node: fake tensors, numbers, or None."""
    return node.meta.get("val")


def op_name(node: fx.Node) -> str:
    """Return the name of an op, for example "aten::add.Tensor"."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}::{target._opname}.{target._overloadname}"
    return getattr(target, "__name__", str(target))


def declare_input(name: str, value: Any) -> Tensor:
    """Return an input for a tensor.

    Raises
    ------
    UnsupportedOp
        Its element type or its layout is not supported.
    """
    dtype = storage_of(value)
    if dtype is None:
        raise UnsupportedOp(f"{value.dtype} of {value.layout} on {value.device}")
    if not all(isinstance(d, int) for d in value.shape):
        raise UnsupportedOp(f"a shape that depends on values, {tuple(value.shape)}")
    bounds = (-INT64_LIMIT, INT64_LIMIT) if dtype == "int64" else None
    return input(name, tuple(value.shape), dtype, bounds)


class CallLowering:
    """Lowers the calls of one segment.

    Attributes
    ----------
    values
        The Tensors, numbers, or lists of them that stand for nodes.
    seed
        The input for the seed of random numbers; None if no call is random.
    whole
        The placeholders that must be all of their memory, in row-major order: calls read them by
        strides.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._streams = 0
        self.values: dict[fx.Node, Any] = {}
        self.seed: Tensor | None = None
        self.whole = set[fx.Node]()

    def lower(self, node: fx.Node) -> None:
        """Lower one node, whose operands are lowered.

        Raises
        ------
        VkschedError
            There is no rule, or it does not support this call; the message is the reason.
        """
        example = value_of(node)
        if node.op == "get_attr":
            self.values[node] = self._attribute(node)
        elif node.op != "call_function":
            raise UnsupportedOp(f"{node.op} {node.target}")
        elif isinstance(example, (bool, int, float)):
            self.values[node] = example
        elif node.target is operator.getitem:
            source: Any = node.args[0]
            index: Any = node.args[1]
            found = self.values[source][index]
            if found is None:
                raise UnsupportedOp(f"result {index} of {op_name(source)}")
            self.values[node] = found
        else:
            self.values[node] = self._call(node, example)

    def _attribute(self, node: fx.Node) -> Tensor:
        held: Any = self._module
        for name in str(node.target).split("."):
            held = getattr(held, name)
        if not isinstance(held, torch.Tensor) or storage_of(held) is None:
            raise UnsupportedOp(f"a constant of {getattr(held, 'dtype', type(held).__name__)}")
        return constant(to_array(held).copy())

    def _call(self, node: fx.Node, example: Any) -> Any:
        name = op_name(node)
        build = find_rule(name)
        if build is None:
            raise UnsupportedOp("no rule")
        examples = list(example) if isinstance(example, (list, tuple)) else [example]
        dtypes = tuple(storage_of(e) if isinstance(e, torch.Tensor) else None for e in examples)
        if not any(dtypes):
            found = [str(e.dtype) for e in examples if isinstance(e, torch.Tensor)]
            raise UnsupportedOp(f"results of {', '.join(found) or 'another kind'}")
        args = pytree.tree_map(self._argument, list(node.args))
        kwargs = {
            key: pytree.tree_map(self._argument, value)
            for key, value in node.kwargs.items()
            if key not in IGNORED
        }
        dense = _is_dense(node)
        call = Call(name, dtypes, _promoted(node), self._random, dense)
        path = module_path(node)
        with name_scope(path) if path else _NO_SCOPE:
            results = _attempt(call, build, args, kwargs)
        _check(examples, results)
        _check_reads(node, results)
        if dense and name == AS_STRIDED:
            self.whole.update(_base_of(node))
        return results if isinstance(example, (list, tuple)) else results[0]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            return self.values[value]
        if isinstance(value, torch.dtype):
            return STORAGE.get(value, str(value))
        return value

    def _random(self) -> tuple[Tensor, int]:
        if self.seed is None:
            self.seed = input(SEED, (1,), "int32")
        self._streams += 1
        return self.seed, self._streams


class _NoScope:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


_NO_SCOPE = _NoScope()


def _attempt(
    call: Call, build: Callable[..., Any], args: list[Any], kwargs: Mapping[str, Any]
) -> list[Tensor | None]:
    """Return the results of a rule, in the element types of the call."""
    try:
        found = build(call, *args, **kwargs)
    except VkschedError:
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if all(t.dtype != FLOAT16 for t in tensors):
            raise
        wide = Call(
            call.op,
            tuple(FLOAT32 if dtype == FLOAT16 else dtype for dtype in call.dtypes),
            FLOAT32 if call.promoted == FLOAT16 else call.promoted,
            call.random,
            call.dense,
        )
        found = build(wide, *pytree.tree_map(_widened, args), **pytree.tree_map(_widened, kwargs))
    results = [found] if isinstance(found, Tensor) else list(found)
    return [_fit(t, dtype) for t, dtype in zip(results, call.dtypes, strict=False)]


def _widened(value: Any) -> Any:
    return cast(value, FLOAT32) if isinstance(value, Tensor) and value.dtype == FLOAT16 else value


def _fit(result: Tensor | None, dtype: str | None) -> Tensor | None:
    if result is None or dtype is None:
        return None
    return result if result.dtype == dtype else cast(result, dtype)


def _check(examples: Sequence[Any], results: Sequence[Tensor | None]) -> None:
    """Raise UnsupportedOp if a result has not the shape that PyTorch expects."""
    for example, result in zip(examples, results, strict=False):
        if result is not None and result.shape != tuple(example.shape):
            raise UnsupportedOp(f"the rule has shape {result.shape}, not {tuple(example.shape)}")


def _check_reads(node: fx.Node, results: Sequence[Tensor | None]) -> None:
    """Raise UnsupportedOp if a later call reads a result that a rule leaves out."""
    for user in node.users:
        if user.target is operator.getitem and user.users:
            index: Any = user.args[1]
            if index >= len(results) or results[index] is None:
                raise UnsupportedOp(f"without result {index}")


def _promoted(node: fx.Node) -> str:
    """Return the element type that PyTorch promotes the operands of a call to."""
    operands = [value_of(a) if isinstance(a, fx.Node) else a for a in node.args[:2]]
    numbers = [o for o in operands if isinstance(o, (bool, int, float, torch.Tensor))]
    if len(numbers) != 2 or not any(isinstance(o, torch.Tensor) for o in numbers):
        numbers = [o for o in numbers if isinstance(o, torch.Tensor)][:1] * 2
    if not numbers:
        return FLOAT32
    return STORAGE.get(torch.result_type(*numbers), FLOAT32)


def _is_dense(node: fx.Node) -> bool:
    """Return True if the first operand of a call is all of its memory, in row-major order."""
    first = node.args[0] if node.args else None
    return isinstance(first, fx.Node) and is_whole(value_of(first))


def _base_of(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the argument whose memory the first operand of a call may view."""
    found: Any = node.args[0]
    while isinstance(found, fx.Node) and found.op == "call_function":
        found = found.args[0] if found.args else None
    if isinstance(found, fx.Node) and found.op == "placeholder":
        yield found


def is_whole(value: Any) -> bool:
    """Return True if a tensor is all of its memory, in row-major order."""
    if not isinstance(value, torch.Tensor) or storage_of(value) is None:
        return False
    size_bytes = value.untyped_storage().nbytes()
    return bool(value.is_contiguous() and size_bytes == value.numel() * value.element_size())


def module_path(node: fx.Node) -> str:
    """Return the path of the module that a call, or the call that it is the gradient of, comes
    from, for example "layers.0.fc".
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, _ in reversed(list(stack.values())):
        return clean_path(str(path)).partition(".")[2]
    return ""


def clean_path(source: str) -> str:
    """Return a path without the notation of Dynamo: L['self']._modules['fc'] is self.fc."""
    out = source
    for noise in ("_modules", "_parameters", "_buffers"):
        out = out.replace(f".{noise}[", "[")
    out = out.replace("['", ".").replace("']", "").replace('["', ".").replace('"]', "")
    out = out.replace("[", ".").replace("]", "").removeprefix("L.").removeprefix("G.")
    return out


def shape_of(value: Any) -> Shape:
    """Return the shape of a tensor as Python ints."""
    return tuple(int(d) for d in value.shape)
