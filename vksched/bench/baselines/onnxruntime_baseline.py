"""onnxruntime on the CPU: a model of one node, with bound inputs and outputs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from .memory_growth import growth_of
from .onnx_writer import TYPES, network_file
from .protocol import Job, Skip, TimedCalls, repeats
from .workloads import EPSILON, FILE, Array, Arrays, Spec, joined, result_shape

OPSET = 18
MICROSOFT = "com.microsoft"


class OnnxruntimeBaseline:
    """onnxruntime's CPU provider with its default number of threads."""

    version = str(onnxruntime.__version__)

    def prepare(self, spec: Spec, arrays: Arrays) -> Job:
        if spec.get("storage") == "float16":
            raise Skip("its CPU provider computes float16 by way of float32 copies")
        if spec.kind == "model":
            data, file = network_file(spec.params, result_shape(spec))
            feeds = {**file.feeds, **file.state_inputs}
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                path.write_bytes(data)
                return _job(spec, data, feeds, 1, growth_of(path, feeds))
        if spec.kind == FILE:
            return _file(spec, arrays)
        feeds = {n: a for n, a in arrays.items() if n.startswith("x")}
        return _job(spec, _model(spec, arrays), feeds, 64, None)


def _job(spec: Spec, data: bytes, feeds: Arrays, most: int, memory: float | None) -> Job:
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    held = []
    for name, array in feeds.items():
        held.append(onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
        binding.bind_ortvalue_input(name, held[-1])
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty(result_shape(spec), np.float32))
    binding.bind_ortvalue_output("y", out)

    def call(times: int = 1) -> None:
        for _ in range(times):
            session.run_with_iobinding(binding)

    def result() -> Array:
        call()
        return np.asarray(out.numpy())

    result()
    calls = repeats(TimedCalls(call, result).sample(), most=most)
    note = f"{calls} calls" if calls > 1 else ""
    job = TimedCalls(lambda: call(calls), result, calls * spec.get("ops", 1), note, memory)
    job.held = held, binding  # type: ignore[attr-defined]
    return job


def _file(spec: Spec, arrays: Arrays) -> Job:
    """Return an ONNX file as a job, with one thread per usable core."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads = usable_cores()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        spec["file"], options, providers=["CPUExecutionProvider"]
    )

    def result() -> Array:
        return joined(session.run(None, arrays))

    return TimedCalls(lambda: session.run(None, arrays), result, 1, f"{threads} threads")


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _model(spec: Spec, arrays: Arrays) -> bytes:
    nodes = _nodes(spec)
    inputs = [
        helper.make_tensor_value_info(n, TYPES[a.dtype.name], a.shape)
        for n, a in arrays.items()
        if n.startswith("x")
    ]
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items() if n.startswith("w")]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, result_shape(spec))
    if spec.kind == "reduce":
        weights.append(numpy_helper.from_array(np.array([spec["axis"]], np.int64), "axes"))
    graph = helper.make_graph(nodes, "case", inputs, [output], weights)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    return bytes(model.SerializeToString())


def _nodes(spec: Spec) -> list[Any]:
    node, kind = helper.make_node, spec.kind
    if kind == "matmul":
        b = "x1" if spec.get("batch") else "w0"
        transposed = [int(bool(spec.get(f"transpose_{t}"))) for t in "ab"]
        if any(transposed):
            return [node("Gemm", ["x0", b], ["y"], transA=transposed[0], transB=transposed[1])]
        return [node("MatMul", ["x0", b], ["y"])]
    if kind == "binary":
        return [node({"add": "Add", "mul": "Mul"}[spec["op"]], ["x0", "x1"], ["y"])]
    if kind == "unary":
        op, domain = {"relu": ("Relu", ""), "exp": ("Exp", ""), "gelu": ("Gelu", MICROSOFT)}[
            spec["op"]
        ]
        return [node(op, ["x0"], ["y"], domain=domain)]
    if kind == "softmax":
        return [node("Softmax", ["x0"], ["y"], axis=-1)]
    if kind == "layer_norm":
        return [node("LayerNormalization", ["x0", "w0", "w1"], ["y"], axis=-1, epsilon=EPSILON)]
    if kind == "rms_norm":
        return [node("SimplifiedLayerNormalization", ["x0", "w0"], ["y"], axis=-1, epsilon=EPSILON)]
    if kind == "reduce":
        op = {"sum": "ReduceSum", "max": "ReduceMax"}[spec["op"]]
        return [node(op, ["x0", "axes"], ["y"], keepdims=0)]
    if kind == "transpose":
        return [node("Transpose", ["x0"], ["y"], perm=spec["axes"])]
    if kind == "gather":
        return [node("Gather", ["x0", "x1"], ["y"], axis=0)]
    if kind == "conv":
        pads, strides = [spec.get("pad", 0)] * 4, [spec.get("stride", 1)] * 2
        groups = spec.get("groups", 1)
        return [node("Conv", ["x0", "w0"], ["y"], pads=pads, strides=strides, group=groups)]
    if kind == "chain":
        names = ["x0", *(f"t{i}" for i in range(spec["ops"] - 1)), "y"]
        steps = zip(names, names[1:], strict=False)
        return [node("Add", [before, "x1"], [after]) for before, after in steps]
    raise Skip(f"no model of one node for {kind}")


def open_baseline(device: Mapping[str, Any]) -> OnnxruntimeBaseline:
    return OnnxruntimeBaseline()
