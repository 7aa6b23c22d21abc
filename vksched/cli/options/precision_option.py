"""The option --precision, and reports of the error of a precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from ..differences import RTOL, Difference

MODES = {"float32": RTOL, "mixed": 1e-2, "float16": 5e-2, "bfloat16": 5e-2, "int8": 5e-2}
"""Modes, the most exact first, with the default tolerance of --compare-with for each."""
PrecisionModes = str | Mapping[Any, str]
"""A mode for the whole model, or modes by name pattern."""
SINGLE = next(iter(MODES))
Command = Callable[..., None]

AUTO, FAST = "auto", "fast"
_CHAT_HELP = (
    "auto: mixed for layers on GPUs with float16, float32 for others. fast: also int8 for layers "
    "on the CPU."
)


def _pattern_option(more: str) -> Callable[[Command], Command]:
    """Return the option with patterns. more: further text of its help."""
    return click.option(
        "--precision",
        "modes",
        multiple=True,
        metavar="[PATTERN=]MODE",
        help=(
            "mixed: matmuls, convolutions and attention may round their operands to float16; "
            "float16: also sums and results; bfloat16: operands to bfloat16. int8: quantized "
            "matmuls may round their activations to 8 bits. With a pattern, for matching nodes "
            f"(repeatable). {more}"
        ),
    )


precision_option = _pattern_option(" [default: float32]")
tune_precision_option = _pattern_option(
    f"A GGUF model takes one mode without a pattern, also auto or fast. {_CHAT_HELP}  "
    "[default: float32; auto for a GGUF model]"
)
_MODE_HELP = (
    "int8: quantized matmuls may round their activations to 8 bits; mixed, float16, "
    "bfloat16: matmuls and attention may use these."
)


def _one_mode(modes: Iterable[str], default: str, text: str) -> Callable[[Command], Command]:
    kind = click.Choice(tuple(modes))
    return click.option("--precision", type=kind, default=default, show_default=True, help=text)


mode_option = _one_mode(MODES, SINGLE, _MODE_HELP)
"""For language models: one mode for the whole model."""
CHAT_MODES, CHAT_DEFAULT = (AUTO, FAST, *MODES), AUTO
"""The modes of a chat, and the default."""
chat_precision_option = _one_mode(
    CHAT_MODES,
    CHAT_DEFAULT,
    f"{_CHAT_HELP} {_MODE_HELP}",
)
measured_mode_option = _one_mode(MODES, "mixed", f"The measured mode. {_MODE_HELP}")
"""For a comparison with float32."""


def parse_precision(values: Sequence[str]) -> PrecisionModes:
    """Return the `precision` argument of `compile`, from "mixed" or "head.*=float32"."""
    whole, patterns = SINGLE, dict[str, str]()
    for each in values:
        pattern, _, mode = each.rpartition("=")
        if mode not in MODES or (not pattern and "=" in each):
            known = ", ".join(MODES)
            raise click.UsageError(f"--precision expects [PATTERN=] and {known}, got {each!r}.")
        if pattern:
            patterns.pop(pattern, None)  # later ones take precedence, so they come last
            patterns[pattern] = mode
        else:
            whole = mode
    return {"*": whole, **patterns} if patterns else whole


def patterns_of(modes: PrecisionModes) -> list[str]:
    """Return the name patterns of a precision."""
    return [] if isinstance(modes, str) else list(modes)


def least_exact(modes: PrecisionModes) -> str:
    """Return the least exact mode of a precision."""
    used = {modes} if isinstance(modes, str) else set(modes.values())
    return [mode for mode in MODES if mode in used][-1]


def cost_of(modes: PrecisionModes, rows: Sequence[Difference]) -> dict[str, Any]:
    """Return the error of a precision as plain data. rows: differences of outputs from float32."""
    worst = max(rows, key=lambda row: row.relative, default=None)
    return {
        "precision": least_exact(modes),
        "output": worst.output if worst else "",
        "largest": worst.largest if worst else 0.0,
        "relative": worst.relative if worst else 0.0,
    }


def show_cost(cost: Mapping[str, Any]) -> None:
    """Print the result of `cost_of`."""
    click.echo(
        f"{cost['precision']} costs {cost['relative']:.2g} of the largest magnitude of an output: "
        f"{cost['output']} is up to {cost['largest']:.2g} from its value in float32"
    )
