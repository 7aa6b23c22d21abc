"""/v1/embeddings and /v1/rerank."""

from __future__ import annotations

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...common.dtypes import NDArray
from ...generation.embedder import Embedder
from ..api_error import ApiError
from ..event_stream import while_connected
from ..schemas.text import EmbeddingRequest, RerankRequest, listed
from ..server_state import body_of, state_of

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
    if len(texts) > MAX_TEXTS:
        raise ApiError(f"[input] expected at most {MAX_TEXTS} texts, got {len(texts)}", "input")
    tokens = await state.workers.call(_tokens, embedder, texts)
    vectors = await while_connected(
        request, state.embedding_worker.call(embedder.embed_tokens, tokens)
    )
    count = sum(map(len, tokens))
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(row, body.encoding_format)}
        for index, row in enumerate(vectors)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JSONResponse(
        {"object": "list", "data": data, "model": state.service.name, "usage": usage}
    )


async def rerank(request: Request) -> Response:
    """Answer /v1/rerank: no model that vksched runs can rank texts."""
    state = state_of(request)
    body = await body_of(request, RerankRequest)
    state.service.check_name(body.model)
    raise ApiError(
        f"[serve] expected a model with pooling 'rank', got {state.service.name}, which has none",
        status=404,
        code="unsupported_model",
    )


def _embedder(embedder: Embedder | None, name: str) -> Embedder:
    if embedder is None:
        raise ApiError(
            f"[serve] expected a model with a pooling, got {name} without one; try to start the "
            "server with --pooling",
            code="unsupported_model",
        )
    return embedder


def _tokens(embedder: Embedder, texts: list[str] | list[list[int]]) -> list[list[int]]:
    """Return the tokens of texts; raise ApiError for one without tokens, or with too many."""
    out = []
    for text in texts:
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
    return out


def _encoded(row: NDArray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    return row.tolist()
