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
tests/planner/test_plan_objectives.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...common.dtypes import WORD_BYTES
from ...common.errors import OutOfMemory
from ...plan.costs.op_support import Support
from ...plan.simulation.plan_metrics import period, weigh
from ...plan.simulation.sim_types import Part, Program
from ...plan.simulation.simulate_plan import make_program
from ...plan.types.decision import SINGLE, Candidate
from ...plan.types.placement_overrides import Overrides
from ...plan.types.plan_types import HOST, Placement, commits
from ...plan.types.split_draft import Outline
from ...schedule import Metrics
from ..memory.draft import Draft, make_draft, memory_of
from ..memory.fit import AUTO, check_host, fit, most_copies, wanted_copies
from ..memory.streaming_choice import other_streams, told_of
from ..partition.splits import split_graph
from ..placement.candidate_devices import NONE, Caps, Wishes
from ..placement.place import place
from .candidates import Candidates, Way

CLOSE = 1.01
"""A stream takes the fewest copies whose period is at most so many times the least."""


FEW_COPIES = 16
"""So many copies at most are all tried."""

Fitted = tuple[Draft, list[str]]
"""A draft within the memory of every device, and for each that was too small why."""


@dataclass(frozen=True, slots=True, eq=False)
class Weighed:
    """A candidate with what it came from. fitted: its draft, where memory was laid out."""

    way: Way
    candidate: Candidate
    fitted: Fitted | None = None


