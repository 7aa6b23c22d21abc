"""Grammar child: compiles grammars for `GrammarProcess`, which kills it if it takes too long.

    message   length (4 bytes) | marshal of a value
    first     (tokens, end tokens, beginning token or None, options of schemas, memory_bytes)
    request   (kind, text, seconds)      answer   (True, grammar) or (False, error)

The program imports llguidance only, and gets its folder as an argument. `grammar` is in
llguidance's own form.
"""

from __future__ import annotations

import marshal
import signal
import sys
from collections.abc import Callable
from typing import Any

GRACE_S = 1.0
"""The delay after the time limit at which the operating system ends this process."""


class Tokens:
    """A tokenizer with a token per byte of a text: costs do not depend on longer ones."""

    special_token_ids: list[int] = []

    def __init__(self, tokens: list[bytes], ends: list[int], begin: int | None) -> None:
        self.tokens, self.eos_token_id, self.bos_token_id = tokens, ends[0], begin
        self._ids = {token: index for index, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        found = (self._ids.get(data[at : at + 1]) for at in range(len(data)))
        return [token for token in found if token is not None]


def main() -> None:
    """Answer requests until there are no more."""
    import llguidance
    from llguidance.gbnf_to_lark import any_to_lark

    names, ends, begin, options, memory_bytes = receive()
    _limit(memory_bytes)
    wrapper = llguidance.TokenizerWrapper(Tokens(names, ends, begin))
    tokens = llguidance.LLTokenizer(wrapper, len(names), eos_token=ends)
    forms: dict[str, Callable[[str], Any]] = {
        "schema": lambda text: llguidance.LLMatcher.grammar_from_json_schema(
            text, overrides=options
        ),
        "text": lambda text: llguidance.LLMatcher.grammar_from_lark(any_to_lark(text)),
        "lark": llguidance.LLMatcher.grammar_from_lark,
    }
    while (request := receive()) is not None:
        kind, text, seconds = request
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_S)
        try:
            grammar = str(forms[kind](text))
            matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
            answer = (False, matcher.get_error()) if matcher.is_error() else (True, grammar)
            del matcher
        except RecursionError:
            answer = False, "it is too deep"
        except MemoryError:
            answer = False, "it needs too much memory"
        except Exception as error:  # the parser raises this type itself
            answer = False, str(error)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        data = marshal.dumps(answer)
        sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
        sys.stdout.buffer.flush()


def receive() -> Any:
    """Return the next message; None at the end."""
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        return None
    return marshal.loads(sys.stdin.buffer.read(int.from_bytes(head, "little")))


def _limit(memory_bytes: int) -> None:
    """Bound the memory of this process. Windows has no limits of this kind."""
    try:
        import resource
    except ImportError:
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    main()
