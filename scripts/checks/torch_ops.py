"""Run samples of PyTorch's own op database through the backend, and compare with eager PyTorch.

    python scripts/checks/torch_ops.py                  # core ATen ops on the CPU, 3 samples each
    python scripts/checks/torch_ops.py --device vulkan:0 add mul
    python scripts/checks/torch_ops.py --write          # also the data and table of the docs

It needs the package expecttest. A sample is compiled by AOTAutograd, as by `torch.compile`. Its
outcome is "device" if all its ops run on the device, "eager" if some run in eager PyTorch, on numpy
or after a graph break, and "wrong" if a result or a changed argument differs by more than the
tolerance, or if the backend raises an error. It is "random" if random numbers affect the results:
they differ by design and are not compared. Exit code 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import vksched as vs
from vksched.torch.backend import boxed
from vksched.torch.decompositions import decompositions
from vksched.torch.lower import op_name
from vksched.torch.program import Program, ProgramInfo, Specialisation
from vksched.torch.runtime import BackendOptions, Runtime
from vksched.torch.segment import DeviceSegment

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
    *("softmax", "log_softmax", "pad", "pixel_shuffle", "elu", "embedding", "embedding_bag"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "fold", "pdist"),
)
"""Names of functions in torch.nn.functional that run as core ATen ops with other names."""
OTHERS = {"cdist", "__getitem__", "item", "to", "fft.rfft", "fft.irfft"}
"""Names of more functions that run as core ATen ops with other names."""
DTYPES = (torch.float32, torch.int64)
"""The element types of samples: the first one that an op has."""
GRAPH_BREAKS = (DynamicOutputShapeException, DataDependentOutputException)
"""Errors of tracing that make Dynamo run an op in eager PyTorch."""
TOLERANCE = 1e-4
Row = dict[str, dict[str, int]]


def main() -> int:
    args = _arguments()
    labels = {d.name: d.label for d in vs.devices()}
    rows = {}
    with vs.Scheduler([args.device]) as scheduler:
        for name, row in examine(scheduler, args.ops, args.samples):
            rows[name] = row
            print(f"{name:40} {row['counts']}", flush=True)
            for reason, count in row["reasons"].items():
                print(f"    {reason} ({count})", flush=True)
    total = total_of(rows)
    print(_summary(total))
    if args.write:
        write_results("cpu" if args.device == "cpu" else labels[args.device], rows)
    return int(total["wrong"] > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("ops", nargs="*", help="names of ops; default: all of core ATen")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=3, help="maximum number per op")
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


def examine(scheduler: vs.Scheduler, names: list[str], limit: int) -> Iterator[tuple[str, Row]]:
    """Yield the result of each op: counts of samples by outcome, and reasons."""
    core = core_names() | {f"nn.functional.{name}" for name in FUNCTIONAL} | OTHERS
    for info in op_db:
        wanted = info.name in names if names else info.name in core or info.aten_name in core
        if not wanted or any(part in info.name for part in RANDOM):
            continue
        dtype = next((dtype for dtype in DTYPES if dtype in info.dtypes), None)
        if dtype is not None:
            label = f"{info.name}.{info.variant_test_name}" if info.variant_test_name else info.name
            yield label, _examine_op(scheduler, info, dtype, limit)


def _examine_op(scheduler: vs.Scheduler, info: Any, dtype: Any, limit: int) -> Row:
    """Return the outcomes of the first samples, `limit` of them besides random ones."""
    counts, reasons = Counter[str](), Counter[str]()
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        outcome, why = examine_sample(scheduler, info, sample)
        counts[outcome] += 1
        reasons.update(why)
        if counts.total() - counts["random"] == limit:
            break
    return {"counts": dict(sorted(counts.items())), "reasons": dict(reasons)}


def examine_sample(scheduler: vs.Scheduler, info: Any, sample: Any) -> tuple[str, list[str]]:
    """Return "device", "eager", "random" or "wrong", and reasons."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def call(*tensors: Any) -> list[Any]:
        values = list(leaves)
        for i, tensor in zip(at, tensors, strict=True):
            values[i] = tensor
        first, args, kwargs = pytree.tree_unflatten(values, spec)
        found = info.op(first, *args, **kwargs)
        return [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]

    runtime = Runtime(scheduler, BackendOptions(scheduler=scheduler))
    built: list[Program] = []

    def compiler(module: Any, _: Any) -> Any:
        built.append(Program(runtime, module, ProgramInfo("inference", {})))
        return boxed(built[-1])

    compiled = aot_function(
        call, fw_compiler=compiler, inference_compiler=compiler, decompositions=decompositions()
    )
    wanted_inputs, inputs = ([copy_of(leaves[i]) for i in at] for _ in range(2))
    try:
        with torch.no_grad():
            wanted, found = call(*wanted_inputs), compiled(*inputs)
    except GRAPH_BREAKS as error:
        return "eager", [f"graph break: {type(error).__name__}: {error}".splitlines()[0]]
    except Exception as error:
        return "wrong", [f"{type(error).__name__}: {error}".splitlines()[0]]
    specials = [special for program in built for special in program.specialisations.values()]
    reasons = [reason for special in specials for reason in _missing(special, scheduler)]
    if sample.kwargs.get("dropout_p"):
        return "random", reasons
    for got, expected in zip((*found, *inputs), (*wanted, *wanted_inputs), strict=True):
        try:
            torch.testing.assert_close(
                got, expected, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True, check_stride=True
            )
        except AssertionError as error:
            return "wrong", [str(error).splitlines()[0]]
    return ("eager" if reasons else "device"), reasons


