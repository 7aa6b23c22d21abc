"""Small ONNX models that between them have every construct: what mutants grow from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

NEWEST = 18

Corpus = dict[str, onnx.ModelProto]
EXTERNAL_FILES = {"w.bin": 16 * 96 * 4 + 64, "sub/k.bin": 4096}
"""Files beside the model that its external data names, with their sizes."""


def text_model(text: str, imports: str = "", opset: int = NEWEST) -> onnx.ModelProto:
    """Return a model from onnx's text form."""
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}{imports}]>\n{text}')


def add(model: onnx.ModelProto, **arrays: np.ndarray) -> onnx.ModelProto:
    """Add initializers."""
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def _mlp() -> onnx.ModelProto:
    model = text_model(
        "g (float[N, 24] x) => (float[N, 8] y) { a = Gemm <transB = 1> (x, w, b)\n h = Relu(a)\n"
        " c = MatMul(h, v)\n y = Softmax <axis = -1> (c) }"
    )
    return add(model, w=_random(64, 24), b=_random(64), v=_random(64, 8))


def _conv() -> onnx.ModelProto:
    model = text_model(
        "g (float[1, 3, 8, 8] x) => (float[1, 5] y) {\n"
        " a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [1, 1],"
        " group = 1> (x, w)\n"
        " b = BatchNormalization <epsilon = 0.001> (a, s, t, t, s)\n c = Relu(b)\n"
        " d = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)\n"
        ' e = AveragePool <kernel_shape = [2, 2], auto_pad = "SAME_UPPER"> (d)\n'
        " f = GlobalAveragePool(e)\n h = Flatten(f)\n y = MatMul(h, m) }"
    )
    ones = np.ones(4, np.float32)
    return add(model, w=_random(4, 3, 3, 3), s=ones, t=ones * 0.5, m=_random(4, 5))


def _branch() -> onnx.ModelProto:
    return text_model(
        "g (bool c, float[2, 3] x) => (float[2, 3] y) { a = Relu(x)\n y = If (c) <then_branch = t"
        " () => (float[2, 3] o) { k = Constant <value_float = 2.0> ()\n o = Mul(a, k) },"
        " else_branch = e () => (float[2, 3] p) { q = If (c) <then_branch = u () => (float[2, 3] r)"
        " { r = Neg(a) }, else_branch = v () => (float[2, 3] s) { s = Abs(x) }>\n p = Exp(q) }> }"
    )


def _loop() -> onnx.ModelProto:
    return text_model(
        "g (float[2] x) => (float[2] y, float[?, 2] z) { n = Constant <value_int = 3> ()\n"
        " c = Constant <value = bool {1}> ()\n y, z = Loop (n, c, x) <body = b (int64 i, bool k,"
        " float[2] s) => (bool l, float[2] t, float[2] u) { l = Identity(k)\n t = Add(s, x)\n"
        " u = Mul(t, x) }> }"
    )


def _scan() -> onnx.ModelProto:
    return text_model(
        "g (float[2] h, float[4, 2] x) => (float[2] y, float[4, 2] z) { y, z = Scan"
        " <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] t, float[2] u)"
        " { t = Add(s, e)\n u = Mul(t, e) }> (h, x) }"
    )


def _sequence() -> onnx.ModelProto:
    return text_model(
        "g (float[4, 2] x, float[4, 2] w) => (float[8, 2] y, int64 n) { s = SequenceConstruct(x, w)"
        "\n i = Constant <value_int = 1> ()\n e = SequenceAt(s, i)\n t = SequenceInsert(s, e)\n"
        " r = SequenceErase(t, i)\n n = SequenceLength(r)\n y = ConcatFromSequence <axis = 0> (r)\n"
        " p = SplitToSequence <axis = 0> (y)\n m = SequenceMap (p) <body = b (float[1, 2] a) =>"
        " (float[1, 2] o) { o = Neg(a) }>\n o = Optional(m)\n g = OptionalGetElement(o) }"
    )


def _functions() -> onnx.ModelProto:
    return parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>\n'
        "g (float[2, 4] x) => (float[2, 4] y) { a = own.outer <alpha = 0.5> (x)\n"
        " y = own.inner(a) }\n"
        '<domain: "own", opset_import: ["" : 18, "own" : 1]> outer <alpha> (a) => (b)'
        " { c = own.inner(a)\n b = Elu <alpha : float = @alpha> (c) }\n"
        '<domain: "own", opset_import: ["" : 18]> inner (a) => (b) { c = Relu(a)\n b = Add(c, a) }'
    )


