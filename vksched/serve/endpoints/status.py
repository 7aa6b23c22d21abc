"""/v1/models, /health, /metrics, /slots, /devices, and the page."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from ..metrics import CONTENT_TYPE
from ..model_service import ModelService
from ..server_state import state_of

PAGE = Path(__file__).parents[1] / "page" / "chat.html"
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def models(request: Request) -> Response:
    """Answer /v1/models."""
    service = state_of(request).service
    data = [_about(name, service) for name in service.names]
    return JSONResponse({"object": "list", "data": data})


async def model(request: Request) -> Response:
    """Answer /v1/models/NAME; a name may contain slashes."""
    service, name = state_of(request).service, request.path_params["name"]
    service.check_name(name)
    return JSONResponse(_about(name, service))


def _about(name: str, service: ModelService) -> dict[str, Any]:
    about: dict[str, Any] = {"object": "model", "created": 0, "owned_by": "vksched"}
    if service.can_generate:
        about["max_model_len"] = service.engine.length
    return {"id": name, **about}


async def health(request: Request) -> Response:
    """Answer /health: "degraded" while a device is failed, with answers going on elsewhere."""
    failed = state_of(request).activity.failed_devices
    if failed:
        return JSONResponse({"status": "degraded", "failed_devices": sorted(failed)})
    return JSONResponse({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Answer /metrics."""
    return Response(state_of(request).metrics.text(), media_type=CONTENT_TYPE)


async def slots(request: Request) -> Response:
    """Answer /slots: the work of each slot, without texts."""
    service = state_of(request).service
    rows = []
    for slot in service.engine.slots():
        fields = asdict(slot)
        index = fields.pop("index")
        if slot.engine is None:
            del fields["engine"]
        rows.append({"id": index, "is_processing": slot.phase != "idle", **fields})
    return JSONResponse(rows)


async def devices(request: Request) -> Response:
    """Answer /devices: the activity of each device."""
    state = state_of(request)
    return JSONResponse(await state.workers.call(state.activity.devices))


async def page(request: Request) -> Response:
    """Answer / with the chat page, which loads nothing else."""
    text = await state_of(request).workers.call(PAGE.read_text, "utf-8")
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(text, headers=headers)
