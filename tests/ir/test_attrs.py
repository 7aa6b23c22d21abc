"""Attributes: one object of each, whoever makes it, and none that nobody has."""

from __future__ import annotations

import copy
import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vksched.common.errors import ShapeError
from vksched.ir import attrs
from vksched.ir.attrs import Attrs


def test_what_is_written_alike_is_one_object() -> None:
    one = Attrs({"b": (1, "x", None), "a": 0.5})
    assert Attrs({"a": np.float64(0.5), "b": (np.int32(1), "x", None)}) is one
    assert pickle.loads(pickle.dumps(one)) is one and copy.deepcopy(one) is one
    assert hash(one) == hash(Attrs(dict(one))) and {one: 1}[Attrs(dict(one))] == 1
    assert dict(one) == {"a": 0.5, "b": (1, "x", None)} and str(one) == "a=0.5, b=(1, 'x', None)"
    assert Attrs() is Attrs({}) and len(Attrs()) == 0


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1, True), (1, 1.0), ((1,), (True,)), ("1", 1), ((), None)]
)
def test_what_is_written_otherwise_differs(one: object, other: object) -> None:
    assert Attrs({"a": one}) != Attrs({"a": other})  # type: ignore[dict-item]
    assert repr(Attrs({"a": one})["a"]) == repr(one)  # type: ignore[dict-item]


def test_nothing_is_retained_that_nobody_has() -> None:
    built = Attrs({"only": "here"})
    assert str(built) in attrs._known
    del built
    gc.collect()
    assert "only='here'" not in attrs._known


def test_threads_make_the_same_ones() -> None:
    with ThreadPoolExecutor(8) as pool:
        built = list(pool.map(lambda n: Attrs({"thread": n % 10}), range(2000)))
    assert len({id(each) for each in built}) == 10


@pytest.mark.parametrize("name", ["axes=(0,), keepdims", "", "a b", "a,b", "0"])
def test_a_name_that_could_be_written_as_others_are_is_refused(name: str) -> None:
    """Else a stranger's attributes would be the object that others get for theirs."""
    there = Attrs({"axes": (0,), "keepdims": True})
    with pytest.raises(ShapeError, match="expected names of attributes"):
        Attrs({name: True})
    assert dict(there) == {"axes": (0,), "keepdims": True}


def test_other_values_are_refused() -> None:
    with pytest.raises(ShapeError, match="a number, a name or a tuple"):
        Attrs({"a": [1]})  # type: ignore[dict-item]
