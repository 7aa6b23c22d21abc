"""Epilogues: what becomes part of a product or convolution and what does not, results as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Scheds
from fused import SPECIAL, assert_same_values, assert_valid, ops_of, optimized

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.ir.graph import Graph
from vksched.ir.op import EPILOGUE, Call, ShaderProgram
from vksched.ops.elementwise.epilogue import FUNCTIONS, attrs_text
from vksched.ops.lowering.lower import lower
from vksched.ops.lowering.variants import call_key
from vksched.passes import RewriteConstraints, optimize
from vksched.runtime.vulkan.shaders import load_shader
from vksched.runtime.vulkan.spirv_patch import link, take_apart
from vksched.topology.limits import Limits

SHADERS = Path(__file__).parent.parent.parent / "shaders"
ROOM = Limits(storage_buffers=8)
CPU = Limits(storage_buffers=8, software=True, subgroup_shuffle=True, subgroup_size=8, int64=True)


def values(*shape: int, seed: int = 0) -> NDArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def x_of(*shape: int, name: str = "x", dtype: str = "float32") -> vs.Tensor:
    return vs.input(name, shape, dtype)


def product(dtype: str = "float32", **more: str) -> vs.Tensor:
    """(6, 8) of a bias, too."""
    w, bias = (vs.constant(values(*s).astype(dtype)) for s in ((5, 8), (8,)))
    return vs.matmul(x_of(6, 5, dtype=dtype), w, bias, **more)  # type: ignore[arg-type]


def fused(
    outputs: vs.Tensor | list[vs.Tensor], limits: Limits | None = ROOM, **more: object
) -> Graph:
    return optimized(outputs, limits=limits, **more)


ACTIVATIONS: list[Callable[[vs.Tensor], vs.Tensor]] = [
    vs.relu,
    vs.gelu,
    lambda x: vs.gelu(x, "tanh"),
    vs.silu,
    vs.sigmoid,
    vs.tanh,
    vs.leaky_relu,
    vs.hard_swish,
    lambda x: vs.clip(x, 0.0, 6.0),
    lambda x: x * 0.125,
    lambda x: vs.relu(0.5 + x) * x,
]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("write", ACTIVATIONS)
def test_an_activation_is_part_of_the_product(
    write: Callable[[vs.Tensor], vs.Tensor], dtype: str
) -> None:
    graph = fused(write(product(dtype, name="inner")))
    assert ops_of(graph) == ["matmul"] and EPILOGUE in graph.nodes[-1].attrs
    assert graph.aliases["inner"] == graph.nodes[-1].id


@pytest.mark.parametrize("stride", [1, 2])
def test_a_residual_and_its_activation_are_part_of_a_convolution(stride: int) -> None:
    w = vs.weight(values(8, 8, 3, 3))
    output = vs.conv(x_of(1, 8, 24, 24), w, vs.weight(values(8)), stride=stride, padding=1)
    other = x_of(*output.shape, name="other")
    graph = fused(vs.relu(other + output), memory_bytes=1 << 30)
    assert ops_of(graph) == ["winograd_conv" if stride == 1 else "conv"]


def test_one_of_two_products_is_the_other_ones_residual() -> None:
    x, w = x_of(6, 5), [vs.constant(values(5, 8, seed=i)) for i in range(2)]
    graph = fused(vs.silu(x @ w[0]) * (x @ w[1]))
    assert ops_of(graph) == ["matmul", "matmul"]
    assert [EPILOGUE in n.attrs for n in graph.ops] == [False, True]


def test_graphs_with_epilogues_are_left_alone() -> None:
    """A bias that became part of the product would come before its steps."""
    product = vs.relu(vs.matmul(x_of(6, 5), vs.constant(values(5, 8))), name="end")
    graph = vs.build_graph(vs.add(product, vs.constant(values(8)), name="sum"))[0]
    once = optimize(graph, RewriteConstraints(limits=ROOM, observed=frozenset({"end"})))
    assert ops_of(once) == ["matmul", "add"] and EPILOGUE in once.ops[0].attrs
    assert optimize(once, RewriteConstraints(limits=ROOM)) is once


def test_what_others_read_or_see_stays() -> None:
    inner = product(name="inner")
    assert ops_of(fused([inner, vs.relu(inner)])) == ["matmul", "relu"]
    assert ops_of(fused([vs.tanh(inner), vs.relu(inner)])) == ["matmul", "tanh", "relu"]
    assert ops_of(fused(vs.relu(inner), observed=frozenset({"inner"}))) == ["matmul", "relu"]
    graph = fused(vs.relu(inner, name="end"), observed=frozenset({"end"}))
    assert ops_of(graph) == ["matmul"] and graph.nodes[-1].name == "end"


def test_only_nodes_of_one_home_are_one() -> None:
    end = vs.relu(product(name="inner"), name="end")
    assert ops_of(fused(end, pinned_devices={"inner": "a", "end": "b"})) == ["matmul", "relu"]
    assert ops_of(fused(end, pinned_devices={"inner": "a", "end": "a"})) == ["matmul"]
    far = vs.softmax(x_of(6, 8, name="y"), name="far")
    end = vs.add(product(name="inner"), far, name="end")
    pinned_devices = {"inner": "a", "end": "a"}
    assert ops_of(fused(end, pinned_devices=pinned_devices | {"far": "b"})) == [
        "matmul",
        "softmax",
        "add",
    ]
    assert ops_of(fused(end, pinned_devices=pinned_devices | {"far": "a"})) == ["softmax", "matmul"]


@pytest.mark.parametrize(
    "end",
    [
        lambda: vs.relu(vs.matmul(x_of(6, 5, dtype="int32"), x_of(5, 8, name="w", dtype="int32"))),
        lambda: vs.exp(product()),
        lambda: product() + x_of(6, 1, name="y"),
        lambda: x_of(6, 5) @ x_of(5, 7, name="w") + x_of(6, 7, name="y"),
        lambda: vs.relu(vs.reshape(product(), (8, 6))),
        lambda: vs.greater(product(), 0.0),
        lambda: vs.relu(product() * x_of(6, 8, name="y") + x_of(6, 8, name="z")),
    ],
)
def test_what_does_not_fit_stays(end: Callable[[], vs.Tensor]) -> None:
    """Integers, other functions, broadcasting, rows of no fours, other shapes, more operands."""
    assert all(EPILOGUE not in node.attrs for node in fused(end()).nodes)


def test_devices_of_few_buffers_take_no_residual() -> None:
    small = Limits(storage_buffers=4)
    y = x_of(6, 8, name="y")
    assert ops_of(fused(product() + y, small)) == ["matmul", "add"]
    assert ops_of(fused(vs.relu(product()), small)) == ["matmul"]
    assert ops_of(fused(vs.relu(product()), None)) == ["matmul", "relu"]


def test_exponentials_stay_behind_where_lanes_are_few() -> None:
    few = Limits(storage_buffers=8, software=True, subgroup_size=4)
    assert ops_of(fused(vs.gelu(product()), few)) == ["matmul", "gelu"]
    assert ops_of(fused(vs.relu(product()), few)) == ["matmul"]


def test_the_last_part_of_a_sum_takes_the_steps() -> None:
    x, w = x_of(4, 80000), x_of(80000, 8, name="w")
    graph = vs.build_graph(vs.relu(x @ w))[0]
    node = optimize(graph, RewriteConstraints(limits=CPU)).nodes[-1]
    call = Call((x.type, w.type), node.type, node.attrs, CPU)
    calls = [d.steps.calls for d in lower(node.declaration, call).dispatches]
    assert calls == [(), (), (("relu_float32", (0,)),)]


def test_what_follows_has_no_say_in_the_variant() -> None:
    graph = fused(product() + x_of(6, 8, name="y"))
    node, plain = graph.nodes[-1], vs.build_graph(product())[0].nodes[-1]
    call = Call(graph.input_types(node), node.type, node.attrs)
    own = Call(call.inputs[:3], plain.type, plain.attrs)
    assert call.without_epilogue == own and call_key("matmul", call) == call_key("matmul", own)


# -- the shaders ---------------------------------------------------------------------------------


def test_the_shaders_hold_the_functions() -> None:
    text = (SHADERS / "include" / "epilogue.glsl").read_text()
    assert all(f"X({name})" in text for name in FUNCTIONS)
    assert text.count("_float32)") == len(FUNCTIONS)


@pytest.mark.parametrize("name", ["matmul_tiled_float32", "winograd_fallback_4", "conv_int32"])
def test_a_linked_module_holds_what_its_epilogue_calls(name: str, tmp_path: Path) -> None:
    spirv = load_shader(name).spirv
    before = take_apart(spirv)
    for steps in (
        ShaderProgram(),
        ShaderProgram((("gelu_float32", (0,)),)),
        ShaderProgram((("add_float32", (0, 1)), ("mul_float32", (7, 6))), (3,)),
    ):
        built = link(spirv, steps)
        after = take_apart(built)
        reads = (
            "residual_buffer" in before.ids
            and any(1 in at for _, at in steps.calls)
            and "int" not in name
        )
        target = before.ids["residual_buffer"]
        assert any(i == target for i, _ in after.before) == reads
        gone = before.ids.get("gelu_float32(vu4;vu4;vu4;", -1)
        assert (gone in after.functions) == (
            steps.calls[:1] == (("gelu_float32", (0,)),) and gone > 0
        )
        assert_valid(built, tmp_path)


# -- on devices ----------------------------------------------------------------------------------


def drawn(rng: np.random.Generator) -> vs.Tensor:
    """Layers of products or convolutions, each with something behind it."""
    images = rng.integers(2)
    shape = (1, 8, 8, 8) if images else (5, 12)
    value = before = x_of(*shape)
    for number in range(4):
        if images:
            kernel, groups = ((3, 1), (1, 1), (3, 8))[rng.integers(3)]
            w = vs.weight(values(8, 8 // groups, kernel, kernel, seed=number) * 0.2)
            value = vs.conv(value, w, padding=kernel // 2, groups=groups)
        else:
            value = vs.matmul(value, vs.weight(values(12, 12, seed=number) * 0.2))
        if rng.integers(2):
            value = value + before
        if rng.integers(4):
            value = ACTIVATIONS[rng.integers(len(ACTIVATIONS))](value)
        before = value
    return value


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("seed", range(4))
def test_random_layers_give_what_the_ops_give(seed: int, dtype: str, scheds: Scheds) -> None:
    rng = np.random.default_rng(seed)
    built = drawn(rng)
    built = vs.cast(built, dtype)
    with_passes, without = (sched.compile(built) for sched in scheds)
    feeds = {n.name: values(*n.type.shape, seed=9) for n in without.plan.graph.inputs}
    np.testing.assert_allclose(with_passes(**feeds), without(**feeds), 2e-3, 2e-4)
    with_passes.close(), without.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x * 0.0 + 1.0,
        lambda x: vs.relu(x * 0.0),
        lambda x: vs.leaky_relu(x * -1.0, -0.0),
        lambda x: vs.leaky_relu(x + 0.0, 0.0),
        lambda x: vs.clip(x, -2.0, 3.0),
        lambda x: vs.hard_swish(x),
    ],
)
def test_special_values_come_out_as_of_the_ops_alone(
    write: Callable[[vs.Tensor], vs.Tensor], scheds: Scheds
) -> None:
    built = write(vs.matmul(x_of(8, 1), vs.constant(np.ones((1, 8), np.float32))))
    with_passes, without = (sched.compile(built) for sched in scheds)
    got, wanted = (run(x=SPECIAL.reshape(8, 1)) for run in (with_passes, without))
    assert_same_values(got, wanted)
    with_passes.close(), without.close()


def test_explain_tells_the_steps(scheds: Scheds) -> None:
    run = scheds[0].compile(vs.relu(product(name="inner"), name="end"))
    if "matmul" in [n.op for n in run.plan.graph.ops][-1:]:
        text = run.plan.explain("inner")
        assert "then relu" in text and "stands for inner" in text
    run.close()


def test_explain_names_the_steps() -> None:
    graph = fused(vs.relu(product() * 2.0))
    assert attrs_text(graph.nodes[-1].attrs) == (
        "transpose_a=False, transpose_b=False, then mul, relu"
    )


def test_few_programs_have_numbers_as_each_is_compiled() -> None:
    w = vs.weight(values(8, 8))
    x = x_of(6, 8)
    for number in (0.5, 0.25, 0.5, 3.0, 7.0):
        x = vs.relu(vs.matmul(x, w) * number)
    fused_ones = [EPILOGUE in n.attrs for n in fused(x).ops if n.op == "matmul"]
    assert fused_ones == [True, True, True, False, False]


def test_a_product_stays_on_the_device_when_its_residual_takes_too_much_scratch_memory() -> None:
    limits = Limits(storage_buffers=8, max_buffer_bytes=80_000)
    x = x_of(1, 8, 32, 32, dtype="float16")
    w = vs.weight(np.ones((8, 1, 3, 3), np.float16))
    graph = fused(vs.conv(x, w, padding=1, groups=8) + x, limits)
    assert ops_of(graph) == ["conv", "add"]
    (conv,) = (n for n in graph.ops if n.op == "conv")
    assert lower(conv.declaration, Call(graph.input_types(conv), conv.type, conv.attrs, limits))
