"""Damages ONNX models: bytes of the file, or nodes, names, types and data of the model.

A mutant is a function of the seed and its number alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, NodeProto
from onnx_corpus import Corpus

SIZES = (-1, 0, 1, 2, 3, 7, 255, 1 << 16, 1 << 31, (1 << 31) - 1)
SIZES += (1 << 40, (1 << 63) - 1, -(1 << 63))
OPS = ("Relu", "Add", "If", "Loop", "Scan", "Reshape", "Conv", "Gemm", "ConstantOfShape", "Range")
OPS += ("Identity", "Expand", "Tile", "Concat", "Split", "Nope", "LSTM", "Einsum", "Shape", "")
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "own", "nobody")
PLACES = ("../outside.bin", "/etc/hostname", "link.bin", "fifo", "sub", "absent.bin", "")
PLACES += ("sub/../w.bin", "linked/k.bin", "w.bin", "./sub//k.bin", "\0", "m.onnx", "/dev/zero")

Change = Callable[[random.Random, onnx.ModelProto], None]


def mutant(models: Corpus, seed: int, number: int) -> tuple[str, bytes]:
    """Return the origin of a mutant and its bytes."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(sorted(models))
    if rng.random() < 0.45:
        data, how = models[name].SerializeToString(), []
        for _ in range(rng.choice((1, 1, 2, 5))):
            change = rng.choice(BYTES)
            other = models[rng.choice(sorted(models))].SerializeToString()
            data = change(rng, data, other)
            how.append(change.__name__)
        return f"{name}: {', '.join(how)}", data
    model, done = onnx.ModelProto(), []
    model.CopyFrom(models[name])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        alter = rng.choice(CHANGES)
        done.append(alter.__name__)
        try:
            alter(rng, model)
        except (IndexError, ValueError):
            done[-1] += " (nothing)"  # of that kind is in this model
        except DecodeError:
            break  # deeper than protobuf copies
    return f"{name}: {', '.join(done)}", model.SerializeToString()


# Bytes


def flip_bit(rng: random.Random, data: bytes, other: bytes) -> bytes:
    out = bytearray(data or b"\0")
    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def set_byte(rng: random.Random, data: bytes, other: bytes) -> bytes:
    out = bytearray(data or b"\0")
    out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


def truncate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def remove(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 9, 100)) :]


