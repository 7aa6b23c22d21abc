"""`vksched run`: run an ONNX model; report outputs, timings and a comparison."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ...common.errors import GraphError, VkschedError
from ..compare.compare_outputs import ComparedRun, check_outputs, show_check
from ..differences import SMALLEST, Tolerance
from ..options import inputs as feeds
from ..options.policy_options import PlanningOptions, with_planning_options
from ..options.precision_option import (
    MODES,
    SINGLE,
    PrecisionModes,
    cost_of,
    least_exact,
    parse_precision,
    patterns_of,
    precision_option,
    show_cost,
)
from ..views.model_info import describe_model, hint_at, show_assumed, show_model
from ..views.report import PRINTED, report_option, show_report, write_report

if TYPE_CHECKING:
    from ...common.dtypes import Progress
    from ...engine.report.run_report import RunReport
    from ...importers.onnx.model import Model
    from ...models.compiled_model import CompiledModel
    from ...scheduler.scheduler import Scheduler
    from ...trace import Recorder, Tape
    from ..views.op_timer import OpTimer


@click.command()
@feeds.model_argument
@feeds.input_option
@feeds.random_option
@feeds.seed_option
@feeds.dim_option
@feeds.shape_option
@feeds.devices_option
@with_planning_options
@feeds.place_option
@precision_option
@click.option("--output-dir", metavar="FOLDER", help="Write outputs to FOLDER as .npy files.")
@click.option("--repeat", default=1, show_default=True, help="Number of runs; the first compiles.")
@click.option(
    "--compare-with",
    "compare_with",
    type=click.Choice(["onnxruntime", "numpy"]),
    help="Compare with another runtime; exit code 1 if outputs differ.",
)
@click.option(
    "--rtol",
    type=float,
    help="Relative tolerance of --compare-with: the largest difference of a float output, divided "
    "by the largest magnitude of this output.  [default: "
    f"{', '.join(f'{rtol:g} with {mode}' for mode, rtol in MODES.items())}]",
)
@click.option(
    "--atol",
    type=float,
    help="Absolute tolerance of --compare-with. A difference is accepted if it is within either "
    f"tolerance.  [default: {SMALLEST:g} times rtol]",
)
@click.option(
    "--trace",
    "tape_file",
    metavar="TAPE.json",
    help="Write a tape of the runs for vksched trace, vksched replay and Perfetto.",
)
@click.option("--profile", metavar="TAPE.json", help="Run once more op by op, and write a tape.")
@report_option
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
def run(
    model_file: str,
    inputs: tuple[str, ...],
    random_inputs: bool,
    seed: int | None,
    dims: tuple[str, ...],
    shapes: tuple[str, ...],
    devices: str | None,
    places: tuple[str, ...],
    modes: tuple[str, ...],
    output_dir: str | None,
    repeat: int,
    compare_with: str | None,
    rtol: float | None,
    atol: float | None,
    tape_file: str | None,
    profile: str | None,
    report: str | None,
    as_json: bool,
    planning: PlanningOptions,
) -> None:
    """Run an ONNX model and report outputs and timings.

    Exit code 0, or 1 with an error message.
    """
    if repeat < 1:
        raise GraphError(f"[run] expected at least one run, got {repeat}")
    precision = parse_precision(modes)
    if compare_with is None:
        tolerances = {"--rtol": rtol is not None, "--atol": atol is not None}
        feeds.need(tolerances, "--compare-with")
    if not random_inputs:
        feeds.need({"--seed": seed is not None}, "--random-inputs")
    elif seed is None:
        seed = 0
    tolerance = Tolerance.of(MODES[least_exact(precision)] if rtol is None else rtol, atol)
    for name, value in tolerance._asdict().items():
        if not value >= 0:
            raise GraphError(f"[run] expected --{name} of 0 or more, got {value}")
    if report is not None:
        repeat = max(repeat, 2)  # the first run plans and uploads weights
    where = RunTarget(feeds.parse_devices(devices), feeds.parse_places(places), planning, precision)
    if profile is not None and planning.policy in ("earliest-finish", "work-stealing"):
        raise click.UsageError(f"--profile and --policy {planning.policy} exclude each other.")
    for path in filter(None, (tape_file, profile)):
        feeds.check_folder(path)
    from ...importers import load_onnx
    from ...trace import Recorder, Tape

    recorder, tape = Recorder(), Tape()
    with feeds.collected_warnings() as notes, feeds.progress_bars(as_json) as progress:
        model = load_onnx(model_file, progress)
        arrays = feeds.read_arrays(inputs, model)
        sizes = feeds.parse_dims(dims), feeds.parse_shapes(shapes)
        found, inputs_by_name = _inputs(model, arrays, sizes, seed)
        with hint_at(found["assumed"], found["size_options"]):
            outputs, times, run_report = measure(
                model, inputs_by_name, where, repeat, tape, progress, report is not None
            )
        found.update(planning.as_dict(), **times, tapes=[])
        if seed is not None and not any(row["made_up"] for row in found["given"]):
            found["notes"].append("--random-inputs has no effect, as all inputs are given")
        if tape_file is not None:
            tape.save(tape_file)
            found["tapes"].append(tape_file)
        if profile is not None:
            there = [row["name"] for row in found["devices"]]
            found["ops"] = measure_ops(model, inputs_by_name, where, there, recorder)
            found["ops_measured"] = True
            recorder.save(profile)
            found["tapes"].append(profile)
        if run_report is not None:
            found["report"] = run_report.as_dict()
            if report is not None and report != PRINTED:
                write_report(run_report, report)
                found["report_file"] = report
        found["outputs"] = [_summary(name, value) for name, value in _flat(outputs)]
        if output_dir is not None:
            found["saved"] = save(outputs, Path(output_dir))
        if compare_with is not None:

            def again(output_names: Sequence[str]) -> Mapping[str, Any]:
                return run_once(model.with_outputs(output_names), inputs_by_name, where)

            case = ComparedRun(model_file, model, inputs_by_name, outputs, again, tolerance)
            found.update(check_outputs(compare_with, case))
            if least_exact(precision) != SINGLE:
                plain = run_once(model, inputs_by_name, replace(where, precision=SINGLE))
                found["precision_cost"] = cost_of(precision, case.compare(plain))
    found["notes"] += notes
    click.echo(json.dumps(found, indent=2)) if as_json else _show(found, run_report)
    wrong = [d for d in found.get("check", ()) if d["wrong"]]
    if wrong:
        first = wrong[0]
        raise VkschedError(
            f"[check] {len(wrong)} of {len(found['check'])} outputs differ from {compare_with}: "
            f"{first['output']}: {first['wrong']} ({first['largest']:.3g}, relative "
            f"{first['relative']:.3g})"
        )


def _inputs(
    model: Model,
    arrays: Mapping[str, Any],
    sizes: tuple[Mapping[str, int], Mapping[str, tuple[int, ...]]],
    seed: int | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first part of the report, and values for all inputs."""
    from ...importers.onnx.example_inputs import choose_shapes, example_inputs

    missing = [value.name for value in model.inputs if value.name not in arrays]
    if missing and seed is None:
        raise GraphError(
            f"[run] expected arrays for inputs {', '.join(missing)}; try --random-inputs, or "
            f"--input {shlex.quote(f'{missing[0]}=FILE.npy')}"
        )
    chosen = choose_shapes(model, arrays, *sizes)
    generated = example_inputs(model, chosen.shapes, seed or 0, tuple(arrays)) if missing else {}
    inputs_by_name = model.check_inputs({**generated, **arrays})
    options = feeds.size_options(model, chosen)
    listed = [
        {"name": n, "type": _type(v), "made_up": n in generated} for n, v in inputs_by_name.items()
    ]
    return {
        **describe_model(model),
        "given": listed,
        "assumed": chosen.assumed,
        "size_options": options,
    }, inputs_by_name


