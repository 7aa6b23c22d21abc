"""Weights of 8 and 16 bits are held as the file has them, on the CPU and on devices, and give what
onnxruntime gives.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import vksched as vs
from vksched.ops.linalg.int8_weights import words_shape
from vksched.plan.plan import Plan
from vksched.plan.types.offsets import ALIGN_WORDS

ort = pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 4, 9, 9] x, int64[5] picks) => (uint8[2, 17, 9, 9] c, int32[2, 30] m, float[2, 21] f,
                                            float[5, 12] rows, float[5, 13] odd_rows) {
  xq = QuantizeLinear (x, s, z)
  c = QLinearConv <pads = [1, 1, 1, 1]> (xq, s, z, conv_w, conv_s, conv_z, s, z, conv_b)
  flat = ReduceMax <axes = [2], keepdims = 0> (x)
  rows_of = Reshape (flat, shape)
  q, qs, qz = DynamicQuantizeLinear (rows_of)
  m = MatMulInteger (q, matmul_w, qz, matmul_z)
  wide = DequantizeLinear <axis = 1> (product_w, product_s, product_z)
  f = MatMul (rows_of, wide)
  table = DequantizeLinear (table_w, s)
  rows = Gather (table, picks)
  odd = DequantizeLinear <axis = 0> (odd_w, odd_s, odd_z)
  odd_rows = Gather (odd, picks)
}"""


def ints(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def scales(count: int) -> np.ndarray:
    return RNG.uniform(0.001, 0.02, count).astype(np.float32)


WEIGHTS = {
    "conv_w": ints("int8", 17, 4, 3, 3),
    "matmul_w": ints("uint8", 36, 30),
    "product_w": ints("int8", 36, 21),
    "table_w": ints("uint8", 37, 12),
    "odd_w": ints("int8", 41, 13),
}
"""All but the first two axes' products are odd numbers of bytes somewhere."""
WORDS = {"conv_w.words": (9 * 4, 17), "matmul_w.words": (36, 30)}
"""The matrices that products of integers read as words."""
HELD = {
    **{n: (a.dtype.name, a.nbytes) for n, a in WEIGHTS.items() if f"{n}.words" not in WORDS},
    **{n: ("uint32", 4 * math.prod(words_shape(shape))) for n, shape in WORDS.items()},
}
REST = {
    "s": np.float32(0.02),
    "z": np.uint8(3),
    "conv_s": scales(17),
    "conv_z": np.zeros(17, np.int8),
    "conv_b": RNG.integers(-500, 500, 17).astype(np.int32),
    "shape": np.array([2, 36]),
    "matmul_z": np.uint8(128),
    "product_s": scales(21),
    "product_z": ints("int8", 21),
    "odd_s": scales(41),
    "odd_z": ints("int8", 41),
}
FEEDS = {
    "x": RNG.random((2, 4, 9, 9), np.float32),
    "picks": np.array([0, 36, 7, -1, 7]),
}


def model() -> bytes:
    model = parser.parse_model(TEXT)
    for name, array in {**WEIGHTS, **REST}.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return bytes(model.SerializeToString())


def run(devices: list[str], optimize: bool = True) -> tuple[dict[str, Any], Plan]:
    with vs.Scheduler(devices, optimize=optimize) as sched:
        ready = sched.compile(vs.load(model()))
        return ready(**FEEDS), ready.plan


def held(plan: Plan) -> dict[str, tuple[str, int]]:
    """Return type and bytes of the weights that some device holds."""
    nodes = plan.graph.nodes
    own = {i for memory in plan.memory for i in memory.weights if nodes[i].op == "weight"}
    return {nodes[i].name: (nodes[i].type.dtype, nodes[i].type.host_bytes) for i in own}


@pytest.fixture(scope="module")
def wanted() -> dict[str, np.ndarray]:
    options = ort.SessionOptions()  # else it makes other products of quantised ones
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, FEEDS), strict=True))


@pytest.mark.parametrize("optimize", [True, False])
def test_results_are_onnxruntimes_and_bytes_the_files(
    devices: list[str], optimize: bool, wanted: dict[str, np.ndarray]
) -> None:
    got, plan = run(devices, optimize)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype, name
        if array.dtype.kind in "iu" or name.endswith("rows"):
            np.testing.assert_array_equal(got[name], array, err_msg=name)
        else:
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
    assert held(plan) == HELD


