"""Op checks: every case on a device against numpy, as plain outcomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from .. import ops
from ..common.errors import UnsupportedOp, close_text
from .coopmat_tolerance import coopmat_tolerance
from .kernel_runner import Runner, check_device, check_function, nmse_of
from .op_cases.op_sample import FunctionSample, Mismatch, OpSample
from .op_table import CASES, FP16, FUNCTIONS, LONGS, UNSIGNED, fits_32_bits


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """One case on one device. reason: why it falls back to the CPU. error: description of an error.
    nmse: error of a float result.
    """

    op: str
    case: str
    device: str
    reason: str = ""
    error: str = ""
    nmse: float | None = None


def select(names: Sequence[str]) -> list[OpSample | FunctionSample]:
    """Return the cases of some ops and functions, or all. Raise UnsupportedOp for an unknown
    name.
    """
    cases: list[OpSample | FunctionSample] = [*CASES, *FP16, *LONGS, *UNSIGNED, *FUNCTIONS]
    known = {op_of(case) for case in cases}
    names = [_resolve(name, known) for name in names]
    for name in names:
        if name not in known:
            hint = close_text(name, known)
            raise UnsupportedOp(f"[ops] expected an op with cases, got {name!r}{hint}")
    return [case for case in cases if not names or op_of(case) in names]


def _resolve(name: str, known: Collection[str]) -> str:
    """Return the op of a name: some have aliases, for example div and divide."""
    found = getattr(ops, name).__name__ if name in ops.__all__ else name
    return name if name in known or found not in known else str(found)


def op_of(case: OpSample | FunctionSample) -> str:
    """Return the op or the function of a case."""
    return case.op if isinstance(case, OpSample) else case.function


def check_samples(runner: Runner, cases: Iterable[OpSample | FunctionSample]) -> Iterator[Outcome]:
    """Yield the outcome of each case on one device with its own limits, for every variant."""
    limits, device = runner.device.limits, runner.device.name
    for case in cases:
        about = (op_of(case), case.id, device)
        try:
            if isinstance(case, FunctionSample):
                results, reasons = runner.run_function(case, limits)
                wanted = case.expected()
                check_function(case, results, wanted, device)
                nmse = _largest(nmse_of(a, b) for a, b in zip(results, wanted, strict=True))
                yield Outcome(*about, reason="; ".join(reasons), nmse=nmse)
                continue
            expected = case.expected()
            if not fits_32_bits(expected):
                yield Outcome(*about, reason="int64 values that do not fit 32 bits")
                continue
            errors = []
            for variant in case.variants(limits):
                got = runner.run(case, limits, variant)
                lost = coopmat_tolerance(case, variant)
                check_device(case, got, expected, f"{device} {variant}".rstrip(), lost)
                errors.append(nmse_of(got, expected))
            yield Outcome(*about, nmse=_largest(errors))
        except UnsupportedOp as error:
            yield Outcome(*about, reason=str(error))
        except Mismatch as error:
            yield Outcome(*about, error=str(error))


def _largest(errors: Iterable[float | None]) -> float | None:
    return max((e for e in errors if e is not None), default=None)


@dataclasses.dataclass(slots=True)
class Row:
    """Counts of the outcomes of one op on one device."""

    op: str
    device: str
    cases: int = 0
    right: int = 0
    by_numpy: int = 0
    wrong: int = 0
    nmse: float | None = None


def summary(outcomes: Iterable[Outcome]) -> list[Row]:
    """Return one row per op and device."""
    rows: dict[tuple[str, str], Row] = {}
    for outcome in outcomes:
        row = rows.setdefault((outcome.op, outcome.device), Row(outcome.op, outcome.device))
        row.cases += 1
        row.wrong += bool(outcome.error)
        row.by_numpy += bool(outcome.reason)
        row.right += not outcome.error and not outcome.reason
        if outcome.nmse is not None:
            row.nmse = max(row.nmse or 0.0, outcome.nmse)
    return sorted(rows.values(), key=lambda row: (row.op, row.device))


def outcomes_as_dicts(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return outcomes as plain data."""
    return [dataclasses.asdict(outcome) for outcome in outcomes]
