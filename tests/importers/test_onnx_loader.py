"""Reading ONNX files: what is mapped, what is accepted, and what each bad file is told."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import needs_linux, needs_posix
from mutants import maps_of
from onnx import TensorProto, helper, numpy_helper, parser

import vksched.storage.model_file
from vksched.common.errors import ModelFormatError
from vksched.importers.onnx.nodes import limits
from vksched.importers.onnx.read import check, external_data, protobuf_wire
from vksched.importers.onnx.read.loader import OnnxFile, read_onnx
from vksched.storage import safe_open

HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'


def text_model(text: str, **initializers: np.ndarray) -> onnx.ModelProto:
    """Return a model from onnx's text form, with initializers added to its graph."""
    model = parser.parse_model(text if text.startswith("<") else HEAD + text)
    for name, array in initializers.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def relu() -> onnx.ModelProto:
    return text_model("g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }")


def weighted(rows: int = 64) -> onnx.ModelProto:
    weight = np.arange(rows * 32, dtype=np.float32).reshape(rows, 32)
    bias = np.ones(32, np.float32)
    return text_model(
        "g (float[N, R] x) => (float[N, 32] y) { a = MatMul(x, w)\n y = Add(a, b) }",
        w=weight,
        b=bias,
    )


def refused(source: object, *parts: str) -> None:
    """Assert that reading fails with a message that has all the parts."""
    with pytest.raises(ModelFormatError) as caught:
        read_onnx(source)  # type: ignore[arg-type]
    for part in parts:
        assert part in str(caught.value)


def base_of(array: np.ndarray) -> object:
    at: object = array
    while isinstance(at, np.ndarray) and at.base is not None:
        at = at.base
    return at.obj if isinstance(at, memoryview) else at


# What is read


