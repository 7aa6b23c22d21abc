"""A program with llama-server's options that starts `vksched serve`, for llama.cpp's server tests.

LLAMA_TESTS_MODEL names the file of the model, which replaces all models of the tests: they are not
in a package index. A chat template becomes that of a copy of the model. An option without a
counterpart ends the program with a line on standard error. Options of llama.cpp's own computation
are ignored, as are defaults of request parameters. Example: scripts/checks/llama_tests.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_tests import FOLDER, small_model

MODEL_VARIABLE = "LLAMA_TESTS_MODEL"
IGNORED = {
    "--temp": 1, "--seed": 1, "--n-predict": 1, "--hf-repo": 1, "--hf-file": 1, "--tags": 1,
    "--batch-size": 1, "--ubatch-size": 1, "--threads": 1, "--n-gpu-layers": 1, "-fa": 1,
    "--offline": 0, "--cont-batching": 0, "--metrics": 0, "--slots": 0, "--no-slots": 0,
    "--kv-unified": 0, "--swa-full": 0, "--verbose": 0, "--no-ui": 0, "--jinja": 0,
    "--no-jinja": 0, "--no-cache-idle-slots": 0, "--reasoning-format": 1, "--reasoning": 1,
}  # fmt: skip
"""Options without an effect, and the number of their values."""
SAME = ("--port", "--host", "--alias")
"""Options of both programs."""
NAMES = (
    "test", "davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1",
    "text-embedding-3-small",
)  # fmt: skip
"""Model names of the tests' requests: llama-server takes any name."""
DEFAULT_SLOTS = 4


class Unsupported(Exception):
    """An option without a counterpart."""


def translate(words: Sequence[str], model: str, key_file: str = "") -> tuple[list[str], str]:
    """Return the arguments of `vksched`, and the API key of the server.

    key_file: the file that will have the key. Raise Unsupported for an option without a
    counterpart.
    """
    out = ["--devices", "cpu", "--precision", "float32"]
    rest = list(words)
    context, slots, key, pooling = 0, DEFAULT_SLOTS, "", ""
    while rest:
        option = rest.pop(0)
        if option in IGNORED:
            del rest[: IGNORED[option]]
        elif option == "--embedding":
            pooling = pooling or "mean"
        elif option == "--ctx-size":
            context = int(rest.pop(0))
        elif option == "--parallel":
            slots = int(rest.pop(0))
        elif option == "--api-key":
            key = rest.pop(0)
            out += ["--api-key-file", key_file]
        elif option == "--pooling":
            pooling = rest.pop(0)
        elif option == "--chat-template-file":
            template = Path(rest.pop(0))
            text = template.read_text(encoding="utf-8")
            model = str(small_model(FOLDER / f"{template.stem}.gguf", text))
        elif option == "--cache-ram":
            out += ["--cache-ram", f"{max(0, int(rest.pop(0)))}MiB"]
        elif option == "--cors-origins":
            out += [word for site in rest.pop(0).split(",") for word in ("--cors-origin", site)]
        elif option in SAME:
            out += [option, rest.pop(0)]
        else:
            raise Unsupported(option)
    if context:
        out += ["--ctx-size", str(context // slots)]
    if pooling in ("none", "rank"):
        raise Unsupported(f"--pooling {pooling}")
    out += ["--pooling", pooling] if pooling else []
    out += ["--slots", str(slots)]
    out += [word for name in NAMES for word in ("--alias", name)]
    return ["serve", model, *out], key


def main() -> None:
    key_file = FOLDER / "server.key"  # one server starts at a time
    try:
        words, key = translate(sys.argv[1:], os.environ[MODEL_VARIABLE], str(key_file))
    except Unsupported as option:
        sys.exit(f"[shim] no counterpart of {option}")
    if key:
        key_file.touch(mode=0o600)
        key_file.write_text(f"{key}\n", encoding="utf-8")
    os.execv(sys.executable, [sys.executable, "-m", "vksched", *words])


if __name__ == "__main__":
    main()
