"""Structured output: JSON schemas and grammars as token masks, by llguidance.

    schema or grammar --child process: form, limits--> llguidance's form
      --compile--> matcher --deep_copy--> one per answer --mask--> tokens allowed

Some short grammars take forever to compile, and a thread cannot be interrupted. A child process
therefore compiles each grammar first.

A schema with a keyword that llguidance does not implement is an error: the answer would not follow
it otherwise. Sizes and steps of grammars are bounded by llguidance's limits.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np

from ..common.errors import GrammarError
from .api_error import ApiError
from .grammar_process import GrammarProcess, GrammarTokens, grammar_message

if TYPE_CHECKING:
    from ..importers.gguf.tokenizer.tokenizer import Tokenizer

Mask = np.ndarray[Any, np.dtype[np.bool_]]
MAX_CHARACTERS = 1 << 18
"""The maximum length of a schema or grammar."""
SPECIAL = b"\xff"
"""The byte that marks control tokens for llguidance; no text has it."""
SECONDS = 3.0
"""The default time limit of one grammar."""
CACHED = 32
"""The number of compiled grammars that are cached."""
OPTIONS: llguidance.JsonCompileOptions = {  # type: ignore[name-defined]
    "lenient": False,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""One form of white space, because small models write white space forever if they may."""


class GrammarConstraint:
    """The state of a grammar in one answer; it implements `TokenConstraint`. param: the field of
    the request that has the grammar.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        vocabulary: int,
        ends: frozenset[int],
        param: str | None = None,
    ) -> None:
        self.param = param
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._ends = ends

    def mask(self) -> Mask:
        """Return the tokens that may follow, (vocabulary,) of bool."""
        bits = self._matcher.compute_bitmask()
        self._check()
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
        return flags[: self._vocabulary].astype(np.bool_)

    def accept(self, token: int) -> None:
        """Append a token. An end token ends the answer if the mask allowed it."""
        if token in self._ends and self._matcher.is_accepting():
            return
        self._matcher.consume_token(token)
        self._check()

    def copy(self) -> GrammarConstraint:
        """Return a constraint of another answer in the same state."""
        return GrammarConstraint(
            self._matcher.deep_copy(), self._vocabulary, self._ends, self.param
        )

    @property
    def is_finished(self) -> bool:
        """True if only an end token may follow."""
        stopped: bool = self._matcher.is_stopped()
        return stopped

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(
                f"[{self.param or 'grammar'}] expected a grammar within the limits of a step, got "
                f"{grammar_message(self._matcher.get_error())}; try a simpler grammar",
                self.param,
            )


class GrammarCompiler:
    """Compiles schemas and grammars for a tokenizer. Methods are thread-safe.

    Parameters
    ----------
    vocabulary
        The number of logits of the model.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.seconds = SECONDS
        """The time limit of one grammar."""
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: tuple[llguidance.LLTokenizer, GrammarTokens] | None = None
        self._compiled: OrderedDict[tuple[str, str], llguidance.LLMatcher] = OrderedDict()
        self._processes: list[GrammarProcess] = []
        self._idle: list[GrammarProcess] = []

    def prepare(self) -> tuple[llguidance.LLTokenizer, GrammarTokens]:
        """Build the trie of the tokens' bytes, which takes a second for a large vocabulary."""
        with self._lock:
            if self._tokens is None:
                names = _TokenBytes(self._tokenizer, self._vocabulary)
                ends = sorted(self._tokenizer.ends) or [0]
                wrapper = llguidance.TokenizerWrapper(names)
                tokens = llguidance.LLTokenizer(wrapper, self._vocabulary, eos_token=ends)
                small = GrammarTokens(names.tokens, ends, names.bos_token_id, OPTIONS)
                self._tokens = tokens, small
            return self._tokens

    def close(self) -> None:
        """Kill the child processes."""
        with self._lock:
            for process in self._processes:
                process.close()

    def from_schema(self, schema: dict[str, Any] | bool, param: str) -> GrammarConstraint:
        """Return the constraint of a JSON schema.

        Raises
        ------
        ApiError
            The schema is too long.
        GrammarError
            The schema is invalid, a keyword of it is not supported, or it takes too long to
            compile; it names `param`.
        """
        text = json.dumps(schema)
        _check_length(text, param)
        return self._compile("schema", text, param, "JSON schema")

    def from_text(self, text: str, param: str) -> GrammarConstraint:
        """Return the constraint of a grammar in GBNF, or in Lark's syntax with a rule "start".

        Raises
        ------
        ApiError
            The grammar is too long.
        GrammarError
            The grammar is invalid, or takes too long to compile; it names `param`.
        """
        _check_length(text, param)
        return self._compile("text", text, param, "grammar in GBNF or Lark syntax")

    def from_lark(self, text: str, param: str, what: str) -> GrammarConstraint:
        """Return the constraint of a grammar in Lark's syntax that the server wrote. what: the name
        of the form for errors.
        """
        return self._compile("lark", text, param, what)

    def _compile(self, kind: str, text: str, param: str, what: str) -> GrammarConstraint:
        tokens, _ = self.prepare()
        with self._lock:
            matcher = self._compiled.get((kind, text))
        if matcher is None:
            with self._process() as process:
                grammar = process.compile(kind, text, param, what)
            matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
            if matcher.is_error():
                raise GrammarError(
                    f"[{param}] expected a {what} that can be enforced, got an error in it: "
                    f"{grammar_message(matcher.get_error())}",
                    param,
                )
            with self._lock:
                self._compiled[kind, text] = matcher
                while len(self._compiled) > CACHED:
                    self._compiled.popitem(last=False)
        return GrammarConstraint(matcher.deep_copy(), self._vocabulary, self._tokenizer.ends, param)

    @contextmanager
    def _process(self) -> Iterator[GrammarProcess]:
        """Yield a child process that no other thread uses."""
        _, names = self.prepare()
        with self._lock:
            if not self._idle:
                self._idle.append(GrammarProcess(names, self.seconds))
                self._processes.append(self._idle[-1])
            process = self._idle.pop()
        try:
            yield process
        finally:
            with self._lock:
                self._idle.append(process)


class _TokenBytes:
    """The tokenizer as llguidance wants it. bytes: those of each token; control tokens are marked,
    so that no text of a grammar matches them.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self.eos_token_id = min(tokenizer.ends, default=0)
        self.bos_token_id = tokenizer.role("bos")
        names = tokenizer.vocabulary.tokens
        self.tokens = [
            tokenizer.bytes_of(each) or SPECIAL + names[each].encode("utf-8", "replace")
            for each in range(min(tokenizer.size, vocabulary))
        ]
        self.tokens += [b""] * (vocabulary - len(self.tokens))
        self.special_token_ids: list[int] = []
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        """Return the tokens of a text that the grammar forces within an answer."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text, space_prefix=False)


def _check_length(text: str, param: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ApiError(
            f"[{param}] expected at most {MAX_CHARACTERS} characters, got {len(text)}", param
        )
