"""/v1/rerank, in the form of Jina, Cohere and llama-server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ...common.dtypes import NDArray
from ...generation.reranker import Reranker, distinct_texts
from ..api_error import ApiError
from ..event_stream import json_response, to_json, while_connected
from ..schemas.text import RerankRequest
from ..server_state import ServerState, body_of, state_of
from .embeddings import by_batches, check_count


async def rerank(request: Request) -> Response:
    """Answer /v1/rerank."""
    state = state_of(request)
    body = await body_of(request, RerankRequest)
    state.service.check_name(body.model)
    reranker = state.service.reranker
    if reranker is None:
        raise ApiError(
            f"[serve] expected a model with pooling 'rank', got {state.service.name}, which has "
            "none; try a file of a reranker",
            status=404,
            code="unsupported_model",
        )
    check_count(body.documents, "documents")
    tokens = await state.workers.call(_tokens, state, reranker, body)
    distinct, places = distinct_texts(tokens)
    rows = by_batches(state, reranker.batches(distinct), reranker.score_tokens, distinct)
    scores = (await while_connected(request, rows))[places]
    return json_response(
        await state.answer_workers.call(_body, body, state.service.name, tokens, scores)
    )


def _tokens(state: ServerState, reranker: Reranker, body: RerankRequest) -> list[list[int]]:
    """Return the tokens of each pair; raise ApiError for one with too many."""
    state.service.check_size(body.query, "query")
    out: list[list[int]] = []
    left = state.limits.embedding_tokens
    for index, document in enumerate(body.documents):
        param = f"documents[{index}]"
        state.service.check_size(document, param)
        tokens = reranker.encode(body.query, document)
        if not 0 < len(tokens) <= reranker.ctx:
            raise ApiError(
                f"[{param}] expected a query and a document of 1 to {reranker.ctx} tokens "
                f"together, got {len(tokens)}; try parts of the document",
                param,
                code="context_length_exceeded",
            )
        out.append(tokens)
        left -= len(tokens)
        if left < 0:
            raise ApiError(
                f"[documents] expected at most {state.limits.embedding_tokens} tokens of all "
                "queries and documents together, got more; try several requests",
                "documents",
            )
    return out


def _body(body: RerankRequest, name: str, tokens: Sequence[Sequence[int]], scores: NDArray) -> str:
    """Return the answer as JSON: the best documents first."""
    order = sorted(range(len(scores)), key=lambda at: -scores[at])
    results: list[dict[str, Any]] = []
    for index in order[: body.top_n]:
        result: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        if body.return_documents:
            result["document"] = {"text": body.documents[index]}
        results.append(result)
    count = sum(map(len, tokens))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return to_json({"object": "list", "model": name, "usage": usage, "results": results})
