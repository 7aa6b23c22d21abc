"""Types: data and the JSON of it are refused alike, and the error names the place and the value."""

from __future__ import annotations

import json
import random
from typing import Any, TypedDict

import pytest
from drawn_plans import draw_case
from mutated_json import mutate
from selection import draws

from vksched.common.schema import LARGEST, Number, SchemaError, Whole, check, parse, record
from vksched.distributed.wire.messages import decode
from vksched.plan.serialize.plan_codec import encode_plan
from vksched.trace.format import DevicePlan


class Tree(TypedDict):
    below: list[Tree]


def holds(data: object, kind: Any) -> bool:
    try:
        check(data, kind, "it")
    except SchemaError:
        return False
    return True


def is_refused(data: object, kind: Any) -> bool:
    try:
        parse(json.dumps(data).encode(), kind, "it")
    except SchemaError as error:
        return str(error).startswith("expected ") and " it" in str(error)
    return False


@pytest.mark.parametrize("seed", draws(4, 40))
def test_mutants_of_plans_are_reported_as_they_are_found(seed: int) -> None:
    plan = draw_case(seed, 8).plan("priority")
    document = json.loads(json.dumps(encode_plan(plan)))
    assert holds(document, DevicePlan) and not is_refused(document, DevicePlan)
    rng, wrong = random.Random(seed), 0
    for _ in range(100):
        how, mutated = mutate(rng, document, frozenset(("topology",)))
        assert holds(mutated, DevicePlan) is not is_refused(mutated, DevicePlan), how
        wrong += not holds(mutated, DevicePlan)
    assert 20 < wrong < 100


SINGLE: list[tuple[Any, object, bool]] = [
    (1, Whole, True),
    (True, Whole, False),
    (1.0, Whole, False),
    (LARGEST + 1, Whole, False),
    (1, Number, True),
    (float("nan"), Number, False),
    (True, bool, True),
    (1, bool, False),
    (None, None, True),
    (0, None, False),
    ("x", str, True),
    ([], list[Whole], True),
    ([[1], [2, "x"]], list[list[Whole]], False),
    ([[1, "x"], [2, "y"]], list[tuple[Whole, str]], True),
    ([[1, "x"], [2]], list[tuple[Whole, str]], False),
    ([[1, "x"], {}], list[tuple[Whole, str]], False),
    ([], tuple[()], True),
    ({"a": 1, "b": "x"}, dict[str, Whole], False),
    ({}, dict[str, Whole], True),
    ({"a": 1}, record(a=Whole), True),
    ({"a": 1, "b": 2}, record(a=Whole, b=str), False),
    ([{"a": 1}, {}], list[record(a=Whole)], False),  # type: ignore[misc]
    ([1, "x", None], list[Whole | str | None], True),
    ([1, 2.5], list[Whole | str], False),
]


@pytest.mark.parametrize(("data", "kind", "expected"), SINGLE)
def test_each_kind_of_type(data: Any, kind: object, expected: bool) -> None:
    assert holds(data, kind) is expected
    assert is_refused(data, kind) is not expected or data != data
    if not expected:
        with pytest.raises(SchemaError, match="expected"):
            check(data, kind, "it")


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (
            {"a": [[1], [2, "x"]]},
            record(a=list[list[int]]),
            "a whole number as it.a[1][1], got 'x'",
        ),
        ({"x": 1, "y": 2, "z": [3]}, dict[str, int], "a whole number as it.z, got [3]"),
        ({"x": [1], "y": [2, None]}, dict[str, list[int]], "a whole number as it.y[1], got None"),
        ([1, 2], tuple[int, int, int], "a list of 3 as it, got [1, 2]"),
        ({"b": 1}, record(a=int), "'a' in it, got none"),
        (["x"], list[int | None], "a whole number or null as it[0], got 'x'"),
        ("x" * 99, int, "a whole number as it, got '" + "x" * 56 + "..."),
    ],
)
def test_the_error_names_the_place_and_the_value(data: Any, kind: Any, message: str) -> None:
    for refuse in (check, lambda data, *how: parse(json.dumps(data).encode(), *how)):
        with pytest.raises(SchemaError) as error:
            refuse(data, kind, "it")
        assert str(error.value) == f"expected {message}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1e999}', "it, got no JSON: 1e999 is no finite number"),
        (b'{"a": [-1e400]}', "it, got no JSON: -1e400 is no finite number"),
        (b'{"a\\ud800": [1]}', "a text as it.'a\\ud800', got [1]"),
        (b'{"a\\n": [1]}', "a text as it.'a\\n', got [1]"),
        ('{"a": "\ud800"}', "it, got no JSON: 'utf-8' codec can't encode character '\\ud800' "
         "in position 7: surrogates not allowed"),
    ],
)  # fmt: skip
def test_texts_of_no_finite_number_and_no_unicode(text: str | bytes, message: str) -> None:
    kind = dict[str, Any] if "JSON" in message else dict[str, str]
    with pytest.raises(SchemaError) as error:
        parse(text, kind, "it")
    assert str(error.value) == f"expected {message}"
    assert str(error.value).encode(), "it can be printed"


@pytest.mark.parametrize("levels", [10, 300, 900, 980, 990, 995])
def test_deep_data_is_refused(levels: int) -> None:
    text = b'{"a": [' + b"[" * levels + b"]" * levels + b"]}"
    with pytest.raises(SchemaError, match=r"expected .*it.*, got "):
        parse(text, dict[str, list[str]], "it")
    data: list[Any] = []
    for _ in range(100 * levels):
        data = [data]
    message = r"^expected a text as it, got \[{21}\.\.\.\]{21}$"
    with pytest.raises(SchemaError, match=message):
        check(data, str, "it")


def test_data_of_too_many_levels_for_the_check_is_refused() -> None:
    data: Any = {"below": []}
    for _ in range(100_000):
        data = {"below": [data]}
    with pytest.raises(SchemaError, match="expected it, got data of too many levels"):
        check(data, Tree, "it")


def test_a_message_of_many_levels_is_refused() -> None:
    for levels in range(900, 1000):
        host = b"[" * levels + b"]" * levels
        with pytest.raises(SchemaError):
            decode(b'{"kind":"measure","ask":1,"host":' + host + b"}", 0)
