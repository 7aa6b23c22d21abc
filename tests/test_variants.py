"""Which variant of a kernel runs a call: asked for, tuned or guessed; what carries the choice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from graphs import make_plan

import vksched as vs
from vksched.ops.choices import Choices, like_key
from vksched.ops.lower import choice_of, conversion_bytes, lower, variants_of
from vksched.ops.op import Attrs, Call, Limits, get_op
from vksched.ops.variants import ASKED, LIKE, STATIC, TUNED, call_key
from vksched.plan.machine import DeviceSpec, Machine
from vksched.types import FLOAT16, FLOAT32, TensorType

SOFTWARE, GPU = Limits(software=True), Limits()
MATMUL = get_op("matmul")


def call_of(m: int, k: int, n: int, limits: Limits = SOFTWARE, dtype: str = FLOAT32) -> Call:
    inputs = TensorType((m, k), dtype), TensorType((k, n), dtype)
    attrs = Attrs({"transpose_a": False, "transpose_b": False})
    return Call(inputs, TensorType((m, n), dtype), attrs, limits)


def tuned(call: Call, variant: str) -> Limits:
    return replace(call.limits, tuned=Choices({call_key("matmul", call): variant}))


def shaders(call: Call) -> set[str]:
    return {dispatch.shader for dispatch in lower(MATMUL, call).dispatches}


def test_the_best_guess_runs_where_nothing_else_is_said() -> None:
    call = call_of(8, 16, 32)
    choice = choice_of(MATMUL, call)
    assert (choice.variant, choice.why) == (choice.of[0], STATIC)
    assert lower(MATMUL, call) == lower(MATMUL, replace(call, variant=choice.of[0]))


@pytest.mark.parametrize("limits", [SOFTWARE, GPU])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16])
def test_every_variant_is_another_lowering(limits: Limits, dtype: str) -> None:
    call = call_of(8, 16, 32, limits, dtype)
    names = variants_of(MATMUL, call)
    made = [lower(MATMUL, replace(call, variant=name)) for name in names]
    assert len(names) > 1 and all(a != b for a, b in zip(made, made[1:], strict=False))


def test_tuned_choice_wins_over_the_guess_and_the_callers_over_both() -> None:
    call = call_of(8, 16, 32)
    first, last = choice_of(MATMUL, call).of
    carried = replace(call, limits=tuned(call, last))
    assert choice_of(MATMUL, carried).why == TUNED and shaders(carried) == {
        "matmul_register_float32"
    }
    asked = replace(carried, variant=first)
    assert choice_of(MATMUL, asked).why == ASKED and shaders(asked) == {"matmul_vec4"}
    assert choice_of(MATMUL, call_of(8, 64, 32, carried.limits)).why == STATIC


def test_like_sizes_share_a_choice_where_they_agree() -> None:
    call = call_of(8, 16, 32)
    limits = tuned(call, "register")
    near, far = call_of(8, 20, 32, limits), call_of(8, 16, 64, limits)
    assert choice_of(MATMUL, near).why == LIKE and choice_of(MATMUL, far).why == STATIC
    other = {call_key("matmul", call_of(8, 12, 32)): "vec4"}
    torn = call_of(8, 20, 32, replace(limits, tuned=Choices({**limits.tuned, **other})))
    assert choice_of(MATMUL, torn).why == STATIC
    assert like_key("x float32[1,0,23,24] a=5") == "x float32[1,0,32,32] a=5"


def test_choice_that_cannot_run_a_call_is_left() -> None:
    """As of like sizes, one of which is not a multiple of four."""
    call = call_of(8, 16, 32)
    odd = call_of(8, 17, 32, tuned(call, "vec4"))
    assert choice_of(MATMUL, odd).why == STATIC and shaders(odd) == {"matmul_register_float32"}
    unknown = call_of(8, 16, 32, tuned(call, "of another release"))
    assert choice_of(MATMUL, unknown).why == STATIC


def test_unknown_variant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(vs.UnsupportedOp, match="expected a variant of vec4, register, got 'best'"):
        lower(MATMUL, replace(call_of(8, 16, 32), variant="best"))
    relu = Call((TensorType((4,)),), TensorType((4,)), Attrs(), GPU, "fast")
    with pytest.raises(vs.UnsupportedOp, match="a variant of none, got 'fast'"):
        lower(get_op("relu"), relu)
    assert variants_of(get_op("relu"), relu) == ("",)


def test_float16_keeps_its_variant_through_the_conversion() -> None:
    call = call_of(8, 16, 32, dtype=FLOAT16)
    carried = replace(call, limits=tuned(call, "register"))
    assert "matmul_register_float32" in shaders(carried)
    assert "matmul_vec4" in shaders(call)
    assert conversion_bytes(MATMUL, carried) == conversion_bytes(MATMUL, call) > 0


def test_plan_tells_which_variant_runs_and_why() -> None:
    x, w = vs.input("x", (8, 16)), vs.constant(np.zeros((16, 32), np.float32))
    outputs = vs.matmul(x, w, name="product")
    spec = DeviceSpec("sw", "null", limits=SOFTWARE)
    rest = DeviceSpec("cpu", "cpu")
    plan = make_plan(outputs, {}, Machine((spec, rest)))
    guess = "  variant: vec4, static guess of vec4, register"
    assert guess in plan.explain("product").splitlines()
    found = replace(spec, limits=tuned(call_of(8, 16, 32), "register"))
    plan = make_plan(outputs, {}, Machine((found, rest)))
    assert "  variant: register, tuned of vec4, register" in plan.explain("product").splitlines()
    told = plan.node_as_dict("product")
    assert (told["variant"], told["why_variant"]) == ("register", TUNED)
    assert told["variants"] == ["vec4", "register"]
    on_cpu = make_plan(outputs, {"product": "cpu"}, Machine((spec, rest)))
    assert "variant" not in on_cpu.explain("product")


def test_machine_with_choices_goes_through_json() -> None:
    spec = DeviceSpec("sw", "null", limits=tuned(call_of(8, 16, 32), "register"))
    machine = Machine((spec, DeviceSpec("cpu", "cpu")))
    again = Machine.from_dict(json.loads(json.dumps(machine.as_dict())))
    assert again == machine and hash(again) == hash(machine)
    assert again != replace(machine, devices=(DeviceSpec("sw", "null"), machine.devices[1]))
    data = machine.as_dict()
    data["devices"][0]["limits"]["tuned"] = {"matmul": 3}
    with pytest.raises(vs.PlanError, match="calls to names of variants as tuned of the limits"):
        Machine.from_dict(data)
    del data["devices"][0]["limits"]["tuned"]
    assert not Machine.from_dict(data).devices[0].limits.tuned
