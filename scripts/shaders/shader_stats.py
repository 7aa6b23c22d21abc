"""What Mesa's compilers make of every shader variant for AMD and NVIDIA, without such a card.

Mesa's drivers compile for cards that are not there (see shader_cards.py) and tell registers,
spills, memory, occupancy and an estimate of the time. Each variant is compiled with its default
constants and with all that the case table's calls use on a GPU. One child process per card, for
a driver looks for its card once; see vulkan_pipelines.py.

Reached by `python build_shaders.py --stats`, and by tests/project/test_shader_stats.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shader_cards import AMD, CARDS, COOPMAT, INTEL, WITH_COOPMAT, Card, Maker, StatsError
from shader_loops import Loop, busy_loops
from shader_pipelines import COOPMAT_NAME, Pipeline, coopmat_pipelines, used_pipelines

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "setup"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
from setup_vulkan import ICD_FOLDERS
from tables import Table, read_tables, write_tables

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).resolve().parent / "vulkan_pipelines.py"
WITH_LOOPS = (
    *("matmul_tiled_float", "matmul_vec4"),
    *("matmul_gemv_float", "attention_tiled"),
    *("conv_float32", "conv_transpose_float32", "quant_gemv_mixed", "quant_gemm_"),
)
"""Kernels of GPUs that are made of multiply-adds in loops, with those for cooperative matrices."""
CHILDREN = 2
TIME_LIMIT_S = 900
AT_ONCE = 40
"""Pipelines of a child: mesa-drm-shim of Mesa 26 gives nothing back, and ends after some 500."""
DATA = ROOT / "benchmarks" / "data" / "shaders.json"
"""The tables of docs/development/shaders.md, written by `build_shaders.py --stats --write`."""


@dataclass(frozen=True)
class Statistics:
    """What the compiler tells of a pipeline. cycles: Mesa's "inverse throughput" for AMD, "static
    cycle count" for NVIDIA, all of whose registers are vgprs; scratch_bytes is its local memory.
    For Intel "cycle count" of all lanes, and the most registers of a thread in use at a time: it
    has 128, and large subgroups take several for a value. lanes: subgroup size.
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
    lanes: int = 0
    fills: int = 0
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
        """Return a line for each pipeline that failed or spills."""
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
        """Return of each variant the pipeline with the most cycles, or one that failed. Every
        family has the same say: cycles count as a share of the most that the variant takes there.
        """
        groups: dict[str, list[Pipeline]] = {}
        for pipeline in self.pipelines():
            groups.setdefault(pipeline.variant, []).append(pipeline)
        score = dict.fromkeys(self.pipelines(), 0.0)
        for results in self.results.values():
            for group in groups.values():
                cycles = {p: s.cycles for p in group if isinstance(s := results[p], Statistics)}
                most = max(cycles.values(), default=0) or 1
                for pipeline in group:
                    failed = pipeline not in cycles
                    score[pipeline] += float("inf") if failed else cycles[pipeline] / most
        return {variant: max(group, key=score.__getitem__) for variant, group in groups.items()}

    def compiled_by(self, families: Iterable[str]) -> str:
        """Return a line that names the compiler of each family."""
        by_driver: dict[str, list[str]] = {}
        for family in families:
            by_driver.setdefault(self.drivers[family], []).append(family)
        compilers = (f"{driver} ({', '.join(names)})" for driver, names in by_driver.items())
        return f"Compiled by {', '.join(compilers)}."


def measure(
    pipelines: Sequence[Pipeline], families: Iterable[str], cards: Mapping[str, Card] = CARDS
) -> Report:
    """Compile the pipelines for every family.

    Raises:
        StatsError: there is no driver, or it knows a family under no name.
    """
    names = list(families)
    unknown = sorted(set(names) - set(cards))
    if unknown:
        raise StatsError(f"expected families of {', '.join(cards)}; got {', '.join(unknown)}")
    for name in names:
        maker = cards[name].maker
        if not cards[name].exists():
            raise StatsError(
                f"{name}: expected Mesa's driver ({maker.driver}*.json in "
                f"{', '.join(ICD_FOLDERS)}), found none that can compile for it; try `apt-get "
                f"install` {maker.install} (no card is needed)"
            )
    with ThreadPoolExecutor(CHILDREN) as pool:
        answers = list(pool.map(lambda f: _compile(f, cards[f], pipelines), names))
    drivers = {family: driver for family, (driver, _) in zip(names, answers, strict=True)}
    return Report(drivers, {f: results for f, (_, results) in zip(names, answers, strict=True)})


