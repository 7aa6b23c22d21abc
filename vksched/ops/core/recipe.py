"""Recipes: calls as loops of native/loops_program.cpp, many of which run in one call from Python.

    registers   operands of the call | constants | results of the loops, of which the last one is
                the call's

A loop reads and writes values that lie without gaps, of float32 but where its op says otherwise.
An op gives a recipe where its loops compute what its host kernel does; without the native module
there are no recipes. Examples: tests/ops/test_recipes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...types import FLOAT32, NDArray, TensorType
from . import loops
from .host import BLOCK

if TYPE_CHECKING:
    from .attrs import Attrs


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop. operands: registers. elements: of its result. numbers, reals: what it is told, as
    native/loops_program.cpp says. pieces: parts that several threads may take. work: of all pieces,
    in values that are read or multiplied.
    """

    name: str
    operands: tuple[int, ...]
    elements: int
    numbers: tuple[int, ...]
    reals: tuple[float, ...] = ()
    pieces: int = 1
    work: int = 0


@dataclass(frozen=True, slots=True)
class Recipe:
    """The loops of a call, in order. constants: float32."""

    loops: tuple[Loop, ...]
    constants: tuple[NDArray, ...] = ()


Recipes = Callable[[tuple[TensorType, ...], TensorType, "Attrs"], Recipe | None]
"""(types of operands, result type, attributes) -> the call's recipe, None where it has none."""


def has_programs() -> bool:
    """Whether there are native programs."""
    return hasattr(loops.native, "Program")


def one_loop(
    name: str,
    inputs: Sequence[TensorType],
    output: TensorType,
    numbers: tuple[int, ...],
    reals: tuple[float, ...] = (),
) -> Recipe | None:
    """Returns the recipe of a call on float32 that is one loop, None of one that is large: numpy
    takes such a call in pieces, on several threads.
    """
    if any(t.dtype != FLOAT32 or t.size > BLOCK for t in (*inputs, output)):
        return None
    return Recipe((Loop(name, tuple(range(len(inputs))), output.size, numbers, reals),))


def joined(
    parts: Sequence[tuple[Recipe, tuple[int, ...]]], count: int, constants: tuple[NDArray, ...] = ()
) -> Recipe:
    """Returns several recipes as one.

    parts: recipes, and for each of its operands the register it is: of the `count` operands of the
    call and the constants, then of the results of the parts.
    """
    outside = count + len(constants)
    constants += tuple(value for recipe, _ in parts for value in recipe.constants)
    at, free = outside, count + len(constants)
    results: list[int] = []
    made: list[Loop] = []
    for recipe, given in parts:
        known = [r if r < outside else results[r - outside] for r in given]
        known += range(at, at + len(recipe.constants))
        at += len(recipe.constants)
        for loop in recipe.loops:
            made.append(replace(loop, operands=tuple(known[r] for r in loop.operands)))
            known.append(free)
            free += 1
        results.append(free - 1)
    return Recipe(tuple(made), constants)