def _quantized() -> onnx.ModelProto:
    model = text_model(
        "g (float[2, 8] x) => (float[2, 4] y, float[2, 4] z) { q = QuantizeLinear(x, s, o)\n"
        " d = DequantizeLinear(q, s, o)\n e = DequantizeLinear <axis = 1> (w, r, p)\n"
        " y = MatMul(d, e)\n i = QLinearMatMul(q, s, o, w, s, t, s, o)\n"
        " z = DequantizeLinear(i, s, o)\n j = MatMulInteger(q, w, o, t) }"
    )
    return add(
        model,
        s=np.array(0.1, np.float32),
        o=np.array(3, np.uint8),
        t=np.array(0, np.int8),
        w=np.arange(-16, 16, dtype=np.int8).reshape(8, 4),
        r=np.full(4, 0.2, np.float32),
        p=np.zeros(4, np.int8),
    )


def _external() -> onnx.ModelProto:
    model = text_model(
        "g (float[2, 16] x) => (float[2, 96] y) { k = Constant <value = float[1] {0}> ()\n"
        " m = MatMul(x, w)\n y = Add(m, k) }"
    )
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[16, 96])
    entries = {"location": "w.bin", "offset": "64", "length": str(16 * 96 * 4)}
    constant = model.graph.node[0].attribute[0].t
    constant.ClearField("float_data")
    for target, values in (
        (tensor, entries),
        (constant, {"location": "sub/k.bin", "offset": "8"}),
    ):
        target.data_location = TensorProto.EXTERNAL
        for key, value in values.items():
            target.external_data.add(key=key, value=value)
    return model


def _microsoft() -> onnx.ModelProto:
    model = text_model(
        "g (float[1, 4, 8] x) => (float[1, 4, 8] y) {"
        " a = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, w)\n"
        " b = com.microsoft.BiasGelu(a, s)\n"
        " c = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (b, x, s, s)\n"
        " d = com.microsoft.FastGelu(c)\n e = SimplifiedLayerNormalization(d, s)\n"
        " y = com.microsoft.MultiHeadAttention <num_heads = 2> (e, c, b) }",
        ', "com.microsoft" : 1',
    )
    return add(model, w=_random(8, 8), s=_random(8))


def _shapes() -> onnx.ModelProto:
    model = text_model(
        "g (float[N, 6] x) => (float[?, ?] y, float[?] r) { s = Shape(x)\n n = Gather(s, zero)\n"
        " u = Unsqueeze(n, zeros)\n f = Concat <axis = 0> (u, two, minus)\n a = Reshape(x, f)\n"
        " t = Transpose <perm = [0, 2, 1]> (a)\n z = ConstantOfShape <value = float[1] {1}> (f2)\n"
        " e = Expand(z, f3)\n i = Tile(e, two3)\n q = Squeeze(n)\n g = Range(zero, q, one)\n"
        " h = Cast <to = 1> (g)\n r = Pad(h, pads)\n w = Slice(x, zeros, two, one1, one1)\n"
        ' y = Reshape <allowzero = 0> (w, keep)\n v = Resize <mode = "linear"> (x, , scales) }'
    )
    return add(
        model,
        zero=np.array(0),
        one=np.array(1),
        zeros=np.array([0]),
        one1=np.array([1]),
        two=np.array([2]),
        minus=np.array([-1]),
        f2=np.array([1, 3]),
        f3=np.array([2, 2, 3]),
        two3=np.array([1, 2, 2]),
        pads=np.array([1, 1]),
        keep=np.array([0, -1]),
        scales=np.array([1, 2], np.float32),
    )


def _recurrent() -> onnx.ModelProto:
    model = text_model(
        "g (float[3, 2, 4] x) => (float[3, 1, 2, 5] y) {\n"
        " y, h, c = LSTM <hidden_size = 5> (x, w, r)\n"
        " i, j = GRU <hidden_size = 5, linear_before_reset = 1> (x, v, q)\n"
        ' k = RNN <hidden_size = 5, activations = ["Tanh"]> (x, u, p) }'
    )
    return add(
        model,
        w=_random(1, 20, 4),
        r=_random(1, 20, 5),
        v=_random(1, 15, 4),
        q=_random(1, 15, 5),
        u=_random(1, 5, 4),
        p=_random(1, 5, 5),
    )


