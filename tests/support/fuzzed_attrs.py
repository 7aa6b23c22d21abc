"""Calls of strangers: real ones with attributes and operands changed at random. `infer` refuses
them, or all ways to run a call take them. A program, as what goes wrong may end the process.

    python fuzzed_attrs.py SEED EXAMPLES_PER_OP LAST_FILE [OP ...]

LAST_FILE holds the example at hand, for who finds that the process has ended.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vksched.common.dtypes import DTYPES, NARROW, NDArray, TensorType, numpy_dtype
from vksched.common.errors import PlanError, VkschedError
from vksched.common.serialize import plain
from vksched.ir.attr_domains import Domain
from vksched.ir.attrs import Attrs, AttrValue
from vksched.ir.check_call import domains_of
from vksched.ir.evaluate import compute, compute_into, infer
from vksched.ir.op import Call, Op, get_op
from vksched.ops.lowering import native_kernels
from vksched.ops.lowering.lower import lower
from vksched.plan.serialize.graph_codec import decode_graph
from vksched.testing.op_table import CASES, FP16, LONGS, UNSIGNED
from vksched.topology.limits import Limits

MAX_ELEMENTS, MAX_FLOPS = 1 << 14, 1e7
"""Of calls that are run: others are checked alone."""
MAX_BYTES = 3 << 30
"""Of the process."""
GUARD = 64
"""Bytes behind and before a result that no loop may write."""
WHOLES = (-1, 0, 1, 2, 7, -(2**31), 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
REALS = (0.0, -0.0, -1.0, 1e-40, 3e38, 1e39, 1e300, math.inf, -math.inf, math.nan)
OTHERS: tuple[AttrValue, ...] = (None, True, False, 0, 1.5, "", "x", "float32", (), (0,), ((0,),))
LIMITS = (Limits(), Limits(storage_buffers=8, float16=True), Limits(software=True))


class Wrong(AssertionError):
    """A call that is valid by its op's rule cannot be run, or one is refused by another error."""


@dataclass(frozen=True)
class Example:
    """A call of a stranger."""

    op: str
    inputs: tuple[TensorType, ...]
    attrs: dict[str, AttrValue]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.inputs))}) {self.attrs}"


# -- changes ---------------------------------------------------------------------------------------


def changed(rng: random.Random, value: AttrValue, depth: int = 0) -> AttrValue:
    """Return a value that is near another one, or far from it."""
    if rng.random() < 0.15:
        return rng.choice(OTHERS)
    if isinstance(value, bool):
        return rng.choice((not value, int(value)))
    if isinstance(value, int):
        return rng.choice((*WHOLES, value + 1, value - 1, -value, float(value)))
    if isinstance(value, float):
        return rng.choice((*REALS, -value, value * 2, int(value) if math.isfinite(value) else 0))
    if isinstance(value, tuple):
        return _changed_tuple(rng, list(value), depth)
    return rng.choice((*OTHERS, *DTYPES, "add", "q8_0", "none", "gru"))


def _changed_tuple(rng: random.Random, values: list[AttrValue], depth: int) -> AttrValue:
    how = rng.randrange(8)
    if values and how < 4 and depth < 6:
        at = rng.randrange(len(values))
        values[at] = changed(rng, values[at], depth + 1)
    elif how == 4 and values:
        del values[rng.randrange(len(values))]
    elif how == 5:
        values.append(rng.choice(values) if values else 0)
    elif how == 6:
        values.reverse()
    else:
        rng.shuffle(values)
    return tuple(values)


def choices_of(domain: Domain) -> tuple[AttrValue, ...]:
    """Return the values that a domain names."""
    inner = getattr(domain, "of", None)
    found: tuple[AttrValue, ...] = getattr(domain, "choices", ())
    return found or (choices_of(inner) if isinstance(inner, Domain) else ())


def changed_attrs(
    rng: random.Random, op: Op, attrs: dict[str, AttrValue], others: Sequence[Example]
) -> dict[str, AttrValue]:
    """Return attributes with one changed, left out, added, or taken from another call."""
    out, known, how = dict(attrs), domains_of(op), rng.random()
    names = sorted(known)
    if how < 0.06 and out:
        del out[rng.choice(sorted(out))]
    elif how < 0.12:
        out[rng.choice(("axis", "axes", "kernel", "epilogue", "precision", "dtype"))] = changed(
            rng, 1
        )
    elif how < 0.3 and names:
        name, other = rng.choice(names), rng.choice(others).attrs
        out[name] = other.get(name, rng.choice(choices_of(known[name]) or (0,)))
    elif names:
        name = rng.choice(names)
        out[name] = changed(rng, out.get(name, 0))
    return out


