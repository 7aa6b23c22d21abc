"""`vksched plan`: plan and explain a graph, without allocation."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from ...common.errors import VkschedError
from ..options import inputs
from ..options.policy_options import DEFAULT, PlanningOptions, with_planning_options
from ..options.precision_option import SINGLE, parse_precision, precision_option
from ..options.topology_options import topology_of, topology_option, what_if_option
from .trace import check_end

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from ...plan.plan import Plan
    from ...plan.types.decision import Tradeoffs
    from ...planner.what_if import Comparison


def _copies(context: click.Context, option: click.Parameter, text: str | None) -> int | str | None:
    if text is None or text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a valid integer, nor auto.") from None


@click.command()
@click.argument("address", metavar="MODEL.onnx|MODULE_OR_FILE:ATTRIBUTE")
@click.option(
    "--devices", metavar="A,B", help="Comma-separated devices to plan for; the CPU is always last."
)
@topology_option
@what_if_option
@inputs.place_option
@inputs.dim_option
@inputs.shape_option
@with_planning_options
@click.option(
    "--pareto",
    "show_pareto",
    is_flag=True,
    help="Compare the plans of all objectives, Pareto-optimal ones first.",
)
@click.option(
    "--copies",
    metavar="N",
    callback=_copies,
    help=(
        "Maximum number of runs in flight, or 'auto'.  [default: 1; auto for throughput and "
        "--pareto]"
    ),
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE.yaml",
    help="Configuration of signals: devices and sharding, as for vs.Scheduler(config=).",
)
@precision_option
@click.option("--node", metavar="NAME", help="Show details of the nodes whose names match NAME.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--svg", metavar="FILE.svg", help="Also write a drawing of the plan to FILE.")
@click.option(
    "--html",
    metavar="FILE.html",
    help="Also write an HTML page with the predicted timeline of a run.",
)
def plan(
    address: str,
    devices: str | None,
    topology_file: str | None,
    what_ifs: tuple[str, ...],
    places: tuple[str, ...],
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    planning: PlanningOptions,
    show_pareto: bool,
    copies: int | str | None,
    config_file: str | None,
    modes: tuple[str, ...],
    node: str | None,
    as_json: bool,
    svg: str | None,
    html: str | None,
) -> None:
    """Plan a graph and explain the plan; nothing is opened, allocated or run.

    ATTRIBUTE is a Tensor, a sequence or dict of Tensors, a function without arguments that returns
    one of these, or a pair of outputs and updates of a training step. With --topology or --what-if
    it also shows the device of each layer and the simulated time of a run, without each device, on
    each device alone, and after each change.
    """
    from ...engine.request_precision import apply_precision
    from ...parallel.config.read_config import read_config
    from ..views.what_if import Planner, compare_topologies

    check_end(html, ".html")
    if devices is not None and topology_file is not None:
        raise click.UsageError("--devices and --topology exclude each other.")
    if show_pareto:
        other_options = {
            "--what-if": what_ifs,
            "--node": node,
            "--svg": svg,
            "--html": html,
            "--config": config_file,
            "--policy": planning.policy != DEFAULT.policy,
            "--objective": planning.objective != DEFAULT.objective,
        }
        inputs.exclude("--pareto", other_options)
    elif node is not None:
        inputs.exclude("--node", {"--what-if": what_ifs})
    graph, remarks = load_graph(address, dims, shapes)
    topology, aliases, with_cpu = topology_of(devices, topology_file)
    wanted = inputs.parse_places(places)
    overrides = tuple((pattern, aliases.get(name, name)) for pattern, name in wanted.items())
    config = None if config_file is None else read_config(config_file)
    graph = apply_precision(graph, {}, SINGLE, parse_precision(modes), config)

    def resolve(name: str) -> str:
        return aliases.get(name, name)

    planner = Planner(graph, topology, overrides, planning, copies, with_cpu, config, resolve)
    if show_pareto:
        table = _table(planner.tradeoffs(), as_json)
        _note(remarks)
        click.echo(table)
        return
    found = planner(topology)
    others = None
    if node is None and (what_ifs or topology_file is not None):
        others = compare_topologies(planner, what_ifs)
    text = _text(found, node, as_json, others)
    if svg is not None:
        found.draw(svg)
        click.echo(f"wrote {svg}", err=True)
    if html is not None:
        found.timeline().save(html)
        click.echo(f"wrote {html}", err=True)
    _note(remarks)
    click.echo(text)


def _note(remarks: Sequence[str]) -> None:
    for remark in remarks:
        click.echo(f"note: {remark}", err=True)


def _text(plan: Plan, node: str | None, as_json: bool, others: Comparison | None) -> str:
    from ...plan.explain.explain_plan import COMMAND, explain_plan
    from ..views.what_if import predicted_as_dict, predicted_as_text

    if node is not None:
        if not as_json:
            return plan.explain(node)
        return json.dumps([plan.node_as_dict(i) for i in plan.find(node)], indent=2)
    if as_json:
        more = {} if others is None else predicted_as_dict(plan, others)
        return json.dumps({**plan.as_dict(), **more}, indent=2)
    text = explain_plan(plan, COMMAND)
    return text if others is None else f"{text}\n\n{predicted_as_text(plan, others)}"


def _table(found: Tradeoffs, as_json: bool) -> str:
    from ...plan.explain.decision_text import comparison_as_text

    return json.dumps(found.as_dict(), indent=2) if as_json else comparison_as_text(found)


# -- graph -----------------------------------------------------------------------------------------


def load_graph(
    address: str, dims: tuple[str, ...], shapes: tuple[str, ...]
) -> tuple[Graph, list[str]]:
    """Return the graph at an address, with notes.

    dims, shapes: sizes of an ONNX model, of which the first stage is planned. Raise VkschedError if
    the graph cannot be loaded.
    """
    from ...ir.build_graph import build_graph

    if Path(address).suffix != ".onnx":
        if dims or shapes:
            raise click.UsageError("--free-dim and --shape are for ONNX models.")
        return build_graph(*_with_updates(load_outputs(address)))[0], []
    from ...importers import load_onnx
    from ...importers.onnx.example_inputs import choose_shapes
    from ..views.model_info import hint_at, lower_model

    with inputs.collected_warnings() as warned:
        model = load_onnx(address)
        sizes = choose_shapes(model, {}, inputs.parse_dims(dims), inputs.parse_shapes(shapes))
        options = inputs.size_options(model, sizes)
        with hint_at(sizes.assumed, options):
            lowered, notes = lower_model(model, sizes.shapes, {})
    if not lowered.outputs:
        raise VkschedError(f"[plan] {address} has nothing to plan: the host computes all of it")
    if sizes.assumed:
        notes.append(f"size 1 is assumed for {', '.join(sizes.assumed)}; try {options}")
    if lowered.then is not None:
        notes.append("only the first stage is planned; later stages depend on its values")
    return build_graph(lowered.outputs)[0], [*notes, *warned]


def _with_updates(value: Any) -> tuple[Any, Any]:
    """Return outputs and updates: a pair whose second item maps states to their next values."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], Mapping):
        return value
    return value, None


