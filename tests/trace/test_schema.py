"""Schemas: the quick check and the one that tells what is wrong say the same."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from drawn_plans import draw_case
from mutated_json import mutate
from selection import draws

from vksched.common.schema import LARGEST, Either, Row, Table, Wrong, _tell, check, holds
from vksched.plan.serialize.plan_codec import carried_document
from vksched.trace.format import CARRIED


def is_told(data: object, schema: object) -> bool:
    try:
        _tell(data, schema, "it")
    except Wrong:
        return True
    return False


@pytest.mark.parametrize("seed", draws(4, 40))
def test_mutants_of_plans_are_told_as_they_are_found(seed: int) -> None:
    plan = draw_case(seed, 8).plan("priority")
    document = json.loads(json.dumps(carried_document(plan)))
    assert holds(document, CARRIED) and not is_told(document, CARRIED)
    rng, wrong = random.Random(seed), 0
    for _ in range(100):
        how, made = mutate(rng, document, frozenset(("topology",)))
        assert holds(made, CARRIED) is not is_told(made, CARRIED), how
        wrong += not holds(made, CARRIED)
    assert 20 < wrong < 100


SINGLE: list[tuple[Any, object, bool]] = [
    (1, int, True),
    (True, int, False),
    (1.0, int, False),
    (LARGEST + 1, int, False),
    (1, float, True),
    (float("nan"), float, False),
    (True, bool, True),
    (1, bool, False),
    (None, None, True),
    (0, None, False),
    ("x", str, True),
    ([], [int], True),
    ([[1], [2, "x"]], [[int]], False),
    ([[1, "x"], [2, "y"]], [Row((int, str))], True),
    ([[1, "x"], [2]], [Row((int, str))], False),
    ([[1, "x"], {}], [Row((int, str))], False),
    ([], Row(()), True),
    ({"a": 1, "b": "x"}, Table(int), False),
    ({}, Table(int), True),
    ({"a": 1}, {"a": int, "b?": str}, True),
    ({"a": 1, "b": 2}, {"a": int, "b?": str}, False),
    ([{"a": 1}, {}], [{"a": int}], False),
    ([1, "x", None], [Either((int, str, None))], True),
    ([1, 2.5], [Either((int, str))], False),
]


@pytest.mark.parametrize(("data", "schema", "expected"), SINGLE)
def test_each_kind_of_schema(data: Any, schema: object, expected: bool) -> None:
    assert holds(data, schema) is expected is not is_told(data, schema)
    if not expected:
        with pytest.raises(Wrong, match="expected"):
            check(data, schema, "it")
