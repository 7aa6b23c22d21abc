"""Log: events as records of the standard `logging`, one structured line each.

Examples: tests/trace/test_log.py.
"""

from __future__ import annotations

import json
import logging

from .event_fields import fields_of
from .events import Event, Sink

LOGGER = "vksched.events"
LEVELS = {
    "run": logging.INFO,
    "plan": logging.INFO,
    "prepare": logging.INFO,
    "release": logging.INFO,
    "tune": logging.INFO,
    "calibrate": logging.INFO,
    "fallback": logging.WARNING,
    "slowdown": logging.WARNING,
    "replan": logging.WARNING,
    "failed": logging.WARNING,
    "fault": logging.ERROR,
}
"""The level of each event; DEBUG for others."""


def log_sink(logger: logging.Logger | str = LOGGER) -> Sink:
    """Return a sink that logs each event as one line of JSON: event, device, seconds, run, plan and
    the fields of the event. The record's `event` attribute is the event itself.

    Parameters
    ----------
    logger
        The logger or its name. Faults are errors; fallbacks, slow devices and new plans are
        warnings; runs and plans are infos; all other events are debug messages.
    """
    log = logging.getLogger(logger) if isinstance(logger, str) else logger

    def sink(event: Event) -> None:
        level = LEVELS.get(event.name, logging.DEBUG)
        if log.isEnabledFor(level):
            log.log(level, "%s", _line(event), extra={"event": event})

    return sink


def _line(event: Event) -> str:
    """Return an event as JSON on one line."""
    record: dict[str, object] = {
        "event": event.name,
        "device": event.device,
        "start_s": event.start_s,
        "seconds": event.end_s - event.start_s,
    }
    if event.run >= 0:
        record["run"] = event.run
    if event.plan >= 0:
        record["plan"] = event.plan
    fields = {k: v for k, v in fields_of(event).items() if k not in record}
    return json.dumps({**record, **fields})
