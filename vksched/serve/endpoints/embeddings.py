"""/v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ...common.dtypes import NDArray
from ...generation.embedder import Embedder
from ..api_error import ApiError
from ..event_stream import json_response, to_json, while_connected
from ..schemas.text import EmbeddingRequest, listed
from ..server_state import ServerState, body_of, state_of

MAX_TEXTS = 2048


async def embeddings(request: Request) -> Response:
    """Answer /v1/embeddings."""
    state = state_of(request)
    body = await body_of(request, EmbeddingRequest)
    state.service.check_name(body.model)
    embedder = _embedder(state.service.embedder, state.service.name)
    texts = listed(body.input)
    if body.dimensions not in (None, embedder.width):
        raise ApiError(
            f"[dimensions] expected {embedder.width}, the only size of this model, got "
            f"{body.dimensions}",
            "dimensions",
        )
    check_count(texts, "input")
    tokens = await state.workers.call(_tokens, state, embedder, texts)
    rows = by_batches(state, embedder.batches(tokens), embedder.embed_tokens, tokens)
    vectors = await while_connected(request, rows)
    return json_response(
        await state.answer_workers.call(_body, body, state.service.name, tokens, vectors)
    )


async def by_batches(
    state: ServerState,
    batches: Iterable[list[int]],
    compute: Callable[[Sequence[Sequence[int]]], NDArray],
    texts: Sequence[Sequence[int]],
) -> NDArray:
    """Return the results of tokenized texts, at least one. Each batch is a call of its own, so that
    requests take turns, and a client that leaves ends its work.
    """
    out: NDArray | None = None
    for batch in batches:
        rows = await state.embedding_worker.call(compute, [texts[at] for at in batch])
        if out is None:
            out = np.empty((len(texts), *rows.shape[1:]), np.float32)
        out[batch] = rows
    assert out is not None
    return out


def check_count(texts: Sequence[object], param: str) -> None:
    """Raise ApiError for too many texts."""
    if len(texts) > MAX_TEXTS:
        raise ApiError(f"[{param}] expected at most {MAX_TEXTS} texts, got {len(texts)}", param)


def _body(
    body: EmbeddingRequest, name: str, tokens: Sequence[Sequence[int]], vectors: NDArray
) -> str:
    """Return the answer as JSON."""
    count = sum(map(len, tokens))
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(row, body.encoding_format)}
        for index, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return to_json({"object": "list", "data": data, "model": name, "usage": usage})


def _embedder(embedder: Embedder | None, name: str) -> Embedder:
    if embedder is None:
        raise ApiError(
            f"[serve] expected a model with a pooling, got {name} without one; try to start the "
            "server with --pooling",
            code="unsupported_model",
        )
    return embedder


def _tokens(
    state: ServerState, embedder: Embedder, texts: list[str] | list[list[int]]
) -> list[list[int]]:
    """Return the tokens of texts; raise ApiError for one without tokens, or with too many."""
    out: list[list[int]] = []
    left = state.limits.embedding_tokens
    for text in texts:
        if isinstance(text, str):
            state.service.check_size(text, "input")
        tokens = embedder.encode(text) if isinstance(text, str) else text
        if not 0 < len(tokens) <= embedder.ctx:
            raise ApiError(
                f"[input] expected texts of 1 to {embedder.ctx} tokens, got {len(tokens)}",
                "input",
                code="context_length_exceeded",
            )
        if max(tokens) >= embedder.tokenizer.size:
            raise ApiError(
                f"[input] expected tokens below {embedder.tokenizer.size}, got {max(tokens)}",
                "input",
            )
        out.append(tokens)
        left -= len(tokens)
        if left < 0:
            raise ApiError(
                f"[input] expected texts of at most {state.limits.embedding_tokens} tokens "
                "together, got more; try several requests",
                "input",
            )
    return out


def _encoded(row: NDArray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()
