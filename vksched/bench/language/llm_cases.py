"""Cases of language models: a file, a text, and the expected logits after it.

    load:        open the file, prepare the model, and process one token
    prompt N:    process N new tokens
    token at N:  decode one token after N others; 32 in turn, then truncate to the first N

Expected logits come from `model.logits` with numpy, with the file's weights in float32. All cases
of a model have one text, of random tokens, so that shorter cases are prefixes of longer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ...common.dtypes import INT32, NDArray
from ...importers import load_gguf
from ...importers.gguf.model import LanguageModel
from ...importers.gguf.read.tensors import GgufTensor
from ...ir.precision import SINGLE
from ...ir.tensor import input
from ...scheduler.scheduler import Scheduler
from ..baselines.workloads import GENERATED, LANGUAGE, Spec, text_of
from .random_models import TYPES, write_model

PROMPTS = (128, 512)
FILLS = (128, 2048)
CONTEXT = 4096
EXPERT = re.compile(r"\.ffn_\w+(_exps|\.\d+)\.weight$")
"""Names of expert weights, merged or separate."""
"""Context length of the cases, if the model supports it."""


def language_specs(
    files: Sequence[str | Path] = (), cache_type: str = "f32", precision: str = SINGLE
) -> Iterator[Spec]:
    """Yield the cases of the user's files, or of random models of all element types.

    cache_type: element type of the KV cache. precision: precision of vksched.
    """
    how = {"cache_type": cache_type, "precision": precision}
    for file in files:
        model = load_gguf(file)
        yield from _specs_of(Path(file).stem, main_type(model), context_of(model), how, str(file))
    for kind in () if files else TYPES:
        yield from _specs_of("random 27M", kind, CONTEXT, how)


def _specs_of(
    model: str, kind: str, context: int, how: Mapping[str, str], file: str = ""
) -> Iterator[Spec]:
    name = model if kind.lower() in model.lower() else f"{model} {kind}"
    name += f" {how['precision']}" if how["precision"] != SINGLE else ""
    shared = {"model": model, "type": kind, "context": context, **how}
    shared |= {"file": file} if file else {}
    yield Spec(f"{name} load", LANGUAGE, "load", {**shared, "phase": "load", "tokens": 1})
    for phase, counts in (("prompt", PROMPTS), ("token", FILLS)):
        for tokens in counts:
            params = {**shared, "phase": phase, "tokens": tokens}
            label = f"{name} {phase} {'at ' if phase == 'token' else ''}{tokens}"
            if length_of(params) <= context:
                yield Spec(label, LANGUAGE, phase, params)


def length_of(params: Mapping[str, Any]) -> int:
    """Return the number of tokens in the text of a case."""
    return int(params["tokens"]) + (GENERATED if params["phase"] == "token" else 0)


def main_type(model: LanguageModel) -> str:
    """Return the element type with most bytes in a file."""
    sizes: dict[str, int] = {}
    for tensor in model.file.tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__)


def context_of(model: LanguageModel) -> int:
    """Return the context length of the cases of a model."""
    return min(CONTEXT, model.hyper.context)


def work_of_model(model: LanguageModel, phase: str, tokens: int) -> tuple[float, float]:
    """Return the multiplications and additions of a call, and the bytes of weights that it must
    read, as stored in the file.

    Matmuls with weights count; attention does not. Only the last token of a prompt has logits. A
    token reads the weights of its experts; a prompt reads all experts.
    """
    tensors, hyper = model.file.tensors, model.hyper
    if phase == "load":
        return 0.0, float(model.parameter_bytes)
    head = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    flops, read_bytes = 2.0 * tensors[head].size, float(tensors[head].nbytes)
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1 or name in (head, "token_embd.weight"):
            continue
        used = hyper.experts_used / hyper.experts if EXPERT.search(name) else 1.0
        flops += 2.0 * tensor.size * used * (tokens if phase == "prompt" else 1)
        read_bytes += tensor.nbytes * (used if phase == "token" else 1.0)
    return flops, read_bytes


class Cases:
    """Prepare cases: write random models and expected results to a temporary folder."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self._specs = specs
        self._folder = TemporaryDirectory(prefix="vksched-bench-")
        self._ready: dict[str, Spec] = {}

    def ready(self, spec: Spec) -> Spec:
        """Return a case with all parameters for a runner."""
        if spec.kind != LANGUAGE:
            return spec
        if spec.name not in self._ready:
            same = [s for s in self._specs if _model_of(s) == _model_of(spec)]
            self._ready |= {s.name: s for s in self._of_model(same)}
        return self._ready[spec.name]

    def _of_model(self, specs: Sequence[Spec]) -> Iterator[Spec]:
        first, folder = specs[0], Path(self._folder.name)
        stem = folder / f"{len(self._ready)}-{first['type']}"
        file = first.get("file") or f"{stem}.gguf"
        if not first.get("file"):
            write_model(Path(file), first["type"])
        model = load_gguf(file)
        size = {"vocabulary": model.hyper.vocabulary, "file": file}
        ids = text_of(model.hyper.vocabulary, max(length_of(spec.params) for spec in specs))
        last = [_last(spec) for spec in specs]
        for spec, logits in zip(specs, expected_logits(model, ids, last), strict=True):
            expected = Path(f"{stem}-{spec['phase']}-{spec['tokens']}.npy")
            np.save(expected, logits)
            flops, read_bytes = work_of_model(model, spec["phase"], spec["tokens"])
            work = {"flops": flops, "bytes": read_bytes, "expected": str(expected)}
            yield replace(spec, params={**spec.params, **size, **work})

    def close(self) -> None:
        self._folder.cleanup()


def expected_logits(model: LanguageModel, ids: NDArray, last: Sequence[int]) -> NDArray:
    """Return the logits after the tokens at some indexes of a text: (indexes, vocabulary).

    ids: the text. They are computed with numpy, from the file's weights in float32.
    """
    tensors = {name: _widened(t) for name, t in model.file.tensors.items()}
    exact = LanguageModel(replace(model.file, tensors=tensors))
    length = max(last) + 1
    tokens = input("ids", (1, length), INT32)
    with Scheduler(["cpu"], on_device_failure="raise") as sched:
        run = sched.compile(exact.logits(tokens))
        logits: Any = run(ids=ids[None, :length])
        return np.array(logits[0, list(last)])


def _widened(tensor: GgufTensor) -> GgufTensor:
    values = tensor.to_numpy().reshape(-1).view(np.uint8).data
    return GgufTensor(tensor.name, tensor.shape, "F32", values)


def _last(spec: Spec) -> int:
    """Return the index of the token whose logits are compared."""
    return int(spec["tokens"]) - (0 if spec["phase"] == "token" else 1)


def _model_of(spec: Spec) -> tuple[str, str, str]:
    return spec["model"], spec["type"], spec.get("file", "")
