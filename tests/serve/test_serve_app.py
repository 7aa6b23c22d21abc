"""`vs.serve.app` and `vksched serve` with a real model: answers of `Chat`, embeddings, errors."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from gguf_models import write
from served import TINY, Client, chat, error_of, running, tiny_model
from split_models import COMPUTE, cards
from test_cli import call
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.common.errors import VkschedError
from vksched.generation.slot_steps import SlotSteps
from vksched.importers.gguf.model import LanguageModel
from vksched.ops.lowering import native_kernels
from vksched.serve import packages
from vksched.serve.device_recovery import DeviceRecovery

PROMPT = "hello, hey"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def client(model: LanguageModel) -> Iterator[Client]:
    with vs.Scheduler(["cpu"]) as sched:
        app = vs.serve.app(
            model, sched, ctx=128, slots=2, names=["a", "b"], pooling="mean", cache_ram=1 << 20
        )
        with running(app) as port:
            yield Client(port)


def text_of(client: Client, **more: Any) -> str:
    response = client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 12, **more})
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_the_answer_of_a_chat(client: Client, model: LanguageModel) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        greedy = vs.Sampling(temperature=0)
        expected = "".join(vs.Chat(sched, model, 128).generate(PROMPT, 12, greedy))
    assert text_of(client, temperature=0) == expected


@pytest.mark.parametrize("kind", ("F32", "Q8_0"))
def test_answers_do_not_depend_on_others(kind: str, tmp_path: Path) -> None:
    with vs.Scheduler(["cpu"]) as sched:
        app = vs.serve.app(tiny_model(tmp_path, kind=kind), sched, ctx=128, slots=4)
        with running(app) as port:
            check_independence(Client(port))


def test_guesses_do_not_change_answers(tmp_path: Path) -> None:
    model, texts = tiny_model(tmp_path, kind="Q8_0"), []
    with vs.Scheduler(["cpu"]) as sched:
        for speculation in (None, vs.Speculation(draft=model)):
            app = vs.serve.app(
                *(model, sched), ctx=128, slots=2, speculation=speculation, prepare=True
            )
            with running(app) as port:
                client = Client(port)
                texts.append([text_of(client, seed=seed, max_tokens=30) for seed in range(3)])
                metrics = client.get("/metrics").text
                used = re.search(r"vllm:spec_decode_num_accepted_tokens_total{.*} (.*)", metrics)
                assert used is not None
                is_guessed = speculation is not None and native_kernels.has_programs()
                assert (float(used[1]) > 0) == is_guessed
    assert texts[0] == texts[1]


@pytest.mark.parametrize("error", ["keys", "draft"])
def test_errors_leave_nothing_that_works(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread restores devices, and no thread repacks weights."""
    model = tiny_model(tmp_path)
    tokens: Any = byte_pair()["tokenizer.ggml.tokens"]
    fields = {**byte_pair(), "tokenizer.ggml.tokens": [*tokens[:-1], "other"]}
    write(TINY, tmp_path / "other.gguf", np.random.default_rng(0), fields)
    closed, close = [], SlotSteps.close
    started: list[object] = []
    monkeypatch.setattr(SlotSteps, "close", lambda self: (closed.append(self), close(self)))
    monkeypatch.setattr(DeviceRecovery, "start", started.append)
    with vs.Scheduler(["cpu"]) as sched:
        if error == "keys":
            with pytest.raises(AttributeError, match="encode"):
                vs.serve.app(model, sched, ctx=64, api_keys=[5])  # type: ignore[list-item]
        else:
            speculation = vs.Speculation(draft=vs.load(tmp_path / "other.gguf"))
            with pytest.raises(vs.ModelFormatError, match="expected token 260 of the draft"):
                vs.serve.app(model, sched, ctx=64, speculation=speculation)
            assert len(closed) == 1
    assert not started


def check_independence(client: Client) -> None:
    """Check that answers are the same to the bit, alone and together."""

    def ask(seed: int) -> Any:
        more = {"seed": seed, "logprobs": 3, "echo": True, "prompt": f"{PROMPT} {seed}"}
        body = {"max_tokens": 12, **more}
        return client.post("/v1/completions", json=body).json()["choices"]

    alone = [ask(seed) for seed in range(5)]
    with ThreadPoolExecutor(5) as pool:
        together = list(pool.map(ask, range(5)))
    for [other], [choice] in zip(together, alone, strict=True):
        assert other == choice


def test_both_names_are_the_model(client: Client) -> None:
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["a", "b"]
    assert text_of(client, model="b", temperature=0) == text_of(client, temperature=0)
    assert client.post("/v1/completions", json={"prompt": "a", "model": "c"}).status_code == 404


def test_embeddings_are_those_of_the_embedder(client: Client, model: LanguageModel) -> None:
    texts = ["hello", "hey he"]
    with vs.Scheduler(["cpu"]) as sched:
        embedder = vs.Embedder(sched, model, "mean", 128)
        expected = embedder.embed(texts)
        tokens = [embedder.encode(text) for text in texts]
        close(embedder.embed_tokens(tokens), expected)
    for value in (texts, tokens):
        answer = client.post("/v1/embeddings", json={"input": value}).json()
        vectors = [each["embedding"] for each in answer["data"]]
        close(np.array(vectors, np.float32), expected)
        assert [each["index"] for each in answer["data"]] == [0, 1]
        assert answer["usage"]["prompt_tokens"] == sum(map(len, tokens))
    body = {"input": "hello", "encoding_format": "base64", "dimensions": embedder.width}
    data = client.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]
    close(np.frombuffer(base64.b64decode(data), "<f4"), expected[0])


