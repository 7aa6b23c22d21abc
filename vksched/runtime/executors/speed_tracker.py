"""Pace: how fast devices are now, as each run's own timestamps show.

Problem: a card gets hot and slows down, another program takes its turn, or a call in a model takes
longer than it did when it was measured alone. Plans should know. Method: a split that should take
p = sum over its ops of first seconds, and took m, says log(m / p). The median of its last few such
values counts, so that one run that was held up changes nothing. The device's pace is a moving mean
of these. The rest, after the device's pace, moves the paces of the ops, each by its share in the
split. They forget slowly, so that a factor that all ops have in common becomes the device's.

    log(m / p)   0.0  0.1  0.0  2.0  0.1  | 1.4  1.4  1.4  1.4  1.4    the card slows down by 4
    pace         1    1    1    1    1.01 | 1    1.4  1.9  2.4  2.8    a few runs later it is known

On a device without measured costs nobody knows how long launches take: p may be too small by up to
ten rough launches for each node, or a submission where no launch is given. The least time that a
split ever took shows it. Within that bound it replaces p, so a split of small ops says how the
device changes, though not how long launches are:

    without launches 2.5 ms, with a submission for each of 32 nodes 4.1 ms
    m            3.1  3.0  3.1  3.0 | 12.0  12.1 ms
    p            3.1  3.0  3.0  3.0 |  3.0   3.0 ms      log(m / p) is 1.4: slower by 4

Software devices and the CPU share the cores of a computer. Where their costs were measured, one
that is slower than these is slowed by other programs, and so is one that no run uses meanwhile.

A device of another computer is as slow as that computer at least, see host_pace.py.

A plan's first run pays for what is put off until then. So a plan is looked at from its second run
on: at the third the lesser time of both counts, from the fourth on the median. What was never
measured is a guess: there the lesser of the first and the second run counts already. After some
runs a plan is looked at every few milliseconds at most. A device that no run
uses any more shows nothing. Its pace goes back to the best one that it ever showed, as cards cool
down, so that a plan tries it again. Complexity: O(distinct ops of a split). Examples:
tests/runtime/test_speed_tracker.py.
"""

from __future__ import annotations

import math
import statistics
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...plan.costs.node_cost import submission_seconds
from ...plan.simulation.predict import SplitPrediction, predict_split, streams
from ...plan.types.plan_types import PlanValue
from ...topology.device_spec import DeviceSpec
from ...topology.host_names import host_of
from ...topology.perf_model import ANY
from ...trace import Clock
from ..run_stats import RunStats, SplitStats
from .host_speed import HostSpeeds

EVERY_S = 0.01
"""Between two runs of a plan that are looked at."""
LAST = 3
"""Times of a split whose median counts; of two the lesser, as others make times longer only."""
EARLY = 16
"""Runs of a plan that are looked at one by one."""
SHORT_S = EVERY_S / 32
"""Of a shorter run the one after it is looked at: the first one after a while is likely to begin
where another program took its turn, with cold caches.
"""
LATE = 64
"""Looks at a device whose median tells how long it usually takes."""
GAIN, OP_GAIN = 0.3, 0.05
"""Of the way to what was seen, for a device and for its ops."""
FORGOTTEN = 0.01
"""Of the paces of ops, each time."""
MOST = math.log(64.0)
"""A pace is at most so far from 1, up or down, as a logarithm."""
STEP = math.log(1.1)
"""SpeedTracker are told in steps of a tenth, so that plans do not follow noise."""
HALF_S = 120.0
"""After so long without a run, half of what a device is slower than at its best is forgotten."""
STALE_S = 1.0
"""A device shows the pace of its cores where those beside it were not seen for so long."""
MIN_SHARE = 0.1
"""Of a split's time, that its nodes take."""
ROUGH = 10.0
"""To this factor a launch is known that nobody has measured."""
WORK = 5.0
"""A split says something of its nodes if these take as many times longer than its submission and
copies.
"""


