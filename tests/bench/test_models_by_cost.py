"""Models of the bench and of the examples, planned for machines that are not here: one more device
never makes them slower, by simulation.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from drawn_plans import Case
from test_promises import check_no_single_is_faster

import vksched as vs
from vksched.bench.baselines.networks import build
from vksched.bench.networks_runner import Math
from vksched.bench.suites import specs_of
from vksched.engine.request import Request
from vksched.ir.graph import Graph
from vksched.planner import planner
from vksched.topology.device_spec import GIB, DeviceSpec
from vksched.topology.links import Link, Links
from vksched.topology.topology import Topology

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
RUN = ("two_gpus", "cpu_fallback", "key_value_cache", "manual_placement", "observer", "pipeline")
MODELS = {spec.name: spec for spec in specs_of("models")}
WITH_CPU = pytest.mark.parametrize("with_cpu", [False, True], ids=["cards", "cards and CPU"])


def card(name: str, tflops: float, gb_per_s: float, memory_bytes: int) -> DeviceSpec:
    """A card whose costs are written down."""
    rates = {"flops_per_s": 1e12 * tflops, "bytes_per_s": 1e9 * gb_per_s}
    return DeviceSpec(name, "null", memory_bytes=memory_bytes, **rates)  # type: ignore[arg-type]


CPU = DeviceSpec("cpu", "cpu", flops_per_s=3e11, bytes_per_s=4e10, submit_s=2e-6)
WIDE, NARROW = Link(12e9, 1e-5), Link(3e9, 2e-5)


def topology(one: DeviceSpec, two: DeviceSpec, *links: Link) -> Topology:
    ends = zip((one.name, two.name), links, strict=True)
    return Topology((one, two, CPU), Links(tuple((name, "cpu", link) for name, link in ends)))


TOPOLOGIES = {
    "two unequal cards": topology(
        card("fast", 20, 500, 8 * GIB), card("slow", 5, 200, 4 * GIB), WIDE, NARROW
    ),
    "the slow card first": topology(
        card("slow", 5, 200, 4 * GIB), card("fast", 20, 500, 8 * GIB), NARROW, WIDE
    ),
    "two small cards": topology(
        card("small", 8, 200, 40_000_000), card("large", 4, 400, 90_000_000), WIDE, WIDE
    ),
    "integrated and discrete": topology(
        card("integrated", 1, 50, 2 * GIB), card("discrete", 10, 300, 4 * GIB), Link(3e10), WIDE
    ),
}
WHERE = pytest.mark.parametrize("where", TOPOLOGIES.values(), ids=list(TOPOLOGIES))


def check(graph: Graph, where: Topology, with_cpu: bool) -> None:
    light = Request(graph, (), {}).optimized(where).graph
    check_no_single_is_faster(Case(light, where, with_cpu=with_cpu))


@pytest.fixture(scope="module")
def networks() -> dict[str, Graph]:
    """The graph of each model of the bench."""
    out: dict[str, Graph] = {}
    for name, spec in MODELS.items():
        math = Math()
        out[name], _ = vs.build_graph(build(spec.params, math), math.updates)
    return out


@pytest.mark.each_value
@WHERE
@WITH_CPU
@pytest.mark.parametrize("name", MODELS)
def test_no_model_of_the_bench_is_slower_for_a_second_card(
    networks: dict[str, Graph], name: str, where: Topology, with_cpu: bool
) -> None:
    check(networks[name], where, with_cpu)


@pytest.fixture(scope="module")
def compiled() -> dict[str, list[Graph]]:
    """The graphs that each example compiles, as it runs on numpy."""
    out: dict[str, list[Graph]] = {}
    plan_graph: Callable[..., Any] = planner.plan_graph
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        for name in RUN:

            def keep(graph: Graph, *args: Any, _name: str = name, **more: Any) -> vs.Plan:
                out.setdefault(_name, []).append(graph)
                plan: vs.Plan = plan_graph(graph, *args, **more)
                return plan

            patch.setattr(planner, "plan_graph", keep)
            importlib.import_module(name).main(["cpu"])
        two_cards = importlib.import_module("two_cards")
        out["two_cards"] = [vs.build_graph(two_cards.build())[0]]
    return out


@pytest.mark.each_value
@WHERE
@WITH_CPU
@pytest.mark.parametrize("name", [*RUN, "two_cards"])
def test_no_example_is_slower_for_a_second_card(
    compiled: dict[str, Sequence[Graph]], name: str, where: Topology, with_cpu: bool
) -> None:
    assert compiled[name] and name in sys.modules
    for graph in compiled[name]:
        check(graph, where, with_cpu)
