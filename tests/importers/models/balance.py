"""Convolutions that amplify as much with drawn weights as with those of the exporter.

A batch normalization that the exporter has multiplied into a convolution evens out its channels.
Drawn weights know nothing of that, and over eighty layers a little becomes a factor of thousands.
So the recipe of each convolution's weights is scaled until its output varies as it did.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime

from .structure import FILL, fill, fill_of

ROUNDS = 4


def balance(
    structure: onnx.ModelProto, full: onnx.ModelProto, inputs: dict[str, np.ndarray]
) -> None:
    """Scales how the weights of convolutions are drawn. full: the model with its own weights."""
    recipes = {t.name: t for t in structure.graph.initializer if fill_of(t) is not None}
    convs = [n for n in structure.graph.node if n.op_type == "Conv" and n.input[1] in recipes]
    if not convs:
        return
    wanted = gains(full, convs, inputs)
    for _ in range(ROUNDS):
        drawn = onnx.ModelProto()
        drawn.CopyFrom(structure)
        fill(drawn)
        for conv, want, have in zip(convs, wanted, gains(drawn, convs, inputs), strict=True):
            scale(recipes[conv.input[1]], want / have)


def gains(
    model: onnx.ModelProto, convs: list[onnx.NodeProto], inputs: dict[str, np.ndarray]
) -> list[float]:
    """Return for each convolution how much more its output varies than its input is large."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    del shown.graph.output[:]
    names = list(dict.fromkeys(name for c in convs for name in (c.input[0], c.output[0])))
    feeds = {value.name for value in model.graph.input}
    shown.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in feeds)
    session = onnxruntime.InferenceSession(shown.SerializeToString())
    outputs = [o.name for o in session.get_outputs()]
    values = {**inputs, **dict(zip(outputs, session.run(outputs, inputs), strict=True))}
    return [
        float(values[c.output[0]].std() / np.sqrt(np.mean(values[c.input[0]] ** 2))) for c in convs
    ]


def scale(tensor: onnx.TensorProto, factor: float) -> None:
    """Scales all numbers of a recipe."""
    kind, *numbers = str(fill_of(tensor)).split()
    text = " ".join([kind, *(f"{float(v) * factor:.3g}" for v in numbers)])
    next(p for p in tensor.metadata_props if p.key == FILL).value = text