@dataclass(slots=True)
class _Device:
    """What runs showed of one device, as logarithms. ops: beside the device's own pace. best: the
    lowest pace that several runs in a row had. seen_s: when the last of them ended. late: the last
    values of its own pace.
    """

    pace: float = 0.0
    best: float = math.inf
    seen_s: float = 0.0
    ops: dict[str, float] = field(default_factory=dict)
    late: deque[float] = field(default_factory=lambda: deque(maxlen=LATE))

    def at(self, now_s: float) -> float:
        """Return the pace at a time: it goes back to the best one without runs."""
        idle_s, slower = max(0.0, now_s - self.seen_s), max(0.0, self.pace - self.best)
        return self.pace - slower * (1 - float(0.5 ** (idle_s / HALF_S)))


_NEVER_SEEN = _Device(best=0.0)


@dataclass(slots=True)
class _Split:
    """The times of one split.

    last: logarithms of how many times longer it took than its nodes are expected to take.
    launches: the same of its nodes with their launches, on a device that works as at first; the
    most that these can be, until runs show less. with_first: whether `last` begins with the first
    run of its plan.
    """

    expected: SplitPrediction
    launches: float = 0.0
    with_first: bool = False
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))

    def see(self, taken_s: float) -> float | None:
        """Return the logarithm of how many times longer the last runs took than at first; None
        until there are enough of them to tell one that was held up. taken_s: by one more run.
        """
        fixed_s, first_s = self.expected.fixed_s, sum(self.expected.first_s.values())
        taken_s = max(taken_s - fixed_s, MIN_SHARE * taken_s)
        if taken_s <= 0 or first_s <= 0:
            return None
        self.last.append(math.log(taken_s / first_s))
        if len(self.last) == LAST and self.with_first:
            self.last.popleft()
            self.with_first = False
        if len(self.last) < 2:
            return None
        took = statistics.median_low(self.last)
        self.launches = max(0.0, min(self.launches, took))
        return took - self.launches


@dataclass(slots=True)
class _Plan:
    """The splits of a plan that tell something, and when they may be looked at again. first: its
    first run, once that has ended.
    """

    splits: tuple[_Split | None, ...]
    first: RunStats | None = None
    next_s: float = -math.inf
    looks: int = 0
    due: bool = False