def test_each_device_holds_the_bytes_of_the_file(devices: list[str]) -> None:
    _, plan = run(devices)
    nodes, step = plan.graph.nodes, 4 * ALIGN_WORDS
    for memory, spec in zip(plan.memory, plan.topology.devices, strict=True):
        sizes = [nodes[i].type.host_bytes for i in memory.weights]
        if spec.kind != "cpu":
            sizes = [-(-size // step) * step for size in sizes]
        assert memory.weight_bytes == sum(sizes)


def test_info_tells_the_bytes_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from vksched.cli import main

    (tmp_path / "m.onnx").write_bytes(model())
    with pytest.raises(SystemExit) as ended:
        main.main(["info", str(tmp_path / "m.onnx"), "--devices", "cpu", "--json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    (cpu,) = report["devices"]
    narrow = sum(array.nbytes for array in WEIGHTS.values())
    rest = sum(np.asarray(array).nbytes for array in REST.values())
    words = sum(size for _, size in HELD.values())
    assert words < cpu["weight_bytes"] <= words + 4 * rest
    assert report["parameter_bytes"] == narrow + rest


def test_all_are_widened_once_where_the_user_wants_that(
    monkeypatch: pytest.MonkeyPatch, wanted: dict[str, np.ndarray]
) -> None:
    monkeypatch.setenv("VKSCHED_NARROW", "0")
    got, plan = run(["cpu"])
    np.testing.assert_array_equal(got["c"], wanted["c"])
    widened = {size for name, (_, size) in held(plan).items() if name not in WORDS}
    assert widened == {4 * WEIGHTS[name].nbytes for name in HELD.keys() - WORDS.keys()}
    assert not any(node.op == "dequantize_linear" for node in plan.graph.nodes)


def test_a_weight_pulls_what_reads_it_widened(two_devices: list[str]) -> None:
    x = vs.input("x", (3, 64))
    w = vs.weight(ints("int8", 64, 32), name="w")
    y = vs.matmul(x, vs.dequantize_linear(w, 0.5), name="y")
    with vs.Scheduler(two_devices) as sched:
        second = sched.devices[1].name
        ready = sched.compile(y, placement={"w": second})
        values = RNG.random((3, 64), np.float32)
        data = w.data
        assert data is not None
        np.testing.assert_allclose(ready(x=values), values @ (data * np.float32(0.5)), 1e-4, 1e-3)
        plan = ready.plan
        (at,) = [n.id for n in plan.graph.nodes if n.name == "y"]
        assert plan.placements[at].device == 1, plan.explain()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 1027])
def test_weights_of_any_size_come_to_devices_whole(
    dtype: str, count: int, devices: list[str]
) -> None:
    array = ints(dtype, count)
    with vs.Scheduler(devices) as sched:
        ready = sched.compile(vs.dequantize_linear(vs.weight(array)))
        np.testing.assert_array_equal(ready(), array.astype(np.int32))
        assert max(memory.weight_bytes for memory in ready.plan.memory) <= array.nbytes + 64


def test_a_single_number_is_widened(devices: list[str]) -> None:
    one = vs.weight(np.array(-7, np.int8))
    with vs.Scheduler(devices) as sched:
        results = sched.compile(
            [vs.dequantize_linear(one), vs.dequantize_linear(one, np.float32(0.5), np.int32(-8))]
        )()
    assert [r.tolist() for r in results] == [-7, 0.5]
    with pytest.raises(vs.ShapeError, match="expected an axis"):
        vs.dequantize_linear(one, axis=1)


def test_four_bits_take_a_byte() -> None:
    four = numpy_helper.to_array(
        onnx.helper.make_tensor(
            "w", onnx.TensorProto.INT4, (20, 20), RNG.integers(-8, 7, 400).tolist()
        )
    )
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> g (float[3, 20] x) => (float[3, 20] y)'
        "{ d = DequantizeLinear (w, s)\n y = MatMul (x, d) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(four, "w"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "s"))
    x = RNG.random((3, 20), np.float32)
    with vs.Scheduler(["cpu"]) as sched:
        ready = sched.compile(vs.load(model.SerializeToString()))
        np.testing.assert_allclose(
            ready(x=x)["y"], x @ (four.astype(np.float32) / 2), rtol=1e-5, atol=1e-5
        )
        assert held(ready.plan) == {"w": ("int8", 400)}


def test_one_weight_is_wide_at_a_time(devices: list[str]) -> None:
    x: vs.Tensor = vs.input("x", (2, 128))
    for _ in range(6):
        x = x @ vs.dequantize_linear(vs.weight(ints("int8", 128, 128)), 1e-3)
    with vs.Scheduler(devices) as sched:
        ready = sched.compile(x)
        wide = 4 * 128 * 128
        for memory in ready.plan.memory:
            assert memory.peak_bytes <= memory.weight_bytes + 2 * wide
