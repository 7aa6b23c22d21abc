"""/tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...generation.conversation.picture_parts import has_pictures
from ..api_error import ApiError
from ..model_service import ModelService
from ..schemas.chat import TemplateRequest
from ..schemas.text import DetokenizeRequest, TokenizeRequest
from ..server_state import body_of, state_of


async def tokenize(request: Request) -> Response:
    """Answer /tokenize."""
    state = state_of(request)
    body = await body_of(request, TokenizeRequest)
    return JSONResponse({"tokens": await state.workers.call(_tokenized, body, state.service)})


async def detokenize(request: Request) -> Response:
    """Answer /detokenize."""
    state = state_of(request)
    body = await body_of(request, DetokenizeRequest)
    return JSONResponse({"content": await state.workers.call(_text, body, state.service)})


async def apply_template(request: Request) -> Response:
    """Answer /apply-template."""
    state = state_of(request)
    body = await body_of(request, TemplateRequest)
    return JSONResponse({"prompt": await state.workers.call(_rendered, body, state.service)})


def _tokenized(body: TokenizeRequest, service: ModelService) -> list[Any]:
    service.check_size(body.content, "content")
    tokens = service.tokenizer.encode(
        body.content, special=body.parse_special is not False, bos=bool(body.add_special)
    )
    if not body.with_pieces:
        return tokens
    return [{"id": token, "piece": _piece(service.token_text(token)[1])} for token in tokens]


def _piece(data: bytes) -> str | list[int]:
    """Return the text of a token, or its bytes if they are a part of a character."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)


def _text(body: DetokenizeRequest, service: ModelService) -> str:
    if body.tokens and max(body.tokens) >= service.tokenizer.size:
        raise ApiError(
            f"[tokens] expected tokens below {service.tokenizer.size}, got {max(body.tokens)}",
            "tokens",
        )
    return service.tokenizer.decode(body.tokens, special=True)


def _rendered(body: TemplateRequest, service: ModelService) -> str:
    if has_pictures(body.messages):
        raise ApiError(
            "[messages] expected messages without pictures, which have no text in a template, got "
            "some; try /v1/chat/completions",
            "messages",
        )
    return service.encoder.renderer.render(
        body.messages,
        tools=body.tools,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=bool(body.continue_final_message),
        variables=body.chat_template_kwargs,
    )
