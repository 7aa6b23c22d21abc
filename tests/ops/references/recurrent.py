"""Oracles of rnn, gru and lstm: the ONNX reference, or the equations of its specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vksched.common.dtypes import NDArray
from vksched.ir.attrs import Attrs
from vksched.ops.rnn.cell import cell_of, operands_of
from vksched.testing.op_cases.linalg.rnn import SETTINGS, Setting
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle, onnx

OUTPUTS = {"rnn": ["Y", "Y_h"], "gru": ["Y", "Y_h"], "lstm": ["Y", "Y_h", "Y_c"]}
FUNCTIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
}


def by_onnx(setting: Setting, inputs: dict[str, NDArray]) -> list[NDArray]:
    from onnx.reference import ReferenceEvaluator

    order = ["x", "w", "r", "b", "", "initial_h", "initial_c", "peepholes"]
    order = [n if n in inputs else "" for n in order[: 8 if setting.op == "lstm" else 6]]
    keywords = dict(setting.keywords)
    if "linear_before_reset" in keywords:
        keywords["linear_before_reset"] = int(keywords["linear_before_reset"])
    outputs = OUTPUTS[setting.op]
    node = onnx.helper.make_node(
        setting.op.upper(), order, outputs, hidden_size=setting.sizes[3], **keywords
    )
    double = onnx.TensorProto.DOUBLE
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [onnx.helper.make_tensor_value_info(n, double, x.shape) for n, x in inputs.items()],
        [onnx.helper.make_tensor_value_info(n, double, None) for n in outputs],
    )
    opset = onnx.helper.make_opsetid("", 14)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, inputs)]


def by_equations(setting: Setting, inputs: dict[str, NDArray]) -> list[NDArray]:
    """Sequence by sequence, direction by direction, gate by gate."""
    time, batch, _, hidden = setting.sizes
    count = len(inputs["w"])
    y = np.zeros((time, count, batch, hidden))
    last = [np.zeros((count, batch, hidden)) for _ in OUTPUTS[setting.op][1:]]
    for d, b in np.ndindex(count, batch):
        length = int(inputs["sequence_lens"][b]) if setting.lengths else time
        back = count == 2 and d == 1 or setting.keywords.get("direction") == "reverse"
        states = [
            inputs[name][d, b] if name in inputs else np.zeros(hidden)
            for name in ("initial_h", "initial_c")[: len(last)]
        ]
        for t in range(length)[:: -1 if back else 1]:
            states = STEPS[setting.op](setting, inputs, d, inputs["x"][t, b], *states)
            y[t, d, b] = states[0]
        for stored, state in zip(last, states, strict=True):
            stored[d, b] = state
    return [y, *last]


def products(
    inputs: dict[str, NDArray], d: int, x: NDArray, h: NDArray, gates: int
) -> tuple[list[NDArray], list[NDArray]]:
    """What each gate gets from the input and from the state, each with its bias."""
    hidden = len(h)
    bias = inputs["b"][d] if "b" in inputs else np.zeros(2 * gates * hidden)
    from_x = inputs["w"][d] @ x + bias[: gates * hidden]
    from_h = inputs["r"][d] @ h + bias[gates * hidden :]
    return np.split(from_x, gates), np.split(from_h, gates)


def activation(setting: Setting, d: int, which: int, defaults: str) -> Callable[..., Any]:
    names = setting.keywords.get("activations") or defaults.split() * 2
    function = FUNCTIONS[names[d * len(defaults.split()) + which].lower()]
    clip = setting.keywords.get("clip", np.inf)
    return lambda x: function(np.clip(x, -clip, clip))


def rnn_step(
    setting: Setting, inputs: dict[str, NDArray], d: int, x: NDArray, h: NDArray
) -> list[NDArray]:
    (from_x,), (from_h,) = products(inputs, d, x, h, 1)
    return [activation(setting, d, 0, "tanh")(from_x + from_h)]


def gru_step(
    setting: Setting, inputs: dict[str, NDArray], d: int, x: NDArray, h: NDArray
) -> list[NDArray]:
    f, g = (activation(setting, d, i, "sigmoid tanh") for i in range(2))
    (xz, xr, xh), (hz, hr, hh) = products(inputs, d, x, h, 3)
    z, r = f(xz + hz), f(xr + hr)
    linear = setting.keywords.get("linear_before_reset")
    hh = r * hh if linear else products(inputs, d, x, r * h, 3)[1][2]
    return [(1 - z) * g(xh + hh) + z * h]


def lstm_step(
    setting: Setting, inputs: dict[str, NDArray], d: int, x: NDArray, h: NDArray, c: NDArray
) -> list[NDArray]:
    f, g, last = (activation(setting, d, i, "sigmoid tanh tanh") for i in range(3))
    i, o, forget, cell = (a + b for a, b in zip(*products(inputs, d, x, h, 4), strict=True))
    seen = inputs["peepholes"][d] if "peepholes" in inputs else np.zeros(3 * len(h))
    of_i, of_o, of_forget = np.split(seen, 3)
    into = f(i + of_i * c)
    forget = 1 - into if setting.keywords.get("input_forget") else f(forget + of_forget * c)
    c = forget * c + into * g(cell)
    return [f(o + of_o * c) * last(c), c]


STEPS: dict[str, Callable[..., list[NDArray]]] = {
    "rnn": rnn_step,
    "gru": gru_step,
    "lstm": lstm_step,
}


def rnn_scan(case: FunctionSample) -> list[NDArray]:
    setting = SETTINGS[case.function, case.id]
    inputs = {n: x.astype(np.float64) for n, x in setting.inputs().items()}
    plain = setting.keywords.keys() <= {"direction", "linear_before_reset"}
    known = plain and not setting.lengths and setting.sizes[0]
    result = (by_onnx if known else by_equations)(setting, inputs)
    return [np.asarray(y, np.float32) for y in result]


def op(case: OpSample) -> NDArray:
    """By the equations of a layer whose weights of the inputs choose the gates of a direction."""
    cell = cell_of(Attrs(case.attrs))
    values = operands_of(cell, tuple(x.astype(np.float64) for x in case.inputs))
    count, time, batch, columns = values.gates.shape
    hidden, rest = columns // cell.gates, columns - columns // cell.gates
    bias = np.zeros((count, 2, columns))
    inputs = {
        "x": np.moveaxis(values.gates, 0, 2).reshape(time, batch, count * columns),
        "w": np.eye(count * columns).reshape(count, columns, count * columns),
        "r": values.r.swapaxes(1, 2),
        "initial_h": values.state[0],
    }
    if cell.kind == "lstm":
        inputs["initial_c"] = values.state[1]
    if values.own is not None and cell.kind == "lstm":
        inputs["peepholes"] = values.own[:, :rest]
    elif values.own is not None:
        bias[:, 1, rest:] = values.own[:, rest:]
    inputs["b"] = bias.reshape(count, 2 * columns)
    if values.lengths is not None:
        inputs["sequence_lens"] = np.minimum(values.lengths, time)
    keywords: dict[str, Any] = {
        "activations": [name for names in cell.activations for name in names],
        "clip": cell.clip or np.inf,
        "linear_before_reset": cell.linear,
        "input_forget": cell.coupled,
    }
    if cell.backwards == (True,):
        keywords["direction"] = "reverse"
    sizes = (time, batch, count * columns, hidden)
    setting = Setting(cell.kind, sizes, keywords=keywords, lengths=cell.masked)
    y, *last = by_equations(setting, inputs)
    return np.asarray(np.concatenate([y, *(x[None] for x in last)]), np.float32)


ORACLES: dict[str, Oracle] = {"rnn_scan": op}
FUNCTION_ORACLES: dict[str, FunctionOracle] = dict.fromkeys(STEPS, rnn_scan)