def repeat(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    end = start + rng.choice((1, 4, 40, 400))
    return data[:end] + data[start:end] * rng.choice((1, 2, 30)) + data[end:]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def insert(rng: random.Random, data: bytes, other: bytes) -> bytes:
    at, start = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    return data[:at] + other[start : start + rng.randrange(1, 60)] + data[at:]


def join(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data + other  # protobuf merges them into one message


BYTES = (flip_bit, flip_bit, set_byte, set_byte, truncate, remove, repeat, splice, insert, join)


# Structure


def bodies(model: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    """Return the main graph, all subgraphs and all functions."""
    out: list[onnx.GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    for body in out:
        for node in body.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    out.append(attribute.g)
    return out


def graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [b for b in bodies(model) if isinstance(b, onnx.GraphProto)]


def a_body(rng: random.Random, model: onnx.ModelProto) -> onnx.GraphProto | onnx.FunctionProto:
    return rng.choice([b for b in bodies(model) if len(b.node)])


def a_node(rng: random.Random, model: onnx.ModelProto) -> NodeProto:
    return rng.choice(a_body(rng, model).node)


def an_attribute(rng: random.Random, model: onnx.ModelProto) -> AttributeProto:
    return rng.choice([a for b in bodies(model) for n in b.node for a in n.attribute])


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for graph in graphs(model):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for body in bodies(model):
        for node in body.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t


def a_tensor(rng: random.Random, model: onnx.ModelProto) -> onnx.TensorProto:
    return rng.choice(list(tensors(model)))


def a_name(rng: random.Random, model: onnx.ModelProto) -> str:
    names = [name for b in bodies(model) for n in b.node for name in (*n.input, *n.output)]
    return rng.choice([*names, "", "unheard of"])


def drop_node(rng: random.Random, model: onnx.ModelProto) -> None:
    body = a_body(rng, model)
    del body.node[rng.randrange(len(body.node))]


def duplicate_node(rng: random.Random, model: onnx.ModelProto) -> None:
    a_body(rng, model).node.append(a_node(rng, model))


def move_node(rng: random.Random, model: onnx.ModelProto) -> None:
    body = a_body(rng, model)
    body.node.append(body.node.pop(rng.randrange(len(body.node))))


def rename_op(rng: random.Random, model: onnx.ModelProto) -> None:
    a_node(rng, model).op_type = rng.choice((*OPS, a_node(rng, model).op_type))


def rename_domain(rng: random.Random, model: onnx.ModelProto) -> None:
    a_node(rng, model).domain = rng.choice(DOMAINS)


def rename_input(rng: random.Random, model: onnx.ModelProto) -> None:
    node = a_node(rng, model)
    node.input[rng.randrange(len(node.input))] = a_name(rng, model)


def rename_output(rng: random.Random, model: onnx.ModelProto) -> None:
    node = a_node(rng, model)
    node.output[rng.randrange(len(node.output))] = a_name(rng, model)


def swap_inputs(rng: random.Random, model: onnx.ModelProto) -> None:
    node = a_node(rng, model)
    names = list(node.input)
    rng.shuffle(names)
    node.input[:] = names


def add_input(rng: random.Random, model: onnx.ModelProto) -> None:
    a_node(rng, model).input.extend([a_name(rng, model)] * rng.choice((1, 1, 500)))


def drop_input(rng: random.Random, model: onnx.ModelProto) -> None:
    a_node(rng, model).input.pop()


def close_cycle(rng: random.Random, model: onnx.ModelProto) -> None:
    body = a_body(rng, model)
    body.node[0].input[0] = body.node[-1].output[0]


def drop_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    node = a_node(rng, model)
    del node.attribute[rng.randrange(len(node.attribute))]


def copy_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    a_node(rng, model).attribute.append(an_attribute(rng, model))


def change_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    attribute = an_attribute(rng, model)
    attribute.i = rng.choice(SIZES)
    attribute.f = rng.choice((0.0, -1.0, 1e38, float("nan"), float("inf")))
    attribute.s = rng.choice((b"", b"SAME_LOWER", b"\xff\xfe", b"i" * 300, b"ij->ij...", b"cubic"))
    for at in range(len(attribute.ints)):
        attribute.ints[at] = rng.choice((attribute.ints[at], rng.choice(SIZES)))
    for at in range(len(attribute.floats)):
        attribute.floats[at] = rng.choice((0.0, -2.0, 1e30, float("nan")))


def change_attribute_length(rng: random.Random, model: onnx.ModelProto) -> None:
    attribute = an_attribute(rng, model)
    attribute.ints.extend([rng.choice(SIZES)] * rng.choice((1, 3, 100)))


def change_attribute_type(rng: random.Random, model: onnx.ModelProto) -> None:
    an_attribute(rng, model).type = rng.randrange(15)  # type: ignore[assignment]


def refer_attribute(rng: random.Random, model: onnx.ModelProto) -> None:
    an_attribute(rng, model).ref_attr_name = rng.choice(("alpha", "odd"))


def change_dims(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = a_tensor(rng, model)
    tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)


def add_dims(rng: random.Random, model: onnx.ModelProto) -> None:
    a_tensor(rng, model).dims.extend([rng.choice((0, 1, 2, 1 << 33))] * rng.choice((1, 8, 70)))


def change_element_type(rng: random.Random, model: onnx.ModelProto) -> None:
    a_tensor(rng, model).data_type = rng.randrange(-1, 32)


def change_data(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = a_tensor(rng, model)
    if tensor.raw_data and tensor.data_type == onnx.TensorProto.INT64:
        count = len(tensor.raw_data) // 8
        values = [rng.choice(SIZES) & (1 << 64) - 1 for _ in range(count)]
        tensor.raw_data = b"".join(v.to_bytes(8, "little") for v in values)
    elif tensor.raw_data:
        tensor.raw_data = rng.randbytes(len(tensor.raw_data))
    tensor.int64_data[:] = [rng.choice(SIZES) for _ in tensor.int64_data]


def change_data_length(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = a_tensor(rng, model)
    tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)] + b"\1" * (
        rng.choice((0, 0, 1, 5000))
    )


def change_sparse(rng: random.Random, model: onnx.ModelProto) -> None:
    sparse = rng.choice([s for g in graphs(model) for s in g.sparse_initializer])
    sparse.dims[rng.randrange(len(sparse.dims))] = rng.choice(SIZES)


def rename_tensor(rng: random.Random, model: onnx.ModelProto) -> None:
    a_tensor(rng, model).name = a_name(rng, model)


def drop_initializer(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = rng.choice([g for g in graphs(model) if len(g.initializer)])
    del graph.initializer[rng.randrange(len(graph.initializer))]


def make_external(rng: random.Random, model: onnx.ModelProto) -> None:
    tensor = a_tensor(rng, model)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    values = {
        "location": rng.choice(PLACES),
        "offset": str(rng.choice((0, 1, *SIZES))),
        "length": rng.choice(("", "0", "x", "1_0", str(rng.choice(SIZES)))),
    }
    for key, value in values.items():
        if rng.random() < 0.6:
            tensor.external_data.add(key=key, value=value)


def change_external(rng: random.Random, model: onnx.ModelProto) -> None:
    entry = rng.choice([e for t in tensors(model) for e in t.external_data])
    entry.value = rng.choice((*PLACES, *map(str, SIZES)))


def change_type(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = rng.choice([g for g in graphs(model) if len(g.input) + len(g.output)])
    value = rng.choice([*graph.input, *graph.output])
    if rng.random() < 0.3:
        value.type.tensor_type.elem_type = rng.randrange(-1, 30)
        return
    dims = value.type.tensor_type.shape.dim
    dims[rng.randrange(len(dims))].dim_value = rng.choice(SIZES)


def change_kind(rng: random.Random, model: onnx.ModelProto) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    kind = onnx.TypeProto()
    for _ in range(rng.choice((1, 2, 40))):
        outer = onnx.TypeProto()
        outer.sequence_type.elem_type.CopyFrom(kind)
        kind = outer
    value.type.CopyFrom(kind)


def rename_value(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = rng.choice([g for g in graphs(model) if len(g.input) + len(g.output)])
    rng.choice([*graph.input, *graph.output]).name = a_name(rng, model)


def drop_value(rng: random.Random, model: onnx.ModelProto) -> None:
    graph = rng.choice(graphs(model))
    rng.choice((graph.input, graph.output)).pop()


def change_opset(rng: random.Random, model: onnx.ModelProto) -> None:
    rng.choice(model.opset_import).version = rng.choice((*range(-1, 29), 1 << 40))


def change_imports(rng: random.Random, model: onnx.ModelProto) -> None:
    if rng.random() < 0.5:
        model.opset_import.pop()
    else:
        model.opset_import.add(domain=rng.choice(DOMAINS), version=rng.choice((0, 1, 18, 99)))


def change_version(rng: random.Random, model: onnx.ModelProto) -> None:
    model.ir_version = rng.choice((-1, 0, 1, 3, 4, 10, 13, 14, 1 << 40))


def nest_deep(rng: random.Random, model: onnx.ModelProto) -> None:
    """Wrap a body's nodes into branches of branches."""
    graph = model.graph
    for _ in range(rng.choice((1, 5, 20, 32))):
        inner = onnx.GraphProto(name="n")
        inner.node.extend(graph.node)
        inner.output.extend(graph.output)
        del graph.node[:]
        node = graph.node.add(op_type="If", input=["c"], output=[o.name for o in graph.output])
        for key in ("then_branch", "else_branch"):
            attribute = node.attribute.add(name=key, type=AttributeProto.GRAPH)
            attribute.g.CopyFrom(inner if key == "then_branch" else onnx.GraphProto())
    if all(t.name != "c" for t in graph.initializer):
        graph.initializer.add(name="c", data_type=9, raw_data=b"\1")


def swap_graphs(rng: random.Random, model: onnx.ModelProto) -> None:
    inner = rng.choice(graphs(model)[1:])
    copy = onnx.GraphProto()
    copy.CopyFrom(rng.choice(graphs(model)))
    inner.CopyFrom(copy)


def call_functions(rng: random.Random, model: onnx.ModelProto) -> None:
    """Let functions call functions: themselves, or many times."""
    caller, called = rng.choice(model.functions), rng.choice(model.functions)
    count = rng.choice((1, 2, 300))
    for at in range(count):
        caller.node.add(
            op_type=called.name, domain="own", input=[caller.input[0]], output=[f"more{at}"]
        )


def chain_functions(rng: random.Random, model: onnx.ModelProto) -> None:
    """Add functions of which each calls the next several times."""
    count, times = rng.choice((3, 15, 40)), rng.choice((1, 2, 9))
    for at in range(count):
        function = model.functions.add(name=f"f{at}", domain="own", input=["a"], output=["r0"])
        function.opset_import.add(domain="own", version=1)
        function.opset_import.add(domain="", version=18)
        for turn in range(times):
            last = at == count - 1
            function.node.add(
                op_type="Relu" if last else f"f{at + 1}",
                domain="" if last else "own",
                input=["a"],
                output=[f"r{turn}"],
            )
    if all(o.domain != "own" for o in model.opset_import):
        model.opset_import.add(domain="own", version=1)
    model.graph.node.add(op_type="f0", domain="own", input=[a_name(rng, model)], output=["chain"])


def drop_function(rng: random.Random, model: onnx.ModelProto) -> None:
    del model.functions[rng.randrange(len(model.functions))]


CHANGES: tuple[Change, ...] = tuple(
    function
    for name, function in list(globals().items())
    if callable(function) and getattr(function, "__annotations__", {}).get("return") == "None"
)
"""Every function above that changes a model."""