def load_outputs(address: str) -> Any:
    """Return the tensors at an address. Raise VkschedError if it is missing or its code fails."""
    place, _, attribute = address.rpartition(":")
    if not place or not attribute:
        raise click.UsageError(
            f"expected MODULE:ATTRIBUTE, FILE.py:ATTRIBUTE or MODEL.onnx, got {address!r}."
        )
    module = _guard(f"import {place}", lambda: _load_module(place))
    value: Any = module
    for name in attribute.split("."):
        if not hasattr(value, name):
            raise VkschedError(f"[plan] {place} has no {attribute!r}; there is: {_known(module)}")
        value = getattr(value, name)
    if not callable(value):
        return value
    try:
        inspect.signature(value).bind()
    except (TypeError, ValueError) as error:
        raise VkschedError(
            f"[plan] expected a function that needs no arguments, got {attribute}: {error}; try a "
            "function around it"
        ) from error
    return _guard(f"call {attribute}", value)


def _known(module: ModuleType) -> str:
    """Return the names in a module that may be graphs: tensors, and its own definitions."""
    from ...ir.tensor import Tensor

    return ", ".join(
        name
        for name, value in vars(module).items()
        if isinstance(value, (Tensor, partial))
        or getattr(value, "__module__", "") == module.__name__
    )


def _load_module(place: str) -> ModuleType:
    """Import a module, also from the current folder, or a file, with its folder on the path."""
    path = Path(place)
    is_file = path.suffix == ".py"
    folder = str(path.resolve().parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if not is_file:
        return importlib.import_module(place)
    name = f"_vksched_plan_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise VkschedError(f"[plan] expected a Python file, there is none at {place}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


def _guard(what: str, call: Callable[[], Any]) -> Any:
    """Return the result of a call of user code; convert its exceptions to VkschedError."""
    try:
        return call()
    except VkschedError:
        raise
    except (Exception, SystemExit) as error:
        raise VkschedError(f"[plan] cannot {what}: {inputs.error_text(error)}") from error