def fitted(support: Support, overrides: Overrides, wishes: Wishes | None) -> Fitted:
    """Returns a draft within the memory of every device, and for each that was too small why."""

    memory_nodes = support.topology.memory_nodes

    def lay_out(caps: Caps, scarce: bool = False) -> Draft:
        made = place(support, overrides, caps, wishes)
        draft = make_draft(support, *made, scarce=scarce)
        if not all(map(draft.fits, memory_nodes)):
            draft = make_draft(support, *made, tight=True, scarce=scarce)
        full = [peers for peers in memory_nodes if not draft.fits(peers)]
        if full and all(
            caps.first[peers[0]] in (0, NONE) for peers in full
        ):  # no weight to give up
            draft = make_draft(support, *made, tight=True, ahead=False, scarce=scarce)
        return draft

    draft, caps, spills = fit(support, lay_out)
    if not draft.fits((support.topology.cpu,)):
        draft = lay_out(caps, scarce=True)
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

    def weigh(self, ways: Iterable[Way]) -> list[Weighed]:
        """Returns what some candidates take, once for each number of copies that they may have;
        those that fit.
        """
        out: list[Weighed] = []
        for way in ways:
            with suppress(OutOfMemory):
                out += self._exactly(way) if self.exact else [self._quickly(way)]
        return out

    def weigh_singles(self, ways: Candidates) -> list[Weighed]:
        """Returns what single devices take, with others for the rest, and with the CPU for the rest
        as if there were no other device.

        Raises:
            OutOfMemory: none of them fits.
        """
        out: list[Weighed] = []
        for way in ways.singles():
            assert way.device is not None
            alone, found = ways.alone(way.device), self.weigh([way])
            roomy = [self._surely_fits(e) or bool(e.fitted and not e.fitted[1]) for e in found]
            out += self._settle(found, ways)
            if alone.wishes == way.wishes:
                continue
            if any(roomy) and all(roomy) and ways.takes_all(way.device):
                out += [replace(each, way=alone) for each in found]  # it comes to the same
            else:
                out += self._settle(self.weigh([alone]), ways)
        if not out:
            fitted(self.support, self.overrides, ways.singles()[0].wishes)
        return out

    def _settle(self, found: list[Weighed], ways: Candidates) -> list[Weighed]:
        """Returns what candidates take where memory may be short, in a graph that is small enough
        to find that out for all of them: it may be less, as the CPU takes over.
        """
        if self.exact or not ways.few or all(map(self._surely_fits, found)):
            return found
        out: list[Weighed] = []
        for each in found:
            with suppress(OutOfMemory):
                out.append(self.fit(each))
        return out

    def _surely_fits(self, each: Weighed) -> bool:
        """Whether its devices have room for all values at once, twice for those that cross."""
        topology = self.support.topology
        need_bytes = 2 * WORD_BYTES * sum(self.support.graph.words)
        used = (topology.index(name) for name in each.candidate.devices)
        return all(
            need_bytes <= topology.devices[d].memory_bytes for d in used if d != topology.cpu
        )

    def fit(self, each: Weighed) -> Weighed:
        """Returns a candidate with its memory laid out, and with what it takes then.

        Raises:
            OutOfMemory: it does not fit.
        """
        found = fitted(self.support, self.overrides, each.way.wishes)
        if not found[1]:
            return replace(each, fitted=found)
        return self._best_streamed(each.way, each.candidate.copies, found)

    def fit_in_order(self) -> Fitted:
        """Returns the draft in which the order of the devices decides all but what is streamed.

        Raises:
            OutOfMemory: it does not fit.
        """
        way = Way("", Wishes(self.support.topology.order, {}, ""))
        found = fitted(self.support, self.overrides, way.wishes)
        if not found[1]:
            return found
        return self._best_streamed(way, 1, found).fitted or found

    def _best_streamed(self, way: Way, copies: int, found: Fitted) -> Weighed:
        """Returns what a way takes whose memory is short, with the weights streamed that make a run
        the shortest.
        """
        out = [self._fitted(way, copies, found)]
        for other, draft in self._streamed_otherwise(out[0]):
            out.append(self._fitted(other, copies, draft))
        return min(out, key=lambda weighed: weighed.candidate.metrics.latency_s)

    def _fitted(self, way: Way, copies: int, found: Fitted) -> Weighed:
        """Returns what a way takes with its memory laid out."""
        outlines = found[0].outlines
        program = self._program(outlines, found[0].final_waits)
        metrics = weigh(program, self.support.topology, copies)
        return Weighed(way, self._candidate(way, self._used(outlines), copies, metrics), found)

    def _streamed_otherwise(self, each: Weighed) -> Iterator[tuple[Way, Fitted]]:
        """Yields drafts in which other weights are streamed, where memory is short."""
        assert each.fitted is not None
        draft, spills = each.fitted
        latency_s, wishes = each.candidate.metrics.latency_s, each.way.wishes
        for other in other_streams(self.support, wishes, draft, latency_s) if spills else ():
            with suppress(OutOfMemory):
                way = replace(each.way, wishes=other)
                made, why = fitted(self.support, self.overrides, other)
                yield way, (made, why or told_of(spills, other.spread))

    def devices_of(self, way: Way) -> dict[int, int]:
        """Returns the device of each node, as if there were memory for all."""
        return {n: p.device for n, p in enumerate(self._place(way))}

    def _place(self, way: Way) -> tuple[Placement, ...]:
        count = len(self.support.topology.devices)
        caps = Caps([None] * count, [range(0)] * count)
        return place(self.support, self.overrides, caps, way.wishes)[0]

    def _quickly(self, way: Way) -> Weighed:
        support = self.support
        outlines, final_waits = split_graph(support, self._place(way))
        program = self._program(outlines, final_waits)
        used = self._used(outlines)
        copies = wanted_copies(support.graph, self.copies, len(used))
        metrics = weigh(program, support.topology, copies)
        return Weighed(way, self._candidate(way, used, copies, metrics))

    def _exactly(self, way: Way) -> list[Weighed]:
        out = self._by_copies(way, fitted(self.support, self.overrides, way.wishes))
        for other, found in self._streamed_otherwise(out[0]):
            out += self._by_copies(other, found)
        return out

    def _by_copies(self, way: Way, found: Fitted) -> list[Weighed]:
        """Returns what a draft takes with each number of copies that it may have."""
        draft, _ = found
        program = self._program(draft.outlines, draft.final_waits)
        used = self._used(draft.outlines)
        counts = [most_copies(draft, self.copies)[0]]
        if self.copies == AUTO:
            most = most_copies(draft, self.copies, len(used) + 1)[0]
            counts += [_enough(program, most), 1]
        out: list[Weighed] = []
        for copies in dict.fromkeys(counts):
            peak_bytes = max(memory.peak_bytes for memory in memory_of(draft, copies))
            metrics = weigh(program, self.support.topology, copies, peak_bytes)
            out.append(Weighed(way, self._candidate(way, used, copies, metrics), found))
        return out

    def _program(self, outlines: Sequence[Outline], final_waits: tuple[int, ...]) -> Program:
        support = self.support
        before = _two_before(outlines)
        parts = [
            Part(
                o.device,
                o.nodes,
                o.entering,
                o.leaving,
                o.waits,
                commits(support.graph, o.nodes, o.in_place),
                o.aside,
                before[number],
                o.hands_over,
                o.refills,
            )
            for number, o in enumerate(outlines)
        ]
        return make_program(
            support.graph, support.topology, parts, final_waits, support.node_seconds
        )

    def _candidate(
        self, way: Way, used: tuple[str, ...], copies: int, metrics: Metrics
    ) -> Candidate:
        """Returns a way as weighed, by its name or by that of the only device that has work in it
        by choice.
        """
        alone = way.device is not None and len(used) == 1 and not self.overrides
        return Candidate(f"{SINGLE}{used[0]}" if alone else way.name, used, copies, metrics)

    def _used(self, outlines: Sequence[Outline]) -> tuple[str, ...]:
        devices = sorted({outline.device for outline in outlines})
        return tuple(self.support.topology.devices[d].name for d in devices)


def _two_before(outlines: Sequence[Outline]) -> list[int]:
    """Returns for each split the last but one before it on its device, or HOST: by then the memory
    of its copies in is free, as this lives from the start of the split before.
    """
    seen: dict[int, tuple[int, int]] = {}
    out: list[int] = []
    for number, outline in enumerate(outlines):
        last, before = seen.get(outline.device, (HOST, HOST))
        out.append(before)
        seen[outline.device] = number, last
    return out


def _enough(program: Program, most: int) -> int:
    """Returns how many copies give a stream about its least period. Of many copies not all numbers
    are tried: more of them are taken not to make it longer.
    """
    if most <= FEW_COPIES:
        periods = [period(program, copies) for copies in range(1, most + 1)]
        close = CLOSE * min(periods)
        return 1 + next(at for at, each in enumerate(periods) if each <= close)
    close = CLOSE * period(program, most)
    counts = range(1, most + 1)
    return counts[bisect_left(counts, True, key=lambda copies: period(program, copies) <= close)]
