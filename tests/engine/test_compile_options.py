"""Compile options: one value from the scheduler's door to the request."""

from __future__ import annotations

from dataclasses import fields
from inspect import signature
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.engine.compile_options import GRAPH_OPTIONS, OPTIONS, CompileOptions, split_options


def test_each_option_of_a_graph_is_a_field() -> None:
    names = [field.name for field in fields(CompileOptions)]
    assert names == ["placement", "progress", *GRAPH_OPTIONS]
    reserved = signature(vs.Scheduler.reserve).parameters.keys()
    assert set(reserved) == {"self", "outputs", *names} - {"progress"}


@pytest.mark.parametrize("name", ["placement", "progress"])
def test_a_second_output_is_no_option(name: str) -> None:
    tensor: Any = vs.input("x", (2,))
    with pytest.raises(vs.GraphError, match=r"try compile\(\[a, b\]\)"):
        CompileOptions(**{name: tensor})


@pytest.mark.parametrize("placement", [["cpu"], {1: "cpu"}, {"*": None}])
def test_placements_map_names_to_devices(placement: Any) -> None:
    with pytest.raises(vs.PlanError, match=r"\[placement\] expected"):
        _ = CompileOptions(placement).placements


def test_a_copy_stays_as_it_is_when_the_caller_changes_the_mappings() -> None:
    placement, precision = {"*": "cpu"}, {"a": "mixed"}
    options = CompileOptions(placement, precision=precision).copy()
    placement["b"] = precision["b"] = "float16"
    assert (options.placement, options.precision) == ({"*": "cpu"}, {"a": "mixed"})
    assert CompileOptions().copy().precision is None
    assert CompileOptions(precision={}).copy().precision is None
    for precision in ("mixed", "", 5):  # wrong ones are refused where they are used
        options = CompileOptions(precision=precision)  # type: ignore[arg-type]
        assert options.copy().precision == precision


def test_options_of_another_kind_are_refused() -> None:
    x = vs.input("x", (2,))
    options, of_model = split_options(x, None, None, {"updates": None, "precision": "mixed"})
    assert (options.updates, options.precision, of_model) == (None, "mixed", {})
    with pytest.raises(vs.GraphError, match=f"expected {', '.join(OPTIONS['tensors'])} for"):
        split_options(x, None, None, {"ctx": 4})


def test_updates_that_a_function_returns_are_options_of_its_graph() -> None:
    total = vs.state(np.zeros(2, np.float32), name="total")

    def build(x: vs.Tensor) -> Any:
        new = total + x
        return new, {total: new}

    with vs.Scheduler(["cpu"]) as sched:
        run = sched.function(build)
        run(x=np.ones(2, np.float32))
        assert run(x=np.ones(2, np.float32)).tolist() == [2, 2]  # type: ignore[union-attr]
        assert sched.read(total).tolist() == [2, 2]
