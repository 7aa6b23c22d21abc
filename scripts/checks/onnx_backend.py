"""Run the tests of onnx.backend.test through vksched, and print what passes, where, and why not.

    python scripts/checks/onnx_backend.py --only "reduce_*" --devices vulkan:0 -v
    python scripts/checks/onnx_backend.py --op Conv --op "*Pool" --devices cpu,vulkan:0
    python scripts/checks/onnx_backend.py --write         # the tables of the docs, from all tests
    python scripts/checks/onnx_backend.py --reference  # data/onnx_reference.json anew

Each --devices is one set of devices; devices joined by + are used at once (vulkan:0+vulkan:1).
Exit code 1 when a test fails that the reference evaluator passes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from collections import Counter
from contextlib import ExitStack
from fnmatch import fnmatch
from pathlib import Path

import onnx_cases as cases

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs"))
import onnx_page


def main() -> int:
    args = _arguments()
    if args.reference:
        cases.write_reference()
        return 0
    started = time.perf_counter()
    chosen = [case for case in cases.load_cases().values() if _is_chosen(case, args)]
    print(f"loaded {len(chosen)} tests in {time.perf_counter() - started:.1f} s")
    profile = cProfile.Profile() if args.profile else None
    with ExitStack() as stack:
        sets = {name: name.split("+") for name in args.devices.split(",")}
        runners = {
            name: stack.enter_context(cases.CaseRunner(devices))
            for name, devices in (onnx_page.SETS if args.write else sets).items()
        }
        started, cpu = time.perf_counter(), time.process_time()
        if profile:
            profile.enable()
        failed = _run(chosen, runners, args)
        if profile:
            profile.disable()
        taken, worked = time.perf_counter() - started, time.process_time() - cpu
        print(f"{taken:.1f} s, {worked:.1f} s of processor time")
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    return 1 if failed else 0


def _run(
    chosen: list[cases.BackendCase],
    runners: dict[str, cases.CaseRunner],
    args: argparse.Namespace,
) -> int:
    totals: dict[str, Counter[str]] = {name: Counter() for name in runners}
    plain: dict[str, Counter[str]] = {name: Counter() for name in runners}
    failed = 0
    results: dict[str, dict[str, cases.Outcome]] = {}
    for case in chosen:
        counts = cases.expected_to_pass(case)
        results[case.name] = cases.run_on_all(case, runners)
        for name, outcome in results[case.name].items():
            passed = outcome.error is None
            totals[name]["pass" if passed else "fail" if counts else "fail, not expected"] += 1
            totals[name][outcome.where] += 1
            if case.is_plain and case.kind == "node":
                plain[name][outcome.where] += 1
            failed += not passed and counts
            if args.verbose or (not passed and counts):
                _show(case, name, outcome, counts)
    for name in runners:
        print(f"{name}: {_text(totals[name])}")
        print(f"    node tests of float32, int32 and bool alone: {_text(plain[name])}")
    if args.write:
        onnx_page.write_data(results)
    return failed


def _show(case: cases.BackendCase, name: str, outcome: cases.Outcome, counts: bool) -> None:
    verdict = "pass" if outcome.error is None else "FAIL" if counts else "fails there, too"
    ran = ", ".join(f"{n} on {device}" for device, n in outcome.ran.items())
    print(f"{verdict:5} {outcome.where:6} {case.name} [{case.op}; {name}] {ran}")
    for op, reason in outcome.why.items():
        print(f"        {op}: {reason}")
    if outcome.error is not None:
        print(f"      ! {outcome.error}", flush=True)


def _text(counter: Counter[str]) -> str:
    return ", ".join(f"{n} {what}" for what, n in counter.items())


def _is_chosen(case: cases.BackendCase, args: argparse.Namespace) -> bool:
    by_name = any(fnmatch(case.name.removeprefix("test_"), pattern) for pattern in args.only)
    by_op = any(fnmatch(case.op, pattern) for pattern in args.op)
    return by_name or by_op or args.write or not (args.only or args.op)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="names, without test_")
    parser.add_argument("--op", action="append", default=[], help="names of ops")
    parser.add_argument("--devices", default="vulkan:0", help="sets of devices, by commas")
    parser.add_argument("-v", "--verbose", action="store_true", help="those that pass, too")
    parser.add_argument("--profile", action="store_true", help="where the time goes")
    parser.add_argument("--write", action="store_true", help="write the tables, from all tests")
    parser.add_argument("--reference", action="store_true", help="ask the evaluator anew")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
