"""Keys, origins, hosts and sizes."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the server needs the extra 'serve'")
pytest.importorskip("llguidance", reason="the server needs the extra 'serve'")

from served import Client, Served, chat, error_of, running, tiny_model, wait_until
from starlette.applications import Starlette
from starlette.routing import Mount

from vksched.common.errors import VkschedError
from vksched.importers.gguf.model import LanguageModel
from vksched.serve.api_keys import ApiKeys, read_api_keys
from vksched.serve.application import ROUTES
from vksched.serve.endpoints.status import PAGE
from vksched.serve.limits import ServerLimits

KEYS = ("first-key-0123456789", "second-key-0123456789")
ORIGIN = "https://chat.example"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return tiny_model(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def locked(model: LanguageModel) -> Iterator[Client]:
    served = Served(model, "hello hello", api_keys=KEYS, cors_origins=[ORIGIN])
    with served as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_all_but_health_and_page_need_a_key(locked: Client) -> None:
    for path, (method, _) in ROUTES.items():
        response = locked.request(method, path)
        if path in ("/", "/health"):
            assert response.status_code == 200
            continue
        assert response.status_code == 401, path
        assert error_of(response)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    assert locked.get("/unknown").status_code == 401


@pytest.mark.parametrize(
    "value",
    ["Bearer wrong", "Bearer ", "Bearer", KEYS[0], f"Basic {KEYS[0]}", f"Bearer {KEYS[0]}x", "é"],
)
def test_wrong_keys_are_refused(locked: Client, value: str) -> None:
    headers = {"Authorization": value.encode()}
    assert locked.get("/v1/models", headers=headers).status_code == 401
    assert KEYS[0] not in locked.get("/v1/models", headers=headers).text


def test_each_key_is_accepted_and_has_prefixes_of_its_own(locked: Client) -> None:
    cached = []
    for key in (KEYS[0], KEYS[0], KEYS[1]):
        response = locked.post("/v1/chat/completions", json=chat(), headers=bearer(key))
        assert response.status_code == 200
        cached.append(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0


def test_keys_are_read_from_a_private_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# people\n{KEYS[0]}\n\n  {KEYS[1]}  \n")
    path.chmod(0o600)
    keys = read_api_keys(path)
    assert keys.find(KEYS[0].encode()) != keys.find(KEYS[1].encode())
    assert keys.find(b"# people") is None and keys.find(b"") is None
    assert KEYS[0] not in repr(vars(keys))


@pytest.mark.parametrize("text", ["", "# only a comment\n", "short\n", "x" * 100_000])
def test_files_without_good_keys_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(VkschedError, match="expected"):
        read_api_keys(path)
    with pytest.raises(VkschedError, match="cannot read"):
        read_api_keys(tmp_path / "none")


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o620])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    path.write_text(KEYS[0])
    path.chmod(mode)
    with pytest.raises(VkschedError, match="chmod 600"):
        read_api_keys(path)


def test_without_keys_none_is_needed() -> None:
    assert not ApiKeys() and ApiKeys().find(b"") is None


def test_other_sites_need_permission(locked: Client) -> None:
    key = bearer(KEYS[0])
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{locked.port}.evil.example"):
        response = locked.get("/v1/models", headers={**key, "Origin": origin})
        assert response.status_code == 403 and error_of(response)["code"] == "unknown_origin"
        assert "access-control-allow-origin" not in response.headers
    allowed = locked.get("/v1/models", headers={**key, "Origin": ORIGIN})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    own = locked.get("/v1/models", headers={**key, "Origin": f"http://127.0.0.1:{locked.port}"})
    assert own.status_code == 200
    preflight = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    asked = {**preflight, "Access-Control-Request-Headers": "authorization"}
    assert locked.request("OPTIONS", "/v1/chat/completions", headers=asked).status_code == 200


def test_cors_allows_the_headers_of_clients(locked: Client) -> None:
    asked = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
    }
    answer = locked.request("OPTIONS", "/v1/chat/completions", headers=asked)
    assert answer.status_code == 200, answer.text
    assert "x-stainless-lang" in answer.headers["access-control-allow-headers"]
    answer = locked.get("/v1/models", headers={**bearer(KEYS[0]), "Origin": ORIGIN})
    assert "Retry-After" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("https://llm.example", "llm.example", 200),  # behind a proxy that ends TLS
        ("https://LLM.example:443", "llm.example", 200),
        ("https://llm.example", "llm.example:443", 200),
        ("http://llm.example:8080", "llm.example:8080", 200),
        ("https://llm.example:8443", "llm.example", 403),
        ("https://llm.example", "llm.example:8080", 403),
        ("https://evil.example", "llm.example", 403),
        ("https://llm.example.evil.example", "llm.example", 403),
        ("https://", "", 403),
        ("null", "null", 403),
    ],
)
def test_own_pages_have_the_name_and_port_of_the_host(
    model: LanguageModel, origin: str, host: str, status: int
) -> None:
    with Served(model, "hi") as client:
        headers = {"Origin": origin, "Host": host}
        assert client.get("/health", headers=headers).status_code == status


def test_a_mounted_application_has_the_same_public_paths(model: LanguageModel) -> None:
    served = Served(model, "hi", api_keys=KEYS)
    outer = Starlette(routes=[Mount("/llm", app=served.app)])
    with running(outer) as port:
        client = Client(port)
        for path in ("/llm/", "/llm/health"):
            assert client.get(path).status_code == 200
        assert client.get("/llm/v1/models").status_code == 401
        assert client.get("/llm/v1/models", headers=bearer(KEYS[0])).status_code == 200
    served.app.close()
    assert not served.engine._loop.thread.is_alive()


def test_the_page_uses_the_paths_next_to_it() -> None:
    text = PAGE.read_text("utf-8")
    assert "v1/chat/completions" in text and not re.search(r"""["'`]/[a-z]""", text)


