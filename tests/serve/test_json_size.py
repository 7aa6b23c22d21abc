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
from vksched.serve.json_size import MAX_CONTAINERS, MAX_MEMBERS, MAX_VALUES, check_json_size
from vksched.serve.limits import ServerLimits
from vksched.serve.request_body import parse_body, parse_json
from vksched.serve.schemas.chat import ChatRequest

TEXTS = st.text(st.sampled_from('a,:[]{}"\\\n\u00e9/'), max_size=30)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(TEXTS, inner, max_size=6),
    max_leaves=40,
)


def sizes(value: Any) -> tuple[int, ...]:
    """Return the numbers of commas, of lists and objects, and of members, of JSON."""
    if not isinstance(value, (dict, list)):
        return 0, 0, 0
    own = max(0, len(value) - 1), 1, len(value) if isinstance(value, dict) else 0
    inner = [sizes(each) for each in (value.values() if isinstance(value, dict) else value)]
    return tuple(map(sum, zip(own, *inner, strict=True)))


@given(VALUES, st.booleans())
def test_values_are_counted_outside_of_strings(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    bare = json_size._without_strings(data)
    counts = [sum(map(bare.count, marks)) for _, _, marks in json_size._LIMITS]
    assert tuple(counts) == sizes(value)
    assert bare == re.sub(rb'"(?:[^"\\]|\\.)*"', b'"', data)


@given(st.binary(max_size=60) | st.text('"\\,', max_size=40).map(str.encode))
def test_any_bytes_are_counted(data: bytes) -> None:
    json_size._without_strings(data)


@pytest.mark.parametrize(
    ("unit", "named"),
    [
        ("[]", "lists and objects"),
        ("{}", "lists and objects"),
        ("[[", "lists and objects"),
        ('{"a":', "lists and objects"),
        ('"a":', "members of objects, as tokens of logit_bias"),
        ("1,", "values"),
        ('"",', "values"),
        ('"a\\",":', "members of objects"),
    ],
)
def test_bodies_with_too_many_values_are_refused(unit: str, named: str) -> None:
    body = f'{{"prompt":[{unit * (MAX_VALUES + 2)}'.encode()
    with pytest.raises(ApiError, match=f"expected a body of at most .*{named}.*, got") as caught:
        check_json_size(body)
    assert caught.value.status == 400


def test_large_texts_and_many_tokens_are_accepted() -> None:
    text = 'for (a, b) in {"x": [1, 2]}: \\ ' * 200_000
    assert parse_json(json.dumps({"prompt": text}).encode())["prompt"] == text
    tokens = list(range(MAX_VALUES))
    assert parse_json(json.dumps({"prompt": tokens}).encode())["prompt"] == tokens
    with pytest.raises(ApiError):
        check_json_size(json.dumps({"prompt": [*tokens, 1, 2]}).encode())
    members = {str(n): n for n in range(MAX_MEMBERS)}
    assert parse_json(json.dumps(members).encode()) == members
    with pytest.raises(ApiError, match="at most 300000 members .*logit_bias, got 300001"):
        check_json_size(json.dumps({**members, "a": 1}).encode())
    lists: list[list[int]] = [[]] * (MAX_CONTAINERS - 2)
    assert parse_json(json.dumps({"a": lists}).encode())["a"] == lists
    with pytest.raises(ApiError):
        check_json_size(json.dumps({"a": [*lists, []]}).encode())


@pytest.mark.parametrize("vocabulary", [32_000, 128_256, 151_936, 262_144])
def test_a_logit_bias_may_have_all_tokens_of_a_vocabulary(vocabulary: int) -> None:
    bias = {str(token): -100.0 for token in range(vocabulary)}
    body = json.dumps({"messages": [{"role": "user", "content": "a"}], "logit_bias": bias}).encode()
    assert len(body) < ServerLimits().body_bytes
    request = parse_body(ChatRequest, body)
    assert request.logit_bias == {token: bias[token] for token in bias}