# -- runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunTarget:
    """Devices (None for the default ones), placement, planning and precision of a model.

    precision: a mode, or modes by name pattern.
    """

    devices: Sequence[str] | None
    places: Mapping[str, str]
    planning: PlanningOptions
    precision: PrecisionModes = SINGLE

    def open(self, **options: Any) -> Scheduler:
        """Return a scheduler. options: further options of it."""
        from ...scheduler.scheduler import Scheduler

        return Scheduler(
            self.devices, self.planning.policy, objective=self.planning.objective, **options
        )

    def compile(
        self, sched: Scheduler, model: Model, progress: Progress | None = None
    ) -> CompiledModel:
        """Return the model compiled on a scheduler with these settings."""
        return sched.compile(model, self.places, progress, precision=self.precision)


def measure(
    model: Model,
    inputs_by_name: Mapping[str, Any],
    where: RunTarget,
    repeat: int,
    tape: Tape,
    progress: Progress,
    reports: bool = False,
) -> tuple[dict[str, Any], dict[str, Any], RunReport | None]:
    """Return the outputs, the times of all runs except the first (unless it is the only one), and a
    report if requested.
    """
    from ...plan.explain.explain_plan import COMMAND, idle_lines
    from ..views.op_timer import OpTimer

    op_timer, seconds = OpTimer(), []
    with where.open(trace=[op_timer, tape]) as sched:
        start = time.perf_counter()
        compiled = where.compile(sched, model, progress)
        for number in range(repeat):
            if number == 1:
                op_timer.clear()
            outputs = compiled(**inputs_by_name)
            seconds.append(time.perf_counter() - start)
            if number == 0:
                graphs = [plan.graph for plan in compiled.plans]
                feeds.check_places(where.places, graphs)
                feeds.check_places(patterns_of(where.precision), graphs, "precision")
            start = time.perf_counter()
        labels = {d.name: d.spec.label for d in sched.devices}
        memory = _memory([plan.buffers() for plan in compiled.plans])
        idle = idle_lines(compiled.plans, COMMAND)
        runs = max(1, repeat - 1)
        report = compiled.report(runs) if reports else None
    rest = seconds[1:]
    return (
        outputs,
        {
            "first_s": seconds[0],
            "runs": repeat,
            "median_s": statistics.median(rest) if rest else None,
            "least_s": min(rest) if rest else None,
            "graphs_per_run": op_timer.graphs / runs,
            "fence_waits": op_timer.fence_waits / runs,
            "transfer_bytes": op_timer.transfer_bytes / runs,
            "outside_graphs_s": (sum(rest) - op_timer.seconds) / runs if rest else None,
            "devices": [
                {
                    "name": name,
                    "label": label,
                    "seconds": op_timer.by_device.get(name, 0.0) / runs,
                    **memory.get(name, {}),
                }
                for name, label in labels.items()
            ],
            "ops": _by_op(op_timer, runs),
            "ops_measured": False,
            "notes": idle,
        },
        report,
    )


