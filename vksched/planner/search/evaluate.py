"""Evaluate: what a candidate takes, all metrics from one simulation of its splits.

    hints -> placement -> splits ----------------------> program -> simulate -> latency, energy
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
from ...plan.costs.op_support import OpSupport
from ...plan.simulation.plan_metrics import evaluate_metrics, period
from ...plan.simulation.sim_types import Program, SimSplit
from ...plan.simulation.simulate_plan import make_program
from ...plan.types.decision import SINGLE, Candidate
from ...plan.types.placement_overrides import Overrides
from ...plan.types.plan_types import HOST, Placement, commits
from ...plan.types.split_draft import SplitDraft
from ...schedule import Metrics
from ..memory.draft import PlanDraft, make_draft, memory_of
from ..memory.fit import AUTO, check_host, fit, most_copies, wanted_copies
from ..memory.streaming_choice import other_streams, spill_reasons
from ..partition.splits import split_graph
from ..placement.candidate_devices import NONE, Caps, PlacementHints
from ..placement.place import place
from .candidates import Candidates, Strategy

CLOSE = 1.01
"""A stream takes the fewest copies whose period is at most so many times the least."""


FEW_COPIES = 16
"""So many copies at most are all tried."""

Fitted = tuple[PlanDraft, list[str]]
"""A draft within the memory of every device, and for each that was too small why."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """A candidate with what it came from. fitted: its draft, where memory was laid out."""

    strategy: Strategy
    candidate: Candidate
    fitted: Fitted | None = None


def fitted(support: OpSupport, overrides: Overrides, hints: PlacementHints | None) -> Fitted:
    """Return a draft within the memory of every device, and for each that was too small why."""

    memory_nodes = support.topology.memory_nodes

    def lay_out(caps: Caps, scarce: bool = False) -> PlanDraft:
        made = place(support, overrides, caps, hints)
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
class Evaluator:
    """Weighs candidates of one graph. copies: as `plan_graph` takes them. exact: whether memory is
    laid out, too.
    """

    support: OpSupport
    overrides: Overrides
    copies: int | str
    exact: bool

    def evaluate(self, strategies: Iterable[Strategy]) -> list[Evaluated]:
        """Returns what some candidates take, once for each number of copies that they may have;
        those that fit.
        """
        out: list[Evaluated] = []
        for strategy in strategies:
            with suppress(OutOfMemory):
                out += self._exactly(strategy) if self.exact else [self._quickly(strategy)]
        return out

    def evaluate_singles(self, strategies: Candidates) -> list[Evaluated]:
        """Returns what single devices take, with others for the rest, and with the CPU for the rest
        as if there were no other device.

        Raises:
            OutOfMemory: none of them fits.
        """
        out: list[Evaluated] = []
        for strategy in strategies.singles():
            assert strategy.device is not None
            alone, found = strategies.alone(strategy.device), self.evaluate([strategy])
            roomy = [self._surely_fits(e) or bool(e.fitted and not e.fitted[1]) for e in found]
            out += self._settle(found, strategies)
            if alone.hints == strategy.hints:
                continue
            if any(roomy) and all(roomy) and strategies.takes_all(strategy.device):
                out += [replace(each, strategy=alone) for each in found]  # it comes to the same
            else:
                out += self._settle(self.evaluate([alone]), strategies)
        if not out:
            fitted(self.support, self.overrides, strategies.singles()[0].hints)
        return out

    def _settle(self, found: list[Evaluated], strategies: Candidates) -> list[Evaluated]:
        """Returns what candidates take where memory may be short, in a graph that is small enough
        to find that out for all of them: it may be less, as the CPU takes over.
        """
        if self.exact or not strategies.few or all(map(self._surely_fits, found)):
            return found
        out: list[Evaluated] = []
        for each in found:
            with suppress(OutOfMemory):
                out.append(self.fit(each))
        return out

    def _surely_fits(self, each: Evaluated) -> bool:
        """Whether its devices have room for all values at once, twice for those that cross."""
        topology = self.support.topology
        need_bytes = 2 * WORD_BYTES * sum(self.support.graph.words)
        used = (topology.index(name) for name in each.candidate.devices)
        return all(
            need_bytes <= topology.devices[d].memory_bytes for d in used if d != topology.cpu
        )

    def fit(self, each: Evaluated) -> Evaluated:
        """Return a candidate with its memory laid out, and with what it takes then.

        Raises:
            OutOfMemory: it does not fit.
        """
        found = fitted(self.support, self.overrides, each.strategy.hints)
        if not found[1]:
            return replace(each, fitted=found)
        return self._best_streamed(each.strategy, each.candidate.copies, found)

    def fit_in_order(self) -> Fitted:
        """Return the draft in which the order of the devices decides all but what is streamed.

        Raises:
            OutOfMemory: it does not fit.
        """
        strategy = Strategy("", PlacementHints(self.support.topology.order, {}, ""))
        found = fitted(self.support, self.overrides, strategy.hints)
        if not found[1]:
            return found
        return self._best_streamed(strategy, 1, found).fitted or found

    def _best_streamed(self, strategy: Strategy, copies: int, found: Fitted) -> Evaluated:
        """Returns what a way takes whose memory is short, with the weights streamed that make a run
        the shortest.
        """
        out = [self._fitted(strategy, copies, found)]
        for other, draft in self._streamed_otherwise(out[0]):
            out.append(self._fitted(other, copies, draft))
        return min(out, key=lambda evaluated: evaluated.candidate.metrics.latency_s)

    def _fitted(self, strategy: Strategy, copies: int, found: Fitted) -> Evaluated:
        """Returns what a way takes with its memory laid out."""
        split_drafts = found[0].split_drafts
        program = self._program(split_drafts, found[0].final_waits)
        metrics = evaluate_metrics(program, self.support.topology, copies)
        return Evaluated(
            strategy, self._candidate(strategy, self._used(split_drafts), copies, metrics), found
        )

    def _streamed_otherwise(self, each: Evaluated) -> Iterator[tuple[Strategy, Fitted]]:
        """Yield drafts in which other weights are streamed, where memory is short."""
        assert each.fitted is not None
        draft, spills = each.fitted
        latency_s, hints = each.candidate.metrics.latency_s, each.strategy.hints
        for other in other_streams(self.support, hints, draft, latency_s) if spills else ():
            with suppress(OutOfMemory):
                strategy = replace(each.strategy, hints=other)
                made, why = fitted(self.support, self.overrides, other)
                yield strategy, (made, why or spill_reasons(spills, other.spread))

    def devices_of(self, strategy: Strategy) -> dict[int, int]:
        """Return the device of each node, as if there were memory for all."""
        return {n: p.device for n, p in enumerate(self._place(strategy))}

    def _place(self, strategy: Strategy) -> tuple[Placement, ...]:
        count = len(self.support.topology.devices)
        caps = Caps([None] * count, [range(0)] * count)
        return place(self.support, self.overrides, caps, strategy.hints)[0]

    def _quickly(self, strategy: Strategy) -> Evaluated:
        support = self.support
        split_drafts, final_waits = split_graph(support, self._place(strategy))
        program = self._program(split_drafts, final_waits)
        used = self._used(split_drafts)
        copies = wanted_copies(support.graph, self.copies, len(used))
        metrics = evaluate_metrics(program, support.topology, copies)
        return Evaluated(strategy, self._candidate(strategy, used, copies, metrics))

    def _exactly(self, strategy: Strategy) -> list[Evaluated]:
        out = self._by_copies(strategy, fitted(self.support, self.overrides, strategy.hints))
        for other, found in self._streamed_otherwise(out[0]):
            out += self._by_copies(other, found)
        return out

    def _by_copies(self, strategy: Strategy, found: Fitted) -> list[Evaluated]:
        """Returns what a draft takes with each number of copies that it may have."""
        draft, _ = found
        program = self._program(draft.split_drafts, draft.final_waits)
        used = self._used(draft.split_drafts)
        counts = [most_copies(draft, self.copies)[0]]
        if self.copies == AUTO:
            most = most_copies(draft, self.copies, len(used) + 1)[0]
            counts += [_enough(program, most), 1]
        out: list[Evaluated] = []
        for copies in dict.fromkeys(counts):
            peak_bytes = max(memory.peak_bytes for memory in memory_of(draft, copies))
            metrics = evaluate_metrics(program, self.support.topology, copies, peak_bytes)
            out.append(Evaluated(strategy, self._candidate(strategy, used, copies, metrics), found))
        return out

    def _program(self, split_drafts: Sequence[SplitDraft], final_waits: tuple[int, ...]) -> Program:
        support = self.support
        before = _two_before(split_drafts)
        parts = [
            SimSplit(
                o.device,
                o.nodes,
                o.live_in,
                o.live_out,
                o.waits,
                commits(support.graph, o.nodes, o.in_place),
                o.async_transfers,
                before[number],
                o.deferred_downloads,
                o.refills,
            )
            for number, o in enumerate(split_drafts)
        ]
        return make_program(
            support.graph, support.topology, parts, final_waits, support.node_seconds
        )

    def _candidate(
        self, strategy: Strategy, used: tuple[str, ...], copies: int, metrics: Metrics
    ) -> Candidate:
        """Return a way as weighed, by its name or by that of the only device that has work in it
        by choice.
        """
        alone = strategy.device is not None and len(used) == 1 and not self.overrides
        return Candidate(f"{SINGLE}{used[0]}" if alone else strategy.name, used, copies, metrics)

    def _used(self, split_drafts: Sequence[SplitDraft]) -> tuple[str, ...]:
        devices = sorted({split_draft.device for split_draft in split_drafts})
        return tuple(self.support.topology.devices[d].name for d in devices)


def _two_before(split_drafts: Sequence[SplitDraft]) -> list[int]:
    """Return for each split the last but one before it on its device, or HOST: by then the memory
    of its copies in is free, as this lives from the start of the split before.
    """
    seen: dict[int, tuple[int, int]] = {}
    out: list[int] = []
    for number, split_draft in enumerate(split_drafts):
        last, before = seen.get(split_draft.device, (HOST, HOST))
        out.append(before)
        seen[split_draft.device] = number, last
    return out


def _enough(program: Program, most: int) -> int:
    """Return how many copies give a stream about its least period. Of many copies not all numbers
    are tried: more of them are taken not to make it longer.
    """
    if most <= FEW_COPIES:
        periods = [period(program, copies) for copies in range(1, most + 1)]
        close = CLOSE * min(periods)
        return 1 + next(at for at, each in enumerate(periods) if each <= close)
    close = CLOSE * period(program, most)
    counts = range(1, most + 1)
    return counts[bisect_left(counts, True, key=lambda copies: period(program, copies) <= close)]