def _index() -> onnx.ModelProto:
    model = text_model(
        "g (float[4, 6] x) => (int64[?, ?] y, float[4, 2] t) { y = NonZero(x)\n"
        " u, i, j, c = Unique <axis = 0> (x)\n t, k = TopK <axis = -1, largest = 1> (x, two)\n"
        " g = GatherElements <axis = 1> (x, k)\n s = ScatterElements <axis = 1> (x, k, g)\n"
        " d = GatherND(x, at)\n o = OneHot <axis = 0> (k, depth, values)\n"
        " m = ArgMax <axis = 1, keepdims = 0> (x)\n r = CumSum(x, zero)\n"
        ' e = Einsum <equation = "ij,kj->ik"> (x, x)\n w = Compress <axis = 0> (x, mask)\n'
        " b = NonMaxSuppression(boxes, scores, two) }"
    )
    return add(
        model,
        two=np.array([2]),
        at=np.array([[0, 1], [3, 5]]),
        depth=np.array(3),
        values=np.array([0, 1], np.float32),
        zero=np.array(0),
        mask=np.array([True, False, True, True]),
        boxes=_random(1, 3, 4),
        scores=_random(1, 1, 3),
    )


def _types() -> onnx.ModelProto:
    model = text_model(
        "g (double[3] x, int64[3] i, string[2] s) => (double[3] y, string[2] z) { y = Add(x, d)\n"
        " a = Cast <to = 16> (x)\n b = Cast <to = 10> (a)\n c = Cast <to = 17> (x)\n"
        ' e = Cast <to = 7> (y)\n f = BitShift <direction = "LEFT"> (u, u)\n g = Mod(i, e)\n'
        ' z = StringNormalizer <case_change_action = "UPPER"> (s)\n h = IsNaN(x)\n'
        " k = Where(h, x, y)\n l = And(h, h) }",
        opset=21,
    )
    add(model, d=np.array([1, 2, 3.0]), u=np.array([1, 2], np.uint64))
    for name, kind in (("f8", 18), ("bf", 16), ("i4", 22), ("u2", 25), ("cx", 14), ("st", 8)):
        text = [b"a", b"b", b"\xc3\xbc"]
        model.graph.initializer.append(
            helper.make_tensor(name, kind, [3], text if kind == 8 else [1, 0, 1])
        )
    return model


def _sparse() -> onnx.ModelProto:
    model = text_model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }")
    values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5]), "w_indices")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    return model


def _packed() -> onnx.ModelProto:
    model = text_model(
        "g (float[4] x) => (float[1030] y) { h = Cast <to = 1> (i)\n y = Add(w, h) }"
    )
    for name, kind, field in (
        ("w", 1, "float_data"),
        ("i", 7, "int64_data"),
        ("b", 9, "int32_data"),
    ):
        tensor = model.graph.initializer.add(name=name, data_type=kind, dims=[1030])
        getattr(tensor, field).extend([1] * 1030 if name == "b" else range(1030))
    model.graph.initializer[2].dims[:] = [5, 206]
    return model


def _learned() -> onnx.ModelProto:
    return text_model(
        "g (float[2, 3] x, string[2] s) => (float[2, 3] y, int64[2] z) {"
        " y = ai.onnx.ml.Binarizer <threshold = 0.5> (x)\n"
        ' z = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2]> (s) }',
        ', "ai.onnx.ml" : 3',
    )


def _old() -> onnx.ModelProto:
    model = text_model(
        "g (float[1, 2, 4, 4] x, float[2] s) => (float[1, 2, 8, 8] y) {"
        " a = BatchNormalization(x, s, s, s, s)\n"
        " b = Dropout <ratio = 0.5> (a)\n c = Slice <starts = [0], ends = [2], axes = [1]> (b)\n"
        " d = Pad <pads = [0, 0, 1, 1, 0, 0, 1, 1]> (c)\n e = ReduceSum <axes = [2]> (d)"
        "\n f = Squeeze <axes = [2]> (e)\n y = Upsample <scales = [1.0, 1.0, 2.0, 2.0]> (c) }",
        opset=7,
    )
    model.ir_version = 3
    return add(model, s=np.ones(2, np.float32))  # a default of an input, as was the custom


BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    name[1:]: function
    for name, function in list(globals().items())
    if name.startswith("_") and name != "_random" and callable(function)
}


def corpus() -> Corpus:
    """Return all models by name."""
    return {name: build() for name, build in BUILDERS.items()}
