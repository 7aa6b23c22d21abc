"""Makes the screenshots of the documentation from real runs: pages of timelines, and the notebook.

    python scripts/docs/screenshots.py docs/guides/pictures

It needs Chromium or Chrome and the package websockets. Runs are on all Vulkan devices there are;
those of the notebook on null devices.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

import numpy as np
from chromium import Chromium, Page
from notebook import as_page, run_notebook
from PIL import Image

import vksched as vs

ROOT = Path(__file__).resolve().parents[2]
TOUR = ROOT / "examples" / "tour.ipynb"
RUNS = 6


def record_runs() -> vs.Timeline:
    """Return runs of a network of two branches on all Vulkan devices there are, with the CPU."""
    names = [device.name for device in vs.devices()]
    rng = np.random.default_rng(0)

    def weight(rows: int, columns: int, name: str) -> vs.Tensor:
        return vs.weight(rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32), name=name)

    x = vs.input("x", (256, 256))
    branches = []
    for at in range(max(2, len(names))):
        hidden = x
        for layer in range(3):
            name = f"branch{at}.layer{layer}"
            product = vs.matmul(hidden, weight(256, 256, f"{name}.w"), name=f"{name}.product")
            hidden = vs.gelu(product, name=name)
        branches.append(hidden)
    total = branches[0]
    for each in branches[1:]:
        total = total + each
    y = vs.softmax(total @ weight(256, 64, "out.w"), axis=-1)
    wanted = names or ["cpu"]
    placement = {f"branch{at}.*": wanted[at % len(wanted)] for at in range(len(branches))}
    with vs.Scheduler(wanted, trace=vs.Tape()) as sched:
        run = sched.compile(y, placement=placement)
        batch = rng.normal(0, 1, (256, 256)).astype(np.float32)
        for _ in range(RUNS):
            run(x=batch)
        return vs.timeline(run.trace)


def select_split(page: Page) -> None:
    """Clicks the longest measured split of the last run."""
    number = page.run(
        """(() => {
        const { span, tracks, texts } = vksched;
        const last = Math.max(...span.run);
        const took = (i) => span.end[i] - span.start[i];
        let best = -1;
        span.kind.forEach((kind, i) => {
          const fits = texts[kind] === "split" && span.run[i] === last
            && tracks[span.track[i]].row === "work";
          if (fits && (best < 0 || took(i) > took(best))) best = i;
        });
        return best;
        })()"""
    )
    page.run(f"vksched.select({number}, 'close'); for (let i = 0; i < 3; i++) vksched.zoom(1.5);")
    page.press("Enter")


def save(page: Page, path: Path) -> None:
    """Write what is seen in 128 colours: a quarter of the bytes."""
    image = Image.open(io.BytesIO(page.picture())).convert("RGB")
    image.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs" / "guides" / "pictures")
    with tempfile.TemporaryDirectory() as name:
        runs, tour = Path(name) / "runs.html", Path(name) / "tour.html"
        record_runs().save(runs)
        tour.write_text(as_page(run_notebook(TOUR)), encoding="utf-8")
        with Chromium() as browser:
            for dark in (False, True):
                page = browser.open(runs, dark=dark)
                if dark:
                    select_split(page)
                save(page, folder / f"timeline-{'dark' if dark else 'light'}.png")
                page.close()
        with Chromium(1280, 2000) as browser:
            page = browser.open(tour)
            save(page, folder / "notebook.png")
    print(f"wrote timeline-light.png, timeline-dark.png and notebook.png to {folder}")


if __name__ == "__main__":
    main()
