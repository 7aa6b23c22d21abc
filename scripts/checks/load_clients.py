"""The clients of `serve_load.py`: right ones, whose answers are compared, and wrong ones.

A client is a coroutine that raises `Violation` if the server does something wrong. Any request may
be refused with status 429 or 503 while the server has too much work; a right client tries again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from load_http import HANG_S, Response, Violation, connected, exchange, receive, request, send
from load_server import KEYS, NAME

BUSY = (429, 503)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
DEEP = 100_000
MEBIBYTE = 1 << 20


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Return right requests: short and long prompts, shared prefixes, several answers, schemas."""
    shared = "A sentence that many prompts begin with, as a system prompt does. " * 4
    endings = ("one", "two and more", "z" * 100)
    texts = ["a", "hello there", *(shared + end for end in endings), "x" * 130]
    out: list[tuple[str, dict[str, Any]]] = []
    for index, text in enumerate(texts):
        more: dict[str, Any] = {"max_tokens": 8 + 3 * index, "seed": index, "logprobs": 2}
        out.append((TEXT, {"prompt": text, "temperature": 0, "n": 1 + index % 2, **more}))
        if index % 2:
            out.append((TEXT, {"prompt": text, "temperature": 0.7, "stream": True, **more}))
    out.append((TEXT, {"prompt": "abc" * 30, "echo": True, "max_tokens": 2, "logprobs": 1, "n": 2}))
    out[-1][1]["seed"] = 5
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = {"role": "user", "content": "write JSON"}
    chat = {"messages": [message], "max_tokens": 12, "seed": 1, "logprobs": True}
    out.append((CHAT, {**chat, "response_format": form}))
    out.append((CHAT, {**chat, "stream": True}))
    return out


def answer_of(response: Response, is_stream: bool) -> dict[int, Any]:
    """Return the texts and log-probabilities of an answer, by the index of the choice."""
    response.expect(200)
    parts = response.events() if is_stream else [response.json()]
    out: dict[int, Any] = {}
    for part in parts:
        if "error" in part:
            raise Violation(f"a right request ended with {part['error']}")
        for choice in part["choices"]:
            text, logprobs = out.get(choice["index"], ("", []))
            message = choice.get("message") or choice.get("delta") or {}
            text += choice.get("text") or message.get("content") or ""
            known = choice.get("logprobs") or {}
            values = known.get("token_logprobs") or [
                each["logprob"] for each in known.get("content") or []
            ]
            out[choice["index"]] = (text, [*logprobs, *values])
    return out


async def right(port: int, case: tuple[str, dict[str, Any]], key: str) -> dict[int, Any] | None:
    """Return the answer to a right request; None if the server has too much work."""
    path, body = case
    response = await exchange(port, request("POST", path, key, {"model": NAME, **body}))
    if response.status in BUSY:
        response.expect(*BUSY)
        if "retry-after" not in response.headers:
            raise Violation(f"a busy server without Retry-After: {response.body[:300]!r}")
        if response.json()["error"]["code"] == "device_error":
            raise Violation(f"an answer that a device ended: {response.body[:300]!r}")
        return None
    return answer_of(response, bool(body.get("stream")))


# -- wrong clients ---------------------------------------------------------------------------------

Wrong = Callable[[int, random.Random], Awaitable[None]]


async def wrong_key(port: int, rng: random.Random) -> None:
    key = rng.choice(["", "x", KEYS[0][:-1], KEYS[0] + "x", "k" * 5000, "\u00e9" * 20])
    path = rng.choice([CHAT, TEXT, "/slots", "/metrics", "/v1/models", "/tokenize"])
    method = "GET" if path in ("/slots", "/metrics", "/v1/models") else "POST"
    (await exchange(port, request(method, path, key, {"prompt": "a"}))).expect(401)


async def garbage(port: int, rng: random.Random) -> None:
    data = rng.randbytes(rng.randrange(1, 5000)) + rng.choice([b"", b"\r\n\r\n", b"\n" * 100])
    async with connected(port) as (reader, writer):
        await send(writer, data)
        (await receive(reader)).expect(0, 400, 404, 405, 431, is_http=False)


async def garbage_body(port: int, rng: random.Random) -> None:
    body = rng.choice([rng.randbytes(5000), b"[" * 1000, b'{"prompt": "a', b"null", b"{}" * 100])
    (await exchange(port, request("POST", TEXT, KEYS[0], body))).expect(400, 503)


async def stall_in_headers(port: int, rng: random.Random) -> None:
    data = request("POST", CHAT, KEYS[0], {"prompt": "a"})
    async with connected(port) as (reader, writer):
        await send(writer, data[: rng.randrange(1, 60)])
        (await receive(reader)).expect(0)


