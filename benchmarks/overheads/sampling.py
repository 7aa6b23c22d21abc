"""The time to choose a token from the logits, by size of the vocabulary.

    python benchmarks/overheads/sampling.py [--repeats 60] [--json]

Logits are normally distributed with a standard deviation of 3. The options take turns; a time is
the median over the repeats, the least is the fastest of them.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
from options import make_parser
from rich.console import Console
from rich.table import Table

import vksched as vs

SIZES = (32_000, 128_000, 152_000, 262_000)
OPTIONS = {
    "default": vs.Sampling(),
    "top_k=0": vs.Sampling(top_k=0),
    "top_k=0, min_p=0": vs.Sampling(top_k=0, min_p=0),
    "no filter": vs.Sampling(top_k=0, top_p=1, min_p=0),
    "repeat_penalty=1.1": vs.Sampling(repeat_penalty=1.1),
}


@dataclass(frozen=True)
class Row:
    """The time of one set of options."""

    vocabulary: int
    options: str
    median_ms: float
    least_ms: float


def measure(vocabulary: int, repeats: int) -> list[Row]:
    """Return the times of all options for one size."""
    logits = 3 * np.random.default_rng(0).standard_normal(vocabulary, dtype=np.float32)
    times: dict[str, list[float]] = {name: [] for name in OPTIONS}
    for position in range(repeats):
        for name, sampling in OPTIONS.items():
            start = time.perf_counter()
            sampling.choose(logits, range(position))
            times[name].append(1e3 * (time.perf_counter() - start))
    return [Row(vocabulary, name, median(ms), min(ms)) for name, ms in times.items()]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    args = parser.parse_args()
    rows = [row for size in SIZES for row in measure(size, args.repeats)]
    if args.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table("vocabulary", "options", "median, ms", "least, ms")
    for row in rows:
        table.add_row(
            f"{row.vocabulary:,}", row.options, f"{row.median_ms:.3f}", f"{row.least_ms:.3f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
