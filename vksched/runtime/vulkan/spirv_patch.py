"""SPIR-V patching: insert the steps of a fused program or an epilogue into a compiled shader.

Problem: no compiler runs on the user's machine, and a CPU driver takes seconds to specialize a
switch over 70 functions. Method: a module holds every function that a fused program may call. The
body of the function `fused` is replaced by one call for each step, on SSA values without arrays;
immediate words become constants. Unreachable functions are removed together with their decorations;
no other instruction changes.

    main -> fused -> every -> 70 functions        main -> fused -> add_float32, gelu_float32

The function `epilogue_steps` of matmuls and convolutions is replaced in this way, too, with one
value. Its second register is a call that reads the residual; the binding of the residual is removed
if no step reads it. A module is parsed once; a fused program then costs the remaining words.
Source: the SPIR-V specification, 2.3 (logical layout of a module). Examples:
tests/passes/test_fuse_elementwise.py, tests/passes/test_epilogue.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...ir.op import REGISTERS, ShaderProgram

HEADER_WORDS = 5
OP_NAME, OP_MEMBER_NAME, OP_ENTRY_POINT, OP_DECORATE = 5, 6, 15, 71
OP_TYPE_VECTOR, OP_CONSTANT = 23, 43
OP_FUNCTION, OP_FUNCTION_END, OP_CALL, OP_LABEL = 54, 56, 57, 248
OP_VARIABLE, OP_LOAD, OP_STORE, OP_COMPOSITE, OP_RETURN_VALUE = 59, 61, 62, 80, 254
OP_XOR, STORAGE_FUNCTION, NO_CONTRACTION = 198, 7, 42
OP_ARITHMETIC = frozenset((127, 129, 131, 133, 136, 140, 141, 142))
"""Floating-point arithmetic, which is decorated NoContraction: in steps each op rounds separately,
and x * 0 or x + 0 of a constant is computed, not folded, because the operands of an unfused op come
from buffers, which no compiler knows.
"""
OP_ENDS = frozenset((OP_FUNCTION_END, OP_STORE, 63, 224, 225, 246, 247, *range(249, 256), 4458))
"""Instructions without a result: stores (4458: of cooperative matrices), merges, branches, returns,
barriers.
"""

Words = npt.NDArray[np.uint32]
NONE = np.array((), np.uint32)


@dataclass(frozen=True)
class Function:
    """A function.

    Parameters
    ----------
    words
        Its instructions.
    calls
        The ids of the functions that it calls.
    """

    words: Words
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Module:
    """A parsed module.

    Parameters
    ----------
    before
        The instructions before functions, with the decorated id or 0; without debug names.
    ids
        The ids of functions and variables by name.
    elements
        Element types of vector types.
    owner
        The function that defines each id.
    """

    header: Words
    before: tuple[tuple[int, Words], ...]
    functions: Mapping[int, Function]
    entry: int
    ids: Mapping[str, int]
    elements: Mapping[int, int]
    owner: Mapping[int, int]


@lru_cache(maxsize=64)
def take_apart(spirv: bytes) -> Module:
    """Return the parsed module."""
    words = np.frombuffer(spirv, "<u4").astype(np.uint32)
    flat = words.tolist()
    before: list[tuple[int, Words]] = []
    rounded: list[int] = []
    precise: set[int] = set()
    ids: dict[str, int] = {}
    elements: dict[int, int] = {}
    functions: dict[int, Function] = {}
    owner: dict[int, int] = {}
    calls: list[int] = []
    decorated = 0
    entry = current = start = 0
    at = HEADER_WORDS
    while at < len(flat):
        op, end = flat[at] & 0xFFFF, at + (flat[at] >> 16)
        if op == OP_FUNCTION:
            current, start, calls = flat[at + 2], at, []
        if current:
            if op == OP_CALL:
                calls.append(flat[at + 3])
            if op in OP_ARITHMETIC:
                rounded.append(flat[at + 2])
            if op not in OP_ENDS:
                owner[flat[at + (1 if op == OP_LABEL else 2)]] = current
            if op == OP_FUNCTION_END:
                functions[current] = Function(words[start:end], tuple(calls))
                current = 0
        elif op == OP_NAME:
            name = words[at + 2 : end].tobytes().split(b"\0")[0].decode()
            ids.setdefault(name, flat[at + 1])
        elif op != OP_MEMBER_NAME:
            entry = flat[at + 2] if op == OP_ENTRY_POINT else entry
            if op == OP_TYPE_VECTOR:
                elements[flat[at + 1]] = flat[at + 2]
            target = flat[at + 1] if op == OP_DECORATE else flat[at + 2] if op == OP_VARIABLE else 0
            if op == OP_DECORATE and flat[at + 2] == NO_CONTRACTION:
                precise.add(target)
            before.append((target, words[at:end]))
            decorated = len(before) if op == OP_DECORATE else decorated
        at = end
    written = [ids[name] for name in (FUSED, EPILOGUE) if name in ids]
    steps = _reachable(functions, written)
    before[decorated:decorated] = [
        (number, np.array([_header_word(3, OP_DECORATE), number, NO_CONTRACTION], np.uint32))
        for number in rounded
        if owner[number] in steps and number not in precise
    ]
    return Module(words[:HEADER_WORDS], tuple(before), functions, entry, ids, elements, owner)


def _reachable(functions: Mapping[int, Function], first: Sequence[int]) -> set[int]:
    """Return the functions reachable from some functions, inclusive."""
    wanted, found = list(first), set[int]()
    while wanted:
        current = wanted.pop()
        if current not in found:
            found.add(current)
            wanted += functions[current].calls
    return found


VECTOR = "vu4;"
FUSED, EPILOGUE, RESIDUAL = (
    f"fused({6 * VECTOR}",
    f"epilogue_steps({2 * VECTOR}",
    f"residual_at({VECTOR}",
)
RESIDUAL_BUFFER = "residual_buffer"
"""The variable of the residual, which only RESIDUAL reads."""


@lru_cache(maxsize=128)
def link(spirv: bytes, steps: ShaderProgram) -> bytes:
    """Return a module whose fused program or epilogue has these steps."""
    module = take_apart(spirv)
    functions, header, constants = dict(module.functions), module.header.copy(), NONE
    chain = module.ids.get(FUSED, module.ids.get(EPILOGUE, 0))
    if chain:  # a kernel of integers has neither
        functions[chain], constants, header[3] = _write(module, chain, steps)
    reachable = _reachable(functions, [module.entry])
    gone = {i for i, f in module.owner.items() if f == chain}
    if module.ids.get(RESIDUAL) not in reachable and RESIDUAL_BUFFER in module.ids:
        gone.add(module.ids[RESIDUAL_BUFFER])
    parts = [header]
    parts += [
        words
        for target, words in module.before
        if target not in gone and module.owner.get(target, module.entry) in reachable
    ]
    parts.append(constants)
    parts += [function.words for i, function in functions.items() if i in reachable]
    return np.concatenate(parts).astype("<u4").tobytes()


def _write(module: Module, chain: int, steps: ShaderProgram) -> tuple[Function, Words, int]:
    """Return the function of the steps, the constants of its immediate words, and the module's new
    id bound.
    """
    old = module.functions[chain].words.tolist()
    vector, then = old[1], FUSED not in module.ids
    head = 5 + 3 * (2 if then else REGISTERS)  # the function header and its parameters, which stay
    pointer, parameters = old[6], old[7:head:3]
    ids = itertools.count(int(module.header[3]))
    out, constants, calls = old[:head], list[int](), list[int]()
    out += [_header_word(2, OP_LABEL), next(ids)]
    arguments = [[next(ids) for _ in range(3)] for _ in steps.calls]
    for argument in itertools.chain.from_iterable(arguments):
        out += [_header_word(4, OP_VARIABLE), pointer, argument, STORAGE_FUNCTION]
    values: dict[int, int] = {}

    def value(register: int) -> int:
        if register not in values:
            values[register] = next(ids)
            if then and register == 1:
                residual = module.ids[RESIDUAL]
                calls.append(residual)
                call = (vector, values[register], residual, parameters[1])
                out.extend((_header_word(5, OP_CALL), *call))
            elif register < REGISTERS:
                out.extend(
                    (_header_word(4, OP_LOAD), vector, values[register], parameters[register])
                )
            else:
                word, four, none = next(ids), next(ids), next(ids)
                element, number = module.elements[vector], steps.words[register - REGISTERS]
                constants.extend((_header_word(4, OP_CONSTANT), element, word, number))
                out.extend((_header_word(7, OP_COMPOSITE), vector, four, *[word] * 4))
                out.extend((_header_word(4, OP_LOAD), vector, none, module.ids["nothing"]))
                out.extend((_header_word(5, OP_XOR), vector, values[register], four, none))
        return values[register]

    result = 0 if steps.calls else value(0)
    first = REGISTERS + len(steps.words)
    for number, ((name, operands), params) in enumerate(zip(steps.calls, arguments, strict=True)):
        for argument, register in zip(params, (*operands, *[operands[0]] * 3)[:3], strict=True):
            out += [_header_word(3, OP_STORE), argument, value(register)]
        function, result = module.ids[f"{name}({3 * VECTOR}"], next(ids)
        calls.append(function)
        out += [_header_word(7, OP_CALL), vector, result, function, *params]
        values[first + number] = result
    out += [_header_word(2, OP_RETURN_VALUE), result, _header_word(1, OP_FUNCTION_END)]
    return (
        Function(np.array(out, np.uint32), tuple(calls)),
        np.array(constants, np.uint32),
        next(ids),
    )


def _header_word(length: int, op: int) -> int:
    """Return the first word of an instruction."""
    return length << 16 | op
