"""Evaluate: the metrics of a candidate from one simulation of its splits.

    hints -> placement -> splits ----------------------> program -> simulate -> latency, energy
                 |                                           '----> a stream -> period
                 '-> exact: memory, caps, copies that fit ----------------> peak bytes

For latency alone, memory is not allocated: placement knows which weights do not fit, which suffices
to compare times. For all other objectives each candidate is drafted in full, so that its bytes and
copies are those of the final plan. A candidate that does not fit is dropped. If the user has not
requested a number of copies, several numbers are evaluated: more copies shorten the period of a
stream, one needs the least memory.

Complexity: that of a placement and its splits, and of a draft if it is exact. Examples:
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
from ...plan.simulation.sim_types import Program
from ...plan.simulation.simulate_plan import make_program
from ...plan.types.decision import SINGLE, Candidate
from ...plan.types.placement_overrides import Overrides
from ...plan.types.plan_types import HOST, Placement
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
"""A stream uses the fewest copies whose period is within this factor of the shortest."""


MAX_COPIES_TRIED = 16
"""Maximum number of copies up to which all numbers are tried."""

Fitted = tuple[PlanDraft, list[str]]
"""A draft within the memory of every device, and a reason for each device that was too small."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluated:
    """A candidate with its strategy; `fitted` is its draft if memory was allocated."""

    strategy: Strategy
    candidate: Candidate
    fitted: Fitted | None = None


