"""Which variant of a kernel runs a call: asked for, tuned or guessed; what carries the choice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from graphs import make_plan

import vksched as vs
from vksched.common.dtypes import FLOAT16, FLOAT32, INT32, TensorType
from vksched.ir.attrs import Attrs
from vksched.ir.op import Call, get_op
from vksched.ops.lowering.lower import choice_of, conversion_bytes, lower, variants_of
from vksched.ops.lowering.variants import ASKED, LIKE, SMALLER, STATIC, TUNED, call_key
from vksched.runtime.vulkan.shaders import load_shader
from vksched.testing.op_cases.linalg.attention import attributes
from vksched.testing.op_table import CASES
from vksched.topology.device_spec import DeviceSpec
from vksched.topology.limits import Limits
from vksched.topology.topology import Topology
from vksched.topology.tuned_variants import TunedVariants, size_class_key

SOFTWARE = Limits(software=True, subgroup_size=8, subgroup_shuffle=True, int64=True)
GPU = Limits()
CARD = Limits(
    max_invocations=1024,
    max_local_size=(1024, 1024, 64),
    shared_bytes=49152,
    max_buffer_bytes=1 << 32,
    subgroup_size=32,
    storage_buffers=16,
    float16=True,
)
FIRST, SECOND, *OTHERS = "subgroup 8x32", "subgroup 16x32", "subgroup 32x32", "subgroup 32x64"
NAMES = ", ".join((FIRST, SECOND, *OTHERS))
MATMUL = get_op("matmul")


def call_of(m: int, k: int, n: int, limits: Limits = SOFTWARE, dtype: str = FLOAT32) -> Call:
    inputs = TensorType((m, k), dtype), TensorType((k, n), dtype)
    attrs = Attrs({"transpose_a": False, "transpose_b": False})
    return Call(inputs, TensorType((m, n), dtype), attrs, limits)


def tuned(call: Call, variant: str) -> Limits:
    return replace(call.limits, tuned=TunedVariants({call_key("matmul", call): variant}))


def shaders(call: Call) -> set[str]:
    return {dispatch.shader for dispatch in lower(MATMUL, call).dispatches}


def test_the_best_guess_runs_where_nothing_else_is_reported() -> None:
    call = call_of(8, 16, 32)
    choice = choice_of(MATMUL, call)
    assert (choice.variant, choice.why) == (choice.of[0], STATIC)
    assert lower(MATMUL, call) == lower(MATMUL, replace(call, variant=choice.of[0]))


def test_a_card_can_run_all_that_it_may_choose() -> None:
    ran = set()
    for case in CASES:
        call = case.call(CARD)
        for name in filter(None, variants_of(case.declaration, call)):
            lower(case.declaration, replace(call, variant=name))
            ran.add((case.op, name))
    assert {("moe_linear", "vec4 128x128"), ("matmul", "tiled 32x64")} < ran


@pytest.mark.parametrize("limits", [SOFTWARE, GPU])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_every_variant_is_another_lowering(limits: Limits, dtype: str) -> None:
    call = call_of(8, 16, 32, limits, dtype)
    names = variants_of(MATMUL, call)
    built = [lower(MATMUL, replace(call, variant=name)) for name in names]
    assert len(names) > 1 and all(a != b for a, b in zip(built, built[1:], strict=False))


def test_tuned_choice_wins_over_the_guess_and_the_callers_over_both() -> None:
    call = call_of(8, 16, 32)
    assert choice_of(MATMUL, call).of == (FIRST, SECOND, *OTHERS)
    carried = replace(call, limits=tuned(call, SECOND))
    assert choice_of(MATMUL, carried).why == TUNED
    assert shaders(carried) == {"matmul_subgroup_16x32_of_8_float32"}
    asked = replace(carried, variant=FIRST)
    assert choice_of(MATMUL, asked).why == ASKED
    assert shaders(asked) == {"matmul_subgroup_8x32_of_8_float32"}
    assert choice_of(MATMUL, call_of(8, 64, 32, carried.limits)).why == STATIC


def test_like_sizes_share_a_choice_where_they_agree() -> None:
    call = call_of(8, 16, 32)
    limits = tuned(call, SECOND)
    near, far = call_of(8, 20, 32, limits), call_of(8, 16, 64, limits)
    assert choice_of(MATMUL, near).why == LIKE and choice_of(MATMUL, far).why == STATIC
    other = {call_key("matmul", call_of(8, 12, 32)): FIRST}
    torn = call_of(8, 20, 32, replace(limits, tuned=TunedVariants({**limits.tuned, **other})))
    assert choice_of(MATMUL, torn).why == STATIC
    assert size_class_key("x float32[1,0,23,24] a=5") == "x float32[1,0,32,32] a=5"


def test_coopmats_of_smaller_calls_serve_larger_ones() -> None:
    """Those of the largest of them; nothing else is taken over."""
    coopmats = ("float16*float16+float32 16x16x16",)
    card = replace(CARD, subgroup_sizes=(32,), matrices=coopmats)
    sides = {64: "coopmat 16x16x16 64x64", 512: "coopmat 16x16x16 128x128", 1024: "vec4 128x128"}

    def square(side: int, limits: Limits = card) -> Call:
        return call_of(side, side, side, limits, FLOAT16)

    def choices(*of: int) -> Limits:
        measured = {call_key("matmul", square(side)): sides[side] for side in of}
        return replace(card, tuned=TunedVariants(measured))

    for side, of, variant, why in (
        (256, (64,), sides[64], SMALLER),
        (4096, (64, 512), sides[512], SMALLER),
        (4096, (64, 512, 1024), "vec4 128x128", STATIC),
        (32, (64, 512), "vec4 32x64", STATIC),
    ):
        choice = choice_of(MATMUL, square(side, choices(*of)))
        assert (choice.variant, choice.why) == (variant, why), (side, of)
    wide = choice_of(MATMUL, call_of(64, 64, 32, choices(64), FLOAT16))
    assert wide.why == STATIC


def test_choice_that_cannot_run_a_call_is_left() -> None:
    """As one that another release had."""
    unknown = call_of(8, 16, 32, tuned(call_of(8, 16, 32), "of another release"))
    assert choice_of(MATMUL, unknown).why == STATIC


def test_unknown_variant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(vs.UnsupportedOp, match=f"a variant of {NAMES}, got 'best'"):
        lower(MATMUL, replace(call_of(8, 16, 32), variant="best"))
    relu = Call((TensorType((4,)),), TensorType((4,)), Attrs(), GPU, "fast")
    with pytest.raises(vs.UnsupportedOp, match="a variant of none, got 'fast'"):
        lower(get_op("relu"), relu)
    assert variants_of(get_op("relu"), relu) == ("",)


def test_float16_has_variants_of_its_own() -> None:
    call = call_of(8, 16, 32, dtype=FLOAT16)
    assert shaders(replace(call, limits=tuned(call, SECOND))) == {
        "matmul_subgroup_16x32_of_8_float16"
    }
    assert shaders(call) == {"matmul_subgroup_8x32_of_8_float16"}
    assert conversion_bytes(MATMUL, call) == 0


def test_plan_tells_which_variant_runs_and_why() -> None:
    x, w = vs.input("x", (8, 16)), vs.constant(np.zeros((16, 32), np.float32))
    outputs = vs.matmul(x, w, name="product")
    spec = DeviceSpec("sw", "null", limits=SOFTWARE)
    rest = DeviceSpec("cpu", "cpu")
    plan = make_plan(outputs, {}, Topology((spec, rest)))
    guess = f"  variant: {FIRST}, static guess of {NAMES}"
    assert guess in plan.explain("product").splitlines()
    found = replace(spec, limits=tuned(call_of(8, 16, 32), SECOND))
    plan = make_plan(outputs, {}, Topology((found, rest)))
    line = f"  variant: {SECOND}, tuned of {NAMES}"
    assert line in plan.explain("product").splitlines()
    data = plan.node_as_dict("product")
    assert (data["variant"], data["why_variant"]) == (SECOND, TUNED)
    assert data["variants"] == [FIRST, SECOND, *OTHERS]
    on_cpu = make_plan(outputs, {"product": "cpu"}, Topology((spec, rest)))
    assert "variant" not in on_cpu.explain("product")


def test_machine_with_choices_goes_through_json() -> None:
    spec = DeviceSpec("sw", "null", limits=tuned(call_of(8, 16, 32), SECOND))
    topology = Topology((spec, DeviceSpec("cpu", "cpu")))
    again = Topology.from_dict(json.loads(json.dumps(topology.as_dict())))
    assert again == topology and hash(again) == hash(topology)
    assert again != replace(topology, devices=(DeviceSpec("sw", "null"), topology.devices[1]))
    data = topology.as_dict()
    data["devices"][0]["limits"]["tuned"] = {"matmul": 3}
    with pytest.raises(vs.PlanError, match="calls to names of variants as tuned of the limits"):
        Topology.from_dict(data)
    del data["devices"][0]["limits"]["tuned"]
    assert not Topology.from_dict(data).devices[0].limits.tuned


LARGE_GPU = Limits(max_invocations=1024, max_local_size=(1024, 1024, 64), shared_bytes=49152)


@pytest.mark.parametrize(
    ("size", "limits", "guess"),
    [
        (4096, LARGE_GPU, "vec4 128x128"),
        (4096, GPU, "vec4 128x64"),
        (1024, LARGE_GPU, "vec4 64x64"),
        (256, LARGE_GPU, "vec4 32x64"),
        (4095, LARGE_GPU, "unaligned 128x128"),
    ],
)
def test_gpus_get_the_largest_tiles_that_fill_them(size: int, limits: Limits, guess: str) -> None:
    call = call_of(size, size, size, limits)
    names = variants_of(MATMUL, call)
    assert names[0] == guess
    assert ("vec4 128x128" in names) == (limits is LARGE_GPU)
    for name in names:
        for dispatch in lower(MATMUL, replace(call, variant=name)).dispatches:
            local = load_shader(dispatch.shader).specialize(dict(dispatch.constants))[:3]
            assert np.prod(local) <= limits.max_invocations


def test_vec4_tiles_pack_what_is_not_in_vec4() -> None:
    def names_of(n: int) -> list[str]:
        call = replace(call_of(64, 64, n, GPU), variant="vec4 64x64")
        return [dispatch.shader for dispatch in lower(MATMUL, call).dispatches]

    assert names_of(64) == ["matmul_vec4_float32"]
    assert names_of(65) == ["matmul_pack", "matmul_vec4_float32"]
    whole = call_of(64, 64, 64, GPU, INT32)
    assert variants_of(MATMUL, whole) == ("tiled 32x64",)


def test_eight_lanes_need_integers_of_64_bits() -> None:
    call = call_of(8, 16, 32, replace(SOFTWARE, int64=False))
    assert variants_of(MATMUL, call) == ("register",)
    four = replace(SOFTWARE, int64=False, subgroup_size=4)
    assert variants_of(MATMUL, call_of(8, 16, 32, four))[0] == "subgroup 8x16"


def test_wide_tiles_of_a_row_are_for_lines_along_n() -> None:
    names = variants_of(MATMUL, call_of(1, 16, 1024))
    assert {"gemv_cpu 1x512", "gemv_cpu 1x32"} <= {*names}
    call = Call(
        (TensorType((1, 16)), TensorType((1024, 16))),
        TensorType((1, 1024)),
        Attrs({"transpose_a": False, "transpose_b": True}),
        SOFTWARE,
    )
    assert "gemv_cpu 1x512" not in variants_of(MATMUL, call)
    assert variants_of(MATMUL, call)[0] == "gemv_cpu 1x32"


@pytest.mark.parametrize(
    "heads, keys, parts", [(12, 2048, 16), (12, 700, 4), (12, 100, 1), (300, 2048, 1)]
)
def test_one_query_of_attention_fills_a_gpu(heads: int, keys: int, parts: int) -> None:
    q, k = TensorType((1, heads, 1, 64)), TensorType((1, heads, keys, 64))
    call = Call((q, k, k), q, Attrs(attributes(64)), GPU)
    first = lower(get_op("attention"), call).dispatches[0]
    assert first.groups == (heads, parts, 1)


@pytest.mark.parametrize("most", [1, 2, 65535])
def test_sequences_of_a_recurrent_layer_have_groups_as_far_as_the_device_has_them(
    most: int,
) -> None:
    layer = next(c for c in CASES if c.id.startswith("rnn_scan-gru fb-"))
    count, _, batch, _ = layer.inputs[0].shape
    limits = replace(GPU, max_groups=(most, 1, 1))
    call = Call(layer.types, layer.result_type(), Attrs(layer.attrs), limits)
    names = [name for name in variants_of(layer.declaration, call) if name.isdigit()]
    assert names
    for sequences in names:
        dispatches = lower(layer.declaration, replace(call, variant=sequences)).dispatches
        wanted = min(count * -(-batch // int(sequences)), most)
        assert [d.groups for d in dispatches if d.shader.startswith("rnn_scan")] == [(wanted, 1, 1)]
