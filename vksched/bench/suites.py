"""The suites of the package, and their cases."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ..common.errors import GraphError
from ..importers import require_gguf
from ..ir.precision import SINGLE
from .baselines.workloads import COPY, ROUNDED_NMSE, Spec, in_precision
from .llm_start_time import start_facts
from .networks_runner import model_facts
from .overhead import overhead_facts
from .serve_table import SERVE_OPTIONS, serve_table
from .suite_loader import Facts, Ready, Suite, SuiteOptions, load_suites

DEFAULT = SuiteOptions()
HALF = {"storage": "float16"}
BUS_BYTES = 256 << 20
LARGE_PRODUCTS: tuple[tuple[int, dict[str, str]], ...] = (
    *((size, {}) for size in (4096, 8192)),
    *((size, HALF) for size in (1024, 2048, 4096, 8192)),
)
RESNET18 = (
    # channels, size, out, kernel, stride
    (3, 224, 64, 7, 2),
    (64, 56, 64, 3, 1),
    (64, 56, 128, 3, 2),
    (64, 56, 128, 1, 2),
    (128, 28, 128, 3, 1),
    (128, 28, 256, 3, 2),
    (256, 14, 256, 3, 1),
    (512, 7, 512, 3, 1),
)


def _matmul(m: int, k: int, n: int, group: str, name: str = "", **more: Any) -> Spec:
    batch = f"{more['batch']} x " if "batch" in more else ""
    transposed = "".join(f" {t}" for t in ("a", "b") if more.get(f"transpose_{t}"))
    text = name or f"{m} x {k} x {n}"
    label = f"matmul {batch}{text}{' transposed' + transposed if transposed else ''}"
    return Spec(label, "matmul", group, {"m": m, "k": k, "n": n, **more})


def _ops() -> Iterator[Spec]:
    for size in (256, 512, 1024, 2048):
        yield _matmul(size, size, size, "matmul square", str(size))
    for size in (64, 255, 1000, 1023):
        yield _matmul(size, size, size, "matmul shapes", str(size))
    for m, k, n in ((37, 2048, 2048), (4096, 128, 128), (8, 1024, 1024), (64, 4096, 256)):
        yield _matmul(m, k, n, "matmul shapes")
    yield _matmul(128, 64, 128, "matmul shapes", batch=12)
    yield _matmul(512, 512, 512, "matmul shapes", "512", transpose_a=True)
    yield _matmul(512, 512, 512, "matmul shapes", "512", transpose_b=True)
    for size, more in LARGE_PRODUCTS:
        of = " float16" if more else ""
        group = f"matmul{of} on GPUs"
        yield _matmul(size, size, size, group, f"{size}{of}", hardware=True, **more)
    for storage in ("float32", "float16"):
        params = {"m": 1, "k": 4096, "n": 4096, "storage": storage}
        yield Spec(f"matvec 4096 {storage}", "matmul", "matvec", params)
    flat: dict[str, Any] = {"shape": [4096, 4096]}
    for op in ("add", "mul"):
        yield Spec(f"{op} 16 M", "binary", "16 M values", {"op": op, **flat})
    for op in ("relu", "gelu", "exp"):
        yield Spec(f"{op} 16 M", "unary", "16 M values", {"op": op, **flat})
    for sizes in ((4096, 1024), (16384, 1024)):
        label, shape = "{} x {}".format(*sizes), {"shape": list(sizes)}
        for kind in ("softmax", "layer_norm", "rms_norm"):
            yield Spec(f"{kind.replace('_', ' ')} {label}", kind, "16 M values", shape)
    for op, axis in (("sum", 1), ("sum", 0), ("max", 1)):
        where = "rows" if axis else "columns"
        params = {"op": op, "axis": axis, **flat}
        yield Spec(f"reduce {op} {where} 16 M", "reduce", "16 M values", params)
    yield Spec("transpose 16 M", "transpose", "16 M values", {"axes": [1, 0], **flat})
    heads = {"axes": [0, 2, 1, 3], "shape": [8, 2048, 16, 64]}
    yield Spec("transpose heads 16 M", "transpose", "16 M values", heads)
    rows: dict[str, Any] = {"shape": [32768, 256], "count": 65536}
    yield Spec("gather rows 16 M", "gather", "16 M values", rows)
    plain = {"channels": 64, "size": 56, "out": 64, "pad": 0, "kernel": 1}
    yield Spec("conv 1x1 64 56", "conv", "conv", plain)
    params = {**plain, "kernel": 3, "pad": 1}
    yield Spec("conv depthwise 64 56", "conv", "conv", {**params, "groups": 64})
    for channels, size, out, kernel, stride in RESNET18:
        label = f"conv {kernel}x{kernel} {channels} {size} to {out}{' /2' if stride > 1 else ''}"
        params = {"channels": channels, "size": size, "out": out, "kernel": kernel}
        yield Spec(label, "conv", "conv", {**params, "stride": stride, "pad": kernel // 2})
    params = {"heads": 12, "tokens": 512, "width": 64}
    yield Spec("attention 12 x 512 x 64", "attention", "attention", params)


def _overhead() -> Iterator[Spec]:
    for ops in (10, 50, 200, 800):
        yield Spec(f"{ops} tiny ops", "chain", "overhead", {"count": 64, "ops": ops})
    params = {"count": 64, "ops": 200, "fused": True}
    yield Spec("200 tiny ops fused", "chain", "overhead fused", params)
    for direction, label in (("in", "to the device"), ("out", "from the device")):
        how: dict[str, Any] = {"bytes": BUS_BYTES, "direction": direction, "hardware": True}
        yield Spec(f"copy of {BUS_BYTES >> 20} MiB {label}", COPY, "bus", how)


def _models() -> Iterator[Spec]:
    for label, params in (
        ("MiniLM 8 x 32 tokens", {"model": "minilm", "batch": 8, "tokens": 32}),
        ("ResNet-18", {"model": "resnet18"}),
        ("MobileNet-V2", {"model": "mobilenet"}),
        ("GPT-2-mini step", {"model": "gpt2_mini"}),
        ("ResNet-50", {"model": "resnet50", "hardware": True}),
        ("GPT-2 prompt 512", {"model": "gpt2_prompt", "tokens": 512, "hardware": True}),
    ):
        yield Spec(label, "model", "models", params)


def _llm(options: SuiteOptions) -> Iterator[Spec]:
    require_gguf()
    from .language.llm_cases import language_specs

    return language_specs(options.models, options.cache_type, options.precision)


def _serve(options: SuiteOptions) -> Iterator[Spec]:
    require_gguf()
    from .serve_cases import serve_specs

    return serve_specs(options)


@contextmanager
def _llm_files(specs: Sequence[Spec]) -> Iterator[Ready]:
    from .language.llm_cases import Cases

    with closing(Cases(specs)) as cases:
        yield cases.ready


def _kernel_facts(device: str, specs: Sequence[Spec], pythons: Sequence[str], _: Ready) -> Facts:
    return {f"{spec.name}: its kernels": model_facts(device, spec, pythons) for spec in specs}


def _trivial_run(device: str, *_: object) -> Facts:
    return {"a run of nothing": overhead_facts(device)}


def _start_facts(device: str, specs: Sequence[Spec], _: Sequence[str], ready: Ready) -> Facts:
    loads = [spec for spec in specs if spec["phase"] == "load"]
    return {f"{spec.name}: starts": start_facts(device, ready(spec)) for spec in loads}


SUITES = {
    suite.name: suite
    for suite in (
        Suite("ops", lambda _: _ops(), has_precision=True),
        Suite("models", lambda _: _models(), has_precision=True, device_facts=_kernel_facts),
        Suite("overhead", lambda _: _overhead(), may_be_empty=True, device_facts=_trivial_run),
        Suite("llm", _llm, ("llama.cpp",), ready=_llm_files, device_facts=_start_facts),
        Suite("serve", _serve, ("llama-server",), SERVE_OPTIONS, table=serve_table),
    )
}
"""The suites of the package."""


def find_suite(name: str, folders: Sequence[str | Path] = ()) -> Suite:
    """Return a suite of the folders, else of the package. Raise GraphError if it is unknown."""
    suites = {**SUITES, **load_suites(folders)}
    if name not in suites:
        raise GraphError(
            f"[bench] expected a suite of {', '.join(suites)}, got {name!r}; --suite-dir names "
            "folders with more"
        )
    return suites[name]


def specs_of(
    suite: Suite | str, pattern: str | None = None, options: SuiteOptions = DEFAULT
) -> list[Spec]:
    """Return the cases of a suite that match a pattern.

    models: files of the suite "llm", instead of random models. cache_type: element type of its KV
    cache. precision: precision of matmuls; suites of `PRECISE` are then reduced to affected cases.
    packages: folders with packages, for the suite "clients". Raise GraphError for an unknown suite,
    case or precision, ModelFormatError if a file is no language model.
    """
    suite = find_suite(suite) if isinstance(suite, str) else suite
    precision = options.precision
    if suite.has_precision and precision not in (SINGLE, *ROUNDED_NMSE):
        words = ", ".join((SINGLE, *ROUNDED_NMSE))
        raise GraphError(
            f"[bench] expected a precision of {words} for suite {suite.name}, got {precision!r}"
        )
    every = list(suite.cases(options))
    pairs = [(spec, spec) for spec in every]
    if precision != SINGLE and suite.has_precision:
        precise = ((spec, in_precision(spec, precision)) for spec in every)
        pairs = [(spec, prepared) for spec, prepared in precise if prepared is not None]
    names = {spec.name for pair in pairs for spec in pair}
    found = [
        prepared
        for spec, prepared in pairs
        if matches(spec.name, pattern, names) or matches(prepared.name, pattern, names)
    ]
    if not suite.may_be_empty and not found:
        raise GraphError(
            f"[bench] no case of suite {suite.name} matches {pattern!r}; try --list, which names "
            "them"
        )
    return found


def fitting(specs: Sequence[Spec], type_: str) -> list[Spec]:
    """Return the cases for a device of a type: software devices skip hardware cases, unless no
    other cases are selected.
    """
    software = [spec for spec in specs if not spec.get("hardware")]
    return software if type_ == "cpu" and software else list(specs)


def matches(name: str, pattern: str | None, names: Collection[str] = ()) -> bool:
    """Return True if one of the comma-separated patterns matches a name: the name itself, an
    fnmatch pattern, or a part of it if no case has exactly that name. Case-insensitive.
    """
    name, whole = name.lower(), {one.lower() for one in names}
    for part in (pattern or "*").lower().split(","):
        part = part.strip()
        glob = part if part in whole or "*" in part else f"*{part}*"
        if fnmatch.fnmatchcase(name, glob):
            return True
    return False