@pytest.mark.parametrize("begin", [b"# A page", b"[section]", b"PK\x03\x04", b"hello", b"\x89PNG"])
def test_what_is_no_onnx_file_is_called_so(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "page.md"
    path.write_bytes(begin + b"\nand more, of some length\n")
    with pytest.raises(ModelFormatError, match="page.md is not an ONNX file: it begins with b"):
        read_onnx(path)
    with pytest.raises(ModelFormatError, match="try vksched chat, generate or embed"):
        read_onnx(b"GGUF\x03" + bytes(20))
    with pytest.raises(ModelFormatError, match="this is not an ONNX file"):
        read_onnx(path.read_bytes())


@needs_linux
def test_a_file_is_mapped_and_its_weights_are_views(tmp_path: Path) -> None:
    model, path = weighted(1024), tmp_path / "m.onnx"
    onnx.save(model, path)
    before = maps_of(tmp_path)
    loaded = read_onnx(path)
    assert (loaded.path, loaded.file_bytes) == (path, path.stat().st_size)
    weight = loaded.initializers["w"]
    assert isinstance(base_of(weight), mmap.mmap)
    assert not weight.flags.writeable and not weight.flags.owndata
    np.testing.assert_array_equal(weight, numpy_helper.to_array(model.graph.initializer[0]))
    assert [list(t.dims) for t in loaded.model.graph.initializer] == [[1024, 32], [32]]
    assert loaded.model.ByteSize() < 400
    assert before == 0 < maps_of(tmp_path)
    del weight, loaded
    assert maps_of(tmp_path) == 0


@pytest.mark.parametrize("source", [bytes, bytearray, memoryview, str, Path, onnx.ModelProto])
def test_every_source_reads_the_same(source: type, tmp_path: Path) -> None:
    model = weighted()
    onnx.save(model, tmp_path / "m.onnx")
    data = model.SerializeToString()
    feeds = {str: str(tmp_path / "m.onnx"), Path: tmp_path / "m.onnx", onnx.ModelProto: model}
    loaded = read_onnx(feeds.get(source) or source(data))
    assert list(loaded.initializers) == ["w", "b"]
    assert loaded.file_bytes == len(data)
    assert model == onnx.ModelProto.FromString(data)  # the caller's stays as it was


@pytest.mark.parametrize("kind", [t for t in TensorProto.DataType.values() if t])
def test_every_element_type_equals_the_onnx_helper(kind: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    rng = np.random.default_rng(kind)
    name = TensorProto.DataType.Name(kind)
    low, high = -2 if name.startswith("INT") else 0, 2 if name == "INT2" else 4
    if kind == TensorProto.STRING:
        inputs = [np.array([["a", "bb"], ["", "ü"]], object)]
    else:
        inputs = [
            rng.integers(low, high, shape).astype(np.float32).astype(dtype)
            for shape in ((3, 5), (), (0, 4), (1030, 5))
        ]
    for array in inputs:
        raw = numpy_helper.from_array(array, "w")
        protos = [raw]
        if kind != TensorProto.STRING:
            protos.append(helper.make_tensor("w", kind, array.shape, array.ravel().tolist()))
        for proto in protos:
            model = text_model("g (float[1] x) => (float[1] y) { y = Relu(x) }")
            model.graph.initializer.append(proto)
            got = read_onnx(model).initializers["w"]
            want = numpy_helper.to_array(proto)
            assert got.dtype == want.dtype and got.shape == want.shape
            assert str(got.tolist()) == str(want.tolist())  # NaN equals itself there
            assert not got.flags.writeable


def test_sparse_initializers_become_dense() -> None:
    for indices in (np.array([1, 5]), np.array([[0, 1], [1, 2]])):
        model = text_model("g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }")
        values = numpy_helper.from_array(np.array([2.0, 3.0], np.float32), "w")
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(indices), [2, 3])
        model.graph.sparse_initializer.append(sparse)
        loaded = read_onnx(model)
        np.testing.assert_array_equal(loaded.initializers["w"], [[0, 2, 0], [0, 0, 3]])
        assert [t.name for t in loaded.model.graph.initializer] == ["w"]


def external(
    tmp_path: Path, location: str = "w.bin", data: bytes | None = None, **entries: str
) -> Path:
    """Write a model with an initializer of 32 KiB in another file."""
    model = text_model("g (float[128] x) => (float[64, 128] y) { y = Add(x, w) }")
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[64, 128])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    if data is not None:
        (tmp_path / location).parent.mkdir(exist_ok=True)
        (tmp_path / location).write_bytes(data)
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture(params=[True, False], ids=["from folders", "by path"])
def from_folders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both ways to open what stands beside a model; Windows has only the second."""
    monkeypatch.setattr(safe_open, "_FROM_FOLDERS", request.param and safe_open._FROM_FOLDERS)
    return bool(request.param)


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin", "./w.bin", "ü w.bin"])
@pytest.mark.parametrize("lead", [0, 3, 70_000])
def test_external_data_is_found_next_to_the_model(
    location: str, lead: int, from_folders: bool, tmp_path: Path
) -> None:
    want = np.random.default_rng(1).random((64, 128), np.float32)
    data = b"\1" * lead + want.tobytes() + b"end"
    path = external(tmp_path, location, data, offset=str(lead), length=str(want.nbytes))
    loaded = read_onnx(path)
    np.testing.assert_array_equal(loaded.initializers["w"], want)
    assert loaded.file_bytes == path.stat().st_size + len(data)
    assert not loaded.model.graph.initializer[0].external_data


def test_many_external_files_do_not_take_all_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external_data, "MAX_MAPS", 1)
    monkeypatch.setattr(vksched.storage.model_file, "MIN_MAPPED_BYTES", 0)
    folder = external_data.Folder(tmp_path)
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 9)
    kinds = [type(folder.read(name, 0, 9, "x").obj) for name in "ab"]
    assert kinds == [mmap.mmap, bytes]


def test_external_data_inside_subgraphs_and_attributes_is_embedded(tmp_path: Path) -> None:
    model = text_model(
        "g (float[2] x) => (float[2] y) { k = Constant <value = float[2] {0, 0}> ()\n"
        " y = Add(x, k) }"
    )
    tensor = model.graph.node[0].attribute[0].t
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="k.bin")
    (tmp_path / "k.bin").write_bytes(np.float32([4, 5]).tobytes())
    onnx.save(model, tmp_path / "m.onnx")
    constant = read_onnx(tmp_path / "m.onnx").model.graph.node[0].attribute[0].t
    np.testing.assert_array_equal(numpy_helper.to_array(constant), [4, 5])


SECRET = np.float32([4, 5])


def _pointing(name: str = "t") -> TensorProto:
    """A tensor whose data lies in a file."""
    tensor = TensorProto(name=name, data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="k.bin")
    return tensor


def _with_default() -> onnx.ModelProto:
    """A function whose attribute has a default with external data, and a call without it."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18, "f" : 1]> g (float[2] x) => (float[2] y)'
        ' { y = f.add(x) } <domain: "f", opset_import: ["" : 18]> add <value: tensor = float[2]'
        " {0, 0}> (x) => (y) { k = Constant <value: tensor = @value> () y = Add(x, k) }"
    )
    model.functions[0].attribute_proto[0].t.CopyFrom(_pointing())
    return model


def test_external_data_of_a_default_is_below_the_models_folder_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("k.bin").write_bytes(SECRET.tobytes())
    onnx.save(_with_default(), tmp_path / "there" / "m.onnx")
    refused(tmp_path / "there" / "m.onnx", "k.bin")
    refused(_with_default(), "within the model")
    (tmp_path / "there" / "k.bin").write_bytes((2 * SECRET).tobytes())
    loaded = read_onnx(tmp_path / "there" / "m.onnx")
    (node,) = (n for n in loaded.model.graph.node if n.op_type == "Constant")
    np.testing.assert_array_equal(numpy_helper.to_array(node.attribute[0].t), 2 * SECRET)


