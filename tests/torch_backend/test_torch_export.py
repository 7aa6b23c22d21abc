"""Exported models run without PyTorch, and damaged files raise clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vksched as vs
import vksched.torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(11, 8), nn.Linear(8, 3)
        self.bn = nn.BatchNorm1d(5)

    def forward(self, ids: Any, scale: Any) -> Any:
        h = self.bn(self.embed(ids)) * scale
        return self.fc(torch.relu(h)).softmax(-1), h.amax(1)


PROGRAM = """
import sys
sys.modules["torch"] = None  # as if PyTorch were not installed
import numpy as np, vksched as vs, vksched.torch
model = vksched.torch.load(sys.argv[1])
inputs = dict(np.load(sys.argv[2]))
with vs.Scheduler(["cpu"]) as sched:
    found = sched.compile(model.outputs)(**inputs)
np.savez(sys.argv[3], **found)
"""


def test_a_saved_model_runs_without_pytorch(tmp_path: Path) -> None:
    model = Net().eval()
    args = torch.randint(0, 11, (2, 5)), torch.randn(2, 5, 1)
    path = tmp_path / "model.vks"
    vksched.torch.save(model, args, path)
    names = list(vksched.torch.load(path).inputs)
    assert names == ["ids", "scale"]
    np.savez(tmp_path / "in.npz", **{n: a.numpy() for n, a in zip(names, args, strict=True)})
    files = [str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", PROGRAM, *files], check=True, timeout=120)
    found = np.load(tmp_path / "out.npz")
    for name, wanted in zip(("output_0", "output_1"), model(*args), strict=True):
        np.testing.assert_allclose(found[name], wanted.detach(), rtol=1e-5, atol=1e-6)


def test_models_that_need_pytorch_are_refused(tmp_path: Path) -> None:
    class Bessel(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.i1(x)

    with pytest.raises(vs.UnsupportedOp, match="special_i1.*try torch.compile"):
        vksched.torch.save(Bessel(), (torch.randn(3, 2),), tmp_path / "model.vks")
    with pytest.raises(vs.UnsupportedOp, match=r"try model.eval\(\)"):
        args = torch.randint(0, 11, (2, 5)), torch.randn(2, 5, 1)
        vksched.torch.save(Net().train(), args, tmp_path / "model.vks")
    with pytest.raises(vs.VkschedError, match="expected an nn.Module"):
        vksched.torch.save(3, (), tmp_path / "model.vks")
    assert list(tmp_path.iterdir()) == []


def test_results_have_names_and_tied_weights_are_stored_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            h = self.embed(ids)
            return {"logits": self.out(h), "hidden": h}

    path = tmp_path / "model.vks"
    vksched.torch.save(Tied(), (torch.tensor([1, 8]),), path)
    assert list(vksched.torch.load(path).outputs) == ["logits", "hidden"]
    with zipfile.ZipFile(path) as archive:
        sizes = [archive.getinfo(name).file_size for name in archive.namelist()]
    assert sizes.count(9 * 4 * 4) == 1


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.vks"
    path.write_bytes(b"no zip file")
    with pytest.raises(vs.ModelFormatError, match=r"got model\.vks"):
        vksched.torch.load(path)
    weight = ["weight", [], {"shape": [1 << 40], "dtype": "float32"}, "w"]
    for nodes in ([["exp", [0], {}, None]], [["onnx.Relu", [], {}, None]], [weight], [["?"]]):
        document = json.dumps({"format": 1, "nodes": nodes, "inputs": [], "outputs": {}})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("graph.json", document)
            archive.writestr("weights/0", b"1234")
        with pytest.raises(vs.ModelFormatError):
            vksched.torch.load(path)
    source = ["input", [], {"shape": [2], "dtype": "float32"}, "x"]
    mask = ["weight", [], {"shape": [4], "dtype": "bool"}, "mask"]
    graphs = (
        *([[source], [-1]], [[source], [False]], [[source, source], [0, 1]], [[source], []]),
        *([[source, ["exp", [0], {}, None]], [1]], [[mask], []]),
    )
    for nodes, inputs in graphs:
        document = json.dumps({"format": 1, "nodes": nodes, "inputs": inputs, "outputs": {"y": 0}})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("graph.json", document)
            archive.writestr("weights/0", b"\x00\x01\x02\x00")
        with pytest.raises(vs.ModelFormatError, match="expected"):
            vksched.torch.load(path)
    for document in ('{"format": 99}', "{}", "[", "3", "[" * 200000):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("graph.json", document)
        with pytest.raises(vs.ModelFormatError):
            vksched.torch.load(path)
    with pytest.raises(FileNotFoundError):
        vksched.torch.load(tmp_path / "none.vks")
