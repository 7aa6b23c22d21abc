"""Quick measurements of one device by `vksched bench`, in a child process."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..common.errors import VkschedError
from ..common.schema import parse
from .health_report import Measurement

LIMIT_S = 900.0
LLAMA = "llama.cpp"
OP_CASES = "matmul 1024,add 16 M"
LLM_CASES = "random 27M Q4_K prompt 128,random 27M Q4_K token at 128"


def measure(device: str) -> list[Measurement]:
    """Return the peak rates of a device, the rates of a matmul and of a copy, and the tokens per
    second of a small language model; next to llama.cpp's if it is installed.

    Raises
    ------
    VkschedError
        The benchmark ended without results.
    """
    ops = _bench(device, "ops", OP_CASES)
    found = [*_peaks(ops), *_rates(ops)]
    there = importlib.util.find_spec("llama_cpp") is not None
    llm = _bench(device, "llm", LLM_CASES, ("--baselines", LLAMA) if there else ())
    return [*found, *_tokens(llm)]


def _bench(device: str, suite: str, cases: str, more: Sequence[str] = ()) -> dict[str, Any]:
    command = [sys.executable, "-m", "vksched", "bench", "--suite", suite, "--devices", device]
    command += ["--case", cases, "--time-budget", "1", "--tune", "0", "--json", *more]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise VkschedError(
            f"[doctor] expected measurements of {device} within {LIMIT_S:.0f} s, got none"
        ) from None
    try:
        data: dict[str, Any] = parse(done.stdout, dict[str, Any], "the results")
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise VkschedError(f"[doctor] the measurements of {device} failed: {last}") from None
    return data


def _peaks(data: dict[str, Any]) -> Iterator[Measurement]:
    for device in data["devices"]:
        peak = device["ceiling"]
        yield Measurement("float32 arithmetic", "GFLOP/s", peak["flops_per_s"] / 1e9, {})
        yield Measurement("copy in memory", "GB/s", peak["bytes_per_s"] / 1e9, {})


def _rates(data: dict[str, Any]) -> Iterator[Measurement]:
    """Yield GFLOP/s of matmuls, and GB/s of other ops."""
    for result in data["results"]:
        is_matmul = result["spec"]["kind"] == "matmul"
        work, unit = (result["flops"], "GFLOP/s") if is_matmul else (result["bytes"], "GB/s")
        yield from _measured(result, work / 1e9, unit)


def _tokens(data: dict[str, Any]) -> Iterator[Measurement]:
    for result in data["results"]:
        params = result["spec"]["params"]
        count = params["tokens"] if params["phase"] == "prompt" else 1
        yield from _measured(result, float(count), "tokens/s")


def _measured(result: dict[str, Any], work: float, unit: str) -> Iterator[Measurement]:
    rates = {f["runner"]: work / f["seconds"] for f in result["figures"] if f["seconds"]}
    if "vksched" in rates:
        ours = rates.pop("vksched")
        yield Measurement(result["spec"]["name"], unit, ours, rates)