@pytest.mark.parametrize("field", ["training_info", "function", "sparse", "attribute"])
def test_no_tensor_of_a_message_stays_external(field: str, tmp_path: Path) -> None:
    model = text_model("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    if field == "training_info":
        model.training_info.add().initialization.initializer.append(_pointing())
    elif field == "function":
        node = model.functions.add(name="unused", domain="f").node.add(op_type="Constant")
        node.output.append("y")
        node.attribute.add(name="value", type=4).t.CopyFrom(_pointing())
        model.functions[0].opset_import.add(domain="", version=18)
    elif field == "sparse":
        sparse = model.training_info.add().algorithm.sparse_initializer.add(dims=[2])
        sparse.values.CopyFrom(_pointing())
    else:
        model.graph.node[0].attribute.add(name="t", type=4).t.CopyFrom(_pointing())
        model.graph.node[0].op_type = "Constant"
        del model.graph.node[0].input[:]
        model.graph.node[0].attribute[0].name = "value"
    onnx.save(model, tmp_path / "m.onnx")
    refused(tmp_path / "m.onnx", "k.bin")


def test_a_model_of_more_than_2_gib_is_mapped(tmp_path: Path) -> None:
    rows = (1 << 31) // 128 + 1000
    model = text_model("g (float[1, 32] x) => (float[M, 32] y) { y = Add(x, w) }")
    model.graph.initializer.add(name="w", data_type=1, dims=[rows, 32])
    model.graph.initializer.add(name="b", data_type=1, dims=[1], raw_data=b"\0\0\x80?")
    path = tmp_path / "large.onnx"
    write_sparse_file(path, model, rows * 128)
    loaded = read_onnx(path)
    assert loaded.file_bytes > 1 << 31
    assert loaded.initializers["w"].shape == (rows, 32)
    assert loaded.initializers["w"][-1, -1] == 0
    assert loaded.initializers["b"][0] == 1
    assert path.stat().st_blocks * 512 < 1 << 20


def write_sparse_file(path: Path, model: onnx.ModelProto, raw_bytes: int) -> None:
    """Write a model whose first initializer has that many bytes of raw data, all holes."""

    def field(number: int, length: int) -> bytes:
        return protobuf_wire._varint_bytes(number << 3 | 2) + protobuf_wire._varint_bytes(length)

    graph, first = model.graph, model.graph.initializer[0]
    tensor = first.SerializeToString() + field(9, raw_bytes)
    rest = onnx.GraphProto()
    rest.CopyFrom(graph)
    del rest.initializer[0]
    before = field(5, len(tensor) + raw_bytes) + tensor
    after = rest.SerializeToString()
    outer = onnx.ModelProto()
    outer.CopyFrom(model)
    outer.ClearField("graph")
    start = outer.SerializeToString() + field(7, len(before) + raw_bytes + len(after)) + before
    with open(path, "wb") as file:
        file.write(start)
        file.seek(raw_bytes, os.SEEK_CUR)
        file.write(after)


def test_progress_ends_with_all_bytes() -> None:
    calls: list[tuple[str, int, int]] = []
    loaded = read_onnx(weighted(), lambda *call: calls.append(call))
    assert calls[-1] == ("load", loaded.file_bytes, loaded.file_bytes)
    assert [c[1] for c in calls] == sorted(c[1] for c in calls) and len(calls) == 3


def packed(kind: int, shape: list[int], field: str, values: list[int]) -> onnx.ModelProto:
    model = relu()
    tensor = model.graph.initializer.add(name="w", data_type=kind, dims=shape)
    getattr(tensor, field).extend(values)
    return model


def test_large_packed_numbers_are_views_or_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf_wire, "_PIECE_BYTES", 64)
    floats = read_onnx(packed(1, [1500], "float_data", list(range(1500)))).initializers["w"]
    assert isinstance(base_of(floats), bytes) and floats[1499] == 1499
    values = [(-1) ** i * 3**i for i in range(39)] * 60
    for kind, field, dtype in ((7, "int64_data", np.int64), (6, "int32_data", np.int32)):
        fitting = [v if kind == 7 else v % 2**31 * (1 if v > 0 else -1) for v in values]
        got = read_onnx(packed(kind, [39, 60], field, fitting)).initializers["w"]
        np.testing.assert_array_equal(got, np.array(fitting, dtype).reshape(39, 60))
    for count, field, part in (
        (4999, "int64_data", "more than 4999 numbers"),
        (5001, "int64_data", "got fewer"),
        (2, "int32_data", "expected data in int64_data for INT64, got some in int32_data"),
    ):
        refused(packed(7, [count], field, [1] * 5000), "initializer 'w': expected", part)
    data = packed(7, [5000], "int64_data", [1] * 5000).SerializeToString()
    refused(data.replace(b"\1" * 20, b"\x81" * 20), "initializer 'w'", "more than 10 bytes")
    refused(data.replace(b"\1" * 20, b"\x81\1" * 10), "initializer 'w'", "2500 numbers")


# What is accepted


