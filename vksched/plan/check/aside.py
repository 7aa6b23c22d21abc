"""Aside: does a plan keep its promises about copies that run beside work?

    copies in of split 3     may run beside the work of 1 and 2, where they wait for that of 0 only
    copies out of split 0    may run until the host has waited for it

Walks the splits of one device; what may run beside each other must share no words of which one is
written. Complexity: O(splits that may run beside each other * log(values)). Examples:
tests/plan/test_aside.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...errors import PlanError
from ..value import COMING, HOST, LEAVING, WORK, PlanValue, Span, Split
from ..words import WordSet

Used = Mapping[int, tuple[WordSet, WordSet]]
"""By split the words of its device that its work reads, and that it writes."""


def check_aside(
    plan: PlanValue, splits: Sequence[Split], spans: Mapping[int, Span], used: Used
) -> None:
    """Checks one device. splits: its own. spans: where values are.

    Raises:
        PlanError: the first promise that is broken.
    """
    spec = plan.machine.devices[splits[0].device]
    has_queue = spec.limits.copy_queue and spec.kind != "cpu"
    handed_over: set[int] = set()
    known = HOST  # the last split whose work is complete for all that the copy queue gets
    for at, split in enumerate(splits):
        if not (split.aside or split.orders or split.hands_over):
            continue
        if not has_queue:
            raise _fail(f"split {split.id} has copies beside its work, and {spec.name} no queue")
        _check_stages(plan, split)
        for number in split.hands_over:
            left = {s.id for s in splits[:at] if LEAVING in s.aside} - handed_over
            if number not in left or _seen(plan, plan.splits[number]) <= split.id:
                raise _fail(f"split {split.id} hands over copies out of {number}, which has none")
            handed_over.add(number)
        if COMING in split.aside:
            known = max(known, _waited(plan, split), *(n for _, n in split.after(COMING)))
            _check_coming(splits[:at], split, known, used)
        for number in split.hands_over:
            known = max(known, *(n for _, n in plan.splits[number].after(LEAVING)), HOST)
        if LEAVING in split.aside:
            _check_leaving(plan, splits[at + 1 :], split, spans, used)


def _check_stages(plan: PlanValue, split: Split) -> None:
    """Checks that there are such stages, and that each waits for what the device has got by then:
    the work of a split of its own, or earlier, or for the copies in of its own.
    """
    if not set(split.aside) <= {COMING, LEAVING} or len(set(split.aside)) != len(split.aside):
        raise _fail(f"split {split.id} has {split.aside} beside its work")
    own = (WORK, COMING, split.id), (LEAVING, WORK, split.id)
    for order in split.orders:
        same = plan.splits[order.split] if 0 <= order.split <= split.id else None
        if same is None or same.device != split.device:
            raise _fail(f"split {split.id} waits for split {order.split}, not before it there")
        earlier = order.split < split.id and order[:2] == (COMING, WORK)
        if not (earlier or order in own) or not {*order[:2]} <= {WORK, *split.aside}:
            what = f"{order.after} of split {order.split}"
            raise _fail(f"{order.stage} of split {split.id} cannot wait for {what}")


def _waited(plan: PlanValue, split: Split) -> int:
    """Returns the last split of the same device for which the host has waited before a split."""
    waits = (waited for other in plan.splits[: split.id + 1] for waited in other.waits)
    return max((w for w in waits if plan.splits[w].device == split.device), default=HOST)


def _check_coming(before: Sequence[Split], split: Split, known: int, used: Used) -> None:
    if (COMING, split.id) not in split.after(WORK):
        raise _fail(f"split {split.id} does not wait for its copies in")
    targets = [copy.target for copy in split.copies_in]
    for other in before:
        if other.id > known and any(words.meets(*targets) for words in used[other.id]):
            raise _fail(
                f"copies in of split {split.id} write over memory of split {other.id}, which they "
                "do not wait for"
            )


def _check_leaving(
    plan: PlanValue,
    later: Sequence[Split],
    split: Split,
    spans: Mapping[int, Span],
    used: Used,
) -> None:
    if (WORK, split.id) not in split.after(LEAVING):
        raise _fail(f"copies out of split {split.id} do not wait for its work")
    end = _seen(plan, split)
    roots = plan.graph.roots
    sources = [spans.get(c.node, spans.get(roots[c.node])) for c in split.copies_out]
    for other in later:
        written = [c.target for c in other.copies_in] if COMING in other.aside else []
        taken = WordSet()
        taken.add(*written)
        for source in (s for s in sources if s is not None and other.id < end):
            if taken.meets(source) or used[other.id][1].meets(source):
                raise _fail(
                    f"split {other.id} writes over what split {split.id} copies out, before the "
                    "host has waited for that"
                )


def _seen(plan: PlanValue, split: Split) -> int:
    """Returns the first split before which the host has waited for one; how many there are, where
    that is the end of the run.
    """
    for other in plan.splits[split.id + 1 :]:
        for waited in other.waits:
            if plan.splits[waited].device == split.device and waited >= split.id:
                return other.id
    return len(plan.splits)


def _fail(message: str) -> PlanError:
    return PlanError(f"[plan] {message}")
