"""Chains: what becomes one node and what does not, modules of shaders, results as before."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from conftest import Scheds
from fused import SPECIAL, assert_same_values, assert_valid, ops_of, optimized

import vksched as vs
from vksched.ir.op import Call, ShaderProgram
from vksched.ops.elementwise.epilogue import attrs_text
from vksched.ops.elementwise.fused_elementwise import FUNCTIONS, program_of
from vksched.ops.lowering.lower import lower
from vksched.passes import RewriteConstraints, optimize
from vksched.runtime.vulkan.shaders import load_shader
from vksched.runtime.vulkan.spirv_patch import link, take_apart
from vksched.topology.limits import Limits

SHADERS = Path(__file__).parent.parent.parent / "shaders"
SHAPE = (4, 6)


def x_of(name: str = "x", shape: Sequence[int] = SHAPE, dtype: str = "float32") -> vs.Tensor:
    return vs.input(name, shape, dtype)


def test_elementwise_ops_behind_each_other_are_one() -> None:
    x, y = x_of(), x_of("y")
    graph = optimized(vs.relu(vs.gelu(x + 0.5, name="inner") * y, name="end"))
    assert ops_of(graph) == ["fused_elementwise"]
    assert graph.nodes[-1].name == "end" and graph.aliases["inner"] == graph.nodes[-1].id


def test_a_value_that_only_members_read_is_no_result() -> None:
    x = x_of()
    inner = x + 1.0
    assert ops_of(optimized(inner * vs.sigmoid(inner))) == ["fused_elementwise"]


def test_what_others_read_stays() -> None:
    x, w = x_of(), x_of("w", (6, 3))
    inner = vs.tanh(x * 2.0)
    assert ops_of(optimized([vs.neg(inner) + 1.0, inner @ w])) == [
        "fused_elementwise",
        "fused_elementwise",
        "matmul",
    ]


def test_outputs_and_observed_values_stay() -> None:
    x = x_of()
    first = vs.exp(x, name="first")
    end = vs.neg(vs.abs(first, name="second") + 1.0, name="end")
    assert ops_of(optimized([first, end])) == ["exp", "fused_elementwise"]
    graph = optimized(end, observed=frozenset({"second"}))
    assert "second" in {n.name for n in graph.nodes} and ops_of(graph) == [
        "fused_elementwise",
        "fused_elementwise",
    ]


def test_only_ops_of_one_home_are_one() -> None:
    end = vs.neg(vs.exp(vs.abs(x_of(), name="a"), name="b"), name="c")
    graph = optimized(end, pinned_devices={"a": "cpu", "b": "cpu"})
    assert [(n.op, n.name) for n in graph.ops] == [("fused_elementwise", "b"), ("neg", "c")]


def test_what_need_not_wait_for_another_device_does_not() -> None:
    x = x_of()
    left, right = vs.mul(x, 2.0, name="left"), vs.mul(x, 3.0, name="right")
    end = vs.add(left, right, name="end")
    assert ops_of(optimized(end, pinned_devices={"left": "a", "right": "b", "end": "a"})) == [
        "mul",
        "mul",
        "add",
    ]
    assert ops_of(optimized(end, pinned_devices={"left": "a", "right": "a", "end": "a"})) == [
        "fused_elementwise"
    ]


def test_operands_broadcast() -> None:
    x, row, column = x_of(), x_of("r", (6,)), x_of("c", (4, 1))
    assert ops_of(optimized((x + row) * column - x_of("s", ()))) == ["fused_elementwise"]


def test_what_has_another_shape_is_an_operand() -> None:
    x, row = x_of(), x_of("r", (6,))
    graph = optimized(vs.relu(x * vs.exp(row * 2.0)))
    assert [(n.op, n.type.shape) for n in graph.ops] == [
        ("fused_elementwise", (6,)),
        ("fused_elementwise", SHAPE),
    ]


@pytest.mark.parametrize(("buffers", "operands"), [(4, 3), (6, 3), (7, 6), (64, 6)])
def test_a_chain_binds_no_more_than_every_device_allows(buffers: int, operands: int) -> None:
    total = x_of()
    for i in range(9):
        total = total + x_of(f"x{i}")
    graph = optimized(total, limits=Limits(storage_buffers=buffers))
    chains = [n for n in graph.ops if n.op == "fused_elementwise"]
    assert max(len(n.inputs) for n in chains) == operands
    for n in chains:
        call = Call(graph.input_types(n), n.type, n.attrs, Limits(storage_buffers=buffers))
        assert lower(n.declaration, call).dispatches


def test_long_chains_are_several() -> None:
    x = x_of()
    for _ in range(20):
        x = vs.neg(vs.tanh(x))
    chains = [program_of(node.attrs).steps for node in optimized(x).ops]
    assert [sum(op.name == "tanh" for op, _, _ in steps) for steps in chains] == [2, 6, 6, 6]


def test_cheap_steps_make_longer_chains() -> None:
    x, y = x_of(), x_of("y")
    for i in range(100):
        x = x * (0.5 + i / 256) + y
    graph = optimized(x)
    assert ops_of(graph) == ["fused_elementwise"]
    shown = ", ".join(["mul", "add"] * 7)
    assert attrs_text(graph.ops[-1].attrs) == f"steps {shown}, mul, ..., 200 in all"


def test_chains_of_large_tensors_are_shorter() -> None:
    """Each is one dispatch, and one that takes seconds is killed."""
    x = x_of(shape=(1 << 14, 1 << 14))
    for _ in range(32):
        x = vs.neg(x + 1.0)
    graph = optimize(vs.build_graph(x)[0], RewriteConstraints())
    assert [len(program_of(node.attrs).steps) for node in graph.ops] == [16] * 4


def test_integers_and_int64_are_left_to_their_bounds() -> None:
    n = x_of("n", dtype="int32")
    assert "fused_elementwise" not in ops_of(optimized(vs.neg(n + 3) * 2))
    assert ops_of(optimized(vs.tanh(vs.cast(n, "float32") * 0.5))) == ["fused_elementwise"]


def test_comparisons_and_choices_are_members() -> None:
    x, y = x_of(), x_of("y")
    stored = vs.logical_and(vs.less(x, y), vs.greater(x, 0.0))
    assert ops_of(optimized(vs.where(stored, x * 2.0, vs.clip(y, -1.0, 1.0)))) == [
        "fused_elementwise"
    ]


def test_float16_is_rounded_once() -> None:
    x = x_of(dtype="float16")
    graph = optimized(vs.exp(x * 0.1) + x)
    assert ops_of(graph) == ["fused_elementwise"] and graph.nodes[-1].type.dtype == "float16"


def test_what_jumps_is_no_member_in_float16() -> None:
    """It would see digits that the op before has rounded away."""
    x = x_of(dtype="float16")
    small = np.float16(1e-4)
    for built in (vs.greater(x + small, x), vs.round((x + 0.25) * 3.0)):
        before = list(ops_of(vs.build_graph(built)[0]))
        assert ops_of(optimized(built))[-1] == before[-1]


def test_constants_alone_are_no_chain() -> None:
    c = vs.constant(np.float32(2.0), name="c1")
    y = x_of() * vs.exp(vs.sqrt(c) * vs.constant(np.float32(3.0), name="c2"))
    with vs.Scheduler(["cpu"]) as sched:
        got = sched.compile(y, placement={"c*": "cpu"})(x=np.ones(SHAPE, np.float32))
    np.testing.assert_allclose(got, np.full(SHAPE, np.exp(np.sqrt(np.float32(2)) * 3)), 1e-6)


def test_states_take_their_next_value_from_a_chain() -> None:
    held = vs.state(np.ones(SHAPE, np.float32), name="held")
    x = x_of()
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(held * 1.0, updates={held: vs.tanh(held * 0.5) + x})
        assert sorted(ops_of(run.plan.graph)) == ["assign", "fused_elementwise", "state"]
        run(x=np.zeros(SHAPE, np.float32))
        np.testing.assert_allclose(sched.read(held), np.full(SHAPE, np.tanh(np.float32(0.5))))


# -- the shaders ---------------------------------------------------------------------------------


def test_the_shaders_hold_the_functions() -> None:
    text = (SHADERS / "elementwise" / "fused_ops.glsl").read_text()
    assert set(re.findall(r"X\((\w+)\)", text)) == FUNCTIONS


def test_the_dispatch_says_what_the_steps_are() -> None:
    x, y = x_of(), x_of("y")
    node = optimized(vs.clip(x * y, -1.0, 0.5) + 3.0).nodes[-1]
    call = Call((x.type, y.type), node.type, node.attrs)
    [dispatch] = lower(node.declaration, call).dispatches
    assert dispatch.steps.calls == (
        ("mul_float32", (0, 1)),
        ("clip_float32", (9, 7, 8)),
        ("add_float32", (10, 6)),
    )
    words = np.array(dispatch.steps.words, np.uint32).view(np.float32)
    assert words.tolist() == [3.0, -1.0, 0.5]


@pytest.mark.parametrize("name", ["fused_2", "fused_6_vec4"])
def test_a_linked_module_holds_what_its_chain_calls(name: str, tmp_path: Path) -> None:
    spirv = load_shader(name).spirv
    built = link(spirv, ShaderProgram((("gelu_float32", (0,)), ("mul_float32", (8, 7))), (1, 2)))
    assert len(built) < len(spirv) // 3
    before, after = take_apart(spirv), take_apart(built)
    assert set(after.functions) < set(before.functions)
    assert before.ids["tanh_float32(vu4;vu4;vu4;"] not in after.functions
    assert_valid(built, tmp_path)


# -- on devices ----------------------------------------------------------------------------------


ONE = (vs.neg, vs.tanh, vs.relu, vs.sigmoid, vs.exp, vs.gelu, vs.abs, vs.floor)
TWO = (vs.add, vs.sub, vs.mul, vs.maximum, vs.minimum, vs.div)


def drawn(rng: np.random.Generator, rounds: int) -> list[vs.Tensor]:
    """A random graph of elementwise ops on operands of several shapes, in small ranges."""
    shape = [(3, 8), (5, 7), (2, 3, 4)][rng.integers(3)]
    row, column = shape[-1:], (*shape[:-1], 1)
    pool = [x_of("x", shape), x_of("y", shape)]
    others = [x_of("r", row), x_of("c", column), x_of("s", ())]
    for _ in range(rounds):
        a = pool[rng.integers(len(pool))]
        kind = rng.integers(4)
        if kind == 0:
            pool.append(ONE[rng.integers(len(ONE))](vs.clip(a, -2.0, 2.0)))
        elif kind == 1:
            pool.append(vs.where(vs.less(a, 0.25), pool[rng.integers(len(pool))], a))
        else:
            b = [*pool, *others][rng.integers(len(pool) + len(others))]
            pool.append(vs.clip(TWO[rng.integers(len(TWO))](a, b), -8.0, 8.0))
    picked = {pool[rng.integers(2, len(pool))] for _ in range(2)} | {pool[-1]}
    return [*picked, vs.reduce_sum(pool[-1], 0)]


@pytest.mark.parametrize("seed", range(7))
def test_random_chains_give_what_the_ops_give(seed: int, scheds: Scheds) -> None:
    rng = np.random.default_rng(seed)
    outputs = drawn(rng, 60 if seed == 6 else int(rng.integers(3, 14)))
    with_passes, without = (sched.compile(outputs) for sched in scheds)
    feeds = {
        n.name: rng.standard_normal(n.type.shape, np.float32) for n in without.plan.graph.inputs
    }
    used = {n.name: feeds[n.name] for n in with_passes.plan.graph.inputs}
    for got, wanted in zip(with_passes(**used), without(**feeds), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    assert len(with_passes.plan.graph.ops) < len(without.plan.graph.ops)
    with_passes.close(), without.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x * 0.0 + 1.0,
        lambda x: vs.not_equal(x * 0.0, 0.0),
        lambda x: vs.relu(x * 0.0),
        lambda x: vs.reciprocal(vs.neg(x) + 0.0),
        lambda x: vs.reciprocal(vs.leaky_relu(x, -0.0)),
        lambda x: vs.reciprocal(vs.leaky_relu(x, 0.0)),
        lambda x: vs.gelu(x) * 2.0,
    ],
)
def test_chains_keep_special_values(
    write: Callable[[vs.Tensor], vs.Tensor], scheds: Scheds
) -> None:
    """As the ops alone do: no compiler takes x * 0 for 0, or 0.0 for -0.0."""
    with_passes, without = (sched.compile(write(x_of(shape=(8,)))) for sched in scheds)
    assert [node.op for node in with_passes.plan.graph.ops] == ["fused_elementwise"]
    got, wanted = with_passes(x=SPECIAL), without(x=SPECIAL)
    assert_same_values(got, wanted)
    with_passes.close(), without.close()