@pytest.mark.parametrize("opset", range(7, onnx.defs.onnx_opset_version() + 1))
def test_every_opset_from_7_loads(opset: int) -> None:
    text = f'<ir_version: 8, opset_import: ["" : {opset}]>\n'
    model = text_model(text + "g (float[2] x) => (float[2] y) { a = Relu(x)\n y = Add(a, x) }")
    assert len(read_onnx(model).model.graph.node) == 2


ACCEPTED = {
    "microsoft ops without a schema": "<ir_version: 8, "
    'opset_import: ["" : 17, "com.microsoft" : 1]>\n'
    "g (float[2] x) => (float[2] y) { a = com.microsoft.FastGelu(x)\n y = Relu(a) }",
    "microsoft ops without an import": '<ir_version: 8, opset_import: ["" : 17]>\n'
    "g (float[2] x) => (float[2] y) { a = com.microsoft.FastGelu(x)\n y = Relu(a) }",
    "an op that the optimizer of onnxruntime writes": HEAD
    + "g (float[2] x) => (float[2] y) { y = SimplifiedLayerNormalization(x, x) }",
    "machine learning ops": '<ir_version: 8, opset_import: ["ai.onnx.ml" : 3]>\n'
    "g (float[2] x) => (float[2] y) { y = ai.onnx.ml.Binarizer(x) }",
    "the other name of the default domain": '<ir_version: 8, opset_import: ["ai.onnx" : 17]>\n'
    "g (float[2] x) => (float[2] y) { y = Relu(x) }",
    "wrong hints of shapes between": HEAD
    + "g (float[2] x) => (float[2] y) <float[7, 7] a> { a = Relu(x)\n y = Relu(a) }",
    "subgraphs that take names from outside": HEAD
    + "g (bool c, float[2] x) => (float[2] y) { a = Relu(x)\n y = If (c) <then_branch = t () =>"
    " (float[2] o) { o = Neg(a) }, else_branch = e () => (float[2] p) { p = Abs(x) }> }",
    "functions of the model": '<ir_version: 8, opset_import: ["" : 17, "own" : 1]>\n'
    "g (float[2] x) => (float[2] y) { y = own.twice(x) }\n"
    '<domain: "own", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }',
    "a normalisation that onnx itself fails to expand": '<ir_version: 3, opset_import: ["" : 9]>\n'
    "g (float[1,2,3,4] x) => (float[1,2,3,4] y) { y = MeanVarianceNormalization(x) }",
}


@pytest.mark.parametrize("text", ACCEPTED.values(), ids=ACCEPTED)
def test_valid_models_load(text: str) -> None:
    assert isinstance(read_onnx(text_model(text)), OnnxFile)


def test_the_default_domain_has_one_name_afterwards() -> None:
    model = relu()
    model.graph.node[0].domain = "ai.onnx"
    assert read_onnx(model).model.graph.node[0].domain == ""
    model.opset_import[0].domain = "ai.onnx"
    assert read_onnx(model).model.opset_import[0].domain == ""


def test_unsorted_nodes_are_sorted_everywhere() -> None:
    model = text_model(
        "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = t () => (float[2] o)"
        " { o = Neg(q)\n q = Neg(b) }, else_branch = e () => (float[2] p) { p = Abs(a) }>\n"
        " b = Relu(a)\n a = Relu(x) }"
    )
    graph = read_onnx(model).model.graph
    assert [n.output[0] for n in graph.node] == ["a", "b", "y"]
    then = next(a.g for a in graph.node[2].attribute if a.name == "then_branch")
    assert [n.output[0] for n in then.node] == ["q", "o"]


# What is refused: the graph

