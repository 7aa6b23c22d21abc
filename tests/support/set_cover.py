"""A few items that together have every feature of all: greedy weighted set cover.

    items      a {1 2}   b {2 3}   c {1 2 3}   d {4}
    chosen                           c            d

Each step takes the item with the most missing features for its cost (Chvatal, 1979: at most
ln(n) + 1 times the best cost). Examples: tests/project/test_selection.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet


def set_cover(
    features: Sequence[AbstractSet[Hashable]],
    cost_of: Callable[[int], float] = lambda item: 1.0,
    take: Callable[[int], None] = lambda item: None,
) -> list[int]:
    """Return items that together have every feature of all, as their numbers in order.

    Parameters
    ----------
    features
        Of each item. Items are their positions here; ties go to the first.
    cost_of
        Cost of an item, positive. It may change while others are taken.
    take
        Called with each item that is taken, at once.
    """
    left = {i: set(own) for i, own in enumerate(features) if own}
    owners: dict[Hashable, list[int]] = {}
    for i, own in left.items():
        for feature in own:
            owners.setdefault(feature, []).append(i)
    chosen: list[int] = []
    while left:
        best = max(left, key=lambda i: (len(left[i]) / cost_of(i), -i))
        chosen.append(best)
        take(best)
        for feature in left.pop(best):
            for i in owners[feature]:
                left.get(i, set()).discard(feature)
        left = {i: own for i, own in left.items() if own}
    return sorted(chosen)