@pytest.mark.parametrize(
    ("field", "value"),
    [("input", ""), ("input", []), ("input", "a" * 200), ("input", [300]), ("input", {"a": 1}),
     ("dimensions", 7), ("encoding_format", "hex"), ("model", "other")],
)  # fmt: skip
def test_wrong_embeddings_requests_are_named(client: Client, field: str, value: Any) -> None:
    response = client.post("/v1/embeddings", json={"input": "a", field: value})
    assert 400 <= response.status_code < 500 and error_of(response)["param"] == field


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "PACKAGES", ("json", "no_package_of_this_name"))
    with pytest.raises(VkschedError, match=r'no_package_of_this_name.*"vksched\[serve\]"'):
        vs.serve.app  # noqa: B018 - the attribute checks


def test_nothing_of_the_extra_is_imported_otherwise() -> None:
    code = (
        "import sys, vksched as vs; vs.serve; vs.Chat; vs.Scheduler; import vksched.cli; "
        "vksched.cli.main.get_command(None, 'serve'); "
        "print([m for m in ('starlette', 'uvicorn', 'pydantic', 'llguidance', 'sse_starlette', "
        "'prometheus_client') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--slots", "0"], "neither auto nor a number"),
        (["--slots", "many"], "neither auto nor a number"),
        (["--cache-ram", "2GB"], "512MiB"),
        (["--port", "99999"], "65535"),
        (["--ssl-keyfile", "key.pem"], "--ssl-certfile"),
    ],
)
def test_wrong_options_are_named(
    capsys: pytest.CaptureFixture[str], options: list[str], text: str
) -> None:
    code, _, err = call(capsys, "serve", "model.gguf", *options)
    assert code == 2 and text in err


def test_errors_before_the_model_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, client: Client
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a-key-of-many-characters")
    keys.chmod(0o644)
    if os.name == "posix":
        code, _, err = call(capsys, "serve", "model.gguf", "--api-key-file", str(keys))
        assert code == 1 and "chmod 600" in err
    code, _, err = call(capsys, "serve", "model.gguf", "--port", str(client.port))
    assert code == 1 and "--port" in err and err.count("\n") == 1
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = call(capsys, "serve", "none.gguf", "--port", "0", "--host", "0.0.0.0")
    assert code == 1 and "--api-key-file restricts it" in err and "none.gguf" in err


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent as a signal")
def test_the_command_serves_until_ctrl_c(model: LanguageModel, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "vksched", "serve", str(model.file.path), "--port", "0"]
    command += ["--devices", "cpu", "--ctx-size", "64", "--slots", "1", "--alias", "named"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        lines = []
        port = 0
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"^named at http://127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
                break
        assert port, lines
        listed = Client(port).get("/v1/models")
        assert json.loads(listed.text)["data"][0]["id"] == "named"
        answer = Client(port).post("/v1/chat/completions", json=chat(max_tokens=2))
        assert answer.status_code == 200
        assert Client(port).get("/health", headers={"Host": "evil.example"}).status_code == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)


def test_the_split_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model(tmp_path)
    (file,) = tmp_path.glob("*.gguf")
    code, out, _ = call(capsys, "serve", str(file), "--devices", "cpu", "--slots=2", "--explain")
    assert code == 0 and out.strip() == "split layers, 2 slots: no GPU"
    with vs.Scheduler(["cpu"]) as sched:
        assert vs.serve.explain_split(model, sched, slots=2) == out.strip()
        app = vs.serve.app(model, sched, ctx=64, slots=2)
        assert app.split is not None and app.split.explain() == out.strip()
        app.close()
        with pytest.raises(vs.PlanError, match="for replicas: it needs 2 GPUs"):
            vs.serve.app(model, sched, split="replicas")


CLIENTS = 12
"""Enough that a request comes while another one runs."""


def test_replicas_behind_a_server(tmp_path: Path) -> None:
    """One of two cards is lost: the server is degraded and answers."""
    devices = cards(COMPUTE, COMPUTE)[1]
    lossy = vs.FaultInjectionDevice(devices[1], at=None, times=1)
    with warnings.catch_warnings(), vs.Scheduler([devices[0], lossy], tune=False) as sched:
        warnings.simplefilter("ignore", vs.VkschedWarning)
        app = vs.serve.app(tiny_model(tmp_path), sched, ctx=64, slots=2, split="replicas")
        with running(app) as port:
            client = Client(port)
            assert [slot["engine"] for slot in client.get("/slots").json()] == [0, 1]
            assert client.get("/health").json() == {"status": "ok"}
            expected = [text_of(client, seed=seed) for seed in range(CLIENTS)]
            lossy.at = 0
            with ThreadPoolExecutor(CLIENTS) as pool:
                found = list(pool.map(lambda seed: text_of(client, seed=seed), range(CLIENTS)))
            assert found == expected
            health = client.get("/health").json()
            assert health == {"status": "degraded", "failed_devices": ["null:1"]}