BAD_TEXTS = {
    "cycle": ("{ a = Add(x, b)\n b = Relu(a)\n y = Relu(b) }", "node of 'a' (Add)", "a cycle of 2"),
    "undefined input": ("{ [first] y = Add(x, z) }", "node 'first' (Add)", "'z'"),
    "undefined output": ("{ z = Relu(x) }", "output 'y'"),
    "two results of one name": ("{ y = Relu(x)\n [n] y = Neg(x) }", "node 'n' (Neg)", "'y'"),
    "result named as the input": ("{ [n] x = Relu(x)\n y = Relu(x) }", "node 'n' (Relu)", "'x'"),
    "unknown op": ("{ [n] y = Rely(x) }", "node 'n' (Rely)", "opset 18", "'ai.onnx'"),
    "op of a later opset": ("{ [n] y = Gelu(x) }", "node 'n' (Gelu)", "opset 18"),
    "domain without import": ("{ [n] y = odd.Relu(x) }", "'n' (Relu)", "'odd'; try a function"),
    "unknown microsoft op": ("{ y = com.microsoft.Rely(x) }", "node of 'y' (Rely)", "knows"),
    "too many inputs": ("{ [n] y = Relu(x, x) }", "node 'n' (Relu)", "1 inputs, got 2"),
    "too few inputs": ("{ [n] y = Add(x) }", "node 'n' (Add)", "2 inputs, got 1"),
    "too many outputs": ("{ [n] y, z = Relu(x) }", "node 'n' (Relu)", "outputs, got 2"),
    "missing input": ("{ [n] y = Add(, x) }", "node 'n' (Add)", "input A"),
    "unknown attribute": ("{ [n] y = Relu <odd = 1> (x) }", "node 'n' (Relu)", "'odd'"),
    "attribute of another type": ("{ [n] y = Elu <alpha = 1> (x) }", "'alpha'", "FLOAT"),
    "missing attribute": ("{ [n] y = Cast (x) }", "node 'n' (Cast)", "'to'"),
    "reference outside of functions": ("{ [n] y = Elu <alpha : float = @a> (x) }", "'alpha'"),
    "sizes that do not fit": (
        "{ s = Constant <value_ints = [3, 1]> ()\n a = Expand(x, s)\n b = Transpose(a)\n"
        " [n] y = MatMul(b, b) }",
        "node 'n' (MatMul): Incompatible dimensions for matrix multiplication, of b float[2,3], b",
    ),
    "wrong rank": ("{ [n] y = Gemm(x, x) }", "node 'n' (Gemm)", "rank"),
    "types that do not fit": ("{ i = Shape(x)\n [n] y = Add(x, i) }", "node 'n' (Add)", "type"),
    "zero stride": (
        "{ s = Constant <value_ints = [1, 1, 2]> ()\n a = Reshape(x, s)\n"
        " [n] y = MaxPool <kernel_shape = [1], strides = [0]> (a) }",
        "node 'n' (MaxPool)",
    ),
    "subgraph with an unknown name": (
        "{ c = Constant <value = bool {1}> ()\n [n] y = If (c) <then_branch = t () => (float[2] o)"
        " { [i] o = Neg(q) }, else_branch = e () => (float[2] p) { p = Abs(x) }> }",
        "node 'n' (If), then_branch: node 'i' (Neg)",
        "'q'",
    ),
}


def test_an_op_that_is_gone_and_has_no_rule_is_refused() -> None:
    model = text_model("g (float[2] x) => (float[2] y) { [n] y = Relu(x) }")
    model.opset_import.add(domain="ai.onnx.ml", version=5)
    model.graph.node[0].op_type = "TreeEnsembleRegressor"
    model.graph.node[0].domain = "ai.onnx.ml"
    refused(model, "node 'n' (TreeEnsembleRegressor)", "no longer among them")


@pytest.mark.parametrize("name", BAD_TEXTS)
def test_bad_graphs_name_the_node(name: str) -> None:
    body, *parts = BAD_TEXTS[name]
    refused(text_model(f"g (float[2] x) => (float[2] y) {body}"), *parts)


CHANGES: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "no opsets": (lambda m: m.ClearField("opset_import"), "node of 'a' (MatMul)"),
    "opset of the future": (lambda m: set_opset(m, 999), "got 999"),
    "opset 0": (lambda m: set_opset(m, 0), "got 0"),
    "two opsets": (lambda m: m.opset_import.add(domain="ai.onnx", version=3), "18 and 3"),
    "no IR version": (lambda m: m.ClearField("ir_version"), "IR version"),
    "IR version of the future": (lambda m: setattr(m, "ir_version", 99), "IR version"),
    "no graph": (lambda m: m.ClearField("graph"), "a graph"),
    "data too short": (
        lambda m: setattr(m.graph.initializer[0], "raw_data", b"\0" * 5000),
        "initializer 'w': expected 8192 bytes",
    ),
    "no data": (
        lambda m: m.graph.initializer[1].ClearField("raw_data"),
        "initializer 'b': expected 32 numbers in float_data for FLOAT (32,), got no data",
    ),
    "data in another field": (
        lambda m: (
            m.graph.initializer[1].ClearField("raw_data"),
            m.graph.initializer[1].int64_data.extend(range(32)),
        ),
        "got 32 in int64_data",
    ),
    "negative dimension": (
        lambda m: m.graph.initializer[1].dims.__setitem__(0, -1),
        "initializer 'b': expected dimensions of 0 or more",
    ),
    "enormous dimension": (
        lambda m: m.graph.initializer[1].dims.__setitem__(0, 1 << 62),
        "initializer 'b': expected at most 2^40",
    ),
    "enormous dimension of nothing": (
        lambda m: m.graph.initializer[1].dims.extend([0, 1 << 62]),
        "initializer 'b': expected at most 2^40",
    ),
    "enormous rank": (
        lambda m: m.graph.initializer[1].dims.extend([1] * 99),
        "initializer 'b': expected a rank of at most 64",
    ),
    "other shape with the same size": (
        lambda m: m.graph.initializer[1].dims.__setitem__(slice(None), [2, 4, 4]),
        "node of 'y' (Add)",
    ),
    "unknown element type": (
        lambda m: setattr(m.graph.initializer[1], "data_type", 99),
        "initializer 'b': expected an element type",
    ),
    "no element type": (
        lambda m: m.graph.initializer[1].ClearField("data_type"),
        "initializer 'b': expected an element type",
    ),
    "strings as raw data": (
        lambda m: setattr(m.graph.initializer[1], "data_type", TensorProto.STRING),
        "initializer 'b': expected strings",
    ),
    "segments": (lambda m: set_segment(m), "initializer 'b'"),
    "two initializers": (
        lambda m: m.graph.initializer.append(m.graph.initializer[0]),
        "initializer 'w': expected one, got two",
    ),
    "initializer without a name": (
        lambda m: m.graph.initializer[0].ClearField("name"),
        "initializer: expected a name",
    ),
    "two inputs": (lambda m: m.graph.input.append(m.graph.input[0]), "input 'x': expected one"),
    "two outputs": (lambda m: m.graph.output.append(m.graph.output[0]), "output 'y': expected"),
    "missing initializer": (lambda m: m.graph.initializer.pop(), "node of 'y' (Add)"),
    "input without a type": (lambda m: m.graph.input[0].ClearField("type"), "input 'x'"),
    "input with an enormous dimension": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 1 << 60),
        "input 'x'",
    ),
    "input of an unknown type": (
        lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77),
        "input 'x'",
    ),
    "input of sequences of nothing": (
        lambda m: m.graph.input[0].type.sequence_type.SetInParent(),
        "input 'x': expected a type",
    ),
    "output of another type": (
        lambda m: setattr(m.graph.output[0].type.tensor_type, "elem_type", 7),
        "node of 'y' (Add)",
    ),
    "input that its default contradicts": (
        lambda m: m.graph.input.append(helper.make_tensor_value_info("b", 1, [33])),
        "initializer 'b': expected FLOAT [33]",
    ),
    "attribute without a value": (
        lambda m: m.graph.node[0].attribute.add(name="axis", type=2),
        "node of 'a' (MatMul)",
    ),
    "attribute twice": (lambda m: twice(m), "again"),
}


