"""Draws the charts of docs/guides/training.md: pipeline schedules, for equal phases.

    python scripts/docs/pipeline_charts.py

Complexity: actions of the schedules.
"""

from __future__ import annotations

from pathlib import Path

from vksched.parallel.pipeline import (
    PipelineSchedule,
    dualpipe,
    gpipe,
    interleaved,
    one_f_one_b,
    save_chart,
    simulate,
    zb_h1,
    zb_h2,
)

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pictures"
CHARTS: dict[str, PipelineSchedule] = {
    "gpipe": gpipe(4, 8),
    "1f1b": one_f_one_b(4, 8),
    "interleaved": interleaved(4, 8),
    "zb-h1": zb_h1(4, 8),
    "zb-h2": zb_h2(4, 8),
    "dualpipe": dualpipe(4, 8),
}


def main(folder: Path = FOLDER) -> None:
    """Write the pictures."""
    for name, schedule in CHARTS.items():
        save_chart(simulate(schedule), folder / f"pipeline-{name}.svg")


if __name__ == "__main__":
    main()
