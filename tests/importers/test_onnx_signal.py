"""STFT of signals as onnxruntime takes them: without an axis of parts, one-sided unless said
otherwise; against numpy's transform.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vksched as vs

SIGNAL = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32)
WINDOW = np.hanning(16).astype(np.float32)


def frames() -> np.ndarray:
    cut = np.lib.stride_tricks.sliding_window_view(SIGNAL, 16, 1)[:, ::5]
    return np.asarray(cut * WINDOW)


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("onesided", [None, 0, 1])
def test_stft(parts: bool, onesided: int | None) -> None:
    feeds = {} if onesided is None else {"onesided": onesided}
    node = helper.make_node("STFT", ["x", "step", "window"], ["y"], **feeds)
    shape = [2, 50, 1] if parts else [2, 50]
    graph = helper.make_graph(
        [node],
        "signal",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array(5), "step"),
            numpy_helper.from_array(WINDOW, "window"),
        ],
    )
    model = vs.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(model)(x=SIGNAL.reshape(shape))["y"]
    transform = np.fft.fft if onesided == 0 else np.fft.rfft
    wanted = transform(frames().astype(np.float64))
    np.testing.assert_allclose(found[..., 0], wanted.real, 1e-4, 1e-4)
    np.testing.assert_allclose(found[..., 1], wanted.imag, 1e-4, 1e-4)
