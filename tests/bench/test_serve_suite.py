"""The suite of servers: loads of clients, latencies, servers that fail; no speed is tested."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from gguf_models import Tiny, write
from tiny_vocabularies import byte_pair

from vksched.bench import serve_cases
from vksched.bench.baselines import llama_server_baseline, protocol
from vksched.bench.baselines.load_generator import AnswerTimes, LoadTimes, run_load
from vksched.bench.baselines.server_process import ServerProcess
from vksched.bench.baselines.serving_job import ServingJob, latencies_of, prompt_of
from vksched.bench.baselines.workloads import (
    SERVING,
    Spec,
    arrays_of,
    error_of,
    most_error,
    reported,
    tokens_of,
)
from vksched.bench.rounds import OURS, Result, RunnerTiming, measure_case
from vksched.bench.serve_table import serve_table
from vksched.bench.suite_loader import SuiteOptions
from vksched.bench.suites import specs_of
from vksched.cli import main
from vksched.common.errors import GraphError

PARAMS = {"clients": 3, "prompt": 5, "answer": 4, "ids": [7, 8, 9]}
SPEC = Spec("3 clients", SERVING, "serving", PARAMS)
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Handler(BaseHTTPRequestHandler):
    """Answers with a token per event, and counts one less if the server is `short`."""

    server: Any

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        self.send_response(200)
        if self.server.is_chunked:
            self.protocol_version = "HTTP/1.1"
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        tokens = body["max_tokens"] - self.server.missing
        events = [{"choices": [{"text": "a", "index": 0}]} for _ in range(tokens)]
        events.append({"choices": [], "usage": {"completion_tokens": tokens}})
        for event in events:
            self._send(f"data: {json.dumps(event)}\n\n".encode())
        self._send(b": a comment\n\ndata: [DONE]\n\n")
        if self.server.is_chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _send(self, data: bytes) -> None:
        if not self.server.is_chunked:
            self.wfile.write(data)
            return
        for part in (data[:9], data[9:]):  # events may cross chunks
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    def log_message(self, *_: object) -> None: ...


@contextmanager
def model_server(*, is_chunked: bool = True, missing: int = 0, status: int = 200) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.bodies, server.is_chunked = [], is_chunked
    server.missing, server.status = missing, status
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Running:
    """A process that is not stopped."""

    def __init__(self, port: int) -> None:
        self.port = port

    @contextmanager
    def running(self) -> Iterator[None]:
        yield


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    tiny = Tiny(layers=1, vocabulary=261, context=64)
    write(replace(tiny, kind="F32"), path, np.random.default_rng(0), byte_pair())
    return path


# -- loads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_chunked", [True, False])
def test_a_load_times_each_token_of_each_client(is_chunked: bool) -> None:
    with model_server(is_chunked=is_chunked) as server:
        load = run_load(server.server_port, [[1, 2], [3], [4]], 5)
    assert [answer.tokens for answer in load.answers] == [5, 5, 5]
    assert [len(answer.arrivals_s) for answer in load.answers] == [5, 5, 5]
    assert len(load.first_token_s) == 3 and len(load.between_tokens_s) == 12
    last = max(answer.arrivals_s[-1] for answer in load.answers)
    assert 0 < min(load.first_token_s) and last <= load.seconds
    assert sorted(body["prompt"] for body in server.bodies) == [[1, 2], [3], [4]]
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in server.bodies)


def test_an_http_error_is_reported() -> None:
    with model_server(status=503) as server, pytest.raises(RuntimeError, match="503"):
        run_load(server.server_port, [[1]], 2)


def test_latencies_are_medians_and_percentiles() -> None:
    answers = [AnswerTimes(3, [0.5, 0.6, 0.8]), AnswerTimes(2, [1.5, 2.5])]
    load = LoadTimes(3.0, answers)
    assert load.first_token_s == [0.5, 1.5]
    assert load.between_tokens_s == pytest.approx([0.1, 0.2, 1.0])
    found = latencies_of(load.first_token_s, load.between_tokens_s)
    assert found["time_to_first_token_s"] == pytest.approx(1.0)
    assert found["inter_token_latency_s"] == pytest.approx(0.2)
    assert found["inter_token_latency_p95_s"] == pytest.approx(0.92)
    assert latencies_of([], []) == {}


def test_prompts_have_at_most_one_common_token() -> None:
    prompts = [prompt_of(SPEC, number) for number in range(9)]
    assert {len(prompt) for prompt in prompts} == {5}
    assert len({tuple(prompt[:2]) for prompt in prompts}) == 9


def test_a_job_requires_complete_answers() -> None:
    with model_server() as server:
        job = ServingJob(Running(server.server_port), SPEC)  # type: ignore[arg-type]
        assert error_of(SPEC, arrays_of(SPEC), job.result()) == 0.0
        assert job.latencies_s() == {} and job.sample() > 0
        assert set(job.latencies_s()) == set(protocol_names())
    with model_server(missing=1) as server:
        job = ServingJob(Running(server.server_port), SPEC)  # type: ignore[arg-type]
        assert error_of(SPEC, arrays_of(SPEC), job.result()) > most_error(SPEC) == 0.0
        with pytest.raises(RuntimeError, match=r"4 tokens in each answer, got \[3, 3, 3\]"):
            job.sample()


def protocol_names() -> tuple[str, ...]:
    return (
        "time_to_first_token_s",
        "time_to_first_token_p95_s",
        "inter_token_latency_s",
        "inter_token_latency_p95_s",
    )


# -- processes -------------------------------------------------------------------------------------


def test_a_server_process_starts_and_ends() -> None:
    process = ServerProcess(lambda port: [sys.executable, "-c", SERVER, str(port)])
    with process.running():
        pass
    process.close()
    with pytest.raises(OSError):
        run_load(process.port, [[1]], 1)


def test_a_server_that_ends_is_reported_with_its_last_line() -> None:
    program = "import sys; print('no such model', file=sys.stderr); sys.exit(3)"
    with pytest.raises(RuntimeError, match="ended with code 3: no such model"):
        ServerProcess(lambda _: [sys.executable, "-c", program])


def test_llama_server_takes_servers_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "version: 7" && exit\n'
        'echo "Available devices:"; echo "  Vulkan0: Card A (8 MiB, 8 MiB free)"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv(llama_server_baseline.PROGRAM_VARIABLE, str(program))
    about = {"name": "Card A", "uuid": "", "index": 0, "type": "discrete"}
    baseline = llama_server_baseline.open_baseline(about)
    assert baseline.version == "version: 7"
    with pytest.raises(protocol.Skip):
        baseline.prepare(Spec("add", "binary", "add", {}), {})
    params = {**PARAMS, "file": "m.gguf", "slots": 2, "context": 9}
    words = baseline._command(Spec("x", SERVING, "serving", params), 1)(80)
    assert words[words.index("--device") + 1] == "Vulkan0"
    assert words[words.index("--ctx-size") + 1] == "18"
    with pytest.raises(LookupError, match=r"takes no Card B, only Vulkan0: Card A"):
        llama_server_baseline.open_baseline({**about, "name": "Card B"})


# -- cases and tables ------------------------------------------------------------------------------


def test_cases(model_file: Path) -> None:
    options = SuiteOptions([model_file], more={"prompt": ["20"], "answer": ["8"]})
    specs = specs_of("serve", None, options)
    assert [spec["clients"] for spec in specs] == [1, 2, 4, 8, 16]
    assert specs[0].name == "tiny 1 client" and specs[1].name == "tiny 2 clients"
    assert {(spec["slots"], spec["context"]) for spec in specs} == {(16, 28)}
    assert tokens_of(specs[2]) == 32 and "ids" not in reported(specs[0]).params
    few = SuiteOptions([model_file], precision="int8", more={**options.more, "clients": ["1,3"]})
    assert [spec.name for spec in specs_of("serve", None, few)] == [
        "tiny int8 1 client",
        "tiny int8 3 clients",
    ]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"clients": ["0"]}, "1 or more for clients, got '0'"),
        ({"clients": ["300"]}, "at most 256 clients, got 300"),
        ({"answer": ["60"]}, "at most 64 tokens"),
    ],
)
def test_wrong_options(model_file: Path, more: dict[str, list[str]], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        specs_of("serve", None, SuiteOptions([model_file], more=more))


def test_a_missing_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_cases, "SMALL_MODEL", "no_such_package")
    with pytest.raises(GraphError, match="--model FILE.gguf or the package"):
        specs_of("serve")


class OneServer:
    """A runner of a server with latencies."""

    version = ""
    latencies_s = {"time_to_first_token_s": 0.25}

    def __init__(self, name: str, seconds: float) -> None:
        self.name, self._seconds = name, seconds

    def prepare(self, spec: Spec) -> dict[str, Any]:
        return {"result": np.full(3, 4, np.float32)}

    def measure(self, seconds: float) -> list[float]:
        return [self._seconds]

    def drop(self) -> None: ...

    def close(self) -> None: ...


def test_the_table_has_rates_latencies_and_ratios() -> None:
    runners = [OneServer(OURS, 2.0), OneServer("llama-server", 6.0)]
    result = measure_case("cpu", SPEC, runners, 1.0, rounds=2)
    figures: list[RunnerTiming] = result.figures
    assert figures[0].latencies_s == {"time_to_first_token_s": 0.25}
    assert Result.as_dict(result)["figures"][1]["latencies_s"] == figures[1].latencies_s
    table = serve_table([result], None)
    rows = list(zip(*([*column.cells] for column in table.columns), strict=True))
    assert rows[0][:3] == ("3 clients", OURS, "6") and rows[0][4] == "250 ms"
    assert rows[1][1:3] == ("llama-server", "2") and rows[1][8] == "3.00"


def test_the_command_measures_vksched_serve(model_file: Path) -> None:
    pytest.importorskip("uvicorn", reason="the server needs the extra 'serve'")
    pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")
    words = ["bench", "--suite", "serve", "--model", str(model_file), "--devices", "cpu", "--json"]
    for option in ("clients=2", "prompt=4", "answer=3"):
        words += ["--suite-option", option]
    words += ["--time-budget", "0.01"]
    found = CliRunner().invoke(main, words, catch_exceptions=False)
    (result,) = json.loads(found.output)["results"]
    (ours,) = result["figures"]
    assert result["spec"]["name"] == "tiny 2 clients" and not ours["reason"]
    assert ours["nmse"] == 0.0 and ours["latencies_s"]["time_to_first_token_s"] > 0
