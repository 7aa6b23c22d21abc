"""A roofline model of language models' steps on six cards, and the table of its predictions.

    time = max(operations / reached rates, bytes of weights / bandwidth)
           + bytes of dequantized weights / bandwidth + barriers * level + host

The counts come from plans (benchmarks/overheads/card_counts.py). The constants of a card are those
of CONSTANTS; a page that shows the predictions shows them too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "docs"))

from tables import Table

FORMAT = 1
HOST_S = 120e-6
"""Time of the host for a step: submission and fence, as measured with software drivers."""
PROMPT_LEVEL_S = 2.5e-6
"""Time of a barrier and the next dispatch if the kernels are long: a tiny op on the H100."""
LLAMA_LEVEL = 5.6 / 11.0
"""Time of a level of llama.cpp's decode on the H100, relative to that of vksched 0.1.0."""


@dataclass(frozen=True)
class CardConstants:
    """Constants of a card.

    Attributes
    ----------
    bytes_per_s
        Reached bandwidth of reads.
    rates
        Reached operations per second by the kind of kernel. A kind that a card lacks has the rate
        of float32.
    level_s
        Time of a barrier and the start of the next kernel in a decode step.
    basis
        Where the constants come from.
    """

    bytes_per_s: float
    rates: Mapping[str, float]
    level_s: float
    basis: str


def _constants(
    gb_per_s: float, fp32: float, coopmat: float, int8: float, level_us: float, basis: str
) -> CardConstants:
    rates = {
        "float32": fp32 * 1e12,
        "gemv": fp32 * 1e12,
        "float16": 2 * fp32 * 1e12,
        "coopmat": (coopmat or fp32) * 1e12,
        "int8": int8 * 1e12,
    }
    return CardConstants(gb_per_s * 1e9, rates, level_us * 1e-6, basis)


SHARES = "shares of the specification: 90 % of the bandwidth, "
CONSTANTS: Mapping[str, CardConstants] = {
    "NVIDIA H100": _constants(
        *(2600, 31, 112, 124, 11.0),
        "measured: reads, a level of 0.1.0's decode, mixed products of 1,024 to 2,048 rows (83 and "
        "151); float32 and int8 are assumptions",
    ),
    "GeForce RTX 4070": _constants(
        *(454, 17.5, 41, 70, 5.0), f"{SHARES}60 % of float32, 70 % of matrices with float32 sums"
    ),
    "Radeon RX 7900 XTX": _constants(
        *(864, 20, 67, 80, 5.0), f"{SHARES}33 % of dual-issue float32, 55 % of matrices"
    ),
    "Radeon RX 6600": _constants(
        *(202, 6.3, 0, 25, 4.5), f"{SHARES}70 % of float32, no matrix units"
    ),
    "Arc A770": _constants(*(504, 8, 30, 32, 10.0), f"{SHARES}47 % of float32, 22 % of matrices"),
    "Radeon 780M": _constants(
        *(81, 2.6, 8.3, 10, 4.5), f"{SHARES}31 % of dual-issue float32, 50 % of matrices"
    ),
}
"""Rates in TFLOP/s and Gbyte/s. Those of all cards but the H100 are assumptions, with an error of
about 30 %.
"""


def predicted_s(step: Mapping[str, Any], level: float = 1.0) -> float:
    """Return the predicted time of a step.

    Parameters
    ----------
    step
        Its counts: the fields of card_counts.StepCount.
    level
        The time of a decode level relative to that of the card's constants.
    """
    card = CONSTANTS[step["card"]]
    arithmetic = sum(flops / card.rates[kind] for kind, flops in step["flops"].items())
    weights = step["weight_bytes"] / card.bytes_per_s
    scratch = step["scratch_bytes"] / card.bytes_per_s
    level_s = level * card.level_s if step["tokens"] == 1 else PROMPT_LEVEL_S
    return max(arithmetic, weights) + scratch + step["barriers"] * level_s + HOST_S


def _ms(seconds: float) -> str:
    """Return a time with three digits."""
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:#.3g} ms"


def _rate(card: CardConstants, kind: str) -> str:
    """Return a rate in TFLOP/s; a dash if the card computes this kind with float32 units."""
    rate = card.rates[kind]
    return "-" if kind != "float32" and rate == card.rates["float32"] else f"{rate / 1e12:g}"


def read_counts(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the stored counts before and after.

    Raises
    ------
    ValueError
        The file has another format.
    """
    data = json.loads(path.read_text("utf-8"))
    if data.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT} in {path}, got {data.get('format')}")
    return {name: data[name] for name in ("before", "after")}


def prediction_tables(path: Path) -> tuple[Table, ...]:
    """Return the predictions of tokens and of prompts, and the constants."""
    stored = read_counts(path)
    tables = []
    for tokens, what in ((1, "a token"), (512, "a prompt of 512 tokens")):
        rows = []
        for before, after in zip(stored["before"], stored["after"], strict=True):
            if before["tokens"] != tokens:
                continue
            old, new = predicted_s(before), predicted_s(after)
            short = predicted_s(after, LLAMA_LEVEL)
            rows.append(
                (
                    *(f"{before['card']}, {before['model']}", str(before["barriers"])),
                    *(str(after["barriers"]), _ms(old), _ms(new)),
                    *((_ms(short),) if tokens == 1 else ()),
                    f"{old / new:.2f}",
                )
            )
        shorter = ("after, with llama.cpp's levels",) if tokens == 1 else ()
        columns = ("card, model", "barriers before", "after", "time before", "after")
        note = f"PREDICTION of {what}, not a measurement."
        tables.append(Table((*columns, *shorter, "gain"), tuple(rows), (note,), numeric=True))
    constants = tuple(
        (
            *(name, f"{card.bytes_per_s / 1e9:.0f}"),
            *(_rate(card, kind) for kind in ("float32", "float16", "coopmat", "int8")),
            *(f"{card.level_s * 1e6:g}", card.basis),
        )
        for name, card in CONSTANTS.items()
    )
    rates = ("float32", "float16", "matrices", "int8")
    header = ("card", "GB/s", *(f"{kind} TFLOP/s" for kind in rates), "level, us", "basis")
    return (*tables, Table(header, constants, ("Constants of the model:",)))


def predictions_as_markdown(path: Path) -> str:
    """Return all tables of the page."""
    return "\n\n".join(table.as_markdown() for table in prediction_tables(path))
