"""Ops of ai.onnx.ml: maps in and out, labels that are texts, probabilities of support vectors.

Constants are those of onnxruntime 1.32. Drawn calls of each op: test_onnx_calls.py and
test_compared.py.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vksched as vs
import vksched.onnxruntime
from vksched.common.dtypes import NDArray
from vksched.common.errors import DTypeError, ModelFormatError

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, ValueInfoProto, helper  # noqa: E402

from vksched import onnx_backend  # noqa: E402
from vksched.importers.onnx.nodes.ai_onnx_ml import couple  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
ML = "ai.onnx.ml"
T = TensorProto
DEVICES = ["cpu", "vulkan:0"]


def map_info(name: str, key: int, value: int, sequence: bool = False) -> ValueInfoProto:
    info = ValueInfoProto(name=name)
    kind = info.type.sequence_type.elem_type.map_type if sequence else info.type.map_type
    kind.key_type = key
    kind.value_type.tensor_type.elem_type = value
    return info


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain=ML, **attrs)


def model_of(nodes: list[Any], inputs: list[Any], outputs: list[Any], version: int = 3) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return bytes(model.SerializeToString())


def tensor_info(name: str, kind: int, shape: list[Any] | None) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "cpu" and request.param not in {d.name for d in vs.devices()}:
        pytest.skip("no such device")
    yield request.param


def run(model: bytes, device: str = "cpu", **feeds: Any) -> list[Any]:
    with vksched.onnxruntime.InferenceSession(model, providers=[device]) as session:
        return session.run(None, feeds)


def judged(model: bytes, **feeds: Any) -> list[Any]:
    """Return the results of onnxruntime."""
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, feeds)
    return found


# -- a classifier as converters write it ---------------------------------------------------------

X = np.array([[1.0, 2.0], [-1.0, 0.5]], np.float32)


def linear_classifier(labels: list[Any]) -> bytes:
    texts = isinstance(labels[0], str)
    classes = {"classlabels_strings" if texts else "classlabels_ints": labels}
    keys = {"classlabels_strings" if texts else "classlabels_int64s": labels}
    nodes = [
        node("LinearClassifier", ["x"], ["label", "p"], post_transform="SOFTMAX",
             coefficients=[1.0, -1.0, 0.5, 0.2, -0.3, 0.9], intercepts=[0.0, 0.1, -0.1], **classes),
        node("ZipMap", ["p"], ["probabilities"], **keys),
    ]  # fmt: skip
    kind = T.STRING if texts else T.INT64
    outputs = [
        tensor_info("label", kind, [None]),
        map_info("probabilities", kind, T.FLOAT, sequence=True),
    ]
    return model_of(nodes, [tensor_info("x", T.FLOAT, [None, 2])], outputs)


P = [
    [0.0515139065682888, 0.3806391656398773, 0.567846953868866],
    [0.07748948782682419, 0.25727418065071106, 0.6652362942695618],
]


def test_probabilities_come_as_a_list_of_maps(device: str) -> None:
    model = linear_classifier([0, 1, 2])
    labels, maps = run(model, device, x=X)
    assert labels.tolist() == [2, 2] and labels.dtype == np.int64
    assert [list(m) for m in maps] == [[0, 1, 2]] * 2
    assert all(type(k) is int and type(v) is float for m in maps for k, v in m.items())
    np.testing.assert_allclose([list(m.values()) for m in maps], P, rtol=1e-5)
    with vksched.onnxruntime.InferenceSession(model, providers=[device]) as session:
        (only,) = session.run(["label"], {"x": X[:1]})
        assert only.tolist() == [2]
        assert [o.type for o in session.get_outputs()] == [
            "tensor(int64)", "seq(map(int64,tensor(float)))"
        ]  # fmt: skip
        assert session.run(["probabilities"], {"x": X[:0]}) == [[]]
        value = session.run_with_ort_values(["probabilities"], {"x": X})[0]
        assert value.data_type() == "seq(map(int64,tensor(float)))"
        assert not value.is_tensor() and not value.is_tensor_sequence()


def test_labels_that_are_texts_are_sorted_as_keys_of_maps(device: str) -> None:
    labels, maps = run(linear_classifier(["c", "Ä", "a"]), device, x=X)
    assert labels.tolist() == ["a", "a"] and labels.dtype == object
    assert [list(m) for m in maps] == [["a", "c", "Ä"]] * 2
    np.testing.assert_allclose([m["c"] for m in maps], [row[0] for row in P], rtol=1e-5)


def test_a_backend_gives_maps_too() -> None:
    with onnx_backend.prepare(linear_classifier([0, 1, 2]), "cpu") as rep:
        found = rep.run([X])
    np.testing.assert_allclose([list(m.values()) for m in found.probabilities], P, rtol=1e-5)


def test_maps_do_not_make_a_stage_for_each_number_of_rows() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        compiled = sched.compile(vs.load(linear_classifier([0, 1, 2])))
        for _ in range(3):
            compiled(x=np.repeat(X, 4, axis=0))
        assert len(compiled.segments) == 2  # one before ZipMap, one behind it
        assert "ZipMap" in compiled.explain()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 4), (1, 2, 3)])
def test_zip_map_takes_rows_of_its_labels_alone(shape: tuple[int, ...]) -> None:
    zipped = node("ZipMap", ["x"], ["y"], classlabels_strings=["b", "c", "a"])
    info = tensor_info("x", T.FLOAT, list(shape))
    model = model_of([zipped], [info], [map_info("y", T.STRING, T.FLOAT, sequence=True)])
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    if shape[-1] == 3 and len(shape) < 3:
        assert run(model, x=x) == judged(model, x=x)
        return
    with pytest.raises(ModelFormatError, match="expected scores of 3 labels|should be 1D or 2D"):
        run(model, x=x)


# -- maps that are given -------------------------------------------------------------------------

KEYS = {T.STRING: ["a", "b", "c"], T.INT64: [4, 1, -2]}
VALUES: dict[int, tuple[Any, list[Any]]] = {
    T.FLOAT: (np.float32, [0.1, 2.0]),
    T.DOUBLE: (np.float64, [0.1, 2.0]),
    T.INT64: (np.int64, [7, -3]),
    T.STRING: (object, ["u", "v"]),
}
PAIRS = [(T.STRING, T.FLOAT), (T.STRING, T.DOUBLE), (T.STRING, T.INT64),
         (T.INT64, T.FLOAT), (T.INT64, T.DOUBLE), (T.INT64, T.STRING)]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), PAIRS)
def test_dict_vectorizer(key: int, value: int) -> None:
    words = {"string_vocabulary" if key == T.STRING else "int64_vocabulary": KEYS[key]}
    dtype, (one, two) = VALUES[value]
    vectorizer = node("DictVectorizer", ["x"], ["y"], **words)
    model = model_of([vectorizer], [map_info("x", key, value)], [tensor_info("y", value, None)])
    other: Any = "z" if key == T.STRING else 99
    first, second, third = KEYS[key]
    for values in ({second: one, other: two}, {third: one, first: two}, {}):
        (found,) = run(model, x=values)
        empty = "" if dtype is object else 0
        wanted = np.array([[values.get(word, empty) for word in KEYS[key]]], dtype)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
        if values and value == T.FLOAT:  # of others onnxruntime takes none from Python
            np.testing.assert_array_equal(found, judged(model, x=values)[0])
    with vksched.onnxruntime.InferenceSession(model, providers=["cpu"]) as session:
        names = {T.STRING: "string", T.INT64: "int64", T.FLOAT: "float", T.DOUBLE: "double"}
        assert session.get_inputs()[0].type == f"map({names[key]},tensor({names[value]}))"


@pytest.mark.parametrize("cast", ["TO_FLOAT", "TO_INT64", "TO_STRING"])
@pytest.mark.parametrize("form", [{"map_form": "DENSE"}, {"map_form": "SPARSE", "max_map": 4}])
@pytest.mark.parametrize("texts", [False, True])
def test_cast_map(cast: str, form: dict[str, Any], texts: bool) -> None:
    kind = {"TO_FLOAT": T.FLOAT, "TO_INT64": T.INT64, "TO_STRING": T.STRING}[cast]
    feeds: dict[int, Any] = {3: 1.75, 0: -2.5, 7: 1e6}
    if texts:
        feeds = {3: "12", 0: " -35e1x", 7: "+7"}
    caster = node("CastMap", ["x"], ["y"], cast_to=cast, **form)
    info = map_info("x", T.INT64, T.STRING if texts else T.FLOAT)
    model = model_of([caster], [info], [tensor_info("y", kind, None)])
    (found,) = run(model, x=feeds)
    if not texts:
        (wanted,) = judged(model, x=feeds)
    else:  # onnxruntime takes none from Python: as its source has it
        row = {"TO_FLOAT": [-350.0, 12.0, 7.0], "TO_INT64": [-35, 12, 7]}.get(
            cast, [" -35e1x", "12", "+7"]
        )
        pad = {"TO_FLOAT": 0.0, "TO_INT64": 0}.get(cast, "0.f")
        row = row if form["map_form"] == "DENSE" else [row[0], pad, pad, row[1]]
        dtype: Any = {"TO_FLOAT": np.float32, "TO_INT64": np.int64}.get(cast, object)
        wanted = np.array([row], dtype)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([1.0], "expected a dict for input 'x', got list"),
        ({"a": "b"}, "cannot be converted"),
        ({1: 2.0}, "expected strings in the map for input 'x'"),
    ],
)
def test_what_is_no_map_is_refused(argument: Any, message: str) -> None:
    vectorizer = node("DictVectorizer", ["x"], ["y"], string_vocabulary=["a"])
    info = map_info("x", T.STRING, T.FLOAT)
    model = model_of([vectorizer], [info], [tensor_info("y", T.FLOAT, None)])
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(DTypeError, match=message):
        sched.compile(vs.load(io.BytesIO(model).getvalue()))(x=argument)


def test_the_command_line_shows_and_saves_maps(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from vksched.cli import main

    file, values, out = tmp_path / "m.onnx", tmp_path / "x.npy", tmp_path / "out"
    file.write_bytes(linear_classifier([0, 1, 2]))
    np.save(values, X)
    options = ["run", str(file), "--devices", "cpu", "--input", f"x={values}", "--output-dir"]
    result = CliRunner().invoke(main, [*options, str(out)])
    assert result.exit_code == 0, result.output
    np.testing.assert_allclose(np.load(out / "probabilities.values.npy"), P, rtol=1e-5)
    assert np.load(out / "probabilities.keys.npy").tolist() == [0, 1, 2]


# -- support vectors -----------------------------------------------------------------------------


def svm(**attrs: Any) -> bytes:
    rng = np.random.default_rng(1)
    vectors, coefficients = rng.standard_normal((6, 3)), rng.standard_normal((2, 6))
    built = node(
        "SVMClassifier", ["x"], ["label", "p"], kernel_type="RBF", kernel_params=[0.5, 0.0, 3.0],
        support_vectors=vectors.ravel().tolist(), coefficients=coefficients.ravel().tolist(),
        vectors_per_class=[2, 2, 2], rho=[0.1, 0.2, -0.1], classlabels_ints=[0, 1, 2], **attrs,
    )  # fmt: skip
    outputs = [tensor_info("label", T.INT64, None), tensor_info("p", T.FLOAT, None)]
    return model_of([built], [tensor_info("x", T.FLOAT, [None, 3])], outputs)


ROWS = np.array(
    [
        [6.353516, -3.3360622, -1.132815],
        [6.128315, 1.940109, 1.9891901],
        [-1.5420191, -4.9442253, 0.50239426],
        [0.32704225, -3.6820562, -2.04968],
    ],
    np.float32,
)
COUPLED = [[0.3575, 0.3165, 0.326]] * 3 + [[0.3576, 0.3166, 0.3258]]


def test_probabilities_of_three_classes(device: str) -> None:
    model = svm(prob_a=[-1.0, -2.0, -1.5], prob_b=[0.1, 0.2, 0.0])
    labels, p = run(model, device, x=ROWS)
    np.testing.assert_allclose(p, COUPLED, atol=6e-5)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    assert labels.tolist() == [0, 0, 0, 0]


def test_scores_of_pairs(device: str) -> None:
    model = svm()
    labels, scores = run(model, device, x=ROWS)
    expected_labels, expected = judged(model, x=ROWS)
    np.testing.assert_array_equal(labels, expected_labels)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)


def exactly(pairs: NDArray) -> NDArray:
    """The coupled probabilities as the solution of linear equations, in float64."""
    r = np.zeros((3, 3))
    r[np.triu_indices(3, 1)] = pairs
    r[np.tril_indices(3, -1)] = 1 - r.T[np.tril_indices(3, -1)]
    q = -r * r.T
    np.fill_diagonal(q, np.square(r).sum(0) - np.square(np.diag(r)))
    kkt = np.block([[q, np.ones((3, 1))], [np.ones((1, 3)), np.zeros((1, 1))]])
    return np.asarray(np.linalg.solve(kkt, [0, 0, 0, 1])[:3])


def test_coupling_is_near_the_solution() -> None:
    pairs = np.random.default_rng(2).uniform(0.05, 0.95, (50, 3)).astype(np.float32)
    found = couple(pairs)
    np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(found, [exactly(row) for row in pairs], atol=0.02)
    np.testing.assert_array_equal(found[7:8], couple(pairs[7:8]))  # each row on its own
    assert couple(np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_many_support_vectors_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    from vksched.importers.onnx.rules.ml import svm as rules

    model = svm()
    whole = run(model, x=ROWS)
    monkeypatch.setattr(rules, "PIECE", 30)
    parts = run(model, x=ROWS)
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-6)
    with vs.Scheduler(["cpu"]) as sched:
        compiled = sched.compile(vs.load(model))
        compiled(x=ROWS)
        ops = [n.op for n in compiled.plan.graph.nodes]
    assert ops.count("reduce_sum") == 3


def test_near_support_vectors_distances_are_exact() -> None:
    """By products instead of differences nothing of them would be left."""
    far = np.array([[1e4, -1e4, 1e4]], np.float32)
    built = node(
        "SVMRegressor", ["x"], ["y"], kernel_type="RBF", kernel_params=[1.0, 0.0, 0.0],
        support_vectors=far.ravel().tolist(), coefficients=[1.0], n_supports=1, rho=[0.0],
    )  # fmt: skip
    info = tensor_info("x", T.FLOAT, [None, 3])
    model = model_of([built], [info], [tensor_info("y", T.FLOAT, None)])
    near = far + np.array([[0.5, 0, 0], [0, 0.25, 0]], np.float32)
    np.testing.assert_allclose(run(model, x=near)[0][:, 0], np.exp([-0.25, -0.0625]), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {
                "classlabels_ints": list(range(60000)),
                "vectors_per_class": [1] * 60000,
                "support_vectors": [0.0] * 180000,
            },
            "3 of rho for 1799970000 pairs",
        ),
        ({"vectors_per_class": [8, -4, 2]}, "vectors_per_class -4"),
        ({"rho": [0.1]}, "1 of rho for 3 pairs"),
        ({"coefficients": [1.0]}, "1 coefficients, expected 12"),
        ({"support_vectors": [1.0] * 7}, "7 numbers of 6 support vectors"),
        ({"prob_a": [1.0], "prob_b": [1.0]}, "not of all pairs"),
        ({"kernel_type": "RBG"}, "kernel_type 'RBG'"),
        ({"post_transform": "SOFT"}, "post_transform 'SOFT'"),
    ],
)
def test_attributes_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    model = onnx.load_model_from_string(svm())
    built = model.graph.node[0]
    remaining = [a for a in built.attribute if a.name not in change]
    del built.attribute[:]
    built.attribute.extend([*remaining, *(helper.make_attribute(k, v) for k, v in change.items())])
    with pytest.raises(ModelFormatError, match=f"SVMClassifier node.*{message}"):
        run(model.SerializeToString(), x=ROWS)


# -- features ------------------------------------------------------------------------------------


def test_unknown_categories_are_an_error_where_they_are_forbidden() -> None:
    encoder = node("OneHotEncoder", ["x"], ["y"], cats_int64s=[1, 2], zeros=0)
    info = tensor_info("x", T.INT64, [2])
    model = model_of([encoder], [info], [tensor_info("y", T.FLOAT, None)])
    np.testing.assert_array_equal(run(model, x=np.array([2, 1]))[0], [[0, 1], [1, 0]])
    with pytest.raises(ModelFormatError, match="a category that is not among those of the node"):
        run(model, x=np.array([2, 3]))


@pytest.mark.parametrize("value", [2**40 + 5, -(2**40)])
def test_large_categories(value: int) -> None:
    encoder = node("OneHotEncoder", ["x"], ["y"], cats_int64s=[value, 1])
    info = tensor_info("x", T.INT64, [2])
    model = model_of([encoder], [info], [tensor_info("y", T.FLOAT, None)])
    np.testing.assert_array_equal(run(model, x=np.array([value, 1]))[0], np.eye(2))
    encoder = node("OneHotEncoder", ["x"], ["y"], cats_int64s=[value, 1])
    info = tensor_info("x", T.INT32, [2])
    model = model_of([encoder], [info], [tensor_info("y", T.FLOAT, None)])
    small = np.array([value & 0x7FFFFFFF, 1], np.int32)
    np.testing.assert_array_equal(run(model, x=small)[0], [[0, 0], [0, 1]])