def changed_types(rng: random.Random, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Return operands of which one has another shape or type, is there twice, or is not."""
    out = list(types)
    how = rng.randrange(9)
    if how == 0 or not out:
        return (*out, rng.choice(out) if out else TensorType((2,)))
    at = rng.randrange(len(out))
    shape, dtype = list(out[at].shape), out[at].dtype
    axis = rng.randrange(len(shape)) if shape else None
    if how == 1:
        del out[at]
        return tuple(out)
    if how == 2:
        rng.shuffle(out)
        return tuple(out)
    if how in (3, 4):
        dtype = rng.choice((*DTYPES, *NARROW))
    elif how == 5 and len(shape) < 8:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 2)))
    elif how == 6 and axis is not None:
        del shape[axis]
    elif axis is not None:
        near = (0, 1, shape[axis] + 1, shape[axis] - 1, 2 * shape[axis])
        shape[axis] = max(0, rng.choice((*near, 1 << 33, 1 << 62)))
    try:
        out[at] = TensorType(tuple(shape), dtype)
    except VkschedError:
        return types
    return tuple(out)


def stranger(rng: random.Random, bases: Sequence[Example]) -> Example:
    """Return a call with one change or a few."""
    base = rng.choice(bases)
    attrs, inputs, op = dict(base.attrs), base.inputs, get_op(base.op)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if rng.random() < 0.7:
            attrs = changed_attrs(rng, op, attrs, bases)
        else:
            inputs = changed_types(rng, inputs)
    return Example(base.op, inputs, attrs)


# -- checks ----------------------------------------------------------------------------------------


def is_valid(example: Example) -> TensorType | None:
    """Return the result type of a call, None where its rule refuses it; the same as a document."""
    op = get_op(example.op)
    try:
        attrs = Attrs(example.attrs)
        result = infer(op, example.inputs, attrs)
    except VkschedError:
        result = None
    for claimed in (result, *example.inputs[:1]) if result is None else (result,):
        if claimed is None:
            continue
        try:
            decode_graph(document(example, claimed))
        except PlanError:
            if result is not None:
                raise Wrong("the call is valid, its document is none") from None
        else:
            if result is None:
                raise Wrong("the call is not valid, its document is")
    return result


def document(example: Example, result: TensorType) -> dict[str, Any]:
    """Return a call as the document of a graph, as another computer could send it."""

    def node(name: str, op: str, inputs: list[int], attrs: Any, type_: TensorType) -> Any:
        shown = {key: plain(value) for key, value in attrs.items()}
        of_type = {"shape": list(type_.shape), "dtype": type_.dtype}
        return {"name": name, "op": op, "inputs": inputs, "attrs": shown, **of_type}

    leaves = [
        node(f"x{i}", "input", [], {"shape": t.shape, "dtype": t.dtype}, t)
        if t.dtype in DTYPES
        else node(f"x{i}", "weight", [], {"shape": t.shape, "dtype": t.dtype}, t)
        for i, t in enumerate(example.inputs)
    ]
    own = node("y", example.op, list(range(len(leaves))), example.attrs, result)
    weights = [{"node": i, "hash": ""} for i, t in enumerate(example.inputs) if t.dtype in NARROW]
    built = {"nodes": [*leaves, own], "outputs": [["y", len(leaves)]], "weights": weights}
    empty: dict[str, Any] = {"states": [], "backed_up_states": [], "aliases": {}}
    found: dict[str, Any] = json.loads(json.dumps({**built, **empty}))
    return found


def values(rng: np.random.Generator, type_: TensorType) -> NDArray:
    """Return an operand: small numbers, so that some are indices."""
    drawn = rng.integers(0 if "u" in type_.dtype else -3, 4, type_.shape)
    if type_.dtype.startswith("float"):
        return np.asarray(rng.standard_normal(type_.shape), numpy_dtype(type_.dtype))
    return np.asarray(drawn, numpy_dtype(type_.dtype))


def guarded(type_: TensorType) -> tuple[NDArray, Callable[[], bool]]:
    """Return memory for a result, and whether what lies around it is as it was."""
    size = type_.host_bytes
    memory = np.full(size + 2 * GUARD, 0xA5, np.uint8)
    inside = memory[GUARD : GUARD + size]
    array = inside.view(numpy_dtype(type_.dtype)).reshape(type_.shape)
    return array, lambda: bool((memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all())


def run_all_ways(example: Example, result: TensorType) -> None:
    """Run a call by its reference, its host kernel and its recipe, and lower it for devices."""
    op, attrs = get_op(example.op), Attrs(example.attrs)
    for limits in LIMITS:
        if all(t.device_bytes <= limits.max_buffer_bytes for t in (*example.inputs, result)):
            lower_all(op, Call(example.inputs, result, attrs, limits))
    work = op.work(example.inputs, result, attrs)
    size = sum(t.size for t in (*example.inputs, result))
    if size > MAX_ELEMENTS or work.flops > MAX_FLOPS or op.opaque:
        return
    rng = np.random.default_rng(0)
    inputs = tuple(values(rng, t) for t in example.inputs)
    for way in (by_reference, by_host, by_native_program):
        try:
            way(op, inputs, example, result)
        except (VkschedError, MemoryError):
            continue


def lower_all(op: Op, call: Call) -> None:
    """Lower a call: what devices are given fits their words."""
    try:
        dispatches = lower(op, call).dispatches
    except VkschedError:
        return
    for dispatch in dispatches:
        for name, pushed in dispatch.push:
            for each in pushed if isinstance(pushed, tuple) else (pushed,):
                if isinstance(each, int) and not -(2**31) <= each < 2**32:
                    raise Wrong(f"{dispatch.shader}: {name} is {each}")


def by_reference(op: Op, values: tuple[NDArray, ...], example: Example, result: TensorType) -> None:
    found = np.asarray(compute(op, values, Attrs(example.attrs)))
    if (found.shape, found.dtype) != (result.shape, numpy_dtype(result.dtype)):
        raise Wrong(f"the reference makes {found.dtype}{found.shape}, not {result}")


def by_host(op: Op, values: tuple[NDArray, ...], example: Example, result: TensorType) -> None:
    if op.cpu is None or not result.size:
        return
    out, is_whole = guarded(result)
    compute_into(op, values, Attrs(example.attrs), out)
    if not is_whole():
        raise Wrong("the host kernel writes outside of its result")


def by_native_program(
    op: Op, values: tuple[NDArray, ...], example: Example, result: TensorType
) -> None:
    whole = all(t.size for t in (*example.inputs, result))
    native_program = (
        op.native_program(example.inputs, result, Attrs(example.attrs))
        if op.native_program and whole
        else None
    )
    if native_program is None or not native_kernels.has_programs():
        return
    out, is_whole = guarded(result)
    if op.name == "dynamic_update_slice":
        out[...] = values[0]
    built = [np.zeros(loop.elements, np.float32) for loop in native_program.loops[:-1]]
    arrays = [*map(np.ascontiguousarray, values), *built, out]
    steps = [
        (
            loop.name,
            [*loop.operands, len(values) + at],
            loop.int_params,
            loop.float_params,
            loop.pieces,
        )
        for at, loop in enumerate(native_program.loops)
    ]
    if op.name == "dynamic_update_slice":  # writes where the data lies
        steps = [(name, [len(arrays) - 1, *at[1:]], *reported) for name, at, *reported in steps]
    slots = list(range(len(arrays)))
    try:
        program = native_kernels.native.Program(steps, [a.nbytes for a in arrays], slots, True)
    except ValueError:  # refused before anything runs, as a chain that does not read an operand
        return
    try:
        program.run(arrays)
    except IndexError:  # of indices that operands hold
        return
    if not is_whole():
        raise Wrong("the recipe writes outside of its result")


# -- the program -----------------------------------------------------------------------------------


def bases_of(ops: Sequence[str]) -> Iterator[tuple[str, list[Example]]]:
    """Yield small real calls of each op."""
    found: dict[str, dict[str, Example]] = {}
    for case in (*CASES, *FP16, *LONGS, *UNSIGNED):
        if sum(t.size for t in case.types) <= MAX_ELEMENTS // 8:
            one = Example(case.op, case.types, case.attrs)
            found.setdefault(case.op, {}).setdefault(str(one), one)
    for name in sorted(found):
        if not ops or name in ops:
            yield name, list(found[name].values())


def leaf_bases() -> Iterator[tuple[str, list[Example]]]:
    """Yield calls of what has no cases, as it computes nothing."""

    own: dict[str, AttrValue] = {"shape": (2, 3), "dtype": "int32"}
    bounded = {**own, "low": 0, "high": 9}
    yield "input", [Example("input", (), own), Example("input", (), bounded)]


def main(seed: int, count: int, last: str, *ops: str) -> None:
    """Try so many calls of each op, and print how many were valid."""
    limit_memory()
    warnings.simplefilter("ignore")
    seen: Counter[str] = Counter()
    wrong: dict[str, str] = {}
    file = os.open(last, os.O_WRONLY | os.O_CREAT)
    with np.errstate(all="ignore"):
        for name, bases in (*bases_of(ops), *(() if ops else leaf_bases())):
            rng = random.Random(f"{seed} {name}")
            for _ in range(count):
                example = stranger(rng, bases)
                os.pwrite(file, f"{example}\n\0".encode("utf-8", "replace"), 0)
                try:
                    result = is_valid(example)
                    if result is not None and name != "input":
                        run_all_ways(example, result)
                except Exception as error:
                    wrong.setdefault(f"{name}: {place_of(error)}: {error}", f"{example}")
                else:
                    seen["refused" if result is None else "valid"] += 1
    print(json.dumps(seen))
    if wrong:
        sys.exit("\n".join(f"{why}\n    {example}" for why, example in wrong.items()))


def place_of(error: Exception) -> str:
    """Return the type of an error and the line that raised it."""
    *_, at = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno}"


def limit_memory() -> None:
    """Have allocations of gigabytes fail, as where there is less memory."""
    try:
        import resource
    except ImportError:
        return
    if "asan" in os.environ.get("LD_PRELOAD", ""):  # it takes addresses for its own
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], *sys.argv[4:])
