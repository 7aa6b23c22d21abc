"""Structured output: JSON schemas and grammars as token masks, by llguidance.

    schema or grammar --compile--> matcher --deep_copy--> one per answer --mask--> tokens allowed

A schema with a keyword that llguidance does not implement is an error: the answer would not follow
it otherwise. Sizes and steps of grammars are bounded by llguidance's limits.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import llguidance
import numpy as np
from llguidance.gbnf_to_lark import any_to_lark

from ..common.errors import VkschedError
from .api_error import ApiError

if TYPE_CHECKING:
    from ..importers.gguf.tokenizer.tokenizer import Tokenizer

Mask = np.ndarray[Any, np.dtype[np.bool_]]
MAX_CHARACTERS = 1 << 18
"""The maximum length of a schema or grammar."""
SPECIAL = b"\xff"
"""The byte that marks control tokens for llguidance; no text has it."""
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
    """The state of a grammar in one answer; it implements `TokenConstraint`."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: int, ends: frozenset[int]):
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
        return GrammarConstraint(self._matcher.deep_copy(), self._vocabulary, self._ends)

    @property
    def is_finished(self) -> bool:
        """True if only an end token may follow."""
        stopped: bool = self._matcher.is_stopped()
        return stopped

    def _check(self) -> None:
        if self._matcher.is_error():
            raise VkschedError(
                f"[grammar] expected a grammar within the limits of a step, got "
                f"{self._matcher.get_error()[:200]}; try a simpler grammar"
            )


class GrammarCompiler:
    """Compiles schemas and grammars for a tokenizer. Methods are thread-safe.

    Parameters
    ----------
    vocabulary
        The number of logits of the model.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._tokens: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()

    def prepare(self) -> llguidance.LLTokenizer:
        """Build the trie of the tokens' bytes, which takes a second for a large vocabulary."""
        with self._lock:
            if self._tokens is None:
                wrapper = llguidance.TokenizerWrapper(
                    _TokenBytes(self._tokenizer, self._vocabulary)
                )
                ends = sorted(self._tokenizer.ends) or [0]
                self._tokens = llguidance.LLTokenizer(wrapper, self._vocabulary, eos_token=ends)
            return self._tokens

    def from_schema(self, schema: dict[str, Any] | bool, param: str) -> GrammarConstraint:
        """Return the constraint of a JSON schema.

        Raises
        ------
        ApiError
            The schema is invalid, or a keyword of it is not supported; it names `param`.
        """
        text = json.dumps(schema)
        _check_length(text, param)
        grammar = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=OPTIONS)
        return self.from_grammar(grammar, param, "JSON schema")

    def from_text(self, text: str, param: str) -> GrammarConstraint:
        """Return the constraint of a grammar in GBNF, or in Lark's syntax with a rule "start".

        Raises
        ------
        ApiError
            The grammar is invalid; it names `param`.
        """
        _check_length(text, param)
        try:
            lark = any_to_lark(text)
        except RecursionError:
            raise ApiError(f"[{param}] expected a grammar that is less deep", param) from None
        except Exception as error:  # the parser raises this type itself
            raise ApiError(
                f"[{param}] expected a grammar in GBNF or Lark syntax, got an error in it: {error}",
                param,
            ) from None
        return self.from_grammar(self.lark(lark), param)

    def lark(self, text: str) -> str:
        """Return a grammar in Lark's syntax in llguidance's own form."""
        return str(llguidance.LLMatcher.grammar_from_lark(text))

    def from_grammar(self, grammar: str, param: str, what: str = "grammar") -> GrammarConstraint:
        """Return the constraint of a grammar in llguidance's own form.

        Parameters
        ----------
        what
            The name of the grammar's form, for errors.
        """
        tokens = self.prepare()
        with self._lock:
            matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = llguidance.LLMatcher(tokens, grammar, log_level=0)
            if matcher.is_error():
                raise ApiError(
                    f"[{param}] expected a {what} that can be enforced, got an error in it: "
                    f"{matcher.get_error()[:500]}",
                    param,
                )
            with self._lock:
                self._compiled[grammar] = matcher
                while len(self._compiled) > CACHED:
                    self._compiled.popitem(last=False)
        return GrammarConstraint(matcher.deep_copy(), self._vocabulary, self._tokenizer.ends)


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
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return self._tokenizer.encode(text)


def _check_length(text: str, param: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise ApiError(
            f"[{param}] expected at most {MAX_CHARACTERS} characters, got {len(text)}", param
        )
