"""SpeedTracker: current speeds of devices, measured by the timestamps of runs.

Problem: a card gets hot and slows down, another program uses the device, or a call takes longer in
a model than measured in isolation. Plans should use current speeds. Method: a split with expected
time p (the sum of its ops' initial seconds) and measured time m gives the sample log(m / p). The
median of the last few samples is used, so that one delayed run changes nothing. The device's pace
is a moving mean of these. The residual, after the device's pace, updates the paces of the ops, each
by its share in the split. These decay slowly, so that a factor that all ops have in common becomes
the device's.

    log(m / p)   0.0  0.1  0.0  2.0  0.1  | 1.4  1.4  1.4  1.4  1.4    the card slows down by 4
    pace         1    1    1    1    1.01 | 1    1.4  1.9  2.4  2.8    known a few runs later

On a device without measured costs the launch time is unknown: p may be too small by up to ten rough
launches for each node, or by a submission if the spec has no launch time. The shortest time of a
split replaces p within that bound. Then a split of small ops shows how the device changes, although
not its launch time:

    without launches 2.5 ms, with a submission for each of 32 nodes 4.1 ms
    m            3.1  3.0  3.1  3.0 | 12.0  12.1 ms
    p            3.1  3.0  3.0  3.0 |  3.0   3.0 ms      log(m / p) is 1.4: slower by 4

Software devices and the CPU share the cores of a host. If their costs were measured, a device that
is slower than these is slowed down by other programs. A device on these cores that no run uses
meanwhile is assumed to be slowed down equally.

A device of another host is at least as slow as that host, see host_speed.py.

A plan's first run pays for lazy work of drivers. Therefore samples begin with the second run: at
the third the smaller time of both counts, from the fourth on the median. If costs are guesses, the
smaller time of the first and second run counts already. After some runs a plan is sampled every few
milliseconds at most. The pace of a device that no run uses returns to its best one, because cards
cool down, so that a plan tries it again. Complexity: O(distinct ops of a split). Examples:
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
"""Minimum interval between two sampled runs of a plan."""
LAST = 3
"""Number of times of a split for the median. Of two times the smaller one counts, because other
programs only make times longer.
"""
EARLY = 16
"""Number of runs of a plan that are all sampled."""
SHORT_S = EVERY_S / 32
"""If a run is shorter, the run after it is sampled: the first run after a pause is likely to follow
work of another program, with cold caches.
"""
LATE = 64
"""Number of samples of a device for the median of its usual pace."""
GAIN, OP_GAIN = 0.3, 0.05
"""Gains of the moving means, for a device and for its ops."""
DECAY = 0.01
"""Decay of the ops' paces per sample."""
MOST = math.log(64.0)
"""Maximum absolute pace, as a logarithm."""
STEP = math.log(1.1)
"""Paces are reported in steps of a tenth, so that plans do not follow noise."""
HALF_S = 120.0
"""Half of the difference from a device's best pace is forgotten after this time without runs."""
STALE_S = 1.0
"""A device reports the pace of its cores if other devices on these cores were sampled this much
later.
"""
MIN_SHARE = 0.1
"""Minimum share of the nodes in a split's time."""
LAUNCH_UNCERTAINTY = 10.0
"""Uncertainty factor of a launch time that was not measured."""
WORK = 5.0
"""A split is sampled if its nodes take this many times longer than its submission and copies."""


@dataclass(slots=True)
class _Device:
    """The measured paces of one device, as logarithms. ops: relative to the device's pace. best:
    the lowest pace of several runs in a row. seen_s: the end of the last run. late: the last
    samples of the device's pace.
    """

    pace: float = 0.0
    best: float = math.inf
    seen_s: float = 0.0
    ops: dict[str, float] = field(default_factory=dict)
    late: deque[float] = field(default_factory=lambda: deque(maxlen=LATE))

    def at(self, now_s: float) -> float:
        """Return the pace at `now_s`: without runs it returns to the best one."""
        idle_s, slower = max(0.0, now_s - self.seen_s), max(0.0, self.pace - self.best)
        return self.pace - slower * (1 - float(0.5 ** (idle_s / HALF_S)))


_NEVER_SEEN = _Device(best=0.0)


