"""onnxruntime's own ops against numbers that are known without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

pytest.importorskip("onnx")
from onnx import ModelProto, TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
NCHWC = "com.microsoft.nchwc"


def node_model(
    op: str,
    inputs: Sequence[NDArray | None],
    *,
    domain: str = MICROSOFT,
    opset: int = 17,
    results: int = 1,
    fixed: Sequence[int] = (),
    **attrs: Any,
) -> ModelProto:
    """One node. fixed: operands that are initializers."""
    operands = [(i, f"x{i}", a) for i, a in enumerate(inputs) if a is not None]
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    outputs = [f"y{i}" for i in range(results)]
    graph = helper.make_graph(
        [helper.make_node(op, names, outputs, domain=domain, **attrs)],
        "one",
        [
            helper.make_tensor_value_info(
                name,
                TensorProto.STRING
                if a.dtype == object
                else helper.np_dtype_to_tensor_dtype(a.dtype),
                a.shape,
            )
            for i, name, a in operands
            if i not in fixed
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(a, name) for i, name, a in operands if i in fixed],
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(d, 1) for d in (MICROSOFT, NCHWC)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(op: str, *inputs: NDArray | None, fixed: Sequence[int] = (), **attrs: Any) -> list[NDArray]:
    """Return the results of one node on the CPU."""
    model = node_model(op, inputs, fixed=fixed, **attrs)
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in fixed}
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.load(model))(**feeds)
        return [np.asarray(found[o.name]) for o in model.graph.output]


def floats(*values: Any) -> NDArray:
    return np.array(values, np.float32)


# -- the default domain ----------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 14, 16])
def test_layer_normalization_below_opset_17(opset: int) -> None:
    x = floats([1, 2, 3, 6], [0, 0, 0, 4])
    scale, shift = floats(1, 1, 2, 1), floats(0, 0, 1, 0)
    (y,) = run("LayerNormalization", x, scale, shift, domain="", opset=opset)
    centred = x - x.mean(1, keepdims=True)
    want = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * scale + shift
    np.testing.assert_allclose(y, want, rtol=1e-5)


def test_unknown_ops_of_the_default_domain_stay_unknown() -> None:
    with pytest.raises(vs.ModelFormatError, match="expected an op of domain 'ai.onnx' at opset 14"):
        vs.load(node_model("GroupNormalization", [floats(1), floats(1)], domain="", opset=14))


def test_ops_that_onnx_dropped() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)
    (y,) = run("Crop", x, domain="", opset=9, border=[1, 1, 1, 0])
    np.testing.assert_array_equal(y[0, 0], [[5, 6], [9, 10]])
    (y,) = run("Affine", x, domain="", opset=9, alpha=2.0, beta=1.0)
    np.testing.assert_array_equal(y, x * 2 + 1)
    (y,) = run("ImageScaler", x, domain="", opset=8, scale=0.5, bias=[3.0])
    np.testing.assert_array_equal(y, x / 2 + 3)


# -- text ------------------------------------------------------------------------------------------


def texts(*values: Any) -> NDArray:
    return np.array(values, object)


def by_onnxruntime(op: str, *inputs: NDArray | None, **attrs: Any) -> list[NDArray]:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        node_model(op, inputs, **attrs).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    return list(session.run(None, feeds))


TOKENS: list[tuple[NDArray, dict[str, Any]]] = [
    (texts("Hello World", "I love cs !"), {"separators": [" "]}),
    (texts("Hello World", "I love cs !"), {"separators": [" "], "mark": 1}),
    (texts(["ab c", "d"], ["", "efg hi"]), {"separators": [" "], "mincharnum": 2}),
    (texts("h\u00e9llo", "ab"), {"separators": [""], "mark": 1}),
    (texts("abc"), {"tokenexp": "."}),
    (texts("aab ab b 12"), {"tokenexp": "a|aab|b"}),  # the longest, not the first
    (texts("aab ab b 12"), {"tokenexp": "[a-z]+"}),
    (texts("a,b;c"), {"separators": [",", ";"]}),
    (texts("axxb xc"), {"separators": ["x", "xx"]}),
    (texts("  "), {"separators": [" "], "mark": 1}),
    (texts("aXbXXc"), {"separators": ["X*"]}),
    (texts("foo bar"), {"separators": ["o+", " "]}),
    (texts("a1b22c"), {"separators": [r"\d+"]}),
    (texts("ab"), {"separators": ["a|ab"]}),
    (texts("aaa bb c"), {"tokenexp": "[a-z]+", "mincharnum": 2}),
    (texts("xaab"), {"tokenexp": "a*"}),
    (texts(["a"]), {"separators": [" "], "mincharnum": 5}),
    (texts("one  two"), {"separators": [" "]}),
    (texts("\u65e5\u672c \u8a9e 1"), {"tokenexp": r"\pL+"}),
    (texts("x1y\u0967"), {"tokenexp": r"[\p{Nd}x]+"}),
    (texts("aA"), {"tokenexp": "(?i)a"}),
]


@pytest.mark.parametrize("case", TOKENS, ids=lambda c: str(list(c[1].values())))
def test_tokens_equal_onnxruntime(case: tuple[NDArray, dict[str, Any]]) -> None:
    values, attrs = case
    attrs = {"mark": 0, "mincharnum": 1, "pad_value": "#", **attrs}
    (got,), (want,) = (
        run("Tokenizer", values, **attrs),
        by_onnxruntime("Tokenizer", values, **attrs),
    )
    assert got.shape == want.shape and got.tolist() == want.tolist()


def test_tokens() -> None:
    attrs = {"separators": [" "], "mincharnum": 1, "pad_value": "#"}
    (y,) = run("Tokenizer", texts("Hello World", "I love cs"), mark=1, **attrs)
    assert y.tolist() == [
        ["\x02", "Hello", "World", "\x03", "#"],
        ["\x02", "I", "love", "cs", "\x03"],
    ]
    with pytest.raises(vs.ModelFormatError, match="expected a regular expression, got"):
        run("Tokenizer", texts("a"), mark=0, tokenexp="(", mincharnum=1, pad_value="")


@pytest.mark.parametrize(
    "call",
    [
        ("ExpandDims", [texts("a", "b"), np.array(-1, np.int32)], {}),
        ("GatherND", [texts(["a", "b"], ["c", "d"]), np.array([[1, 0], [0, -1]])], {}),
        ("MurmurHash3", [texts("", "a", "word", "\u00e9t\u00e9 17")], {"seed": 5, "positive": 0}),
        ("SampleOp", [floats(1, 2)], {}),
    ],
    ids=lambda c: c[0],
)
def test_text_equals_onnxruntime(call: tuple[str, list[NDArray], dict[str, Any]]) -> None:
    op, inputs, attrs = call
    (got,), (want,) = run(op, *inputs, **attrs), by_onnxruntime(op, *inputs, **attrs)
    assert got.dtype == want.dtype and got.shape == want.shape and got.tolist() == want.tolist()


def test_a_hash_of_text_and_of_numbers() -> None:
    """The published values of MurmurHash3_x86_32."""
    (y,) = run("MurmurHash3", texts("", "hello", "hello, world"))
    assert y.dtype == np.uint32 and y.tolist() == [0, 0x248BFA47, 0x149BBB7F]
    (y,) = run("MurmurHash3", texts("", "test"), seed=0x9747B28C)
    assert y.tolist() == [0xEBB6C228, 0x704B81DC]
    (y,) = run("MurmurHash3", np.frombuffer(b"test", np.int32).copy(), seed=0x9747B28C, positive=0)
    assert y.dtype == np.int32 and y.tolist() == [0x704B81DC]


EXPERTS = {"k": 2, "activation_type": "silu", "expert_weight_bits": 4, "block_size": 16}


def expert_inputs(kind: str) -> list[NDArray | None]:
    rng = np.random.default_rng(0)
    codes = [rng.integers(0, 256, (3, 32, 16)).astype(np.uint8) for _ in range(2)]
    scales = [(rng.random((3, 32, 2)) * 0.02).astype(kind) for _ in range(2)]
    x, router = (rng.standard_normal((4, n)).astype(kind) for n in (32, 3))
    return [x, router, codes[0], scales[0], None, codes[1], scales[1]]


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_experts_of_4_bits(kind: str) -> None:
    x, router, first, scales, _, second, others = expert_inputs(kind)
    (y,) = run("QMoE", *expert_inputs(kind), fixed=(2, 3, 5, 6), **EXPERTS)
    assert y.dtype == kind
    layers = []
    for codes, scale in ((first, scales), (second, others)):
        whole = np.stack([codes & 15, codes >> 4], -1).reshape(3, 32, 32).astype(np.float32) - 8
        layers.append(whole * np.repeat(scale, 16, 2).astype(np.float32))
    want = np.zeros((4, 32), np.float32)
    for row, each in enumerate(x.astype(np.float32)):
        chosen = np.argsort(-router[row])[:2]
        weights = np.exp(router[row, chosen].astype(np.float32))
        for expert, weight in zip(chosen, weights / weights.sum(), strict=True):
            built = layers[0][expert] @ each
            want[row] += weight * (layers[1][expert] @ (built / (1 + np.exp(-built))))
    tolerance = (1e-5 if kind == "float32" else 1e-2) * np.abs(want).max()
    np.testing.assert_allclose(y, want, atol=tolerance)


def test_scores_of_attention_are_those_before_softmax() -> None:
    query, key = floats([1, 2], [3, 4])[None], floats([1, 0], [0, 1])[None]
    mask = np.array([[1, 0]], np.int32)
    *_, scores = run("MultiHeadAttention", query, key, key, None, mask, results=4, num_heads=1)
    want = query @ key[0].T / np.sqrt(2) + floats(0, -10000)
    np.testing.assert_allclose(scores[0], want, rtol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        ("Attention", [(1, 2, 4), (4, 12), (12,)], {"num_heads": 0}),
        ("UnfoldTensor", [(3,)], {"size": 2, "step": 0}),
        ("GatedRMSNorm", [(2, 3), (0,), (2, 3)], {}),
        ("EmbedLayerNormalization", [(1, 2), None, (3, 4), None, None, (4,), (4,)], {}),
    ],
    ids=lambda c: c[0],
)
def test_numbers_that_cannot_be_are_refused(call: tuple[str, list[Any], dict[str, Any]]) -> None:
    op, shapes, attrs = call
    inputs = [None if shape is None else np.zeros(shape, np.float32) for shape in shapes]
    with pytest.raises(vs.ModelFormatError, match=f"com.microsoft.{op} node 'y0'"):
        run(op, *inputs, **attrs)


PADDED = {"num_heads": 2, "kv_num_heads": 1}


def padded_inputs() -> list[NDArray | None]:
    """Three queries of one batch, two of another; 3 and 2 keys before them."""
    rng = np.random.default_rng(2)
    shapes = [(2, 3, 32), (2, 3, 16), (2, 3, 16), (2, 1, 8, 16), (2, 1, 8, 16)]
    floats_ = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    lengths, most = np.array([5, 3], np.int32), np.array(8, np.int32)
    return [*floats_, lengths, most, *[None] * 9, np.array([3, 2], np.int32)]


def test_queries_that_are_padding_are_not_cached() -> None:
    inputs = padded_inputs()
    y, k, v = run("GroupQueryAttention", *inputs, results=3, **PADDED)
    query, key, old = inputs[0], inputs[1], inputs[3]
    assert query is not None and key is not None and old is not None
    np.testing.assert_array_equal(k[0, 0, 3:6], key[0])
    np.testing.assert_array_equal(k[1, 0, 2:4], key[1, :2])
    np.testing.assert_array_equal(k[1, 0, :2], old[1, 0, :2])
    for head in range(2):
        scores = np.exp(k[1, 0, :4] @ query[1, 1, 16 * head : 16 * head + 16] / 4)
        want = scores / scores.sum() @ v[1, 0, :4]
        np.testing.assert_allclose(y[1, 1, 16 * head : 16 * head + 16], want, rtol=1e-4, atol=1e-5)


def test_padded_queries_equal_onnxruntime() -> None:
    inputs = padded_inputs()
    found = run("GroupQueryAttention", *inputs, results=3, **PADDED)
    wanted = by_onnxruntime("GroupQueryAttention", *inputs, results=3, **PADDED)
    np.testing.assert_allclose(found[0][0], wanted[0][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[0][1, :2], wanted[0][1, :2], rtol=1e-4, atol=1e-5)
    for got, want in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_allclose(got[0, :, :6], want[0, :, :6], rtol=1e-5)
        np.testing.assert_allclose(got[1, :, :4], want[1, :, :4], rtol=1e-5)


# -- attention of blocks ---------------------------------------------------------------------------

SIZE, MOST = 16, 64
LAYOUTS = np.array(
    [np.tril(np.ones((4, 4), int)), np.eye(4, dtype=int) + np.eye(4, k=-1, dtype=int)]
)


def compressed(layouts: NDArray) -> tuple[NDArray, NDArray]:
    """Return the ends of rows, and the columns, of what is set in each layout."""
    ends = [[0, *np.cumsum(layout.sum(1))] for layout in layouts]
    columns = [np.nonzero(layout)[1].tolist() for layout in layouts]
    width = max(map(len, columns))
    filled = [row + [-1] * (width - len(row)) for row in columns]
    return np.array(ends, np.int32), np.array(filled, np.int32)


def sparse_inputs(queries: int, lengths: list[int]) -> list[NDArray]:
    rng, batch = np.random.default_rng(queries), len(lengths)
    qkv = [rng.standard_normal((batch, queries, 16 * n)).astype(np.float32) for n in (2, 1, 1)]
    past = [rng.standard_normal((batch, 1, MOST, 16)).astype(np.float32) for _ in range(2)]
    counts = np.array([max(lengths)], np.int32), np.array(lengths, np.int32)
    return [*qkv, *past, *compressed(LAYOUTS), *counts]


SPARSE = {"num_heads": 2, "kv_num_heads": 1, "sparse_block_size": SIZE}


def test_attention_of_blocks() -> None:
    inputs = sparse_inputs(1, [35])
    y, k, v = run("SparseAttention", *inputs, fixed=(5, 6), results=3, **SPARSE)
    query = inputs[0].reshape(2, 16)
    for head, seen in enumerate([np.arange(35), np.arange(SIZE, 35)]):
        scores = np.exp(k[0, 0, seen] @ query[head] / 4)
        want = scores / scores.sum() @ v[0, 0, seen]
        np.testing.assert_allclose(y[0, 0, 16 * head : 16 * head + 16], want, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(k[0, 0, 34], inputs[1][0, 0])
    np.testing.assert_array_equal(k[0, 0, :34], inputs[3][0, 0, :34])


@pytest.mark.parametrize("case", [(40, [40]), (1, [35]), (20, [20, 20]), (1, [35, 35])], ids=str)
def test_attention_of_blocks_equals_onnxruntime(case: tuple[int, list[int]]) -> None:
    """onnxruntime asks for buffers that are both past and present; of batches of different lengths
    it gives numbers that no mask explains.
    """
    onnxruntime = pytest.importorskip("onnxruntime")
    inputs, attrs = sparse_inputs(*case), SPARSE
    model = node_model("SparseAttention", inputs, results=3, fixed=(5, 6), **attrs)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    held = {i: onnxruntime.OrtValue.ortvalue_from_numpy(a.copy()) for i, a in enumerate(inputs)}
    binding = session.io_binding()
    for i, value in held.items():
        if i not in (5, 6):
            binding.bind_ortvalue_input(f"x{i}", value)
    binding.bind_output("y0")
    for i in (3, 4):
        binding.bind_ortvalue_output(f"y{i - 2}", held[i])
    session.run_with_iobinding(binding)
    found = run("SparseAttention", *inputs, fixed=(5, 6), results=3, **attrs)
    for got, want in zip(found, binding.copy_outputs_to_cpu(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
