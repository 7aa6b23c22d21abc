"""What Mesa's compilers make of every shader variant for AMD and NVIDIA, without such a card.

Mesa's drivers compile for cards that are not there (see shader_cards.py) and tell registers,
spills, memory, occupancy and an estimate of the time. Each variant is compiled with its default
constants and with all that the case table's calls use on a GPU. One child process per card, for
a driver looks for its card once; see vulkan_pipelines.py.

Reached by `python build_shaders.py --stats`, and by tests/project/test_shader_stats.py.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from setup_vulkan import ICD_FOLDERS
from shader_cards import AMD, CARDS, Maker, StatsError
from shader_loops import Loop, busy_loops

ROOT = Path(__file__).resolve().parent.parent
CHILD = Path(__file__).resolve().parent / "vulkan_pipelines.py"
_FOR_CPU_DRIVERS = (
    *("matmul_lanes_", "matmul_rows_", "matmul_register_", "packed_rows_"),
    *("attention_lanes_", "norm_lanes", "softmax_lanes"),
    *("reduce_quads_", "reduce_across_", "reduce_wide_", "norm_blocks", "transpose_tiles"),
)
"""Written for CPU drivers: for subgroups of 4 or 8 lanes, with more values than registers, which
are on a stack there, or with neighbouring lanes far apart in memory.
"""
_READS_64 = "_64"
"""The end of the names of those that read words of 64 bits, which only CPU drivers gain from."""
WITH_LOOPS = (
    *("matmul_tiled_float", "matmul_tiled_mixed", "matmul_tiled_packed"),
    *("matmul_few_float", "attention_tiled"),
    *("conv_float32", "conv_transpose_float32"),
)
"""Kernels of GPUs that are made of multiply-adds in loops."""
CHILDREN = 2
TIME_LIMIT_S = 300
AT_ONCE = 100
"""Pipelines of a child: mesa-drm-shim of Mesa 26 gives nothing back, and ends after some 500."""
BEGIN = (
    "<!-- From here to the end mark: python build_shaders.py --stats --write docs/shaders.md -->"
)
END = "<!-- end -->"


MOST_NAMED = 4
"""Steps of a pipeline that its line names."""


def is_for_cards(variant: str) -> bool:
    """Whether a GPU may be given a shader; others are left out of the tables unless named."""
    return not variant.startswith(_FOR_CPU_DRIVERS) and not variant.endswith(_READS_64)


@dataclass(frozen=True)
class Pipeline:
    """A variant with specialisation constants, of which those not named keep their defaults, and
    with the steps that are written into it, calls and words.
    """

    variant: str
    constants: tuple[tuple[str, int], ...] = ()
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    words: tuple[int, ...] = ()

    def __str__(self) -> str:
        named = [f"{name}={value}" for name, value in self.constants]
        steps = [name for name, _ in self.calls]
        if len(steps) > MOST_NAMED:
            steps[MOST_NAMED - 1 :] = [f"... {len(steps)} steps"]
        if steps:
            named.append(f"then {', '.join(steps)}")
        return f"{self.variant} ({', '.join(named)})" if named else self.variant


@dataclass(frozen=True)
class Statistics:
    """What the compiler tells of a pipeline. cycles: Mesa's "inverse throughput" for AMD, "static
    cycle count" for NVIDIA, all of whose registers are vgprs; scratch_bytes is its local memory.
    """

    vgprs: int
    sgprs: int = 0
    shared_bytes: int = 0
    waves: int = 0
    cycles: int = 0
    latency_cycles: int = 0
    code_bytes: int = 0
    spilled_vgprs: int = 0
    spilled_sgprs: int = 0
    scratch_bytes: int = 0
    instructions: int = 0
    loops: tuple[Loop, ...] = ()

    @property
    def spills(self) -> bool:
        return bool(self.spilled_vgprs or self.spilled_sgprs)


@dataclass(frozen=True)
class Report:
    """results: by family, the statistics of each pipeline, or the error instead."""

    drivers: dict[str, str]
    results: dict[str, dict[Pipeline, Statistics | str]]

    def problems(self) -> list[str]:
        """Returns a line for each pipeline that failed or spills."""
        lines = []
        for family, results in self.results.items():
            for pipeline, got in results.items():
                if isinstance(got, str):
                    lines.append(f"{family}: {pipeline}: {got}")
                elif got.spills:
                    count = f"{got.spilled_vgprs} VGPRs and {got.spilled_sgprs} SGPRs"
                    lines.append(f"{family}: {pipeline}: spills {count}")
        return lines

    def pipelines(self) -> list[Pipeline]:
        return list(next(iter(self.results.values()), {}))

    def slowest(self) -> dict[str, Pipeline]:
        """Returns of each variant the pipeline with the most cycles, or one that failed. Every
        family has the same say: cycles count as a share of the most that the variant takes there.
        """
        groups: dict[str, list[Pipeline]] = {}
        for pipeline in self.pipelines():
            groups.setdefault(pipeline.variant, []).append(pipeline)
        score = dict.fromkeys(self.pipelines(), 0.0)
        for results in self.results.values():
            for group in groups.values():
                told = {p: s.cycles for p in group if isinstance(s := results[p], Statistics)}
                most = max(told.values(), default=0) or 1
                for pipeline in group:
                    failed = pipeline not in told
                    score[pipeline] += float("inf") if failed else told[pipeline] / most
        return {variant: max(group, key=score.__getitem__) for variant, group in groups.items()}

    def made_by(self, families: Iterable[str]) -> str:
        """Returns a line that names the compiler of each family."""
        by_driver: dict[str, list[str]] = {}
        for family in families:
            by_driver.setdefault(self.drivers[family], []).append(family)
        told = (f"{driver} ({', '.join(names)})" for driver, names in by_driver.items())
        return f"Compiled by {', '.join(told)}."


def used_pipelines(variants: Collection[str] | None = None) -> list[Pipeline]:
    """Returns the variants, all when none are named, with all constants that calls use on a GPU."""
    try:
        from vksched.cases.table import CASES, FUNCTIONS, PRECISE
        from vksched.errors import UnsupportedOp
        from vksched.machine.limits import Limits
        from vksched.ops.core.lower import lower, variants_of
        from vksched.ops.core.op import Call, get_op, view_offset
        from vksched.runtime.vulkan.shaders import load_manifest, load_shader
    except ImportError as error:
        raise StatsError(f"{error}; try .venv/bin/python, which `make setup` makes") from None
    all_variants = load_manifest()
    unknown = sorted(set(variants or ()) - set(all_variants))
    if unknown:
        raise StatsError(f"no shader variant is named {', '.join(unknown)}")
    wanted = sorted(variants or filter(is_for_cards, all_variants))
    amd = Limits(
        max_invocations=1024,
        max_local_size=(1024, 1024, 1024),
        shared_bytes=65536,
        max_buffer_bytes=1 << 32,
        subgroup_size=64,
        float16=True,
    )
    calls = {(case.op, case.call(amd)) for case in (*CASES, *PRECISE)}
    for graph in (case.graph for case in FUNCTIONS):
        for n in graph.ops:
            calls.add((n.op, Call(graph.input_types(n), n.type, n.attrs, amd)))
    used = {Pipeline(name) for name in wanted}
    for name, call in calls:
        op = get_op(name)
        if op.kernel is None or view_offset(op, call.inputs, call.attrs) is not None:
            continue
        here = (replace(call, limits=limits) for limits in (amd, Limits()))
        for run in (replace(c, variant=name) for c in here for name in variants_of(op, c)):
            with contextlib.suppress(UnsupportedOp):
                for dispatch in lower(op, run).dispatches:
                    if dispatch.shader in wanted:
                        defaults = {n: d for n, _, d in load_shader(dispatch.shader).constants}
                        given = sorted(dict(dispatch.constants).items())
                        changed = tuple((n, v) for n, v in given if defaults[n] != v)
                        steps = dispatch.steps
                        used.add(Pipeline(dispatch.shader, changed, steps.calls, steps.words))
    return sorted(used, key=lambda p: (p.variant, p.constants, p.calls, p.words))


def measure(pipelines: Sequence[Pipeline], families: Iterable[str]) -> Report:
    """Compiles the pipelines for every family.

    Raises:
        StatsError: there is no driver, or it knows a family under no name.
    """
    names = list(families)
    unknown = sorted(set(names) - set(CARDS))
    if unknown:
        raise StatsError(f"expected families of {', '.join(CARDS)}; got {', '.join(unknown)}")
    for name in names:
        maker = CARDS[name].maker
        if not CARDS[name].is_there():
            raise StatsError(
                f"{name}: expected Mesa's driver ({maker.driver}*.json in "
                f"{', '.join(ICD_FOLDERS)}), found none that can compile for it; try `apt-get "
                f"install` {maker.install} (no card is needed)"
            )
    with ThreadPoolExecutor(CHILDREN) as pool:
        answers = list(pool.map(lambda family: _compile(family, pipelines), names))
    drivers = {family: driver for family, (driver, _) in zip(names, answers, strict=True)}
    return Report(drivers, {f: results for f, (_, results) in zip(names, answers, strict=True)})


def _compile(
    family: str, pipelines: Sequence[Pipeline]
) -> tuple[str, dict[Pipeline, Statistics | str]]:
    """Returns the driver's name and version, and what it says of each pipeline.

    Where the compiler dies, a new child goes on at the pipeline that it died of: what came before
    may be the cause. One that dies of its first pipeline has no other; the next goes on behind it.
    """
    card = CARDS[family]
    driver, results = "", {}
    todo = list(pipelines)
    while todo or not driver:
        some = todo[:AT_ONCE]
        lines, failures = list[dict[str, object]](), list[str]()
        for environ in card.environments():
            lines, failure = _run_child(environ, some)
            failures.append(failure)
            if lines:
                break
        if not lines:
            told = ", ".join(dict.fromkeys(failures))
            raise StatsError(f"{family}: {told}; try `apt-get install` {card.maker.install}")
        driver = str(lines[0]["driver"])
        for pipeline, answer in zip(some, lines[1:]):  # noqa: B905 - fewer when it died
            results[pipeline] = _read(card.maker, answer)
        todo = todo[len(lines) - 1 :]
        if some and len(lines) == 1:
            results[todo.pop(0)] = f"the compiler died: {failures[-1]}"
    return driver, results


def _read(maker: Maker, answer: dict[str, object]) -> Statistics | str:
    statistics = answer.get("statistics")
    if not isinstance(statistics, dict):
        return str(answer.get("error"))
    told = {name.lower(): int(value) for name, value in statistics.items()}
    missing = [name for name in maker.statistics.values() if name.lower() not in told]
    if missing:
        raise StatsError(f"this Mesa does not tell {', '.join(missing)}, but {list(statistics)}")
    names = {**maker.statistics, **maker.newer}
    read = {field: told[n.lower()] for field, n in names.items() if n.lower() in told}
    return Statistics(**read, loops=tuple(busy_loops(str(answer.get("assembly", "")))))


def _request(pipeline: Pipeline, folder: str) -> dict[str, object]:
    """Returns what the child process needs to know of a pipeline. folder: for modules that are
    written anew.
    """
    from vksched.ops.core.op import Steps
    from vksched.runtime.vulkan.shaders import DIRECTORY, load_shader

    shader = load_shader(pipeline.variant)
    values = shader.specialize(dict(pipeline.constants))
    path = DIRECTORY / f"{pipeline.variant}.spv"
    module = shader.module(Steps(pipeline.calls, pipeline.words))
    if module != shader.spirv:
        path = Path(folder) / f"{pipeline.variant}_{hash(pipeline) & 0xFFFFFFFF:08x}.spv"
        path.write_bytes(module)
    return {
        "spirv": str(path),
        "bindings": len(shader.bindings),
        "push_bytes": shader.push_bytes,
        "constants": values,
        "assembly": pipeline.variant.startswith(WITH_LOOPS),
    }


def _run_child(
    environ: dict[str, str], pipelines: Sequence[Pipeline]
) -> tuple[list[dict[str, object]], str]:
    """Returns the lines that a child process printed, and why it ended early if it did."""
    with tempfile.TemporaryDirectory() as folder:
        requests = [_request(pipeline, folder) for pipeline in pipelines]
        try:
            done = subprocess.run(
                [sys.executable, str(CHILD)],
                input=json.dumps(requests),
                capture_output=True,
                text=True,
                env=environ,
                timeout=TIME_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise StatsError(f"a compiler was not done after {TIME_LIMIT_S} s") from None
    said = done.stderr.strip().splitlines()[-1:]
    failure = " ".join([*said, f"(exit code {done.returncode})"])
    return [json.loads(line) for line in done.stdout.splitlines()], failure


def as_json(report: Report) -> str:
    """Returns everything, a list of one object per pipeline and family."""
    rows = []
    for family, results in report.results.items():
        for pipeline, got in results.items():
            row: dict[str, object] = {
                "variant": pipeline.variant,
                "constants": dict(pipeline.constants),
                "steps": [name for name, _ in pipeline.calls],
                "family": family,
                "driver": report.drivers[family],
            }
            if isinstance(got, str):
                row["error"] = got
            else:
                row |= asdict(got)
            rows.append(row)
    return json.dumps(rows, indent=1)


def _heads(family: str) -> list[str]:
    if CARDS[family].maker is not AMD:
        return ["registers", "local bytes", "cycles"]
    return ["VGPR/SGPR" if family == "vega10" else "VGPR", "waves", "cycles"]


def _cell(family: str, got: Statistics | str) -> list[str]:
    """Returns registers (`!`: spilled, `~`: arrays in scratch memory), waves and cycles; local
    memory in the place of waves for NVIDIA.
    """
    if isinstance(got, str):
        return ["failed", "", ""]
    mark = "!" if got.spills else "~" if got.scratch_bytes else ""
    if CARDS[family].maker is not AMD:
        return [f"{got.vgprs}{mark}", str(got.scratch_bytes), str(got.cycles or "?")]
    # Only GCN shares scalar registers out; RDNA gives every wave the same number.
    registers = f"{got.vgprs}/{got.sgprs}" if family == "vega10" else str(got.vgprs)
    return [registers + mark, str(got.waves), str(got.cycles)]


def _shared(report: Report, pipeline: Pipeline) -> str:
    found = (results[pipeline] for results in report.results.values())
    return str(max((s.shared_bytes for s in found if isinstance(s, Statistics)), default=0))


def as_text(report: Report, every: bool) -> str:
    """Returns an aligned table: the slowest constants of each variant, or every pipeline."""
    heads = ["variant (constants)", "LDS"]
    above = ["", ""]
    for family in report.results:
        heads += _heads(family)
        above += ["", "", family]
    rows = [above, heads]
    for pipeline in report.pipelines() if every else report.slowest().values():
        cells = [_cell(family, results[pipeline]) for family, results in report.results.items()]
        rows.append([str(pipeline), _shared(report, pipeline), *sum(cells, [])])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = (text.rjust(w) for text, w in zip(row, widths, strict=True))
        lines.append("  ".join([row[0].ljust(len(first)), *others]).rstrip())
    return "\n".join(lines)


def as_markdown(report: Report) -> str:
    """Returns the page's table, one row per variant."""
    families = list(report.results)
    lines = [
        f"{len(report.slowest())} variants, {len(report.pipelines())} pipelines for each card.",
        report.made_by(families),
        "",
        f"| variant (constants) | LDS | {' | '.join(families)} |",
        "|---|--:|" + "--:|" * len(families),
    ]
    for variant, pipeline in report.slowest().items():
        named = f"`{variant}`" + str(pipeline).removeprefix(variant)
        found = (_cell(f, report.results[f][pipeline]) for f in families)
        cells = [" · ".join(filter(None, cell)) for cell in found]
        lines.append(f"| {named} | {_shared(report, pipeline)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def loops_as_markdown(report: Report) -> str:
    """Returns a table of the loops of each variant, as AMD's assembly shows them, the pipelines
    once that differ in them.
    """
    told = {f: results for f, results in report.results.items() if CARDS[f].maker is AMD}
    lines = [
        report.made_by(told),
        "",
        f"| kernel (constants) | {' | '.join(told)} |",
        "|---|" + "--:|" * len(told),
    ]
    seen = set()
    for pipeline in report.pipelines():
        found = (results[pipeline] for results in told.values())
        loops = [got.loops if isinstance(got, Statistics) else () for got in found]
        cells = " | ".join(", ".join(map(str, of_card)) for of_card in loops)
        if any(loops) and (pipeline.variant, cells) not in seen:
            seen.add((pipeline.variant, cells))
            named = f"`{pipeline.variant}`" + str(pipeline).removeprefix(pipeline.variant)
            lines.append(f"| {named} | {cells} |")
    return "\n".join(lines)


def write_page(path: Path, *tables: str) -> None:
    """Puts the tables between the page's marks, in order."""
    before, *parts = (path.read_text() if path.exists() else "").split(BEGIN)
    if len(parts) != len(tables) or not all(END in part for part in parts):
        raise StatsError(
            f"expected a page with the lines {BEGIN!r} and {END!r}, {len(tables)} times, as {path}"
        )
    for table, part in zip(tables, parts, strict=True):
        before += f"{BEGIN}\n{table}\n{END}{part.partition(END)[2]}"
    path.write_text(before)


def main(variants: Sequence[str], families: str, json_too: bool, page: Path | None) -> int:
    """Prints or writes the statistics; returns 1 when a pipeline failed or spills."""
    there = [name for name, card in CARDS.items() if card.is_there()]
    every = list(CARDS) if page or not there else there  # what is missing is told
    chosen = families.split(",") if families else every
    try:
        if page and (variants or families):
            raise StatsError("--write takes every variant and every family")
        report = measure(used_pipelines(variants), chosen)
        if page:
            write_page(page, loops_as_markdown(report), as_markdown(report))
        elif json_too:
            print(as_json(report))
        else:
            print(as_text(report, bool(variants)))
    except StatsError as error:
        print(f"build_shaders --stats: {error}", file=sys.stderr)
        return 1
    problems = report.problems()
    for line in problems:
        print(f"build_shaders --stats: {line}", file=sys.stderr)
    drivers = ", ".join(sorted(set(report.drivers.values())))
    count = len(report.pipelines())
    print(f"pipelines: {count}, cards: {len(chosen)}, compiler: {drivers}", file=sys.stderr)
    return 1 if problems else 0