def _compile(
    family: str, card: Card, pipelines: Sequence[Pipeline]
) -> tuple[str, dict[Pipeline, Statistics | str]]:
    """Return the driver's name and version, and what it says of each pipeline.

    Where the compiler dies, a new child goes on at the pipeline that it died of: what came before
    may be the cause. One that dies of its first pipeline has no other; the next goes on behind it.
    """
    driver, results = "", {}
    todo = list(pipelines)
    while todo or not driver:
        some = todo[:AT_ONCE]
        lines, failures = list[dict[str, Any]](), list[str]()
        for environ in card.environments():
            lines, failure = _run_child(environ, some)
            failures.append(failure)
            if lines:
                break
        if not lines:
            reasons = ", ".join(dict.fromkeys(failures))
            raise StatsError(f"{family}: {reasons}; try `apt-get install` {card.maker.install}")
        driver = str(lines[0]["driver"])
        for pipeline, answer in zip(some, lines[1:]):  # noqa: B905 - fewer when it died
            results[pipeline] = _read(card.maker, answer)
        todo = todo[len(lines) - 1 :]
        if some and len(lines) == 1:
            results[todo.pop(0)] = f"the compiler died: {failures[-1]}"
    return driver, results


def _read(maker: Maker, answer: dict[str, Any]) -> Statistics | str:
    """Return the statistics of the executable that is run: where the driver compiles one for each
    size of a subgroup, the largest that does not spill. If all spill, the largest.
    """
    if "executables" not in answer:
        return str(answer.get("error"))
    by_size = sorted(answer["executables"], key=lambda each: int(each["subgroup_size"]))
    read = [_statistics(maker, executable) for executable in by_size]
    return ([got for got in read if not got.spills] or read)[-1]


def _statistics(maker: Maker, executable: dict[str, Any]) -> Statistics:
    values = {name.lower(): int(value) for name, value in executable["statistics"].items()}
    missing = [name for name in maker.statistics.values() if name.lower() not in values]
    if missing:
        raise StatsError(f"this Mesa does not tell {', '.join(missing)}, but {list(values)}")
    names = {**maker.statistics, **maker.newer}
    read = {field: values[n.lower()] for field, n in names.items() if n.lower() in values}
    loops = busy_loops(str(executable.get("assembly", "")))
    return Statistics(**read, lanes=int(executable["subgroup_size"]), loops=tuple(loops))


def _request(pipeline: Pipeline, folder: str) -> dict[str, object]:
    """Return the description of a pipeline for the child process. folder: place of modules that
    are written anew.
    """
    from vksched.ir.op import ShaderProgram
    from vksched.runtime.vulkan.shaders import DIRECTORY, load_shader

    shader = load_shader(pipeline.variant)
    values = shader.specialize(dict(pipeline.constants))
    path = DIRECTORY / f"{pipeline.variant}.spv"
    module = shader.module(ShaderProgram(pipeline.calls, pipeline.words))
    if module != shader.spirv:
        path = Path(folder) / f"{pipeline.variant}_{hash(pipeline) & 0xFFFFFFFF:08x}.spv"
        path.write_bytes(module)
    return {
        "spirv": str(path),
        "bindings": len(shader.bindings),
        "push_bytes": shader.push_bytes,
        "constants": values,
        "subgroup": pipeline.subgroup,
        "assembly": pipeline.variant.startswith(WITH_LOOPS) or COOPMAT_NAME in pipeline.variant,
    }


def _run_child(
    environ: dict[str, str], pipelines: Sequence[Pipeline]
) -> tuple[list[dict[str, Any]], str]:
    """Return the lines that a child process printed, and why it ended early if it did."""
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
    last_line = done.stderr.strip().splitlines()[-1:]
    failure = " ".join([*last_line, f"(exit code {done.returncode})"])
    return [json.loads(line) for line in done.stdout.splitlines()], failure


