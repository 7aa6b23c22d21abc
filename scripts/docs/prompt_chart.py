"""Draws the picture of docs/guides/gguf-language-models.md: two cards at a long prompt, whole and
in parts.

    python scripts/docs/prompt_chart.py

The cards are null devices, the model is a random one, and nothing runs. Complexity: that of plans.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import vksched as vs
from vksched.bench.language.random_models import Sizes, write_model
from vksched.importers import load_gguf
from vksched.plan.simulation.simulate_plan import simulate
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.viz.gantt import Bar, Row, draw_timeline
from vksched.viz.svg import save_picture

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "pictures" / "prompt-parts.svg"
SIZES = Sizes(layers=8, width=256, inner=768, vocabulary=512)
CARDS = ("card 0", "card 1")
TOKENS = 512
SHORT = 0.01
"""Of the time: angles, and rows of keys and values that are written, are not drawn."""


def rows_of(sched: vs.Scheduler, model: Path, parts: int) -> list[Row]:
    """Return the activity of each card while a prompt is read in parts."""
    read = load_gguf(model)
    step = read.step(read.cache(2 * TOKENS), TOKENS, parts)
    layers = {f"blk.{i}.*": CARDS[2 * i // SIZES.layers] for i in range(SIZES.layers)}
    placement = {"*": CARDS[0], "output*": CARDS[1], **layers}
    plan = sched.reserve(step.logits, placement, updates=step.updates)
    found, rows = simulate(plan), []
    names = [f"part {part + 1}" for part in range(parts)] if parts > 1 else ["the prompt"]
    for number, card in enumerate(CARDS):
        spans = [s for s in found.spans if s.kind == "split" and s.device == number]
        spans = [s for s in spans if s.finish_s - s.start_s > SHORT * found.seconds]
        bars = [Bar(s.start_s, s.finish_s, n) for s, n in zip(spans, names, strict=True)]
        rows.append(Row(card, bars, "in parts" if parts > 1 else "as a whole", number))
    return rows


def main(picture: Path = PICTURE) -> None:
    """Write the picture."""
    clock = vs.SimulatedClock()
    about = {"limits": Limits(storage_buffers=8), "flops_per_s": 1e11, "bytes_per_s": 1e11}
    specs = [DeviceSpec(card, "null", memory_bytes=1 << 30, **about) for card in CARDS]  # type: ignore[arg-type]
    with TemporaryDirectory() as folder:
        write_model(model := Path(folder) / "model.gguf", "Q4_K", SIZES)
        with vs.Scheduler([vs.SimulatedDevice(spec, clock) for spec in specs]) as sched:
            rows = [row for parts in (1, 4) for row in rows_of(sched, model, parts)]
    ends = [max(bar.finish_s for row in pair for bar in row.bars) for pair in (rows[:2], rows[2:])]
    subtitle = f"half of the layers on each card; in parts {ends[0] / ends[1]:.2f} times as fast"
    title = f"A prompt of {TOKENS} tokens on two cards"
    save_picture(picture, lambda: draw_timeline(title, subtitle, rows, noun="split"))


if __name__ == "__main__":
    main()
