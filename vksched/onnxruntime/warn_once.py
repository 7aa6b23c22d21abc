"""Warn once about settings that have an effect in onnxruntime but not here."""

from __future__ import annotations

from ..common.user_warning import warn_user

_warned: set[str] = set()


def say_once(what: str) -> None:
    """Warn at the first use of a setting that has no effect."""
    if what not in _warned:
        _warned.add(what)
        warn_user(f"[session] {what} has no effect here")