def as_json(reports: Iterable[Report]) -> str:
    """Return everything, a list of one object per pipeline and family."""
    rows = []
    by_family = [(each, family) for each in reports for family in each.results]
    for report, family in by_family:
        for pipeline, got in report.results[family].items():
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
    if CARDS[family].maker is INTEL:
        return ["registers", "lanes", "cycles"]
    if CARDS[family].maker is not AMD:
        return ["registers", "local bytes", "cycles"]
    return ["VGPR/SGPR" if family == "vega10" else "VGPR", "waves", "cycles"]


def _cell(family: str, got: Statistics | str) -> list[str]:
    """Return registers (`!`: spilled, `~`: arrays in scratch memory), waves and cycles; in the
    place of waves local memory for NVIDIA, and the lanes of a subgroup for Intel.
    """
    if isinstance(got, str):
        return ["failed", "", ""]
    mark = "!" if got.spills else "~" if got.scratch_bytes else ""
    if CARDS[family].maker is INTEL:
        return [f"{got.vgprs}{mark}", str(got.lanes), str(got.cycles)]
    if CARDS[family].maker is not AMD:
        return [f"{got.vgprs}{mark}", str(got.scratch_bytes), str(got.cycles or "?")]
    # Only GCN shares scalar registers out; RDNA gives every wave the same number.
    registers = f"{got.vgprs}/{got.sgprs}" if family == "vega10" else str(got.vgprs)
    return [registers + mark, str(got.waves), str(got.cycles)]


def _shared(report: Report, pipeline: Pipeline) -> str:
    found = (results[pipeline] for results in report.results.values())
    return str(max((s.shared_bytes for s in found if isinstance(s, Statistics)), default=0))


def as_text(report: Report, every: bool) -> str:
    """Return an aligned table: the slowest constants of each variant, or every pipeline."""
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


def variants_table(report: Report) -> Table:
    """Return one row per variant: its slowest constants on every card."""
    families = list(report.results)
    counts = f"{len(report.slowest())} variants, {len(report.pipelines())} pipelines for each card."
    rows = []
    for variant, pipeline in report.slowest().items():
        found = (_cell(f, report.results[f][pipeline]) for f in families)
        cells = (" · ".join(filter(None, cell)) for cell in found)
        rows.append((_kernel(pipeline), _shared(report, pipeline), *cells))
        assert variant == pipeline.variant
    notes = (counts, report.compiled_by(families))
    return Table(("variant (constants)", "LDS", *families), tuple(rows), notes, numeric=True)


def loops_table(report: Report) -> Table:
    """Return the loops of each variant in AMD's assembly; equal pipelines of a variant once."""
    amd = {f: results for f, results in report.results.items() if CARDS[f].maker is AMD}
    rows = []
    seen = set()
    for pipeline in report.pipelines():
        found = (results[pipeline] for results in amd.values())
        loops = [got.loops if isinstance(got, Statistics) else () for got in found]
        cells = tuple(", ".join(map(str, of_card)) for of_card in loops)
        if any(loops) and (pipeline.variant, cells) not in seen:
            seen.add((pipeline.variant, cells))
            rows.append((_kernel(pipeline), *cells))
    return Table(
        ("kernel (constants)", *amd), tuple(rows), (report.compiled_by(amd),), numeric=True
    )


def coopmat_table(report: Report) -> Table:
    """Return the cooperative matrix kernels: registers of each card, and for AMD the other
    instructions of the loop per matrix instruction.
    """
    rows = (
        (_kernel(p), *(_coopmat_cell(results[p]) for results in report.results.values()))
        for p in report.pipelines()
    )
    columns = ("kernel (constants)", *report.results)
    return Table(columns, tuple(rows), (report.compiled_by(report.results),), numeric=True)


def _kernel(pipeline: Pipeline) -> str:
    return f"`{pipeline.variant}`" + str(pipeline).removeprefix(pipeline.variant)