class SpeedTracker:
    """The paces of a scheduler's devices. May be used from any number of threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}
        self._plans: weakref.WeakKeyDictionary[PlanValue, _Plan] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._hosts = HostSpeeds()
        self._on_cores: dict[str, str] = {}
        """The hosts of devices that compute on the cores there and whose costs were measured."""
        self._newest = 0, -math.inf
        """The id of the plan that was looked at last, and until when it is not: most runs end here,
        without the lock. Another plan that gets this id later is not looked at until then either.
        """

    def correct(self, spec: DeviceSpec) -> DeviceSpec:
        """Return a device with the paces that its runs showed; as it is where they are as
        expected.
        """
        if spec.on_cores and spec.costs.calls:
            with self._lock:
                self._on_cores[spec.name] = host_of(spec.name)
        paces = self.of(spec.name)
        return replace(spec, costs=spec.costs.at_pace(paces)) if paces else spec

    def of(self, name: str) -> Mapping[str, float]:
        """Return the paces of a device by op, in steps of a tenth, under ANY for all other ops;
        none where all are 1.
        """
        now_s = self._clock.now()
        host = self._hosts.of(name, now_s)
        with self._lock:
            known = self._devices.get(name, _NEVER_SEEN)
            pace, least = known.at(now_s), max(host, self._of_cores(name, known, now_s))
            each = {ANY: pace} | {op: pace + beside for op, beside in known.ops.items()}
        if least:  # the device's own pace may have a part of that already
            each = {op: max(pace, least) for op, pace in each.items()}
        steps = {op: round(pace / STEP) for op, pace in each.items()}
        if not any(steps.values()):
            return {}
        return {op: math.exp(STEP * number) for op, number in steps.items()}

    def _of_cores(self, name: str, known: _Device, now_s: float) -> float:
        """Return by how much other programs slow the cores on which a device computes, as a
        logarithm, where another device that computes there was seen since.
        """
        host = self._on_cores.get(name)
        beside = [n for n, at in self._on_cores.items() if at == host and n in self._devices]
        newest = max((self._devices[n] for n in beside), key=lambda d: d.seen_s, default=known)
        if host is None or newest.seen_s <= known.seen_s + STALE_S:
            return 0.0
        return max(0.0, newest.at(now_s))

    def usual(self, name: str) -> tuple[float, Mapping[str, float]] | None:
        """Return how many times longer a device usually took in its late runs, as a logarithm, and
        what each op took besides; None where no run has told.
        """
        with self._lock:
            known = self._devices.get(name)
            return None if known is None else (statistics.median(known.late), dict(known.ops))

    def expect(self, plan: PlanValue) -> None:
        """Predict the times of a plan's splits before it runs, so that no run has to."""
        splits = tuple(_expected(plan))
        with self._lock:
            self._plans.setdefault(plan, _Plan(splits))

    def see(self, plan: PlanValue, stats: RunStats) -> bool:
        """Take in what a run measured; returns whether it is the first one that tells of its
        plan.
        """
        self._hosts.see(plan, stats)
        # by their start, as a run that is held up is more likely to be under way when it is time
        newest, next_s = self._newest
        if newest == id(plan) and stats.start_s < next_s:
            return False
        now_s = self._clock.now()
        with self._lock:
            known = self._plans.get(plan)
            if known is None:
                known = self._plans[plan] = _Plan(tuple(_expected(plan)))
            if known.first is None:
                known.first = stats
                return False
            if stats.start_s < known.next_s:
                return False
            known.due = known.looks >= EARLY and not known.due and stats.seconds < SHORT_S
            if known.due:
                return False
            known.looks += 1
            if known.looks == 1:
                _add_first(plan, known, known.first)
            if known.looks >= EARLY:
                known.next_s = now_s + EVERY_S
                self._newest = id(plan), known.next_s
            for measured in stats.splits:
                split = known.splits[measured.split]
                if split is not None and _tells(plan, measured):
                    self._take_in(split, measured.device_s, now_s)
            return known.looks == 1

    def _take_in(self, split: _Split, taken_s: float, now_s: float) -> None:
        took = split.see(taken_s)
        if took is None:
            return
        expected = split.expected
        first_s = sum(expected.first_s.values())
        device = self._devices.setdefault(expected.device, _Device())
        ops = device.ops
        each = {op: s * math.exp(ops.get(op, 0.0)) for op, s in expected.first_s.items()}
        thought_s = sum(each.values())
        seen = took - math.log(thought_s / first_s)
        gain = GAIN if device.late else 1.0
        device.pace = _within(device.pace + gain * (seen - device.pace))
        device.seen_s = now_s
        device.late.append(_within(seen))
        device.best = min(device.best, _within(seen))
        left = seen - device.pace
        shares = {op: seconds / thought_s for op, seconds in each.items()}
        whole = sum(share * share for share in shares.values())
        for op, share in shares.items():
            beside = (1 - FORGOTTEN) * ops.get(op, 0.0)
            ops[op] = _within(beside + OP_GAIN * left * share / whole)


def _within(pace: float) -> float:
    return max(-MOST, min(MOST, pace))


def _add_first(plan: PlanValue, known: _Plan, first: RunStats) -> None:
    """Take in the first run of a plan, where a split's costs are a guess."""
    for measured in first.splits:
        split = known.splits[measured.split]
        if split is not None and not split.expected.beside_known and _tells(plan, measured):
            split.see(measured.device_s)
            split.with_first = bool(split.last)


def _expected(plan: PlanValue) -> list[_Split | None]:
    """Returns what is expected of the splits that say something of their ops."""
    out: list[_Split | None] = []
    for split in plan.splits:
        spec = plan.topology.devices[split.device]
        expected = predict_split(plan, split)
        first_s = sum(expected.first_s.values())
        if not first_s or first_s < WORK * expected.fixed_s or streams(plan, split):
            out.append(None)
            continue
        # measured costs have the launches in them
        launch_s = ROUGH * spec.launch_s or submission_seconds(spec)
        launches_s = 0.0 if spec.costs.calls else launch_s * len(split.nodes)
        out.append(_Split(expected, math.log1p(launches_s / first_s)))
    return out


def _tells(plan: PlanValue, measured: SplitStats) -> bool:
    """Whether a time is the device's own: what the host saw has waiting in it."""
    kind = plan.topology.devices[plan.splits[measured.split].device].kind
    return kind == "cpu" or measured.longest_s is not None
