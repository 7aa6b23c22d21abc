"""The GEMV of few float16 rows on an AMD GPU, by Mesa: instructions per weight, and code size."""

from __future__ import annotations

import re
from functools import cache

import pytest
import shader_stats
from shader_cards import CARDS
from shader_stats import Pipeline

CARD = "navi21"
LANES, ROWS, RUN = 64, 2, 32
WEIGHTS = ROWS * RUN
"""Weights that a lane multiplies by x in a round of the loop."""
PLAIN = (("LOCAL_X", 256), ("SUBGROUPS", 4))
NORMED = (*PLAIN, ("NORMED", 1))
CALLS = {
    "plain": (PLAIN, 3072, "quant_gemv_mixed_q4_k"),
    "normed": (NORMED, 3584, "quant_gemv_mixed_q4_k"),
    "normed, gate and up": (
        (*NORMED, ("WEIGHTS", 2), ("GATE", 1)),
        3584,
        "quant_gemv_mixed_q4_k",
    ),
    "normed, q, k and v": ((*NORMED, ("WEIGHTS", 3)), 4096, "quant_gemv_mixed_q4_k"),
    "normed, q, k and v, rotated": (
        (*NORMED, ("WEIGHTS", 3)),
        4608,
        "quant_gemv_mixed_rope_q4_k",
    ),
}
"""Constants, the most bytes of code, and the shader. The norm has
a second path, for squares beyond float32.
"""
PER_WEIGHT = 2.5
PER_PRODUCT = {1: 2.5, 4: 1.5, 8: 1.3}
"""Vector instructions of a weight for each row of x, by the rows of x of a workgroup."""
DOT_PER_WEIGHT, DOT_BYTES = 2.0, 3072

needs_driver = pytest.mark.skipif(
    not CARDS[CARD].exists(), reason="Mesa's AMD driver is not installed"
)


@cache
def answer_of(
    constants: tuple[tuple[str, int], ...], shader: str = "quant_gemv_mixed_q4_k", mesa: int = 0
) -> dict[str, object]:
    """Return what the compiler tells of q4_K: statistics and assembly. mesa: the least version."""
    pipeline = Pipeline(shader, constants, subgroup=LANES)
    for environ in CARDS[CARD].environments():
        lines, failure = shader_stats._run_child(environ, [pipeline] if mesa == 0 else [])
        if lines and mesa and int(re.findall(r"Mesa (\d+)", str(lines[0]["driver"]))[0]) < mesa:
            pytest.skip(f"the shader needs Mesa {mesa}")
        if lines and mesa:
            lines, failure = shader_stats._run_child(environ, [pipeline])
        if len(lines) == 2:
            (executable,) = lines[1]["executables"]
            return dict(executable)
    pytest.skip(f"no driver here knows the card: {failure}")


def blocks_of(assembly: str) -> dict[str, list[str]]:
    """Return the instructions of each basic block, in order."""
    blocks: dict[str, list[str]] = {}
    for line in map(str.strip, assembly.splitlines()):
        if label := re.match(r"BB(\d+):", line):
            blocks[label[1]] = []
        elif blocks and line:
            blocks[next(reversed(blocks))].append(line)
    return blocks


def _products(lines: list[str]) -> int:
    """Return the instructions that multiply float16."""
    return sum("fma_mix" in line or "v_dot2" in line for line in lines)


def _vector(lines: list[str]) -> int:
    """Return the vector instructions."""
    return sum(line.startswith("v_") for line in lines)


def round_of(blocks: dict[str, list[str]]) -> list[str]:
    """Return the instructions of a round of the loop over k: those of no loop within it. Of blocks
    that read weights, one runs.
    """
    order = {name: at for at, name in enumerate(blocks)}
    names, loops = list(blocks), []
    for name, lines in blocks.items():
        for line in lines:
            target = re.match(r"s_c?branch\w*\s+BB(\d+)", line)
            if target and order[target[1]] <= order[name]:
                loops.append(range(order[target[1]], order[name] + 1))
    products = [_products(blocks[name]) for name in names]
    main = products.index(max(products))
    around = max((loop for loop in loops if main in loop), key=lambda loop: (loop[0], len(loop)))
    inner = {at for loop in loops if main not in loop for at in loop}
    own = [at for at in around if at not in inner]
    loads = [at for at in own if any("buffer_load" in line for line in blocks[names[at]])]
    others = loads[1:]  # of several weights, a team reads one
    return [line for at in own if at not in others for line in blocks[names[at]]]


@needs_driver
@pytest.mark.parametrize("call", CALLS)
def test_a_weight_costs_few_instructions_and_the_code_is_short(call: str) -> None:
    constants, most_bytes, shader = CALLS[call]
    answer = answer_of(constants, shader)
    statistics = answer["statistics"]
    assert isinstance(statistics, dict)
    assert statistics["Spilled VGPRs"] == statistics["Spilled SGPRs"] == 0
    assert statistics["Scratch size"] == 0
    assert 1500 < statistics["Code size"] <= most_bytes
    lines = round_of(blocks_of(str(answer["assembly"])))
    assert _products(lines) >= WEIGHTS  # both factors in float16
    assert 1.5 * WEIGHTS < _vector(lines) <= PER_WEIGHT * WEIGHTS


@needs_driver
@pytest.mark.parametrize("batch", [4, 8])
def test_rows_of_a_batch_share_the_instructions_of_a_weight(batch: int) -> None:
    answer = answer_of((*NORMED, ("BATCH", batch), ("MAX_RUNS", 16)))
    statistics = answer["statistics"]
    assert isinstance(statistics, dict)
    assert statistics["Spilled VGPRs"] == statistics["Scratch size"] == 0
    assert statistics["VGPRs"] <= 128
    lines = round_of(blocks_of(str(answer["assembly"])))
    products = batch * WEIGHTS
    assert products <= _products(lines)
    assert products < _vector(lines) <= PER_PRODUCT[batch] * products


@needs_driver
@pytest.mark.parametrize("call", ["plain", "normed"])
def test_dot_products_cost_fewer(call: str) -> None:
    constants, *_ = CALLS[call]
    answer = answer_of(constants, "quant_gemv_mixed_dot2_q4_k", 26)
    statistics = answer["statistics"]
    assert isinstance(statistics, dict)
    assert statistics["Spilled VGPRs"] == statistics["Scratch size"] == 0
    assert statistics["Code size"] <= DOT_BYTES
    lines = round_of(blocks_of(str(answer["assembly"])))
    assert sum("v_dot2" in line for line in lines) == WEIGHTS // 2
    vector = sum(line.startswith("v_") for line in lines)
    assert WEIGHTS < vector <= DOT_PER_WEIGHT * WEIGHTS
