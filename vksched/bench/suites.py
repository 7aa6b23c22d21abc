"""The cases of each suite."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..common.errors import GraphError
from ..common.user_warning import warn_user
from ..importers import require_gguf
from ..ir.precision import SINGLE
from .baselines.workloads import COPY, ROUNDED_NMSE, Spec, in_precision

SUITES = ("ops", "models", "overhead", "planning", "prediction", "devices", "llm", "clients")
PRECISE = ("ops", "models")
"""Suites whose cases may have a precision, beside "llm", whose cases know of their own."""
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
    turned = "".join(f" {t}" for t in ("a", "b") if more.get(f"transpose_{t}"))
    text = name or f"{m} x {k} x {n}"
    label = f"matmul {batch}{text}{' transposed' + turned if turned else ''}"
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


def _plain_models() -> Iterator[Spec]:
    """Those that a CPU driver takes, too, which stands beside other devices there."""
    return iter(fitting(list(_models()), "cpu"))


def specs_of(
    suite: str,
    pattern: str | None = None,
    models: Sequence[str | Path] = (),
    cache_type: str = "f32",
    packages: Sequence[Path] = (),
    precision: str = SINGLE,
) -> list[Spec]:
    """Returns the cases of a suite that `matches` chooses; planning has none.

    models: files of the suite "llm", instead of random models. cache_type: how it keeps keys and
    values. precision: that of products, also of the suites of `PRECISE`, of which only such cases
    are left that it changes something of. packages: folders with packages, for the suite "clients".

    Raises:
        GraphError: there is no such suite, case or precision. ModelFormatError: a file is no
            language model.
    """
    made: dict[str, Callable[[], Iterator[Spec]]] = {
        "ops": _ops,
        "overhead": _overhead,
        "models": _models,
        "planning": _none,
        "prediction": _plain_models,
        "devices": _plain_models,
        "llm": lambda: _llm(models, cache_type, precision),
        "clients": lambda: _clients(packages),
    }
    if suite not in made:
        raise GraphError(f"[bench] expected a suite of {', '.join(SUITES)}, got {suite!r}")
    if suite in PRECISE and precision not in (SINGLE, *ROUNDED_NMSE):
        words = ", ".join((SINGLE, *ROUNDED_NMSE))
        raise GraphError(
            f"[bench] expected a precision of {words} for suite {suite}, got {precision!r}"
        )
    every = list(made[suite]())
    pairs = [(spec, spec) for spec in every]
    if precision != SINGLE and suite in PRECISE:
        precise = ((spec, in_precision(spec, precision)) for spec in every)
        pairs = [(spec, made) for spec, made in precise if made is not None]
    names = {spec.name for pair in pairs for spec in pair}
    found = [
        made
        for spec, made in pairs
        if matches(spec.name, pattern, names) or matches(made.name, pattern, names)
    ]
    if suite not in ("overhead", "planning") and not found:
        raise GraphError(
            f"[bench] no case of suite {suite} matches {pattern!r}; try --list, which names them"
        )
    return found


def _llm(models: Sequence[str | Path], cache_type: str, precision: str) -> Iterator[Spec]:
    require_gguf()
    from .language.llm_cases import language_specs

    return language_specs(models, cache_type, precision)


def _clients(packages: Sequence[Path]) -> Iterator[Spec]:
    from .clients import advice, client_specs

    specs, missing = client_specs(packages)
    if missing:
        warn_user(f"[bench] no models of {', '.join(missing)}; {advice(missing)}")
    return iter(specs)


def _none() -> Iterator[Spec]:
    return iter(())


def fitting(specs: Sequence[Spec], type_: str) -> list[Spec]:
    """Returns the cases for a device of that type: software leaves out those for hardware, unless
    nothing else was asked for.
    """
    software = [spec for spec in specs if not spec.get("hardware")]
    return software if type_ == "cpu" and software else list(specs)


def matches(name: str, pattern: str | None, names: Collection[str] = ()) -> bool:
    """Returns whether one of the patterns, between commas, is of this name: the name itself, or
    one as in fnmatch, or a part of it where no case has just that name. Capitals count as small.
    """
    name, whole = name.lower(), {one.lower() for one in names}
    for part in (pattern or "*").lower().split(","):
        part = part.strip()
        glob = part if part in whole or "*" in part else f"*{part}*"
        if fnmatch.fnmatchcase(name, glob):
            return True
    return False
