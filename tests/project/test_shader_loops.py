"""Loops of multiply-adds in AMD's assembly: which instructions belong to which."""

from __future__ import annotations

import pytest
import shader_loops
import shader_stats
from shader_cards import AMD, CARDS
from shader_loops import Loop
from shader_stats import Pipeline, Statistics

FAMILIES = [name for name, card in CARDS.items() if card.maker is AMD and card.exists()]
needs_driver = pytest.mark.skipif(not FAMILIES, reason="Mesa's AMD driver is not installed")
TWO_LOOPS = """
BB0:
	v_fma_f32 v9, v1, v2, v3                     ; before any loop
BB1:
	buffer_load_dwordx4 v[0:3], v4, s[4:7], 0 offen
	v_mul_lo_u32 v5, v6, v7
BB2:
	ds_read_b128 v[8:11], v12
	v_fmac_f32_e32 v1, v2, v3
	v_pk_fma_f16 v1, v2, v3, v4
	v_fmac_f32_e64 v4, v2, v3
	v_mad_u32_u24 v5, v6, v7, v8
	v_rcp_f32_e32 v2, v2
	s_cbranch_scc1 BB2
BB3:
	v_mac_f32_e32 v1, v2, v3
	s_cbranch_scc0 BB5
BB4:
	s_branch BB1
BB5:
	s_endpgm
"""


def test_instructions_belong_to_the_innermost_loop() -> None:
    inner, outer = Loop(3, 8, 8, 1, 0), Loop(1, 1, 5, 0, 1)
    assert shader_loops.busy_loops(TWO_LOOPS) == [outer, inner]
    assert inner.cycles == pytest.approx(8 / 3)
    assert str(outer) == "1.00 (5.00) · 0.00 · 1.00"


def test_branches_of_a_loop_count_for_the_loop_not_for_its_multiply_adds() -> None:
    branch = "BB2:\n\tv_nop v0\n\ts_cbranch_execz BB22\nBB21:\n\tv_exp_f32 v0, v1\nBB22:"
    (_, inner) = shader_loops.busy_loops(TWO_LOOPS.replace("BB2:", branch))
    assert inner == Loop(3, 8, 13, 1, 0)
    assert str(inner) == "2.67 (4.33) · 0.33 · 0.00"


def test_loops_with_few_of_the_multiply_adds_are_left_out() -> None:
    many = TWO_LOOPS.replace("\tv_fmac_f32_e32 v1, v2, v3\n", "\tv_fmac_f32_e32 v1, v2, v3\n" * 9)
    assert shader_loops.busy_loops(many) == [Loop(11, 16, 16, 1, 0)]


@pytest.mark.parametrize("text", ["", "BB0:\n\tv_fma_f32 v0, v1, v2, v3\n\ts_endpgm", "BB7:"])
def test_without_a_loop_there_is_nothing(text: str) -> None:
    assert shader_loops.busy_loops(text) == []


@needs_driver
def test_products_are_nearly_nothing_but_multiply_adds() -> None:
    wanted = Pipeline("matmul_vec4_float32")
    report = shader_stats.measure([wanted, Pipeline("copy")], FAMILIES)
    for results in report.results.values():
        product, copy = results[wanted], results[Pipeline("copy")]
        assert isinstance(product, Statistics) and isinstance(copy, Statistics)
        assert copy.loops == ()
        assert product.loops
        assert all(1 <= loop.cycles < 1.1 and loop.shared_reads for loop in product.loops)
    assert shader_stats.loops_table(report).rows[0][0] == "`matmul_vec4_float32`"