@dataclass(slots=True)
class _Split:
    """The times of one split.

    last: logarithms of measured over expected node time. launches: the expected time of its nodes
    with their launches, on an unchanged device; an upper bound until runs show less. with_first:
    True if `last` begins with the first run of its plan.
    """

    expected: SplitPrediction
    launches: float = 0.0
    with_first: bool = False
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))

    def see(self, taken_s: float) -> float | None:
        """Return the logarithm of recent over initial time; None until there are enough runs to
        exclude an outlier.

        Parameters
        ----------
        taken_s
            The time of one more run.
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
    """The sampled splits of a plan, and the next sampling time. first: the statistics of its first
    run.
    """

    splits: tuple[_Split | None, ...]
    first: RunStats | None = None
    next_s: float = -math.inf
    looks: int = 0
    due: bool = False


class SpeedTracker:
    """The paces of a scheduler's devices. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}
        self._plans: weakref.WeakKeyDictionary[PlanValue, _Plan] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._hosts = HostSpeeds()
        self._on_cores: dict[str, str] = {}
        """The hosts of devices that compute on host cores and have measured costs."""
        self._newest = 0, -math.inf
        """The id of the plan that was sampled last, and until when it is not sampled again: most
        runs end at this check, without the lock. A later plan with this id is not sampled until
        then either.
        """

    def correct(self, spec: DeviceSpec) -> DeviceSpec:
        """Return a device spec with the paces of its runs; unchanged if they are as expected."""
        if spec.on_cores and spec.costs.calls:
            with self._lock:
                self._on_cores[spec.name] = host_of(spec.name)
        paces = self.of(spec.name)
        return replace(spec, costs=spec.costs.at_pace(paces)) if paces else spec

    def of(self, name: str) -> Mapping[str, float]:
        """Return the paces of a device by op, in steps of a tenth, with ANY for all other ops;
        empty if all are 1.
        """
        now_s = self._clock.now()
        host = self._hosts.of(name, now_s)
        with self._lock:
            known = self._devices.get(name, _NEVER_SEEN)
            pace, min_pace = known.at(now_s), max(host, self._core_pace(name, known, now_s))
            each = {ANY: pace} | {op: pace + op_pace for op, op_pace in known.ops.items()}
        if min_pace:  # the device's own pace may include a part of it
            each = {op: max(pace, min_pace) for op, pace in each.items()}
        steps = {op: round(pace / STEP) for op, pace in each.items()}
        if not any(steps.values()):
            return {}
        return {op: math.exp(STEP * number) for op, number in steps.items()}

    def _core_pace(self, name: str, known: _Device, now_s: float) -> float:
        """Return the slowdown of a device's cores by other programs, as a logarithm, if another
        device on these cores was sampled later than this one.
        """
        host = self._on_cores.get(name)
        same_cores = [n for n, at in self._on_cores.items() if at == host and n in self._devices]
        newest = max((self._devices[n] for n in same_cores), key=lambda d: d.seen_s, default=known)
        if host is None or newest.seen_s <= known.seen_s + STALE_S:
            return 0.0
        return max(0.0, newest.at(now_s))

    def usual(self, name: str) -> tuple[float, Mapping[str, float]] | None:
        """Return the usual pace of a device in its late runs, as a logarithm, and the paces of ops
        relative to it; None without samples.
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
        """Record the times of a run; return True if it is the first sampled one of its plan."""
        self._hosts.see(plan, stats)
        # compare start times: a delayed run is more likely to be in flight at the sampling time
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
                if split is not None and _is_device_time(plan, measured):
                    self._add_sample(split, measured.device_s, now_s)
            return known.looks == 1

    def _add_sample(self, split: _Split, taken_s: float, now_s: float) -> None:
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
        device.pace = _clamp(device.pace + gain * (seen - device.pace))
        device.seen_s = now_s
        device.late.append(_clamp(seen))
        device.best = min(device.best, _clamp(seen))
        left = seen - device.pace
        shares = {op: seconds / thought_s for op, seconds in each.items()}
        whole = sum(share * share for share in shares.values())
        for op, share in shares.items():
            op_pace = (1 - DECAY) * ops.get(op, 0.0)
            ops[op] = _clamp(op_pace + OP_GAIN * left * share / whole)


def _clamp(pace: float) -> float:
    return max(-MOST, min(MOST, pace))


def _add_first(plan: PlanValue, known: _Plan, first: RunStats) -> None:
    """Add the first run of a plan, if the costs of a split are guesses."""
    for measured in first.splits:
        split = known.splits[measured.split]
        if (
            split is not None
            and not split.expected.is_fixed_measured
            and _is_device_time(plan, measured)
        ):
            split.see(measured.device_s)
            split.with_first = bool(split.last)


def _expected(plan: PlanValue) -> list[_Split | None]:
    """Return the expected times of the splits that can be sampled."""
    out: list[_Split | None] = []
    for split in plan.splits:
        spec = plan.topology.devices[split.device]
        expected = predict_split(plan, split)
        first_s = sum(expected.first_s.values())
        if not first_s or first_s < WORK * expected.fixed_s or streams(plan, split):
            out.append(None)
            continue
        # measured costs include launches
        launch_s = LAUNCH_UNCERTAINTY * spec.launch_s or submission_seconds(spec)
        launches_s = 0.0 if spec.costs.calls else launch_s * len(split.nodes)
        out.append(_Split(expected, math.log1p(launches_s / first_s)))
    return out


def _is_device_time(plan: PlanValue, measured: SplitStats) -> bool:
    """Return True if a time is device time; times that the host measured include waiting."""
    kind = plan.topology.devices[plan.splits[measured.split].device].kind
    return kind == "cpu" or measured.longest_s is not None
