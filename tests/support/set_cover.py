"""A few items that together have every feature of all: greedy weighted set cover.

    items      a {1 2}   b {2 3}   c {1 2 3}   d {4}
    chosen                           c            d

Each step takes the item with the most missing features for its cost (Chvatal, 1979: at most
ln(n) + 1 times the best cost). Examples: tests/project/test_selection.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

Item = TypeVar("Item")


def set_cover(
    items: Sequence[Item],
    features_of: Callable[[Item], AbstractSet[Hashable]],
    cost_of: Callable[[Item], float] = lambda item: 1.0,
    take: Callable[[Item], None] = lambda item: None,
) -> list[Item]:
    """Return items that together have every feature of all, in the order of `items`.

    Parameters
    ----------
    items
        The choice; ties go to the first.
    features_of
        Called once for each item.
    cost_of
        Cost of an item, positive. It may change while others are taken.
    take
        Called with each item that is taken, at once.
    """
    left = {i: set(features_of(item)) for i, item in enumerate(items)}
    owners: dict[Hashable, list[int]] = {}
    for i, own in left.items():
        for feature in own:
            owners.setdefault(feature, []).append(i)
    chosen: list[int] = []
    while left:
        best = max(left, key=lambda i: (len(left[i]) / cost_of(items[i]), -i))
        chosen.append(best)
        take(items[best])
        for feature in left.pop(best):
            for i in owners[feature]:
                left.get(i, set()).discard(feature)
        left = {i: own for i, own in left.items() if own}
    return [items[i] for i in sorted(chosen)]
