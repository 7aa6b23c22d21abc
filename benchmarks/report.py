"""Writes docs/performance.md with its plots, from results of `vksched bench`.

    python benchmarks/report.py                          # again, from docs/performance/results.json
    python benchmarks/report.py a.json b.json            # from these; they are kept beside the page
    python benchmarks/report.py --run --peer-python P    # measures first: every suite and device
    python benchmarks/report.py --run --under "nice -n -5" --case "matmul*" --devices vulkan:0

Results of several runs are put together by device and case; later ones win. What people wrote is
in docs/performance/*.md and goes into the page as it is. Plots need matplotlib (extra `bench`).
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from vksched.bench.peers.specs import work_of
from vksched.bench.report import FLOORS, DeviceReport, Report, means, rates
from vksched.bench.rounds import OURS, Result, geometric_mean
from vksched.bench.suites import specs_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PORTION = 4
"""Cases measured by one process, so that a portion takes no more than about a minute."""
SUITES = ("ops", "overhead", "models")
COMMAND = "python benchmarks/report.py"
DISPATCH_S = 100e-6
"""Calls that take less are bound by what a dispatch costs rather than by their work."""


# -- results ---------------------------------------------------------------------------------------


def merge(reports: Iterable[Report]) -> Report:
    """Puts reports together: the last result of each case, the highest ceiling of each device."""
    devices: dict[str, DeviceReport] = {}
    results: dict[tuple[str, str], Result] = {}
    facts: dict[tuple[str, str], Any] = {}
    version = ""
    for report in reports:
        version = report.version or version
        for device in report.devices:
            known = devices.get(device.name, device)
            flops = max(known.ceiling, device.ceiling, key=lambda c: c.flops_per_s)
            moved = max(known.ceiling, device.ceiling, key=lambda c: c.bytes_per_s)
            ceiling = replace(flops, bytes_per_s=moved.bytes_per_s, copy=moved.copy)
            peers = {**known.peers, **device.peers}
            missing = {
                n: r for n, r in {**known.missing, **device.missing}.items() if n not in peers
            }
            devices[device.name] = replace(device, ceiling=ceiling, peers=peers, missing=missing)
        for result in report.results:
            results[result.device, result.spec.name] = result
        for fact in report.facts:
            facts[fact.device, fact.name] = fact
    order = {
        spec.name: i for suite in ("ops", "overhead") for i, spec in enumerate(specs_of(suite))
    }
    ordered = sorted(results.values(), key=lambda r: (r.device, order.get(r.spec.name, 1000)))
    return Report("all", list(devices.values()), ordered, version, list(facts.values()))


def read(paths: Sequence[Path]) -> Report:
    """Returns the results of files, put together."""
    found = []
    for path in paths:
        try:
            found.append(Report.from_dict(json.loads(path.read_text())))
        except (OSError, ValueError) as error:
            raise click.ClickException(f"[report] cannot read {path}: {error}") from error
    return merge(found)


def write_results(report: Report, path: Path) -> None:
    """Writes results as one line per case, with few digits: small, and good to compare."""
    data = _rounded(report.as_dict())
    lines = []
    for key, value in data.items():
        if isinstance(value, list):
            items = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
            lines.append(f'"{key}": [\n{items}\n]')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items() if k not in ("flops", "bytes", "seconds")}
    return [_rounded(v) for v in value] if isinstance(value, list) else value


def run_all(
    devices: Sequence[str], pythons: Sequence[str], pattern: str | None, under: str, budget_s: float
) -> list[Path]:
    """Runs the bench in portions, each in a process of its own; returns the files with results."""
    folder = Path(tempfile.mkdtemp(prefix="vksched-bench-"))
    out: list[Path] = []
    for device in devices:
        for suite in SUITES:
            names = [spec.name for spec in specs_of(suite, pattern)] or ["*"]
            if pattern is not None and suite != "ops":
                continue
            for start in range(0, len(names), PORTION):
                path = folder / f"{len(out):03}.json"
                part = ",".join(names[start : start + PORTION])
                command = [*shlex.split(under), sys.executable, "-m", "vksched", "bench"]
                command += ["--suite", suite, "--devices", device, "--case", part, "--peers"]
                command += [word for p in pythons for word in ("--peer-python", p)]
                command += ["--budget", str(budget_s), "--output", str(path)]
                click.echo(shlex.join(command), err=True)
                code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
                if code:
                    click.echo(f"exit code {code}; the page has what was measured before", err=True)
                if path.exists():
                    out.append(path)
    return out


# -- the page --------------------------------------------------------------------------------------


def page(report: Report, parts: Path) -> str:
    """Returns the page; parts: the folder of what people wrote."""
    lines = [
        "# Performance",
        "",
        f"Written by `{COMMAND}`; figures from [results.json](performance/results.json), which "
        "`vksched bench` measured. Text between the tables is in `docs/performance/*.md`.",
        "",
        "A call's time is that of one call in a compiled graph that is replayed, with all data on "
        "the device: dispatches, barriers and its share of the graph's cost, without submission "
        "and fence. Rounds of all runtimes take turns in one run, so ratios hold where absolute "
        "figures do not: other programs may have run beside. Ratios are the medians of the "
        "rounds' own; above 1 vksched is faster. Every result was compared with numpy's first. "
        "A share is that of the device's own ceiling in the same run: an fma loop for arithmetic, "
        "a copy for bytes, whichever bounds the call.",
        "",
    ]
    lines += _ceilings(report)
    for device in report.devices:
        results = report.results_of(device.name)
        if not results and not [f for f in report.facts if f.device == device.name]:
            continue
        lines += [f"## {device.name}: {device.label}", ""]
        lines += _means(device, results) + _cases(device, results) + _no_figures(results)
        lines += _facts(report, device.name)
    lines += _gpu(report)
    for name in ("tried.md", "scheduler.md"):
        path = parts / name
        if path.exists():
            lines += [path.read_text().strip(), ""]
    return "\n".join(lines).rstrip() + "\n"


def _ceilings(report: Report) -> list[str]:
    lines = [
        "| device | type | driver | arithmetic, GFLOP/s | by | copy, GB/s | by | peers |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for d in report.devices:
        peers = ", ".join(f"{name} {version}".strip() for name, version in d.peers.items())
        c = d.ceiling
        lines.append(
            f"| {d.name}: {d.label} | {d.type} | {d.driver} | {c.flops_per_s / 1e9:.3g} | "
            f"{c.arithmetic} | {c.bytes_per_s / 1e9:.3g} | {c.copy} | {peers} |"
        )
    return [*lines, ""]


def _means(device: DeviceReport, results: Sequence[Result]) -> list[str]:
    peers = [p for p in device.peers if any(r.ratio(p) for r in results)]
    found = means(results)
    if not peers:
        return []
    head = [*peers, "the fastest peer of each case"]
    lines = [
        "Times as fast as each peer, geometric means; `kp` is hand-written Kompute, a measure of "
        "the device and no peer.",
        "",
        f"| cases | {' | '.join(head)} | least ratio to the fastest |",
        "|---" * (len(head) + 2) + "|",
    ]
    for group, by_peer in found.items():
        cells = [_ratio(by_peer.get(peer)) for peer in (*peers, "fastest")]
        own = [r for r in results if r.spec.group == group]
        least = min((x for x in map(_to_fastest, own) if x is not None), default=None)
        lines.append(f"| {group} | {' | '.join(cells)} | {_ratio(least)} |")
    return [*lines, ""]


def _to_fastest(result: Result) -> float | None:
    fastest = result.fastest_peer(FLOORS)
    return result.ratio(fastest.runner) if fastest else None


def _cases(device: DeviceReport, results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    peers = [p for p in device.peers if any(r.ratio(p) for r in results)]
    head = "".join(f" {peer} |" for peer in peers)
    lines = [
        f"| case | time | spread | GFLOP/s | GB/s | share | bound by |{head}",
        "|---" * (7 + len(peers)) + "|",
    ]
    for result in results:
        ours = result.ours
        ratios = "".join(f" {_ratio(result.ratio(peer))} |" for peer in peers)
        if ours is None or ours.seconds is None:
            why = "wrong" if ours and ours.wrong else "none"
            lines.append(f"| {result.spec.name} | {why} | | | | | |{ratios}")
            continue
        flops, moved, share = rates(result.spec, ours.seconds, device.ceiling)
        bound = bound_of(device, result)
        lines.append(
            f"| {result.spec.name} | {_time(ours.seconds)} | {100 * ours.spread:.0f} % | "
            f"{flops:.3g} | {moved:.3g} | {100 * share:.0f} % | {bound} |{ratios}"
        )
    return [*lines, ""]


def bound_of(device: DeviceReport, result: Result) -> str:
    """Returns what bounds our time of a case: arithmetic, bytes, or the cost of dispatches."""
    work = work_of(result.spec)
    seconds = result.ours.seconds if result.ours else None
    ideal = device.ceiling.share(*work, 1.0)
    if result.spec.kind == "chain" or (seconds and seconds < DISPATCH_S and ideal < seconds / 4):
        return "dispatch"
    return device.ceiling.bound(*work)


def _no_figures(results: Sequence[Result]) -> list[str]:
    why: dict[tuple[str, str], list[str]] = {}
    for result in results:
        for figure in result.figures:
            if figure.reason:
                why.setdefault((figure.runner, figure.reason), []).append(result.spec.name)
    lines = [f"- {runner}: {reason}: {', '.join(c)}" for (runner, reason), c in why.items()]
    return ["No figures:", "", *lines, ""] if lines else []


def _facts(report: Report, device: str) -> list[str]:
    found = [fact for fact in report.facts if fact.device == device]
    if not found:
        return []
    lines = ["| what | value | beside | ratio | |", "|---|---|---|---|---|"]
    for fact in found:
        value, beside, ratio = fact.cells()
        lines.append(f"| {fact.name} | {value} | {beside} | {ratio} | {fact.note} |")
    return [*lines, ""]


def _gpu(report: Report) -> list[str]:
    gpus = [d for d in report.devices if d.type not in ("cpu",)]
    lines = ["## GPUs", ""]
    if not gpus:
        return [
            *lines,
            "None was at hand. What AMD's compiler makes of every kernel, for cards of four "
            "generations: [shaders](shaders.md).",
            "",
        ]
    lines += ["| device | matmul 2048 float32, GFLOP/s | torch | copy, GB/s |", "|---|---|---|---|"]
    for device in gpus:
        results = {r.spec.name: r for r in report.results_of(device.name)}
        square = results.get("matmul 2048")
        figures = {f.runner: f.seconds for f in square.figures} if square else {}
        cells = []
        for runner in (OURS, "torch"):
            seconds = figures.get(runner)
            cells.append(f"{2 * 2048**3 / seconds / 1e9:.4g}" if seconds else "")
        lines.append(
            f"| {device.label} | {' | '.join(cells)} | {device.ceiling.bytes_per_s / 1e9:.4g} |"
        )
    return [*lines, ""]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


# -- plots -----------------------------------------------------------------------------------------


def plots(report: Report, folder: Path) -> dict[str, str]:
    """Draws what there is; returns file names by caption."""
    try:
        import matplotlib
    except ImportError as error:
        raise click.ClickException(
            f"[report] expected matplotlib, got {error}; try pip install vksched[bench]"
        ) from error
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "vksched", "svg.fonttype": "none"})
    made: dict[str, str] = {}
    for device in report.devices:
        results = report.results_of(device.name)
        square = {r.spec["m"]: r for r in results if r.spec.group == "matmul square"}
        if len(square) > 1:
            name = f"matmul-{device.name.replace(':', '-')}.svg"
            ceiling = device.ceiling.flops_per_s / 1e9
            _draw(
                folder / name, _series(square, 2.0), "size of square matrices", "GFLOP/s", ceiling
            )
            made[f"Products of square matrices on {device.name}; dashed: the ceiling"] = name
        chains = {
            r.spec["ops"]: r for r in results if r.spec.kind == "chain" and not r.spec.get("fused")
        }
        if len(chains) > 1:
            name = f"overhead-{device.name.replace(':', '-')}.svg"
            _draw(folder / name, _series(chains, 0.0), "ops in the graph", "us per op", None)
            made[f"Time of one op over the ops of a replayed graph on {device.name}"] = name
    return made


def _series(results: dict[int, Result], power: float) -> dict[str, list[tuple[int, float]]]:
    """Returns by runner points of size and rate (power 2: products), or us per op (0)."""
    out: dict[str, list[tuple[int, float]]] = {}
    for size, result in sorted(results.items()):
        for figure in result.figures:
            if figure.seconds:
                value = 2 * size**3 / figure.seconds / 1e9 if power else 1e6 * figure.seconds
                out.setdefault(figure.runner, []).append((size, value))
    return out


def _draw(
    path: Path, series: dict[str, list[tuple[int, float]]], x: str, y: str, line: float | None
) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, points in series.items():
        width = 2.5 if name == OURS else 1.2
        axes.plot(*zip(*points, strict=True), "o-", label=name, linewidth=width, markersize=4)
    if line is not None:
        axes.axhline(line, color="grey", linestyle="--", linewidth=1)
    axes.set(xscale="log", xlabel=x, ylabel=y, ylim=(0, None))
    ticks = sorted({point[0] for points in series.values() for point in points})
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


# -- command ---------------------------------------------------------------------------------------


def write(report: Report, docs: Path) -> None:
    """Writes the page, its plots and the results they show."""
    folder = docs / "performance"
    folder.mkdir(parents=True, exist_ok=True)
    write_results(report, folder / "results.json")
    text = page(report, folder)
    for caption, name in plots(report, folder).items():
        device = caption.split(" on ")[-1].split(";")[0]
        picture = f"![{caption}](performance/{name})\n\n*{caption}*\n"
        head, sep, rest = text.partition(f"## {device}: ")
        title, _, body = rest.partition("\n")
        text = f"{head}{sep}{title}\n\n{picture}{body}"
    (docs / "performance.md").write_text(text)


@click.command(help=__doc__.splitlines()[0] if __doc__ else "")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--run", is_flag=True, help="Measure first.")
@click.option("--devices", default="vulkan:0,vulkan:1,cpu", show_default=True, help="With --run.")
@click.option("--peer-python", "pythons", multiple=True, help="With --run, as of vksched bench.")
@click.option("--case", "pattern", help="With --run: only such cases of the ops.")
@click.option("--under", default="", help="With --run: a command to put before each portion.")
@click.option("--budget", default=1.0, show_default=True, help="With --run: seconds per case.")
@click.option("--docs", default=DOCS, type=click.Path(path_type=Path), help="Where the page is.")
def main(
    files: tuple[Path, ...],
    run: bool,
    devices: str,
    pythons: tuple[str, ...],
    pattern: str | None,
    under: str,
    budget: float,
    docs: Path,
) -> None:
    kept = docs / "performance" / "results.json"
    paths = list(files)
    if run:
        paths += run_all(devices.split(","), pythons, pattern, under, budget)
    if kept.exists():
        paths.insert(0, kept)
    if not paths:
        raise click.ClickException(
            "[report] expected results; try --run, or files of vksched bench"
        )
    report = read(paths)
    write(report, docs)
    overall = geometric_mean(x for x in map(_to_fastest, report.results) if x is not None)
    click.echo(f"wrote {docs / 'performance.md'}; overall {_ratio(overall)} of the fastest peers")


if __name__ == "__main__":
    main()
