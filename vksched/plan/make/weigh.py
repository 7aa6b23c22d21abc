"""Weigh: what a candidate takes, all metrics from one simulation of its splits.

    wishes -> placement -> splits ----------------------> program -> simulate -> latency, energy
                 |                                           '----> a stream -> period
                 '-> exact: memory, caps, copies that fit ----------------> peak bytes

Where latency alone counts, memory is not laid out: a placement knows of weights that do not fit,
and that is enough to compare times. For all other objectives each candidate is drafted to the end,
so that its bytes and its copies are those that the plan would have. A candidate that does not fit
is left out. Where the caller leaves the number of copies open, it is a choice of its own: more give
a stream its period, one takes the least memory.

Complexity: that of a placement and its splits, and of a draft where it is exact. Examples:
tests/plan/test_plan_objectives.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...errors import OutOfMemory
from ..decision import Candidate
from ..metrics import period, weigh
from ..simulate import Part, Program, make_program
from ..support import Support
from .candidates import Way
from .draft import Draft, make_draft, memory_of
from .fit import check_host, fit, most_copies, wanted_copies
from .placement import Caps, Overrides, Wishes, place
from .split import Outline, split_graph

CLOSE = 1.01
"""A stream takes the fewest copies whose period is at most so many times the least."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """A candidate with what it came from."""

    way: Way
    candidate: Candidate


def fitted(
    support: Support, overrides: Overrides, wishes: Wishes | None
) -> tuple[Draft, list[str]]:
    """Returns a draft within the memory of every device, and for each that was too small why."""

    def try_caps(caps: Caps) -> Draft:
        placements, notes = place(support, overrides, caps, wishes)
        draft = make_draft(support, placements, notes)
        if all(map(draft.fits, support.machine.pools)):
            return draft
        return make_draft(support, placements, notes, tight=True)

    draft, spills = fit(support, try_caps)
    check_host(draft)
    return draft, spills


@dataclass(frozen=True, slots=True)
class Scale:
    """Weighs candidates of one graph. copies: as `plan_graph` takes them. exact: whether memory is
    laid out, too.
    """

    support: Support
    overrides: Overrides
    copies: int | str
    exact: bool

    def weigh(self, ways: Iterable[Way], needed: bool = False) -> list[Weighed]:
        """Returns what some candidates take, once for each number of copies that they may have.

        Raises:
            OutOfMemory: none of them fits, and one is needed.
        """
        out: list[Weighed] = []
        refused: OutOfMemory | None = None
        for way in ways:
            try:
                out += self._exactly(way) if self.exact else [self._quickly(way)]
            except OutOfMemory as error:
                refused = error
        if needed and refused is not None and not out:
            raise refused
        return out

    def _quickly(self, way: Way) -> Weighed:
        support = self.support
        count = len(support.machine.devices)
        caps = Caps([None] * count, [range(0)] * count)
        placements, _ = place(support, self.overrides, caps, way.wishes)
        outlines, final_waits = split_graph(support, placements)
        program = self._program(outlines, final_waits)
        used = self._used(outlines)
        copies = wanted_copies(support.graph, self.copies, len(used))
        metrics = weigh(program, support.machine, copies)
        return Weighed(way, Candidate(way.name, used, copies, metrics))

    def _exactly(self, way: Way) -> list[Weighed]:
        draft, _ = fitted(self.support, self.overrides, way.wishes)
        program = self._program(draft.outlines, draft.final_waits)
        used = self._used(draft.outlines)
        counts = [most_copies(draft, self.copies)[0]]
        if not isinstance(self.copies, int):
            most = most_copies(draft, self.copies, len(used) + 1)[0]
            counts += [_enough(program, most), 1]
        out: list[Weighed] = []
        for copies in dict.fromkeys(counts):
            peak_bytes = max(memory.peak_bytes for memory in memory_of(draft, copies))
            metrics = weigh(program, self.support.machine, copies, peak_bytes)
            out.append(Weighed(way, Candidate(way.name, used, copies, metrics)))
        return out

    def _program(self, outlines: Sequence[Outline], final_waits: tuple[int, ...]) -> Program:
        support = self.support
        parts = [Part(o.device, o.nodes, o.entering, o.leaving, o.waits) for o in outlines]
        return make_program(
            support.graph, support.machine, parts, final_waits, support.node_seconds
        )

    def _used(self, outlines: Sequence[Outline]) -> tuple[str, ...]:
        devices = sorted({outline.device for outline in outlines})
        return tuple(self.support.machine.devices[d].name for d in devices)


def _enough(program: Program, most: int) -> int:
    """Returns how many copies give a stream about its least period."""
    periods = [period(program, copies) for copies in range(1, most + 1)]
    close = CLOSE * min(periods)
    return 1 + next(at for at, each in enumerate(periods) if each <= close)