def set_opset(model: onnx.ModelProto, version: int) -> None:
    model.opset_import[0].version = version


def set_segment(model: onnx.ModelProto) -> None:
    model.graph.initializer[1].segment.begin = 0


def twice(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Gemm"
    for _ in range(2):
        model.graph.node[0].attribute.append(helper.make_attribute("alpha", 1.0))


@pytest.mark.parametrize("name", CHANGES)
def test_bad_models_name_what_is_wrong(name: str) -> None:
    model, (apply, part) = weighted(), CHANGES[name]
    apply(model)
    refused(model, part)


def test_a_name_that_is_no_text_is_refused() -> None:
    data = relu().SerializeToString()
    for good, bad in ((b"Relu", b"Re\xff\xfe"), (b"\x01y", b"\x01\xff"), (b"\x01N", b"\x01\xfe")):
        assert good in data
        refused(data.replace(good, bad), "UTF-8")


def test_graphs_nested_too_deep_are_refused() -> None:
    def nested(levels: int) -> onnx.ModelProto:
        graph = text_model("g (bool c) => (bool y) { y = Not(c) }").graph
        for _ in range(levels):
            inner = onnx.GraphProto()
            inner.CopyFrom(graph)
            inner.ClearField("input")
            branches = {"then_branch": inner, "else_branch": inner}
            del graph.node[:]
            node = onnx.NodeProto(op_type="If", input=["c"], output=["y"])
            for key in ("then_branch", "else_branch"):
                attribute = node.attribute.add(name=key, type=5)
                source = branches[key] if key == "then_branch" else graph_of_not()
                attribute.g.CopyFrom(source)
            graph.node.append(node)
        return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 18)])

    def graph_of_not() -> onnx.GraphProto:
        graph = text_model("g (bool c) => (bool y) { y = Not(c) }").graph
        graph.ClearField("input")
        return graph

    assert read_onnx(nested(8)).model.graph.node
    refused(nested(check.MAX_DEPTH + 2), "inside each other", "node of 'y' (If)")
    deep = nested(30).SerializeToString()
    with pytest.raises(ModelFormatError):
        read_onnx(deep)


# What is refused: functions


def functions(*bodies: str) -> onnx.ModelProto:
    head = '<ir_version: 10, opset_import: ["" : 18, "own" : 1]>\n'
    graph = "g (float[2] x) => (float[2] y) { [n] y = own.f0(x) }\n"
    each = (f'<domain: "own", opset_import: ["" : 18, "own" : 1]> {b}\n' for b in bodies)
    return text_model(head + graph + "".join(each))


def test_functions_that_call_each_other_are_refused() -> None:
    loop = functions("f0 (a) => (b) { b = own.f1(a) }", "f1 (a) => (b) { b = own.f0(a) }")
    refused(loop, "function 'f1', node of 'b' (f0)", "'f0' -> 'f1' -> 'f0'")


def test_functions_that_multiply_are_refused() -> None:
    bodies = [
        f"f{i} (a) => (b) {{ c = own.f{i + 1}(a)\n d = own.f{i + 1}(c)\n b = own.f{i + 1}(d) }}"
        for i in range(20)
    ]
    refused(functions(*bodies, "f20 (a) => (b) { b = Relu(a) }"), "262144 nodes")


