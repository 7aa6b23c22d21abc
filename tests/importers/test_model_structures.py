"""The committed structures of networks: rebuilt with numpy they are whole, sane models, and PyTorch
exports them again."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from models import FOLDER, NAMES, dimensions, example_inputs, make_model
from models.structure import STORED_ELEMENTS, fill_of, same_structure, tensors

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("name", NAMES)
def test_a_rebuilt_network_is_whole_and_sees_its_inputs(name: str, tmp_path: Path) -> None:
    path = make_model(name, tmp_path)
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    one, other = (session.run(None, example_inputs(name, seed)) for seed in (0, 1))
    for a, b in zip(one, other, strict=True):
        largest = np.abs(a).max()
        assert np.isfinite(a).all() and largest < 1e4
        assert np.abs(a - b).max() > 0.01 * largest
        assert a.std() > 0.01 * largest


def test_the_same_name_gives_the_same_model(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, again = (make_model("gru_tagger", tmp_path / part) for part in ("", "again"))
    assert first.read_bytes() == again.read_bytes()
    a, b = (example_inputs("bert_mini", 3) for _ in range(2))
    assert all(np.array_equal(a[name], b[name]) for name in a)


def test_symbolic_dimensions_are_as_large_as_asked_for() -> None:
    assert dimensions("bert_mini") == {"batch": 2, "sequence": 9}
    inputs = example_inputs("bert_mini", 0, batch=3, sequence=5)
    assert {x.shape for x in inputs.values()} == {(3, 5)}
    mask = inputs["attention_mask"]
    assert mask[0].all() and mask[:, 0].all() and not mask.all()


@pytest.mark.parametrize("name", NAMES)
def test_a_structure_is_small_and_names_no_place(name: str) -> None:
    data = (FOLDER / f"{name}.onnx").read_bytes()
    assert len(data) < 1 << 18
    for place in (b"site-packages", b"/home/", b"/tmp/"):
        assert place not in data
    model = onnx.load_from_string(data)
    large = [t for _, t in tensors(model) if t.data_type == 1 and np.prod(t.dims) > STORED_ELEMENTS]
    assert sum(fill_of(t) is not None for t in large) >= len(large) - 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all structures exported anew, where torch is that of the committed ones."""
    producer = onnx.load(FOLDER / "resnet18.onnx").producer_version
    for needed in ("torch", "torchvision", "transformers"):
        try:
            version = importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"no {needed} here")
        if needed == "torch" and version.split("+")[0] != producer.split("+")[0]:
            pytest.skip(f"the structures are of torch {producer}, here is {version}")
    folder = tmp_path_factory.mktemp("exported")
    script = FOLDER.parent / "export.py"
    command = [sys.executable, str(script), "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.timeout(600)
def test_pytorch_exports_the_same_structures_again(exported: Path) -> None:
    for name in NAMES:
        again, stored = (onnx.load(folder / f"{name}.onnx") for folder in (exported, FOLDER))
        assert same_structure(again, stored), name
