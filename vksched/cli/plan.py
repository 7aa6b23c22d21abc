"""`vksched plan`: where the ops of a graph would run, and why, with nothing allocated."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from ..errors import VkschedError
from . import feeds

if TYPE_CHECKING:
    from ..machine.spec import DeviceSpec, Machine
    from ..plan.plan import Plan


@click.command()
@click.argument("address", metavar="MODULE_OR_FILE:ATTRIBUTE")
@click.option("--devices", metavar="A,B", help="Plan for these devices; the CPU is always last.")
@click.option(
    "--machine",
    "machine_file",
    metavar="FILE.json",
    help='Plan for the devices of a file, here or not: the "machine" of --json.',
)
@feeds.place_option
@click.option(
    "--policy",
    type=click.Choice(["auto", "priority"]),
    default="auto",
    show_default=True,
    help="auto: the fastest of simulated runs. priority: the devices in their order.",
)
@click.option("--copies", default=1, show_default=True, help="Runs that can be under way at once.")
@click.option("--node", metavar="NAME", help="Tell all of one node, or of those a pattern matches.")
@click.option("--json", "as_json", is_flag=True, help="Print everything, as JSON.")
@click.option("--svg", metavar="FILE.svg", help="Draw the plan into a file, too.")
def plan(
    address: str,
    devices: str | None,
    machine_file: str | None,
    places: tuple[str, ...],
    policy: str,
    copies: int,
    node: str | None,
    as_json: bool,
    svg: str | None,
) -> None:
    """Plan a graph and explain it; nothing is opened, allocated or run.

    The attribute is a Tensor, a sequence or a dict of them, or a function without arguments that
    returns one of these.
    """
    from ..engine.request import Request
    from ..graph import build_graph
    from ..plan.planner import plan_graph

    if devices is not None and machine_file is not None:
        raise click.UsageError("--devices and --machine exclude each other.")
    machine: Machine
    aliases: dict[str, str] = {}
    graph, _ = build_graph(load_outputs(address))
    if machine_file is not None:
        machine = read_machine(machine_file)
    else:
        machine, aliases = machine_here(devices)
    wanted = feeds.parse_places(places)
    overrides = tuple((pattern, aliases.get(name, name)) for pattern, name in wanted.items())
    request = Request(graph, overrides, {}).optimized(machine)
    found = plan_graph(
        request.graph,
        machine,
        policy=policy,
        overrides=request.overrides,
        copies=copies,
        with_cpu=machine_file is None and names_cpu(devices),
    )
    text = _text(found, node, as_json)
    if svg is not None:
        found.draw(svg)
        click.echo(f"wrote {svg}", err=True)
    click.echo(text)


def _text(plan: Plan, node: str | None, as_json: bool) -> str:
    from ..plan.tell.explain import COMMAND, explain_plan

    if not as_json:
        return plan.explain(node) if node is not None else explain_plan(plan, COMMAND)
    if node is None:
        return json.dumps(plan.as_dict(), indent=2)
    return json.dumps([plan.node_as_dict(i) for i in plan.find(node)], indent=2)


# -- the machine -----------------------------------------------------------------------------------


def machine_here(names: str | None) -> tuple[Machine, dict[str, str]]:
    """Returns the machine of the devices named, or used by default, and their other names."""
    from ..machine.spec import Machine
    from ..runtime.vulkan import probe
    from ..tuner.store import Store
    from ..tuner.tuner import Tuner, mode_of

    tuner = Tuner(mode_of("auto"), Store())
    if names is None:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            wanted = [info.name for info in probe.default_devices()]
        for warning in said:
            click.echo(str(warning.message), err=True)
    else:
        wanted = [name.strip() for name in names.split(",")]
    specs: list[DeviceSpec] = []
    aliases: dict[str, str] = {}
    for given in wanted:
        info = probe.resolve(given)
        if info.name == "cpu":
            continue
        count = 1 + sum(spec.name.partition("#")[0] == info.name for spec in specs)
        name = info.name if count == 1 else f"{info.name}#{count}"
        aliases.setdefault(given, name)
        specs.append(tuner.tuned(probe.device_spec(info, name)))
    return Machine((*specs, probe.device_spec(probe.cpu_device()))), aliases


def names_cpu(names: str | None) -> bool:
    """Whether the CPU competes with other devices: it is named, or nothing is."""
    return names is None or "cpu" in [name.strip() for name in names.split(",")]


def read_machine(path: str) -> Machine:
    """Returns the machine of a file: what --json prints as "machine", or all that it prints.

    Raises:
        VkschedError: the file cannot be read; PlanError: it is no machine.
    """
    from ..machine.spec import Machine

    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise VkschedError(f"[plan] cannot read {path}: {feeds.said(error, str(path))}") from error
    return Machine.from_dict(data.get("machine", data) if isinstance(data, dict) else data)


# -- the graph -------------------------------------------------------------------------------------


def load_outputs(address: str) -> Any:
    """Returns the tensors at an address.

    Raises:
        VkschedError: there is nothing, or the code there fails.
    """
    place, _, attribute = address.rpartition(":")
    if not place or not attribute:
        raise click.UsageError(
            f"expected MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE, got {address!r}; try vksched info "
            "for an ONNX model."
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
    """The names of a module that may be graphs: tensors, and what it defines itself."""
    from ..ops.core.tensor import Tensor

    return ", ".join(
        name
        for name, value in vars(module).items()
        if isinstance(value, Tensor) or getattr(value, "__module__", "") == module.__name__
    )


def _load_module(place: str) -> ModuleType:
    """Imports a module, from the current folder too, or a file, beside which it may import."""
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
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _guard(what: str, call: Callable[[], Any]) -> Any:
    """Returns what a call of the user's code returns; its errors become one of ours."""
    try:
        return call()
    except VkschedError:
        raise
    except (Exception, SystemExit) as error:
        raise VkschedError(f"[plan] cannot {what}: {feeds.said(error)}") from error
