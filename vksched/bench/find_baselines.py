"""Discovery of baselines: those of the package, and those in folders of a user.

    FOLDER/ncnn.py: def open_baseline(device) -> Baseline (baselines/protocol.py)
                    INSTALL = "pip install ncnn"     DEVICES = ("vulkan",)      both are optional

A file of a folder is parsed here and imported only in the baseline's process, because it may need
another Python. There it is a module of the package `baselines`: it imports the shared modules with
`from .protocol import Skip`. Other files of the folder are its helpers. Examples:
benchmarks/baselines, tests/bench/test_find_baselines.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import GraphError

CPU, VULKAN = DEVICES = ("cpu", "vulkan")
OPEN = "open_baseline"
"""Name of the function that defines a baseline."""


@dataclass(frozen=True)
class BaselineInfo:
    """A baseline. install: installation instructions. devices: kinds of devices that it supports;
    () if only suites that name it use it. folder: folder of its file, or None for those of the
    package.
    """

    name: str
    install: str = ""
    devices: tuple[str, ...] = DEVICES
    folder: Path | None = None

    def takes(self, device: str) -> bool:
        """Return True if it takes part in suites that name no baselines, on this device."""
        return (CPU if device == CPU else VULKAN) in self.devices


BASELINES = {
    baseline.name: baseline
    for baseline in (
        BaselineInfo("torch", "pip install torch"),
        BaselineInfo("numpy", "pip install numpy", (CPU,)),
        BaselineInfo("onnxruntime", "pip install onnxruntime onnx", (CPU,)),
        BaselineInfo("llama.cpp", "pip install llama-cpp-python, built with -DGGML_VULKAN=on", ()),
        BaselineInfo("llama-server", "pip install xllamacpp, or LLAMA_SERVER=PROGRAM", ()),
    )
}
"""The baselines of the package."""


def find_baselines(folders: Iterable[str | Path] = ()) -> dict[str, BaselineInfo]:
    """Return all baselines by name, those of the folders first.

    Raise GraphError if a folder has no baseline, or a file of it cannot be read.
    """
    found: dict[str, BaselineInfo] = {}
    for folder in map(Path, folders):
        infos = [info for file in sorted(folder.glob("*.py")) if (info := read_baseline(file))]
        if not infos:
            raise GraphError(
                f"[bench] expected a file with a function {OPEN} in {folder}, got none"
            )
        found |= {info.name: info for info in infos}
    return {**found, **{name: info for name, info in BASELINES.items() if name not in found}}


def read_baseline(file: Path) -> BaselineInfo | None:
    """Return the baseline of a file by parsing its text, or None if the file is a helper."""
    try:
        body = ast.parse(file.read_bytes(), str(file)).body
        constants = {
            target.id: ast.literal_eval(node.value)
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id in ("INSTALL", "DEVICES")
        }
    except (OSError, SyntaxError, ValueError) as error:
        raise GraphError(f"[bench] cannot read the baseline {file}: {error}") from error
    if not any(isinstance(node, ast.FunctionDef) and node.name == OPEN for node in body):
        return None
    devices = constants.get("DEVICES", DEVICES)
    if not isinstance(devices, tuple) or not set(devices) <= set(DEVICES):
        raise GraphError(f"[bench] {file}: expected DEVICES of {DEVICES}, got {devices!r}")
    install = str(constants.get("INSTALL", f"to install what {file.name} imports"))
    return BaselineInfo(file.stem, install, devices, file.parent.resolve())