def run_once(
    model: Model,
    inputs_by_name: Mapping[str, Any],
    where: RunTarget,
) -> Mapping[str, Any]:
    """Return the outputs of one run without measurements."""

    with where.open() as sched:
        return where.compile(sched, model)(**inputs_by_name)


def _memory(plans: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the memory of the graphs on each device: shared weights, and the rest."""
    out: dict[str, dict[str, int]] = {}
    for sizes in plans:
        for name, held in sizes.items():
            at = out.setdefault(name, {"weight_bytes": 0, "other_bytes": 0})
            at["weight_bytes"] = max(at["weight_bytes"], held.weight_bytes)
            at["other_bytes"] += held.total_bytes - held.weight_bytes
    return out


def measure_ops(
    model: Model,
    inputs_by_name: Mapping[str, Any],
    where: RunTarget,
    there: Sequence[str],
    recorder: Recorder,
) -> list[dict[str, Any]]:
    """Return the times of a run in which each device executes one op at a time.

    there: names of all devices, including the CPU's.
    """
    from ...trace import Trace
    from ..views.op_timer import OpTimer

    op_timer, trace = OpTimer(), Trace(sinks=[recorder])
    with where.open(trace=trace, submit_granularity=dict.fromkeys(there, "op")) as sched:
        compiled = where.compile(sched, model)
        compiled(**inputs_by_name)
        recorder.clear()
        trace.add(op_timer)
        compiled(**inputs_by_name)
    return _by_op(op_timer, 1)


def _by_op(op_timer: OpTimer, runs: int) -> list[dict[str, Any]]:
    rows = sorted(op_timer.by_op.items(), key=lambda item: -item[1])
    return [{"op": op, "device": d, "seconds": seconds / runs} for (d, op), seconds in rows]


# -- outputs ---------------------------------------------------------------------------------------


def _flat(outputs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return outputs by name; items of sequences, and the keys and values of maps, become separate
    outputs.
    """
    out: list[tuple[str, Any]] = []
    for name, value in outputs.items():
        maps = value if isinstance(value, list) else [value]
        if maps and all(isinstance(item, dict) for item in maps):
            values = np.array([list(item.values()) for item in maps], np.float32)
            out += [(f"{name}.keys", np.array(list(maps[0]))), (f"{name}.values", values)]
        elif isinstance(value, list):
            out += _flat({f"{name}[{i}]": item for i, item in enumerate(value)})
        else:
            out.append((name, value))
    return out


def _type(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_type, value))}]"
    if value is None:
        return "nothing"
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _summary(name: str, value: Any) -> dict[str, Any]:
    """Return the type of an output, and the minimum, mean and maximum of its finite numbers."""
    out: dict[str, Any] = {"name": name, "type": _type(value)}
    if value is None or value.dtype.kind in "OUSc":
        return out
    numbers = value.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    if finite.size:
        out.update(min=float(finite.min()), mean=float(finite.mean()), max=float(finite.max()))
    return {**out, "not_finite": int(numbers.size - finite.size)}


