"""StopMatcher: finds stop strings in generated text, which arrives in pieces.

    pieces   "one t" "wo ST" "OP x"        stop "STOP"
    emitted  "one t" "wo "   ""            found: text before the stop was emitted, the rest is not

A suffix that may be the beginning of a stop string is held back. The result does not depend on how
the text is cut into pieces. The method is the automaton of Aho and Corasick (1975): its state is
the longest suffix of the text that begins a stop string. The first stop string that is complete
ends the text; of several that end at the same character, the longest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from reprlib import repr as shortened

from ..common.errors import SamplingError

MAX_STOP_CHARS = 1 << 16
"""The maximum number of characters of all stop strings."""


@dataclass(slots=True)
class _State:
    """depth: the length of the suffix. longest: the length of the longest stop string that ends
    here, or 0.
    """

    depth: int = 0
    longest: int = 0
    next: dict[str, _State] = field(default_factory=dict)
    fallback: _State | None = None


def checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Return stop strings as a tuple.

    Raises
    ------
    SamplingError
        One of them is no text, or empty, or all are too long.
    """
    stops = (stop,) if isinstance(stop, str) else stop
    listed = isinstance(stops, Sequence) and not isinstance(stops, (bytes, bytearray))
    if not listed or not all(isinstance(each, str) and each for each in stops):
        raise SamplingError(
            f"[sampling] expected stop as texts of at least one character, got {shortened(stop)}"
        )
    total = sum(map(len, stops))
    if total > MAX_STOP_CHARS:
        raise SamplingError(
            f"[sampling] expected stop texts of at most {MAX_STOP_CHARS} characters together, got "
            f"{total}"
        )
    return tuple(stops)


class StopMatcher:
    """Finds the first stop string of a text. It belongs to one text.

    Parameters
    ----------
    stop
        A stop string, or several.

    Raises
    ------
    SamplingError
        See `checked_stops`.
    """

    def __init__(self, stop: str | Sequence[str] = ()) -> None:
        self._root = _automaton(checked_stops(stop))
        self._state = self._root
        self._held = ""
        self.found: str | None = None
        """The stop string that was found."""
        self.rest = ""
        """The text of the last piece after the stop string."""

    def copy(self) -> StopMatcher:
        """Return a matcher of the same stop strings for another text; they share the automaton."""
        matcher = StopMatcher()
        matcher._root = matcher._state = self._root
        return matcher

    def add(self, piece: str) -> str:
        """Return the text that can be emitted after a piece; "" after a stop string was found."""
        if self.found is not None:
            return ""
        text = self._held + piece
        for at, char in enumerate(piece, len(self._held) + 1):
            self._state = self._following(char)
            if length := self._state.longest:
                self.found, self._held = text[at - length : at], ""
                self.rest = text[at:]
                return text[: at - length]
        cut = len(text) - self._state.depth
        self._held = text[cut:]
        return text[:cut]

    def end(self) -> str:
        """Return the text that was held back at the end of the text."""
        held, self._held, self._state = self._held, "", self._root
        return held

    def _following(self, char: str) -> _State:
        state: _State | None = self._state
        while state is not None:
            if char in state.next:
                return state.next[char]
            state = state.fallback
        return self._root


def _automaton(stops: Sequence[str]) -> _State:
    root = _State()
    for stop in stops:
        state = root
        for char in stop:
            state = state.next.setdefault(char, _State(state.depth + 1))
        state.longest = len(stop)
    for state, char, parent in _by_depth(root):
        fallback = parent.fallback
        while fallback is not None and char not in fallback.next:
            fallback = fallback.fallback
        state.fallback = root if fallback is None else fallback.next[char]
        state.longest = state.longest or state.fallback.longest
    return root


def _by_depth(root: _State) -> Iterator[tuple[_State, str, _State]]:
    """Yield all states but the root, with their character and parent, in ascending depth."""
    level = [root]
    while level:
        edges = [(each, char, state) for state in level for char, each in state.next.items()]
        yield from edges
        level = [each for each, _, _ in edges]
