"""The number of values of large JSON bodies."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from hypothesis import given
from hypothesis import strategies as st

from vksched.serve import json_size
from vksched.serve.api_error import ApiError
from vksched.serve.json_size import MAX_CONTAINERS, MAX_VALUES, check_json_size
from vksched.serve.request_body import parse_json

TEXTS = st.text(st.sampled_from('a,:[]{}"\\\n\u00e9/'), max_size=30)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=40,
)


def sizes(value: Any) -> tuple[int, int]:
    """Return the numbers of commas, and of lists, objects and members, of JSON."""
    if isinstance(value, dict):
        commas, members = max(0, len(value) - 1), len(value)
        inner = [sizes(each) for each in value.values()]
    elif isinstance(value, list):
        commas, members, inner = max(0, len(value) - 1), 0, [sizes(each) for each in value]
    else:
        return 0, 0
    return commas + sum(a for a, _ in inner), 1 + members + sum(b for _, b in inner)


@given(VALUES, st.booleans())
def test_values_are_counted_outside_of_strings(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    bare = json_size._without_strings(data)
    assert (bare.count(b","), json_size._containers(bare)) == sizes(value)
    assert bare == re.sub(rb'"(?:[^"\\]|\\.)*"', b'"', data)


@given(st.binary(max_size=60) | st.text('"\\,', max_size=40).map(str.encode))
def test_any_bytes_are_counted(data: bytes) -> None:
    json_size._without_strings(data)


@pytest.mark.parametrize(
    "unit", ["[]", "{}", "[[", '{"a":', "1,", '"",', '"a\\",":'], ids=lambda unit: unit
)
def test_bodies_with_too_many_values_are_refused(unit: str) -> None:
    body = f'{{"prompt":[{unit * (MAX_VALUES + 2)}'.encode()
    with pytest.raises(ApiError, match="expected a body of at most") as caught:
        check_json_size(body)
    assert caught.value.status == 400


def test_large_texts_and_many_tokens_are_accepted() -> None:
    text = 'for (a, b) in {"x": [1, 2]}: \\ ' * 200_000
    assert parse_json(json.dumps({"prompt": text}).encode())["prompt"] == text
    tokens = list(range(MAX_VALUES))
    assert parse_json(json.dumps({"prompt": tokens}).encode())["prompt"] == tokens
    with pytest.raises(ApiError):
        check_json_size(json.dumps({"prompt": [*tokens, 1, 2]}).encode())
    members = {str(n): n for n in range(MAX_CONTAINERS - 1)}
    assert parse_json(json.dumps(members).encode()) == members
    with pytest.raises(ApiError):
        check_json_size(json.dumps({**members, "a": 1, "b": 2}).encode())
