"""The log of errors that clients do not see in full."""

from __future__ import annotations

import logging

from ..common.errors import VkschedError
from .api_error import ApiError

LOG = logging.getLogger("vksched.serve")


def log_unexpected(error: BaseException) -> None:
    """Log an error with its traceback, unless it is one of a request."""
    if not isinstance(error, (ApiError, VkschedError)):
        LOG.error("an internal error", exc_info=error)