async def stall_in_body(port: int, rng: random.Random) -> None:
    data = request("POST", TEXT, KEYS[0], {"prompt": "a" * 1000})
    async with connected(port) as (reader, writer):
        await send(writer, data[: -rng.randrange(1, 900)])
        (await receive(reader)).expect(408, 503)


async def leave_in_stream(port: int, rng: random.Random) -> None:
    body = {"prompt": "leave", "max_tokens": 300, "stream": True, "ignore_eos": True}
    async with connected(port) as (reader, writer):
        await send(writer, request("POST", TEXT, KEYS[1], body))
        try:
            await asyncio.wait_for(reader.read(rng.randrange(1, 2000)), HANG_S)
        except asyncio.TimeoutError:
            raise Violation("a stream did not begin") from None
        except ConnectionError:
            pass
        await asyncio.sleep(rng.random() / 2)


async def leave_at_once(port: int, rng: random.Random) -> None:
    body = {"prompt": "leave " * 20, "max_tokens": 300, "n": rng.randrange(1, 4)}
    data = request("POST", TEXT, KEYS[1], body)
    async with connected(port) as (_, writer):
        await send(writer, data[: rng.choice([len(data), rng.randrange(1, len(data))])])
        await asyncio.sleep(rng.random())


async def large_prompt(port: int, rng: random.Random) -> None:
    text = rng.choice(["a", "\u00e9", " ", "\\", "<|im_end|>"])
    text *= MEBIBYTE // len(text)
    body: dict[str, Any] = {"prompt": text}
    path = TEXT
    if rng.random() < 0.5:
        path, body = CHAT, {"messages": [{"role": "user", "content": text}]}
    (await exchange(port, request("POST", path, KEYS[0], body))).expect(400, 408, 503)


async def deep_json(port: int, rng: random.Random) -> None:
    depth = rng.randrange(201, DEEP)
    text = rng.choice(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth])
    name = rng.choice(["prompt", "json_schema", "tools", "messages", "stop"])
    body = b'{"%s":%s}' % (name.encode(), text.encode())
    (await exchange(port, request("POST", TEXT, KEYS[0], body))).expect(400, 503)


async def large_body(port: int, rng: random.Random) -> None:
    size = rng.choice([9, 12]) * MEBIBYTE
    if rng.random() < 0.5:
        data = request("POST", TEXT, KEYS[0], b" " * size)
    else:  # the body is not sent, because the answer is no "100 Continue"
        data = request("POST", TEXT, KEYS[0], b" " * size, "Expect: 100-continue")[:-size]
    (await exchange(port, data)).expect(413, 503)


async def many_values(port: int, rng: random.Random) -> None:
    """Send JSON of many small values, which are slower to parse than a long text."""
    count = rng.randrange(10_000, 200_000)
    body = rng.choice([{"messages": [{"role": "user"}] * (count // 10)}, {"stop": ["ab"] * count}])
    (await exchange(port, request("POST", CHAT, KEYS[0], body))).expect(400, 503)


async def wrong_values(port: int, rng: random.Random) -> None:
    field, value = rng.choice(
        [
            *[("temperature", -1), ("n", 0), ("n", 2.5), ("max_tokens", "x"), ("top_p", 7)],
            *[("logit_bias", {"x": 1}), ("stop", [1]), ("model", "other"), ("seed", "s")],
            *[("json_schema", {"type": "nothing"}), ("grammar", "root ::= ("), ("prompt", [])],
            *[("grammar", "root ::= root"), ("prompt", [1 << 40]), ("logprobs", 99)],
        ]
    )
    body = {"prompt": "a", field: value}
    (await exchange(port, request("POST", TEXT, KEYS[0], body))).expect(400, 404, *BUSY)


async def wrong_place(port: int, rng: random.Random) -> None:
    method, path = rng.choice([("GET", TEXT), ("POST", "/health"), ("POST", "/" + "x" * 3000)])
    lines = rng.choice([(), ("Origin: http://evil.example",), ("X-A: " + "b" * 40_000,)])
    response = await exchange(port, request(method, path, KEYS[0], None, *lines))
    response.expect(400, 403, 404, 405, 431, is_http=len(str(lines)) < 40_000)


async def wrong_chunks(port: int, rng: random.Random) -> None:
    head = f"POST {TEXT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEYS[0]}\r\n"
    body = rng.choice(["zz\r\nab\r\n0\r\n\r\n", "5\r\nab", "ffffffffffffffffff\r\n{}", "-1\r\n"])
    async with connected(port) as (reader, writer):
        await send(writer, f"{head}Transfer-Encoding: chunked\r\n\r\n{body}".encode())
        (await receive(reader)).expect(0, 400, 408, 503, is_http=False)


WRONG: tuple[Wrong, ...] = (
    *(wrong_key, garbage, garbage_body, stall_in_headers, stall_in_body, leave_in_stream),
    *(leave_at_once, large_prompt, deep_json, large_body, many_values, wrong_values),
    *(wrong_place, wrong_chunks),
)