def test_cors_is_off_by_default(model: LanguageModel) -> None:
    with Served(model, "hi") as client:
        response = client.get("/health", headers={"Origin": ORIGIN})
        assert response.status_code == 403
        assert not any(name.startswith("access-control") for name in response.headers)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:8080", 200), ("[::1]:80", 200), ("127.0.0.1:1", 200),
     ("evil.example", 403), ("127.0.0.1.evil.example:80", 403), ("", 403)],
)  # fmt: skip
def test_a_loopback_server_answers_to_its_own_names_only(
    model: LanguageModel, host: str, status: int
) -> None:
    with Served(model, "hi", hosts=("localhost", "127.0.0.1", "::1")) as client:
        assert client.get("/health", headers={"Host": host}).status_code == status


def test_bodies_have_a_limit(model: LanguageModel) -> None:
    with Served(model, "hi", limits=ServerLimits(body_bytes=1000)) as client:
        response = client.post("/v1/completions", content=b"x" * 1001)
        assert response.status_code == 413 and "1000" in error_of(response)["message"]
        parts = (b"x" * 100 for _ in range(20))  # no Content-Length
        assert client.post("/v1/completions", content=parts).status_code == 413


def test_a_client_that_sends_a_large_body_reads_the_error(model: LanguageModel) -> None:
    with Served(model, "hi", limits=ServerLimits(body_bytes=1 << 20)) as client:
        for _ in range(5):
            response = client.post("/v1/completions", content=b"x" * (20 << 20))
            assert response.status_code == 413 and response.headers["connection"] == "close"
            parts = (b"x" * (1 << 20) for _ in range(20))
            assert client.post("/v1/completions", content=parts).status_code == 413


def test_too_many_connections_are_refused_as_an_error_object(model: LanguageModel) -> None:
    with Served(model, "hi", limits=ServerLimits(connections=2)) as client:
        place = ("127.0.0.1", client.port)
        with socket.create_connection(place), socket.create_connection(place):
            answer = client.get("/health")
            assert answer.status_code == 503 and error_of(answer)["code"] == "overloaded"
            assert answer.headers["retry-after"] and answer.headers["connection"] == "close"
        wait_until(lambda: client.get("/health").status_code == 200)


def test_templates_have_a_time_limit(tmp_path: Path) -> None:
    slow = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    model = tiny_model(tmp_path, slow)
    with Served(model, "hi", limits=ServerLimits(work_timeout_s=0.2)) as client:
        response = client.post("/v1/chat/completions", json=chat())
        assert response.status_code in (400, 500, 503)
        assert error_of(response)["code"] == "timeout" or "template" in response.text
        assert client.get("/health").status_code == 200
