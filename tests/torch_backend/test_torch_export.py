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
    class Distance(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cdist(x, x)

    with pytest.raises(vs.UnsupportedOp, match="_cdist_forward.*try torch.compile"):
        vksched.torch.save(Distance(), (torch.randn(3, 2),), tmp_path / "model.vks")
    with pytest.raises(vs.UnsupportedOp, match=r"try model.eval\(\)"):
        args = torch.randint(0, 11, (2, 5)), torch.randn(2, 5, 1)
        vksched.torch.save(Net().train(), args, tmp_path / "model.vks")
    with pytest.raises(vs.VkschedError, match="expected an nn.Module"):
        vksched.torch.save(3, (), tmp_path / "model.vks")
    assert list(tmp_path.iterdir()) == []


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
    for document in ('{"format": 99}', "{}", "[", "3"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("graph.json", document)
        with pytest.raises(vs.ModelFormatError):
            vksched.torch.load(path)
    with pytest.raises(FileNotFoundError):
        vksched.torch.load(tmp_path / "none.vks")
