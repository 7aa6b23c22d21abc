"""Run samples of PyTorch's own op database through the backend, and compare with eager PyTorch.

    python scripts/checks/torch_ops.py                  # core ATen ops on the CPU, 8 samples each
    python scripts/checks/torch_ops.py --device vulkan:0 add mul
    python scripts/checks/torch_ops.py --write          # also the data and table of the docs

It needs the package expecttest. A sample counts as "device" if all its ops have rules, as "eager"
if some run in eager PyTorch, and as "wrong" if a result differs by more than the tolerance. Exit
code 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import vksched as vs
from vksched.torch.decompositions import decompositions
from vksched.torch.lower import op_name
from vksched.torch.program import Program, ProgramInfo
from vksched.torch.runtime import BackendOptions, Runtime

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "reference" / "data" / "torch-ops.json"
PAGE = ROOT / "docs" / "guides" / "pytorch.md"
BEGIN = "<!-- table: python scripts/checks/torch_ops.py --write -->"
END = "<!-- end of the table -->"
RANDOM = ("dropout", "rand", "bernoulli", "normal", "multinomial", "empty", "rrelu", "uniform")
"""Parts of the names of ops whose results are random or undefined."""
FUNCTIONAL = (
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *("linear", "scaled_dot_product_attention", "batch_norm", "layer_norm", "group_norm"),
    *("instance_norm", "rms_norm", "max_pool2d", "interpolate", "cross_entropy", "nll_loss"),
    *("softmax", "log_softmax", "pad", "pixel_shuffle"),
)
"""Names of functions in torch.nn.functional that run as core ATen ops with other names."""
TOLERANCE = 1e-4


def main() -> int:
    args = _arguments()
    with vs.Scheduler([args.device]) as scheduler:
        rows = {}
        for name, counts in examine(scheduler, args.ops, args.samples):
            rows[name] = counts
            print(f"{name:40} {dict(counts)}", flush=True)
    total = sum((Counter(r["counts"]) for r in rows.values()), Counter[str]())
    print(_summary(total))
    if args.write:
        write_results(args.device, rows)
    return int(total["wrong"] > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", help="names of ops; default: all of core ATen")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=8, help="maximum number per op")
    parser.add_argument("--write", action="store_true", help="store the data and the table")
    return parser.parse_args()


def core_names() -> set[str]:
    """Return the names of core ATen ops."""
    found = set()
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            if torch.Tag.core in getattr(packet, overload).tags:
                found.add(name)
    return found


def examine(
    scheduler: vs.Scheduler, names: list[str], limit: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the result of each op: counts of samples by outcome, and reasons."""
    core = core_names() | {f"nn.functional.{name}" for name in FUNCTIONAL}
    for info in op_db:
        wanted = info.name in names if names else info.name in core or info.aten_name in core
        if not wanted or any(part in info.name for part in RANDOM):
            continue
        if torch.float32 not in info.dtypes:
            continue
        label = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
        yield label, _examine_op(scheduler, info, limit)


def _examine_op(scheduler: vs.Scheduler, info: Any, limit: int) -> dict[str, Any]:
    counts, reasons = Counter[str](), Counter[str]()
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=False)
    certain = (sample for sample in samples if not sample.kwargs.get("dropout_p"))
    for sample in islice(certain, limit):
        outcome, why = examine_sample(scheduler, info, sample)
        counts[outcome] += 1
        reasons.update(why)
    return {"counts": dict(counts), "reasons": dict(reasons)}


def examine_sample(scheduler: vs.Scheduler, info: Any, sample: Any) -> tuple[str, list[str]]:
    """Return "device", "eager", "wrong" or "untraced", and reasons."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: Any) -> list[Any]:
        values = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            values[i] = tensor
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        found = info.op(first, *args, **kwargs)
        return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]

    inputs = [leaves[i].detach() for i in at]
    try:
        expected = call(*inputs)
        decomposed = _traced(call, inputs)  # decompositions may change tensors of their own
        module = _traced(torch.func.functionalize(decomposed, remove="mutations"), inputs)
        module.graph.eliminate_dead_code()
    except Exception as error:  # Dynamo breaks the graph at these, such as data-dependent shapes
        return "untraced", [type(error).__name__]
    runtime = Runtime(scheduler, BackendOptions(scheduler=scheduler))
    program = Program(runtime, module, ProgramInfo("inference", {}))
    found = program(list(inputs))
    (special,) = program.specialisations.values()
    reasons = [
        f"{op_name(n)}: {why}" for n, why in special.unsupported.items() if op_name(n) != "getitem"
    ]
    for got, wanted in zip(found, expected, strict=True):
        try:
            torch.testing.assert_close(
                got, wanted, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True, check_stride=False
            )
        except AssertionError as error:
            return "wrong", [str(error).splitlines()[0]]
    return ("eager" if reasons else "device"), reasons


def _traced(fn: Any, inputs: list[Any]) -> Any:
    return make_fx(fn, decomposition_table=decompositions(), tracing_mode="fake")(*inputs)


def _summary(total: Counter[str]) -> str:
    traced = total["device"] + total["eager"] + total["wrong"]
    share = 100 * total["device"] / max(traced, 1)
    return (
        f"{traced} samples: {total['device']} on the device ({share:.1f} %), {total['eager']} with "
        f"eager ops, {total['wrong']} wrong; {total['untraced']} are not traced"
    )


def write_results(device: str, rows: dict[str, Any]) -> None:
    """Store results, replacing those of the same ops, and write the table of ops that do not run
    wholly on devices.
    """
    held = json.loads(DATA.read_text("utf-8"))["ops"] if DATA.exists() else {}
    rows = dict(sorted({**held, **rows}.items()))
    DATA.write_text(json.dumps({"device": device, "ops": rows}, indent=1) + "\n", "utf-8")
    total = sum((Counter(r["counts"]) for r in rows.values()), Counter[str]())
    lines = [BEGIN, _summary(total) + ".", "", "| op | samples with eager ops | reason |"]
    lines.append("|---|---|---|")
    for name, row in sorted(rows.items()):
        counts = row["counts"]
        if counts.get("eager"):
            traced = sum(counts.values()) - counts.get("untraced", 0)
            op, _, why = next(iter(row["reasons"]), "").partition(": ")
            reason = f"{op}: {why.removeprefix(op).strip()}".replace("|", "/")
            lines.append(f"| `{name}` | {counts['eager']} of {traced} | {reason} |")
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + "\n".join([*lines, END]) + rest.partition(END)[2], "utf-8")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.exit(main())
