"""What the loops of a kernel do beside their multiply-adds, from AMD's assembly.

Mesa's estimate of cycles weighs loops by guesses, so it cannot be divided by multiply-adds; the
instructions of the loop that holds them can. A compute unit of every generation starts 64 lanes of
a vector instruction in one cycle, so a loop of nothing but multiply-adds takes 1 cycle for 64 of
them; instructions at a quarter of the rate (1 / x, exp, ...) count four times.

    loop: loads, addresses, fma fma fma ...        cycles = vector instructions / fma

Where the compiler unrolls a loop of loads within, its branches are part of the loop. So the blocks
that hold the multiply-adds are counted for themselves too: these run in every round.

Standard library only; see shader_stats.py, which compiles.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MULTIPLY_ADD = re.compile(
    r"v_(dual_)?(pk_)?(fma|fmac|mac|mad|fmaak|fmamk)(_legacy|_mix)?_(f32|f16)"
)
QUARTER_RATE = re.compile(r"v_(rcp|rsq|sqrt|exp|log|sin|cos|mul_lo_u32|mul_hi_u32|mul_lo_i32)")
MATRIX = re.compile(r"v_s?wmma_")
"""A product of cooperative matrices by a whole subgroup."""
SHARED_READ = re.compile(r"ds_(read|load)")
GLOBAL_READ = re.compile(r"(buffer|global|flat)_load")
BRANCH = re.compile(r"s_c?branch\w*\s+BB(\d+)")
LABEL = re.compile(r"BB(\d+):")
SHARE = 0.125
"""Of the multiply-adds of the busiest loop; a loop with fewer is left out."""


@dataclass(frozen=True)
class Loop:
    """Instructions of a loop, both sides of its branches. block_cycles: cycles of the blocks
    without a branch that hold multiply-adds. If the kernel holds products of matrices, these are
    its multiply-adds.
    """

    multiply_adds: int
    block_cycles: int
    vector_cycles: int
    shared_reads: int
    global_reads: int

    @property
    def cycles(self) -> float:
        """Of a compute unit, for 64 multiply-adds, where these are; 1 is ideal."""
        return self.block_cycles / self.multiply_adds

    def __str__(self) -> str:
        """Return cycles where the multiply-adds are, in brackets those of the whole loop, shared
        and global reads, for each multiply-add.
        """
        counts = (self.vector_cycles, self.shared_reads, self.global_reads)
        whole, shared, rest = (count / self.multiply_adds for count in counts)
        return f"{self.cycles:.2f} ({whole:.2f}) · {shared:.2f} · {rest:.2f}"

    def matrix_overhead(self) -> str:
        """Return the overhead per product of matrices: vector instructions as cycles, shared and
        global reads.
        """
        vector = self.vector_cycles - self.multiply_adds
        counts = (vector, self.shared_reads, self.global_reads)
        return " · ".join(f"{count / self.multiply_adds:.2f}" for count in counts)


def busy_loops(assembly: str) -> list[Loop]:
    """Return the loops with most of the multiply-adds, in order; those of a loop within another
    are counted there only.
    """
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {m[1]: at for at, line in enumerate(lines) if (m := LABEL.match(line))}
    ends: dict[int, int] = {}
    for at, line in enumerate(lines):
        branch = BRANCH.match(line)
        if branch and labels.get(branch[1], at) < at:
            ends[labels[branch[1]]] = at
    owners: list[int | None] = [None] * len(lines)
    for first, last in sorted(ends.items()):
        owners[first : last + 1] = [first] * (last + 1 - first)
    adds = MATRIX if any(map(MATRIX.match, lines)) else MULTIPLY_ADD
    loops = [
        _count([line for line, owner in zip(lines, owners, strict=True) if owner == first], adds)
        for first in sorted(ends)
    ]
    most = max((loop.multiply_adds for loop in loops), default=0)
    return [loop for loop in loops if loop.multiply_adds and loop.multiply_adds >= SHARE * most]


def _count(lines: list[str], adds: re.Pattern[str]) -> Loop:
    starts = [at for at, line in enumerate(lines) if LABEL.match(line)]
    blocks = [lines[at:end] for at, end in zip([0, *starts], [*starts, len(lines)], strict=True)]
    counted = [(_matching(adds, block), _vector_cycles(block)) for block in blocks]
    return Loop(
        multiply_adds=sum(number for number, _ in counted),
        block_cycles=sum(cycles for number, cycles in counted if number),
        vector_cycles=sum(cycles for _, cycles in counted),
        shared_reads=_matching(SHARED_READ, lines),
        global_reads=_matching(GLOBAL_READ, lines),
    )


def _matching(pattern: re.Pattern[str], lines: list[str]) -> int:
    return sum(1 for line in lines if pattern.match(line))


def _vector_cycles(lines: list[str]) -> int:
    vector = [line for line in lines if line.startswith("v_")]
    return sum(4 if QUARTER_RATE.match(line) else 1 for line in vector)