def copy_of(tensor: Any) -> Any:
    """Return a tensor with the values, the layout and the whole memory of another one."""
    memory = tensor.untyped_storage().clone()
    place = (tensor.storage_offset(), tensor.size(), tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, *place)


def _missing(special: Specialisation, scheduler: vs.Scheduler) -> Iterator[str]:
    """Yield the ops that do not run on the device of a scheduler, with the reason."""
    for node, why in special.unsupported.items():
        if op_name(node) != "getitem":
            yield f"{op_name(node)}: {why.removeprefix(op_name(node)).strip()}"
    for step in special.steps:
        if isinstance(step, DeviceSegment):
            plan = step.compiled.plan
            names = [device.name for device in plan.topology.devices]
            for node, place in zip(plan.graph.nodes, plan.placements, strict=True):
                computes = not node.declaration.leaf and plan.graph.view_bases[node.id] == node.id
                if computes and names[place.device] != scheduler.devices[0].name:
                    yield f"{node.op} on {names[place.device]}: {place.reason}"


def total_of(rows: Mapping[str, Row]) -> Counter[str]:
    """Return the number of samples by outcome."""
    return sum((Counter(row["counts"]) for row in rows.values()), Counter[str]())


def _summary(total: Counter[str]) -> str:
    compared = total["device"] + total["eager"] + total["wrong"]
    share = 100 * total["device"] / max(compared, 1)
    return (
        f"{compared} samples: {total['device']} on the device ({share:.1f} %), {total['eager']} "
        f"with eager ops, {total['wrong']} wrong; {total['random']} random ones are not compared"
    )


def write_results(device: str, rows: dict[str, Row]) -> None:
    """Store results, replacing those of the same device and ops, and write the table of ops that
    do not run wholly on devices.
    """
    held = json.loads(DATA.read_text("utf-8")) if DATA.exists() else {}
    held[device] = dict(sorted({**held.get(device, {}), **rows}.items()))
    DATA.write_text(json.dumps(held, indent=1) + "\n", "utf-8")
    lines = [BEGIN, "| device | samples | on the device | with eager ops | wrong | random |"]
    lines += ["|---|---|---|---|---|---|", *[_device_row(name, held[name]) for name in held]]
    lines += ["", f"| op | {' | '.join(held)} | reason |", "|---" * (len(held) + 2) + "|"]
    for name in sorted({name for each in held.values() for name in each}):
        results = [each.get(name, {"counts": {}, "reasons": {}}) for each in held.values()]
        if any(row["counts"].keys() - {"device", "random"} for row in results):
            reasons = Counter(reason for row in results for reason in row["reasons"])
            shares = " | ".join(_share(row["counts"]) for row in results)
            first = next(iter(reasons), "").replace("|", "/")
            lines.append(f"| `{name}` | {shares} | {first} |")
    text = PAGE.read_text("utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + "\n".join([*lines, END]) + rest.partition(END)[2], "utf-8")


def _device_row(device: str, rows: Mapping[str, Row]) -> str:
    total = total_of(rows)
    compared = total.total() - total["random"]
    share = f"{total['device']} ({100 * total['device'] / compared:.1f} %)"
    cells = (device, compared, share, total["eager"], total["wrong"], total["random"])
    return f"| {' | '.join(map(str, cells))} |"


def _share(counts: Mapping[str, int]) -> str:
    return f"{counts.get('device', 0)} of {sum(counts.values()) - counts.get('random', 0)}"


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sys.exit(main())