def save(outputs: Mapping[str, Any], folder: Path) -> list[str]:
    """Write outputs as .npy files and return the paths. Raise VkschedError on failure."""
    paths: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in _flat(outputs):
            if value is None:
                continue
            plain = re.sub(r"[^\w.\[\]-]+", "_", name) or "output"
            path = folder / f"{plain}.npy"
            number = 2
            while str(path) in paths:
                path, number = folder / f"{plain}_{number}.npy", number + 1
            if value.dtype.kind == "O":
                value = value.astype(str)
            elif value.dtype.kind == "V" or value.dtype.name not in np.sctypeDict:
                value = value.astype(np.float32)  # types without a name in numpy's files
            np.save(path, value, allow_pickle=False)
            paths.append(str(path))
    except (OSError, ValueError) as error:
        raise VkschedError(
            f"[run] cannot save outputs in {folder}: {feeds.error_text(error)}"
        ) from error
    return paths


# -- text output -----------------------------------------------------------------------------------


def _show(report: Mapping[str, Any], run_report: RunReport | None) -> None:
    from ...common.formatting import count_of, format_bytes, format_seconds

    show_model(report)
    for one in report["given"]:
        click.echo(f"input  {one['name']}: {one['type']}{' (made up)' if one['made_up'] else ''}")
    show_assumed(report)
    text = f"first run {format_seconds(report['first_s'])}, with planning and upload"
    if report["median_s"] is not None:
        text += (
            f"; then {count_of(report['runs'] - 1, 'run')}: median "
            f"{format_seconds(report['median_s'])}, least {format_seconds(report['least_s'])}"
        )
    waits = report["fence_waits"]
    click.echo(
        f"{text}; in each {waits:g} fence wait{'' if waits == 1 else 's'}, "
        f"{format_bytes(int(report['transfer_bytes']))} between devices"
    )
    click.echo()
    devices = feeds.table("device", "busy per run", "weights", "other memory")
    for row in report["devices"]:
        held = (format_bytes(row.get(key, 0)) for key in ("weight_bytes", "other_bytes"))
        devices.add_row(row["name"], format_seconds(row["seconds"]), *held)
    if report["outside_graphs_s"] is not None:
        overhead = format_seconds(max(0.0, report["outside_graphs_s"]))
        devices.add_row("host, outside graphs", overhead, "", "")
    feeds.print_table(devices)
    _show_ops(report)
    if run_report is not None:
        show_report(run_report, report.get("report_file"))
    _show_outputs(report)
    for path in report["tapes"]:
        click.echo(f"wrote {path}, for vksched trace, vksched replay and Perfetto")
    for note in report["notes"]:
        click.echo(f"note: {note}")


def _show_ops(report: Mapping[str, Any]) -> None:
    from ...common.formatting import format_seconds

    if report["ops_measured"]:
        click.echo("time per op kind, measured in one more run, one op at a time:")
    else:
        click.echo("time per op kind, not measured: busy times divided as the planner estimates;")
        click.echo("--profile measures:")
    total = sum(row["seconds"] for row in report["ops"]) or 1.0
    ops = feeds.table("op", "device", "per run", "share", left=2)
    for row in report["ops"]:
        share = f"{100 * row['seconds'] / total:.1f} %"
        ops.add_row(row["op"], row["device"], format_seconds(row["seconds"]), share)
    feeds.print_table(ops)


def _show_outputs(report: Mapping[str, Any]) -> None:
    unusual = any(row.get("not_finite") for row in report["outputs"])
    more = ("not finite",) if unusual else ()
    table = feeds.table("output", "type", "min", "mean", "max", *more, left=2)
    for row in report["outputs"]:
        cells = [f"{row[key]:.4g}" if key in row else "" for key in ("min", "mean", "max")]
        cells += [str(row.get("not_finite", ""))] if unusual else []
        table.add_row(row["name"], row["type"], *cells)
    feeds.print_table(table)
    for path in report.get("saved", ()):
        click.echo(f"saved {path}")
    if "check" in report:
        show_check(report)
    if "precision_cost" in report:
        show_cost(report["precision_cost"])
