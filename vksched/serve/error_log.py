"""The log of errors: tracebacks that clients do not see, and faults of devices."""

from __future__ import annotations

import logging

from .api_error import ApiError, api_error_of

LOG = logging.getLogger("vksched.serve")


def log_error(error: BaseException) -> ApiError:
    """Return the error that a client receives; log it if the server caused it."""
    sent = api_error_of(error)
    if sent.status >= 500 and not isinstance(error, ApiError):
        is_internal = sent.message != str(error)
        LOG.error("%s", error, exc_info=error if is_internal else None)
    return sent
