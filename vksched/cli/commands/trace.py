"""`vksched trace`: show a recorded tape as text, JSON, an HTML page or a picture."""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from ..options import inputs

if TYPE_CHECKING:
    from ...viz.timeline.timeline import Timeline

SLOWEST = 10
"""Number of slowest splits in the text."""


@click.command()
@click.argument("file", metavar="TRACE.json")
@click.option("--html", metavar="FILE.html", help="Write a self-contained HTML page.")
@click.option("--svg", metavar="FILE.svg", help="Write an SVG drawing of the runs.")
@click.option(
    "--png", metavar="FILE.png", help="Write a PNG drawing of the runs; requires matplotlib."
)
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON.")
def trace(file: str, html: str | None, svg: str | None, png: str | None, as_json: bool) -> None:
    """Show a recorded tape: runs, splits, copies and waits, measured and predicted.

    FILE is written by `vs.Tape().save` or `vksched run --trace`. Perfetto opens it, too.
    """
    from ...plan.serialize.trace_timeline import timeline

    wanted = [(html, ".html"), (svg, ".svg"), (png, ".png")]
    for path, end in wanted:
        check_end(path, end)
    found = timeline(file)
    for path, _ in wanted:
        if path is not None:
            found.save(path)
            click.echo(f"wrote {path}", err=True)
    click.echo(json.dumps(as_dict(found), indent=2) if as_json else as_text(found))


def check_end(path: str | None, end: str) -> None:
    """Refuse a file name with another suffix, or in a missing folder."""
    if path is None:
        return
    if not path.lower().endswith(end):
        raise click.UsageError(f"expected a name that ends in {end}, got {path!r}.")
    inputs.check_folder(path)


def as_dict(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as plain data; times in seconds from the first event."""
    return {
        "title": timeline.title,
        "summary": timeline.summary,
        "notes": list(timeline.notes),
        "lanes": [lane.name for lane in timeline.lanes],
        "spans": [
            {
                "lane": timeline.lanes[span.lane].name,
                **{key: value for key, value in span._asdict().items() if key != "lane"},
                "critical": number in timeline.critical,
            }
            for number, span in enumerate(timeline.spans)
        ],
        "links": [link._asdict() for link in timeline.links],
    }


def as_text(timeline: Timeline) -> str:
    """Return a timeline as one screen of text: activity of each device and the slowest splits."""
    from ...common.formatting import count_of, format_seconds

    lines = [timeline.title, timeline.summary, *(f"note: {note}" for note in timeline.notes)]
    by_split: dict[tuple[int, int], list[int]] = {}
    for number, span in enumerate(timeline.spans):
        if span.kind == "split" and span.row == "work":
            by_split.setdefault((span.plan, span.split), []).append(number)
    if not by_split:
        return "\n".join(lines)
    rows = [("split", "device", "runs", "measured", "predicted", "critical")]
    taken = {key: sum(timeline.spans[n].seconds for n in ns) for key, ns in by_split.items()}
    for key in sorted(taken, key=lambda key: -taken[key])[:SLOWEST]:
        numbers = by_split[key]
        first = timeline.spans[numbers[0]]
        expected = "-" if first.expected_s is None else format_seconds(first.expected_s)
        critical = sum(n in timeline.critical for n in numbers) / len(numbers)
        rows.append(
            (
                first.name,
                timeline.lanes[first.lane].name,
                str(len(numbers)),
                format_seconds(median(timeline.spans[n].seconds for n in numbers)),
                expected,
                f"{critical:.0%}",
            )
        )
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = ["  ".join(c.ljust(w) for c, w in zip(row, wide, strict=True)).rstrip() for row in rows]
    more = len(taken) - SLOWEST
    rest = [f"and {count_of(more, 'split')} more"] if more > 0 else []
    return "\n".join([*lines, "", *table, *rest])