def fitted(support: OpSupport, overrides: Overrides, hints: PlacementHints | None) -> Fitted:
    """Return a draft within the memory of every device, and reasons for full devices."""

    memory_nodes = support.topology.memory_nodes

    def lay_out(caps: Caps, scarce: bool = False) -> PlanDraft:
        placed = place(support, overrides, caps, hints)
        draft = make_draft(support, *placed, scarce=scarce)
        if not all(map(draft.fits, memory_nodes)):
            draft = make_draft(support, *placed, tight=True, scarce=scarce)
        full = [peers for peers in memory_nodes if not draft.fits(peers)]
        if full and all(caps.first[peers[0]] in (0, NONE) for peers in full):  # no weight to evict
            draft = make_draft(support, *placed, tight=True, ahead=False, scarce=scarce)
        return draft

    draft, caps, spills = fit(support, lay_out)
    if not draft.fits((support.topology.cpu,)):
        draft = lay_out(caps, scarce=True)
    check_host(draft)
    return draft, spills


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Evaluates candidates of one graph.

    `copies` is as in `plan_graph`; `exact` is True if memory is allocated, too.
    """

    support: OpSupport
    overrides: Overrides
    copies: int | str
    exact: bool

    def evaluate(self, strategies: Iterable[Strategy]) -> list[Evaluated]:
        """Return the metrics of the candidates that fit, for each number of copies to consider."""
        out: list[Evaluated] = []
        for strategy in strategies:
            with suppress(OutOfMemory):
                out += self._exactly(strategy) if self.exact else [self._quickly(strategy)]
        return out

    def evaluate_singles(self, strategies: Candidates) -> list[Evaluated]:
        """Return the metrics of single devices, with other devices for unsupported nodes, and with
        the CPU for them.

        Raises
        ------
        OutOfMemory
            None of them fits.
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
                out += [replace(each, strategy=alone) for each in found]  # equal result
            else:
                out += self._settle(self.evaluate([alone]), strategies)
        if not out:
            fitted(self.support, self.overrides, strategies.singles()[0].hints)
        return out

    def _settle(self, found: list[Evaluated], strategies: Candidates) -> list[Evaluated]:
        """Return candidates evaluated with allocated memory if memory may be short and the graph is
        small enough. They may be faster than estimated, because the CPU takes over.
        """
        if self.exact or not strategies.few or all(map(self._surely_fits, found)):
            return found
        out: list[Evaluated] = []
        for each in found:
            with suppress(OutOfMemory):
                out.append(self.fit(each))
        return out

    def _surely_fits(self, each: Evaluated) -> bool:
        """Return True if the devices can hold all values at once, transferred ones twice."""
        topology = self.support.topology
        need_bytes = 2 * WORD_BYTES * sum(self.support.graph.words)
        used = (topology.index(name) for name in each.candidate.devices)
        return all(
            need_bytes <= topology.devices[d].memory_bytes for d in used if d != topology.cpu
        )

    def fit(self, each: Evaluated) -> Evaluated:
        """Return a candidate evaluated with its memory allocated.

        Raises
        ------
        OutOfMemory
            It does not fit.
        """
        found = fitted(self.support, self.overrides, each.strategy.hints)
        if not found[1]:
            return replace(each, fitted=found)
        return self._best_streamed(each.strategy, each.candidate.copies, found)

    def fit_in_order(self) -> Fitted:
        """Return the draft of devices in their order, with the best choice of streamed weights.

        Raises
        ------
        OutOfMemory
            It does not fit.
        """
        strategy = Strategy("", PlacementHints(self.support.topology.order, {}, ""))
        found = fitted(self.support, self.overrides, strategy.hints)
        if not found[1]:
            return found
        return self._best_streamed(strategy, 1, found).fitted or found

    def _best_streamed(self, strategy: Strategy, copies: int, found: Fitted) -> Evaluated:
        """Return the evaluated strategy with the fastest choice of streamed weights."""
        out = [self._fitted(strategy, copies, found)]
        for other, draft in self._streamed_otherwise(out[0]):
            out.append(self._fitted(other, copies, draft))
        return min(out, key=lambda evaluated: evaluated.candidate.metrics.latency_s)

    def _fitted(self, strategy: Strategy, copies: int, found: Fitted) -> Evaluated:
        """Return a strategy evaluated with its memory allocated."""
        split_drafts = found[0].split_drafts
        program = self._program(split_drafts, found[0].final_waits)
        metrics = evaluate_metrics(program, self.support.topology, copies)
        return Evaluated(
            strategy, self._candidate(strategy, self._used(split_drafts), copies, metrics), found
        )

    def _streamed_otherwise(self, each: Evaluated) -> Iterator[tuple[Strategy, Fitted]]:
        """Yield drafts with other choices of streamed weights if memory is short."""
        assert each.fitted is not None
        draft, spills = each.fitted
        latency_s, hints = each.candidate.metrics.latency_s, each.strategy.hints
        for other in other_streams(self.support, hints, draft, latency_s) if spills else ():
            with suppress(OutOfMemory):
                strategy = replace(each.strategy, hints=other)
                draft, why = fitted(self.support, self.overrides, other)
                yield strategy, (draft, why or spill_reasons(spills, other.spread))

    def devices_of(self, strategy: Strategy) -> dict[int, int]:
        """Return the device of each node if memory were unlimited."""
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
        """Return a draft evaluated for each number of copies to consider."""
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
        about = self.support.graph, self.support.topology
        after = _two_before(split_drafts)
        return make_program(*about, split_drafts, final_waits, self.support.node_seconds, after)

    def _candidate(
        self, strategy: Strategy, used: tuple[str, ...], copies: int, metrics: Metrics
    ) -> Candidate:
        """Return an evaluated strategy as a candidate, named by the only device that runs nodes by
        choice, if there is one.
        """
        alone = strategy.device is not None and len(used) == 1 and not self.overrides
        return Candidate(f"{SINGLE}{used[0]}" if alone else strategy.name, used, copies, metrics)

    def _used(self, split_drafts: Sequence[SplitDraft]) -> tuple[str, ...]:
        devices = sorted({split_draft.device for split_draft in split_drafts})
        return tuple(self.support.topology.devices[d].name for d in devices)


def _two_before(split_drafts: Sequence[SplitDraft]) -> list[int]:
    """For each split, return the split two positions earlier on its device, or HOST. Upload buffers
    live from the start of the previous split, so they are free once that earlier one has finished.
    """
    seen: dict[int, tuple[int, int]] = {}
    out: list[int] = []
    for number, split_draft in enumerate(split_drafts):
        last, before = seen.get(split_draft.device, (HOST, HOST))
        out.append(before)
        seen[split_draft.device] = number, last
    return out


def _enough(program: Program, most: int) -> int:
    """Return the number of copies whose period is close to the shortest. Large numbers are searched
    by bisection, on the assumption that more copies do not lengthen the period.
    """
    if most <= MAX_COPIES_TRIED:
        periods = [period(program, copies) for copies in range(1, most + 1)]
        close = CLOSE * min(periods)
        return 1 + next(at for at, each in enumerate(periods) if each <= close)
    close = CLOSE * period(program, most)
    counts = range(1, most + 1)
    return counts[bisect_left(counts, True, key=lambda copies: period(program, copies) <= close)]
