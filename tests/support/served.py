"""Servers for tests: a tiny model whose steps are simulated, or answer with a text."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import uvicorn
from gguf_models import Tiny, write
from simulated_steps import SimulatedSteps
from starlette.types import ASGIApp
from tiny_vocabularies import byte_pair

import vksched as vs
from vksched.generation.batching.batching_engine import BatchingEngine
from vksched.generation.step_runner import Logits
from vksched.importers.gguf.model import LanguageModel
from vksched.serve.application import serve_model
from vksched.serve.http_server import Listener, uvicorn_config
from vksched.serve.limits import ServerLimits
from vksched.serve.metrics import ServerMetrics
from vksched.serve.model_service import ModelService

TINY = Tiny(layers=1, vocabulary=261, context=512)
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAME = "tiny"
dump = json.dumps


def tiny_model(folder: Path, template: str = TEMPLATE, kind: str = "F32") -> LanguageModel:
    """Write and load a model with a token per byte."""
    more = {**byte_pair(), "tokenizer.chat_template": template}
    write(replace(TINY, kind=kind), folder / "tiny.gguf", np.random.default_rng(0), more)
    model = vs.load(folder / "tiny.gguf")
    assert isinstance(model, LanguageModel)
    return model


class ScriptedSteps(SimulatedSteps):
    """Steps whose greedy answer is a text, then an end token; other tokens are unlikely."""

    def __init__(self, model: LanguageModel, answer: str, **options: Any) -> None:
        super().__init__(vocabulary=TINY.vocabulary, **options)
        ends = [max(model.tokenizer.ends)]
        self.script = [*model.tokenizer.encode(answer), *ends * 400]
        self._prompts = [0] * self.slots

    def prefill(
        self, slot: int, ids: Sequence[int], start: int, *, all_logits: bool = False
    ) -> Logits:
        logits = super().prefill(slot, ids, start, all_logits=all_logits)
        self._prompts[slot] = start + len(ids)
        rows = logits if all_logits else logits[None]
        rows[-1] = self._row(0)
        return logits

    def decode(self, slots: Sequence[int], ids: Sequence[int], starts: Sequence[int]) -> Logits:
        super().decode(slots, ids, starts)
        written = [at + 1 - self._prompts[slot] for slot, at in zip(slots, starts, strict=True)]
        return np.stack([self._row(count) for count in written])

    def _row(self, written: int) -> Logits:
        logits = np.zeros(self.vocabulary, np.float32)
        logits[self.script[written]] = 30
        return logits


class Answer:
    """An HTTP response."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status_code = response.status
        self.headers = response.headers
        self.text = response.read().decode()

    def json(self) -> Any:
        return json.loads(self.text)


class Client:
    """A client of a server in this process, with a connection per request."""

    def __init__(self, port: int) -> None:
        self.port = port

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> Answer:
        return self.request("POST", path, **options)

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | str | Iterable[bytes] | None = None,
        headers: Mapping[str, str | bytes] = MappingProxyType({}),
    ) -> Answer:
        """Send a request. content: an iterable is sent in chunks, without a length."""
        body = dump(json) if json is not None else content
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, 60)) as opened:
            opened.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                opened.putheader(name, value)
            if body is None or isinstance(body, (bytes, str)):
                data = body.encode() if isinstance(body, str) else body or b""
                opened.putheader("Content-Length", str(len(data)))
                opened.endheaders(data)
            else:
                opened.putheader("Transfer-Encoding", "chunked")
                opened.endheaders(body, encode_chunked=True)
            return Answer(opened.getresponse())


class Served:
    """An application with its engine and steps. answer: a text; None simulates steps."""

    def __init__(
        self,
        model: LanguageModel,
        answer: str | None = None,
        *,
        length: int = 400,
        max_queue: int = 64,
        before_call: Callable[[int], None] | None = None,
        limits: ServerLimits | None = None,
        **options: Any,
    ) -> None:
        self.metrics = ServerMetrics(NAME)
        if answer is None:
            self.steps = SimulatedSteps(
                vocabulary=TINY.vocabulary, length=length, before_call=before_call
            )
        else:
            self.steps = ScriptedSteps(model, answer, length=length, before_call=before_call)
        self.engine = BatchingEngine(
            self.steps, model.tokenizer.ends, max_queue=max_queue, observer=self.metrics.observe
        )
        self.service = ModelService(model, self.engine, None, [NAME])
        self.limits = limits or ServerLimits()
        self.app = serve_model(self.service, self.metrics, limits=self.limits, **options)
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Client:
        self._open.callback(self.engine.close)
        return Client(self._open.enter_context(running(self.app, self.limits)))

    def __exit__(self, *raised: Any) -> None:
        self._open.close()


@contextlib.contextmanager
def running(app: ASGIApp, limits: ServerLimits | None = None) -> Iterator[int]:
    """Run a server in a thread; yield its port."""
    with Listener("127.0.0.1", 0) as listener:
        config = uvicorn_config(app, "127.0.0.1", listener.port, limits or ServerLimits())
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener.socket]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield listener.port
        finally:
            server.should_exit = True
            thread.join()


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until a condition holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition does not hold in time"
        time.sleep(0.005)


def chat(text: str = "hey", **more: Any) -> dict[str, Any]:
    """Return the body of a chat request with a greedy answer."""
    message = {"role": "user", "content": text}
    return {"messages": [message], "max_tokens": 8, "temperature": 0, **more}


def error_of(response: Any) -> dict[str, Any]:
    """Return the error object of a response."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error
