"""Rows of a KV cache that are rounded where they are written."""

from __future__ import annotations

import numpy as np
import pytest

import vksched as vs
from vksched.ir.graph import Graph
from vksched.passes import RewriteConstraints, optimize
from vksched.topology.limits import Limits

GPU = Limits(storage_buffers=8)
CACHE = np.zeros((1, 2, 9, 8), np.float16)


def graph_of(
    count: int = 1, limits: Limits | None = GPU, dtype: str = "float16", nan: bool = False
) -> Graph:
    cache = vs.state(CACHE.astype(dtype), "cache")
    rows, start = vs.input("rows", (1, 2, count, 8)), vs.input("start", (), "int32")
    rounded = vs.cast(vs.exp(rows), dtype, overflow_nan=nan)
    written = vs.dynamic_update_slice(cache, rounded, start, axis=2)
    graph, _ = vs.build_graph([vs.tanh(rows)], {cache: written})
    return optimize(graph, RewriteConstraints(limits=limits))


def ops_of(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_a_row_is_rounded_where_it_is_written() -> None:
    graph = graph_of()
    (write,) = [node for node in graph.nodes if node.op == "dynamic_update_slice"]
    assert graph.nodes[write.inputs[1]].type.dtype == "float32"
    assert "cast" not in ops_of(graph)


@pytest.mark.parametrize("nan", [False, True])
def test_rows_beyond_float16_are_those_of_the_cast(nan: bool) -> None:
    (write,) = [node for node in graph_of(nan=nan).nodes if node.op == "dynamic_update_slice"]
    assert write.attrs.get("overflow_nan", False) == nan


@pytest.mark.parametrize(
    "graph", [graph_of(3), graph_of(limits=None), graph_of(limits=Limits(software=True))]
)
def test_other_rows_have_a_cast(graph: Graph) -> None:
    (write,) = [node for node in graph.nodes if node.op == "dynamic_update_slice"]
    assert graph.nodes[write.inputs[1]].type.dtype == "float16"


def test_rows_of_float32_are_rounded_as_by_a_cast() -> None:
    rows = np.float32([[1e-9, 65519.9, 7e4, 1 / 3, -np.inf, np.nan, 2.0**-25 * 1.01, 0]])
    for names in (["cpu"], *([d.name] for d in vs.devices() if d.name != "cpu")):
        with vs.Scheduler(names) as sched:
            data = vs.input("data", (3, 8), "float16")
            run = sched.compile(vs.dynamic_update_slice(data, vs.input("rows", (1, 8)), 1))
            got = run(data=np.ones((3, 8), np.float16), rows=rows)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(got[1], rows[0].astype(np.float16))
        assert (got[::2] == 1).all()
