"""Models that onnxruntime has saved with all its optimizations: weights in blocks of channels, and
channels that come last.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.importers.onnx.read.nchwc import mark_blocks

pytest.importorskip("onnx")
from models import example_inputs, make_model
from onnx import ModelProto, NodeProto, TensorProto, helper, load, numpy_helper

NCHWC = "com.microsoft.nchwc"
RNG = np.random.default_rng(3)


def floats(*shape: int) -> NDArray:
    return RNG.standard_normal(shape).astype(np.float32)


def in_blocks(w: NDArray, size: int, alone: bool) -> NDArray:
    """As onnxruntime stores weights: whole blocks of outs, and of ins unless these are alone."""
    outs, ins = (-(-n // size) * size for n in w.shape[:2])
    ins = w.shape[1] if alone else ins
    wide = np.zeros((outs, ins, *w.shape[2:]), np.float32)
    wide[: w.shape[0], : w.shape[1]] = w
    stored = np.empty(wide.size, np.float32)
    at = 0
    for o in range(0, outs, size):
        for i in range(0, ins, 1 if alone else size):
            part = wide[o : o + size, i : i + (1 if alone else size)]
            for y in range(w.shape[2]):
                for x in range(w.shape[3]):
                    for inner in range(part.shape[1]):
                        stored[at : at + size] = part[:, inner, y, x]
                        at += size
    return stored.reshape(wide.shape)


def filled(bias: NDArray, size: int) -> NDArray:
    return np.pad(bias, (0, -len(bias) % size))


def model_of(
    nodes: list[NodeProto], arrays: dict[str, NDArray], shape: tuple[int, ...]
) -> ModelProto:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(NCHWC, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def node(op: str, inputs: str, outputs: str, domain: str = NCHWC, **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **attrs)


def two_layers(size: int, channels: tuple[int, int, int]) -> tuple[ModelProto, ModelProto]:
    """A network as it was, and as a machine with blocks of a size saves it."""
    first, middle, last = channels
    w, b = floats(middle, first, 3, 3), floats(middle)
    v, c = floats(last, middle, 1, 1), floats(last)
    plain = [
        node("Conv", "x w b", "h", "", pads=[1, 1, 1, 1]),
        node("Relu", "h", "r", ""),
        node("Conv", "r v c", "y", ""),
    ]
    alone = first < size
    saved = [
        node("Conv", "p w b" if not alone else "x w b", "h", activation="Relu", pads=[1, 1, 1, 1]),
        node("Conv", "h v c", "o"),
        node("ReorderOutput", "o", "y", channels=last),
    ]
    if not alone:
        saved.insert(0, node("ReorderInput", "x", "p"))
    arrays = {"w": w, "b": b, "v": v, "c": c}
    blocks = {
        "w": in_blocks(w, size, alone), "b": filled(b, size),
        "v": in_blocks(v, size, False), "c": filled(c, size),
    }  # fmt: skip
    shape = (1, first, 5, 4)
    return model_of(plain, arrays, shape), model_of(saved, blocks, shape)


def results(model: ModelProto, x: NDArray) -> NDArray:
    with vs.Scheduler(["cpu"]) as sched:
        return np.asarray(sched.compile(vs.load(model))(x=x)["y"])


@pytest.mark.parametrize("channels", [(3, 20, 5), (20, 40, 20), (12, 8, 24), (8, 24, 8)])
@pytest.mark.parametrize("size", [8, 16])
def test_blocks_are_read_whatever_machine_wrote_them(
    size: int, channels: tuple[int, int, int]
) -> None:
    plain, saved = two_layers(size, channels)
    x = floats(1, channels[0], 5, 4)
    np.testing.assert_allclose(results(saved, x), results(plain, x), rtol=1e-4, atol=1e-5)


def test_where_shapes_fit_both_sizes_this_machine_decides_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    plain, saved = two_layers(16, (3, 32, 16))
    x = floats(1, 3, 5, 4)
    with pytest.warns(vs.VkschedWarning, match="blocks of 8 or 16 channels"):
        got = results(saved, x)
    np.testing.assert_allclose(got, results(plain, x), rtol=1e-4, atol=1e-5)


def test_shapes_that_contradict_each_other_are_refused() -> None:
    _, saved = two_layers(16, (3, 20, 5))
    for tensor in saved.graph.initializer:
        if tensor.name == "v":
            tensor.CopyFrom(numpy_helper.from_array(floats(24, 32, 1, 1), "v"))
    with pytest.raises(vs.ModelFormatError, match="expected weights in blocks"):
        vs.load(saved)


def test_a_file_cannot_say_what_its_blocks_are() -> None:
    _, saved = two_layers(8, (3, 20, 5))
    for each in saved.graph.node:
        each.attribute.append(helper.make_attribute("block_channels", 0))
    mark_blocks(saved)
    found = {a.i for n in saved.graph.node for a in n.attribute if a.name == "block_channels"}
    assert found == {8}


def residual() -> ModelProto:
    """Sums, pools, groups, a resize, what is concatenated, and channels moved last."""
    arrays = {
        "w": floats(24, 3, 3, 3), "d": floats(32, 1, 3, 3), "u": floats(32, 24, 1, 1),
        "v": floats(32, 32, 1, 1), "g": floats(32, 16, 1, 1),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }  # fmt: skip
    plain = [
        node("Conv", "x w", "a", "", pads=[1, 1, 1, 1]), node("Conv", "a u", "b", ""),
        node("Conv", "b d", "c", "", pads=[1, 1, 1, 1], group=32), node("Conv", "c v", "e", ""),
        node("Add", "e b", "f", ""), node("Relu", "f", "h", ""),
        node("MaxPool", "h", "i", "", kernel_shape=[2, 2], strides=[2, 2]),
        node("Resize", "i  scales", "j", "", mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Concat", "j h", "k", "", axis=1), node("Conv", "j g", "l", "", group=2),
        node("GlobalAveragePool", "k", "m", ""), node("GlobalMaxPool", "l", "n", ""),
        node("Concat", "m n", "o", "", axis=1), node("Transpose", "o", "y", "", perm=[0, 2, 3, 1]),
    ]  # fmt: skip
    plain[7].input[:] = ["i", "", "scales"]
    return model_of(plain, arrays, (1, 3, 8, 8))


def saved_by(onnxruntime: Any, source: Any, path: Path) -> Any:
    """Save a model with all optimizations; returns the session that did."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(path)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def of_domain(model: ModelProto, domain: str) -> set[str]:
    return {n.op_type for n in model.graph.node if n.domain == domain}


@pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan:0", marks=pytest.mark.thorough)])
def test_a_network_with_all_optimizations(device: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if device not in {d.name for d in vs.devices()}:
        pytest.skip("no such device")
    path = tmp_path / "optimized.onnx"
    session = saved_by(onnxruntime, residual().SerializeToString(), path)
    if not of_domain(load(path), NCHWC) >= {"Conv", "MaxPool", "ReorderOutput"}:
        pytest.skip("onnxruntime has no blocks of channels on this machine")
    x = floats(1, 3, 8, 8)
    (want,) = session.run(None, {"x": x})
    with vs.Scheduler([device]) as sched:
        compiled = sched.compile(vs.load(path))
        hosts = [n.op for p in compiled.plans for n in p.graph.nodes if n.op.startswith("onnx.")]
        np.testing.assert_allclose(compiled(x=x)["y"], want, rtol=1e-4, atol=1e-4)
    assert not hosts


NETWORKS = ("small_conv", "small_conv_qdq", "small_conv_qoperator", "convnext")
BERTS = ("bert_mini", "bert_mini_dynamic", "gpt2_mini")


@pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
@pytest.mark.parametrize("name", [*NETWORKS, *BERTS])
def test_a_structure_with_all_optimizations(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "optimized.onnx"
    session = saved_by(onnxruntime, make_model(name, tmp_path), path)
    feeds = example_inputs(name, 1)
    wanted = session.run(None, feeds)
    assert any(n.domain.startswith("com.microsoft") for n in load(path).graph.node)
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.load(path))(**feeds)
    for want, got in zip(wanted, found.values(), strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.filterwarnings("ignore")
def test_what_onnxruntimes_tools_make_of_a_fused_bert(tmp_path: Path) -> None:
    """Attention and the embedding have weights of 8 bits then."""
    onnxruntime = pytest.importorskip("onnxruntime")
    tools = pytest.importorskip("onnxruntime.quantization")
    path = tmp_path / "quantized.onnx"
    tools.quantize_dynamic(
        make_model("bert_mini_fused", tmp_path),
        path,
        weight_type=tools.QuantType.QInt8,
        reduce_range=True,  # onnxruntime's sums overflow 16 bits on CPUs without VNNI
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )
    assert of_domain(load(path), "com.microsoft") >= {"QAttention", "QEmbedLayerNormalization"}
    feeds = example_inputs("bert_mini_fused", 1)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.load(path))(**feeds)
    for want, got in zip(session.run(None, feeds), found.values(), strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * scale)
