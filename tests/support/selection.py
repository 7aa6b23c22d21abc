"""Which tests `make test` runs, and which it leaves to `make test-all`.

VKSCHED_TESTS=quick   `make test` and plain pytest: each test at least once, cases by coverage
              rest    `make test-rest`: half of what `make test-all` adds to that
              all     `make test-all`: every test with every set of devices, every case, more draws

    item --> thorough? --------------------------------> rest
         --> one of several sets of devices? --> turn --> quick or rest
         --> goes through cases or draws ----------------> both, with others or more in rest

A test that takes one set of devices after the other runs on one of them: every combination of its
other parameters runs on one set in turn. A function without other parameters runs on all devices
together, or, every second function, on a set in turn. The turn starts at another set for each
function, and the tests of a file meet every set. Marks of slow functions: `one_set` runs on all
devices, and `each_value` runs with each value of each parameter once, and not every combination.
The rest has no further combinations of these, no tests of the mark `release`, one in three of the
other cases, and fewer draws than `make test-all`.
Examples: tests/project/test_selection.py.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Any, Protocol, TypeVar

import pytest
from set_cover import set_cover


class Case(Protocol):
    """A case that a test goes through: what tells it from the others."""

    @property
    def id(self) -> str: ...


C = TypeVar("C", bound=Case)


DEVICES = re.compile(r"(?<=[\[-])(cpu|all|win32|darwin|vulkan(:\d+)?( twice| as a card)?)(?=[\]-])")
"""How ids of parameters name devices, sets of them, and systems that Linux plays."""


class Tier(Enum):
    """Which tests run."""

    QUICK = "quick"
    REST = "rest"
    ALL = "all"


def selected_tier() -> Tier:
    """Return what the environment asks for.

    Raises
    ------
    pytest.UsageError
        VKSCHED_TESTS has another value.
    """
    word = os.environ.get("VKSCHED_TESTS", "") or Tier.QUICK.value
    try:
        return Tier(word)
    except ValueError:
        known = ", ".join(each.value for each in Tier)
        raise pytest.UsageError(f"expected VKSCHED_TESTS to be {known}; got {word!r}") from None


TIER = selected_tier()
THOROUGH = pytest.mark.thorough
RELEASE = pytest.mark.release


def quick_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the items that `make test` runs."""
    chosen: set[pytest.Item] = set()
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thorough"):
            continue
        if scales(item):
            chosen.add(item)
        else:
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, group in functions.items():
        if group[0].get_closest_marker("each_value"):
            chosen.update(_with_each_value(group))
        else:
            chosen.update(_quick_of_function(name, group))
    return chosen


def _with_each_value(items: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    """Return items that have each value of each parameter, values as evenly used as can be."""
    values = [_values_of(item) for item in items]
    used = Counter[Hashable]()
    cost = dict.fromkeys(range(len(items)), 1.0)

    def take(taken: int) -> None:
        used.update(values[taken])
        for i, own in enumerate(values):
            cost[i] = 1.0 + 1e-4 * sum(used[value] for value in own)

    return [items[i] for i in set_cover(values, cost.__getitem__, take)]


def _values_of(item: pytest.Item) -> set[Hashable]:
    """Return each parameter of an item with its value."""
    call = getattr(item, "callspec", None)
    return {(name, repr(value)) for name, value in call.params.items()} if call else {item.nodeid}


def _quick_of_function(name: str, items: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    by_others: dict[str, list[pytest.Item]] = {}
    for item in items:
        others = DEVICES.sub("*", item.nodeid.removeprefix(name), count=1)
        by_others.setdefault(others, []).append(item)
    start = zlib.crc32(name.encode())
    for number, sets in enumerate(by_others.values()):
        if len(sets) == 1:
            yield sets[0]
            continue
        turn = start + number
        if len(by_others) == 1 and (turn % 2 or sets[0].get_closest_marker("one_set")):
            yield sets[-1]  # all devices
        else:
            yield sets[turn // 2 % len(sets)]


def rest_items(items: Iterable[pytest.Item], quick: set[pytest.Item]) -> set[pytest.Item]:
    """Return the items of `make test-rest`: no quick ones but those that scale."""
    chosen: set[pytest.Item] = set()
    thorough: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("release"):
            continue
        if scales(item):
            chosen.add(item)
        elif item.get_closest_marker("each_value"):
            if item.get_closest_marker("thorough"):
                thorough.setdefault(item.nodeid.partition("[")[0], []).append(item)
        elif item not in quick:
            chosen.add(item)
    for group in thorough.values():
        chosen.update(_with_each_value(group))
    return chosen


def scales(item: pytest.Item) -> bool:
    """Return whether a test goes through cases or draws, others or more in `make test-all`."""
    by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return bool(by_hypothesis or item.get_closest_marker("scales"))


def examples(count: int) -> int:
    """Return how many cases hypothesis draws for a test: `make test` has a third of them."""
    return max(5, count // 3) if TIER is Tier.QUICK else count


def by_tier(quick: int, rest: int, every: int) -> int:
    """Return how many cases a test draws in `make test`, `make test-rest` and `make test-all`."""
    return {Tier.QUICK: quick, Tier.REST: rest, Tier.ALL: every}[TIER]


def draws(quick: int, every: int) -> list[Any]:
    """Return seeds as values of a parameter: `make test` draws `quick`, `make test-all` draws
    `every`, and `make test-rest` a third of the others.
    """
    more = range(quick, by_tier(quick, quick + -(-(every - quick) // 3), every))
    return [*range(quick), *(pytest.param(seed, marks=THOROUGH) for seed in more)]


def spread(values: Iterable[Any], quick: int, rest: int | None = None) -> list[Any]:
    """Return values of a parameter. `make test` runs `quick` of them, evenly spread, and
    `make test-rest` runs `rest`, by default all others.
    """
    values = list(values)
    chosen = _spread_numbers(len(values), quick)
    others = [number for number in range(len(values)) if number not in chosen]
    in_rest = {others[at] for at in _spread_numbers(len(others), rest or len(others))}
    return [
        value
        if number in chosen
        else pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=THOROUGH if number in in_rest else (THOROUGH, RELEASE),
        )
        for number, value in enumerate(values)
    ]


def _spread_numbers(count: int, wanted: int) -> set[int]:
    """Return so many of the numbers below `count`, evenly spread."""
    step = max(1.0, count / max(1, wanted))
    return {int(number * step) for number in range(min(wanted, count))}


def select_cases(cases: Sequence[C], choose: Callable[[], Iterable[int]], only: str) -> list[C]:
    """Return the cases that a test goes through.

    Parameters
    ----------
    cases
        All of them.
    choose
        Return the positions of those of `make test`; called if these matter.
    only
        The text that `--case` asks for: of all cases those whose ids contain it.
    """
    if only:
        return [case for case in cases if only in case.id]
    if TIER is Tier.ALL:
        return list(cases)
    chosen = set(choose())
    assert chosen or not cases, "make test has no case of these"
    if TIER is Tier.QUICK:
        return [case for i, case in enumerate(cases) if i in chosen]
    return [case for i, case in enumerate(cases) if i not in chosen][::3]