def test_functions_in_a_long_row_are_refused() -> None:
    bodies = [f"f{i} (a) => (b) {{ b = own.f{i + 1}(a) }}" for i in range(200)]
    refused(functions(*bodies, "f200 (a) => (b) { b = Relu(a) }"), "call one another")


def test_bodies_of_functions_are_checked() -> None:
    refused(functions("f0 (a) => (b) { [i] b = Rely(a) }"), "function 'f0', node 'i' (Rely)")
    refused(functions("f0 (a) => (b) { c = Relu(a) }"), "function 'f0', output 'b'")
    refused(functions("f0 (a) => (b) { b = Relu(x) }"), "function 'f0', node of 'b'", "'x'")
    refused(functions("f0 () => (b) { b = Constant <value_int = 1> () }"), "node 'n' (f0)")
    same = "f0 (a) => (b) { b = Relu(a) }"
    refused(functions(same, same), "function 'f0'", "got two")


@pytest.mark.parametrize("opset", [13, 15, 18])
def test_functions_of_other_opsets_load(opset: int) -> None:
    model = functions("f0 (a) => (b) { b = Relu(a) }")
    model.functions[0].opset_import[0].version = opset
    assert not read_onnx(model).model.functions  # in place of their calls


# What is refused: files


def test_truncated_files_are_refused_at_every_byte(tmp_path: Path) -> None:
    data = weighted().SerializeToString()
    for end in [*range(60), *range(len(data) - 150, len(data)), 5000]:
        with pytest.raises(ModelFormatError):
            read_onnx(data[:end])


@needs_linux
def test_what_is_no_model_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("not a model, surely")
    (tmp_path / "zip").write_bytes(b"PK\3\4" + bytes(100))
    for name, part in (
        ("absent", "No such file"),
        (".", "regular file"),
        ("fifo", "regular file"),
        ("empty", "IR version"),
        ("text", "is not an ONNX file"),
        ("zip", "is not an ONNX file"),
    ):
        refused(tmp_path / name, part)
    refused("/dev/null", "regular file")
    refused("a\0b", "null")
    assert maps_of(tmp_path) == 0


OUTSIDE = ["/etc/hostname", "../w.bin", "sub/../../w.bin", "sub/../..", "..", "", "a\0b"]


@pytest.mark.parametrize("location", OUTSIDE)
def test_external_data_outside_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(1 << 15))
    refused(external(folder, location), "initializer 'w'", "below the model's folder")


@pytest.mark.parametrize(
    "location", ["..\\w", "a/..\\..\\w", "C:w", "w:b", "\\\\h\\s\\w", ".. /w", "a./w"]
)
def test_paths_that_lead_elsewhere_on_windows_only(location: str) -> None:
    assert safe_open.parts_of(location, windows=True) is None
    assert safe_open.parts_of(location, windows=False) is not None


def test_both_slashes_part_a_path_on_windows() -> None:
    assert safe_open.parts_of("sub\\./in/w.bin", windows=True) == ["sub", "in", "w.bin"]
    assert safe_open.parts_of("sub\\w.bin", windows=False) == ["sub\\w.bin"]


@needs_posix
def test_file_that_is_exchanged_while_it_is_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = external(tmp_path, data=bytes(1 << 15))
    (tmp_path / "other.bin").write_bytes(bytes(1 << 15))
    opened = os.open

    def exchange(path: Path, flags: int) -> int:
        if path.name == "w.bin":
            path.unlink()
            path.symlink_to("other.bin")
        return opened(path, flags)

    monkeypatch.setattr(safe_open, "_FROM_FOLDERS", False)
    monkeypatch.setattr(os, "open", exchange)
    refused(path, "initializer 'w'", "symbolic link")


@needs_posix
def test_links_and_odd_files_as_external_data_are_refused(
    from_folders: bool, tmp_path: Path
) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "w.bin").write_bytes(bytes(1 << 15))
    (folder / "file").symlink_to(other / "w.bin")
    (folder / "folder").symlink_to(other)
    (folder / "loop").symlink_to("loop")
    (folder / "real").mkdir()
    os.mkfifo(folder / "fifo")
    for location, part in (
        ("file", "symbolic link"),
        ("folder/w.bin", "symbolic link"),
        ("loop", "symbolic link"),
        ("real", "regular file"),
        (".", "regular file"),
        ("fifo", "regular file"),
        ("absent", "No such file"),
        ("x" * 5000, "too long"),
    ):
        refused(external(folder, location), "initializer 'w'", part)


