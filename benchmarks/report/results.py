"""Results of `vksched bench` in files: read, put together, and kept beside the pages of figures."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from page import Extras

from vksched.bench.baselines.workloads import SINGLE
from vksched.bench.report import DeviceReport, Report
from vksched.bench.rounds import Result
from vksched.bench.suites import specs_of

SUITES = ("ops", "overhead", "models")
EXTRAS = {"overlap": "overlap.py", "scaling": "scaling.py", "loading": "loading.py"}
"""What other scripts beside this one measure, with --json: where the page has it, and which."""
COMPUTED = ("flops", "bytes", "seconds")
"""Of results and figures: what is computed again when they are read."""


def merge(reports: Iterable[Report]) -> Report:
    """Put reports together: the last result of each case, the highest ceiling of each device."""
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
            baselines = {**known.baselines, **device.baselines}
            missing = {
                n: r for n, r in {**known.missing, **device.missing}.items() if n not in baselines
            }
            devices[device.name] = replace(
                device, ceiling=ceiling, baselines=baselines, missing=missing
            )
        for result in report.results:
            results[result.device, result.spec.name] = result
        for fact in report.facts:
            facts[fact.device, fact.name] = fact
    order = {spec.name: i for i, spec in enumerate(s for suite in SUITES for s in specs_of(suite))}

    def place(result: Result) -> tuple[str, int, str]:
        name = result.spec.name.removesuffix(f" in {result.spec.get('precision', SINGLE)}")
        if name not in order:  # as they were measured
            return result.device, len(order), ""
        return result.device, order[name], result.spec.name

    ordered = sorted(results.values(), key=place)
    return Report("all", list(devices.values()), ordered, version, list(facts.values()))


def read(paths: Sequence[Path]) -> tuple[Report, Extras]:
    """Return the results of files, put together."""
    found, extras = [], {}
    for path in paths:
        try:
            data = json.loads(path.read_text("utf-8"))
            extras.update({key: rows for key, rows in data.items() if key in EXTRAS})
            if data.keys() - EXTRAS.keys():
                found.append(Report.from_dict(data))
        except (OSError, ValueError, AttributeError) as error:
            raise click.ClickException(f"[report] cannot read {path}: {error}") from error
    return merge(found), extras


def write_results(report: Report, extras: Extras, path: Path) -> None:
    """Write results as one line per case, with few digits: small, and good to compare."""
    data = report.as_dict()
    data["results"] = [_without_computed(result) for result in data["results"]]
    lines = []
    for key, value in rounded({**data, **extras}).items():
        if isinstance(value, list):
            items = ",\n".join(json.dumps(item, separators=(",", ":")) for item in value)
            lines.append(f'"{key}": [\n{items}\n]')
        else:
            lines.append(f'"{key}": {json.dumps(value)}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


def _without_computed(result: Mapping[str, Any]) -> dict[str, Any]:
    out = {key: value for key, value in result.items() if key not in COMPUTED}
    out["figures"] = [
        {key: value for key, value in figure.items() if key not in COMPUTED}
        for figure in result["figures"]
    ]
    return out


def rounded(value: Any) -> Any:
    """Return plain data with floats of five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value
