"""What is told once: a setting that does something in onnxruntime and nothing here."""

from __future__ import annotations

from ..common.user_warning import warn_user

_warned: set[str] = set()


def say_once(what: str) -> None:
    """Warn that a setting has no effect, the first time."""
    if what not in _warned:
        _warned.add(what)
        warn_user(f"[session] {what} has no effect here")