def _coopmat_cell(got: Statistics | str) -> str:
    if isinstance(got, str):
        return "failed"
    registers = f"{got.vgprs}{'!' if got.spills else '~' if got.scratch_bytes else ''}"
    inner = sorted(got.loops, key=lambda loop: loop.vector_cycles)[:1]  # around it are its edges
    return " · ".join([registers, *(loop.matrix_overhead() for loop in inner)])


def measure_used(variants: Collection[str] | None, families: Iterable[str]) -> list[Report]:
    """Compile the pipelines that calls use on each family: a report for AMD and NVIDIA, and one
    for Intel, whose calls use others.
    """
    groups: dict[int, list[str]] = {}
    for family in families:
        if family not in CARDS:
            raise StatsError(f"expected families of {', '.join(CARDS)}; got {family}")
        groups.setdefault(CARDS[family].maker.registers, []).append(family)
    return [measure(used_pipelines(variants, count), names) for count, names in groups.items()]


def measure_coopmats(variants: Collection[str]) -> Iterator[Report]:
    """Compile kernels for cooperative matrices, in all tiles, on the cards that exist."""
    for units in COOPMAT if variants else ():
        pipelines = [p for p in coopmat_pipelines(units) if p.variant in variants]
        cards = [name for name in units.cards if WITH_COOPMAT[name].exists()]
        if pipelines and cards:
            yield measure(pipelines, cards, WITH_COOPMAT)


def write(path: Path, reports: Sequence[Report]) -> list[Report]:
    """Write the tables of the reports, and those of the cooperative matrices of their makers. Other
    makers' tables stay what they are. Returns all reports.

    Raises:
        StatsError: a maker's tables would lack a family.
    """
    there = {family for report in reports for family in report.results}
    parts = [
        measure(coopmat_pipelines(u), u.cards, WITH_COOPMAT) for u in COOPMAT if there & {*u.cards}
    ]
    names = ("loops", "coopmat", "variants", "intel")
    stored = json.loads(path.read_text("utf-8")) if path.exists() else {}
    tables = {name: read_tables(path, name) if name in stored else [] for name in names}
    tables["coopmat"] += [Table((), ())] * (len(COOPMAT) - len(tables["coopmat"]))
    for report in reports:
        registers = {CARDS[family].maker.registers for family in report.results}
        missing = {f for f, card in CARDS.items() if card.maker.registers in registers} - there
        if missing:
            raise StatsError(
                f"a table needs all families with as many registers; {sorted(missing)} lack"
            )
        if INTEL.registers in registers:
            tables["intel"] = [variants_table(report)]
        else:
            tables["loops"], tables["variants"] = [loops_table(report)], [variants_table(report)]
    new = iter(parts)
    for number, units in enumerate(COOPMAT):
        if there & {*units.cards}:
            tables["coopmat"][number] = coopmat_table(next(new))
    write_tables(path, tables)
    return [*reports, *parts]


def main(variants: Sequence[str], families: str, json_too: bool, path: Path | None) -> int:
    """Print or writes the statistics; returns 1 when a pipeline failed or spills."""
    there = [name for name, card in CARDS.items() if card.exists()]
    chosen = families.split(",") if families else there or list(CARDS)  # what is missing is told
    try:
        if path and variants:
            raise StatsError("--write takes every variant")
        coopmats = [name for name in variants if COOPMAT_NAME in name]
        others = [name for name in variants if name not in coopmats]
        reports = [] if coopmats and not others else measure_used(others, chosen)
        units = list(measure_coopmats(coopmats))
        if path:
            reports = write(path, reports)
        elif json_too:
            print(as_json(reports))
        else:
            texts = [as_text(report, bool(variants)) for report in reports]
            texts += ["\n".join(map(" | ".join, coopmat_table(each).rows)) for each in units]
            print("\n\n".join(texts))
    except StatsError as error:
        print(f"build_shaders --stats: {error}", file=sys.stderr)
        return 1
    reports += units
    problems = [line for report in reports for line in report.problems()]
    for line in problems:
        print(f"build_shaders --stats: {line}", file=sys.stderr)
    for report in reports:
        drivers = ", ".join(sorted(set(report.drivers.values())))
        count, cards = len(report.pipelines()), len(report.results)
        print(f"pipelines: {count}, cards: {cards}, compiler: {drivers}", file=sys.stderr)
    return 1 if problems else 0