def hub_snapshot(root: Path, data: bytes) -> Path:
    """A repository in the cache of huggingface_hub: all files of a snapshot are links to blobs."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "0a1b2c" / "onnx"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    (blobs / "hash").write_bytes(data)
    (snapshot / "w.bin").symlink_to("../../../blobs/hash")
    external(snapshot).rename(blobs / "model")
    (snapshot / "model.onnx").symlink_to("../../../blobs/model")
    return snapshot / "model.onnx"


@needs_linux
def test_a_model_in_the_cache_of_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(1 << 13, dtype=np.float32).tobytes()
    path = hub_snapshot(tmp_path / "models--someone--net", data)
    assert read_onnx(path).initializers["w"].tobytes() == data
    monkeypatch.chdir(path.parent)
    assert read_onnx("model.onnx").initializers["w"].tobytes() == data


@needs_linux
@pytest.mark.parametrize("target", ["../../../../secret", "../../../blobs/more/../../../secret"])
def test_a_link_out_of_the_cache_of_a_hub_is_refused(target: str, tmp_path: Path) -> None:
    path = hub_snapshot(tmp_path / "models--someone--net", bytes(1 << 15))
    (tmp_path / "secret").write_bytes(bytes(1 << 15))
    (tmp_path / "models--someone--net" / "blobs" / "more").mkdir()
    for place in (target, tmp_path / "secret"):
        (path.parent / "w.bin").unlink()
        (path.parent / "w.bin").symlink_to(place)
        assert (path.parent / "w.bin").exists()
        refused(path, "initializer 'w'", "leads out of")


@needs_linux
def test_links_that_stay_in_the_folder_are_followed(tmp_path: Path) -> None:
    data = np.arange(1 << 13, dtype=np.float32).tobytes()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "real.bin").write_bytes(data)
    (tmp_path / "deep" / "er" / "up").symlink_to("../real.bin")
    (tmp_path / "link").symlink_to("deep/er")
    for location in ("link/up", "deep/er/up", "sub/../deep/real.bin", "link/../deep/real.bin"):
        assert read_onnx(external(tmp_path, location)).initializers["w"].tobytes() == data


@pytest.mark.parametrize(
    ("entries", "part"),
    [
        ({"offset": "1"}, "file of 32768 bytes"),
        ({"offset": str(1 << 50)}, "file of 32768 bytes"),
        ({"offset": "-4"}, "as offset"),
        ({"offset": "1e3"}, "as offset"),
        ({"offset": "9" * 5000}, "as offset"),
        ({"offset": "\u0663"}, "as offset"),
        ({"length": "4"}, "expected 32768 bytes of external data"),
        ({"length": "65536"}, "expected 32768 bytes of external data"),
        ({"length": ""}, "as length"),
    ],
)
def test_wrong_places_of_external_data_are_refused(
    entries: dict[str, str], part: str, tmp_path: Path
) -> None:
    refused(external(tmp_path, data=bytes(1 << 15), **entries), "initializer 'w'", part)


def test_external_data_without_a_path_is_refused(tmp_path: Path) -> None:
    data = external(tmp_path, data=bytes(1 << 15)).read_bytes()
    refused(data, "initializer 'w'", "path")


# What is refused: little that asks for much


def test_sparse_tensors_are_bounded() -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "w")
    for dims, index, part in (
        ([1 << 20, 1 << 15], 0, "at most 256 MiB"),
        ([1 << 30, 1 << 30], 0, "2^40"),
        ([2, 2], 4, "outside"),
        ([2, 2], -1, "outside"),
    ):
        model = relu()
        indices = numpy_helper.from_array(np.array([index]))
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [1]))
        model.graph.sparse_initializer[0].dims[:] = dims
        refused(model, "initializer 'w'", part)


def test_external_data_that_many_attributes_share_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_MATERIALIZED_BYTES", 1 << 16)
    (tmp_path / "k.bin").write_bytes(bytes(1 << 14))
    model = relu()
    for number in range(9):
        node = model.graph.node.add(op_type="Constant", output=[f"k{number}"])
        attribute = node.attribute.add(name="value", type=4)
        attribute.t.dims.append(1 << 12)
        attribute.t.data_type = 1
        attribute.t.data_location = TensorProto.EXTERNAL
        attribute.t.external_data.add(key="location", value="k.bin")
    onnx.save(model, tmp_path / "m.onnx")
    refused(tmp_path / "m.onnx", "node of 'k4' (Constant)")


# What a failed load leaves behind


@needs_linux
def test_a_failed_load_leaves_nothing(tmp_path: Path) -> None:
    model = weighted(1024)
    model.graph.node[1].op_type = "Rely"
    onnx.save(model, tmp_path / "m.onnx")
    stored = []
    for _ in range(3):
        with pytest.raises(ModelFormatError) as caught:
            read_onnx(tmp_path / "m.onnx")
        stored.append(caught.value)
    assert maps_of(tmp_path) == 0  # even while the errors are there
    assert stored and os.listdir(tmp_path) == ["m.onnx"]


@pytest.mark.parametrize("use", ["vksched.load(b'')", "import vksched.onnx_backend"])
def test_without_the_onnx_package_the_extra_is_named(use: str) -> None:
    code = (
        "import sys\nsys.modules['onnx'] = None\nimport vksched\n"
        f"try:\n    {use}\n"
        "except vksched.VkschedError as error:\n    print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "vksched[onnx]"' in out.stdout
