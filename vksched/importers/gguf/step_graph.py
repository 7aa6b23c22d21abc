"""Step graph: builds the graph of a step, in which a language model appends tokens to texts.

    ids, start, count, slot --> Network over CachedSequence --> logits
                                                            --> the next values of the KV cache

Examples: tests/generation/test_cached_text.py, tests/importers/test_gguf_vision.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ...common.dtypes import INT32, Shape
from ...common.errors import ShapeError, UnsupportedOp
from ...ir.name_scope import turn
from ...ir.tensor import Tensor, input
from .architectures.network import Network
from .architectures.pictures import check_picture_step
from .architectures.positions import Tables
from .architectures.token_layout import FullSequence, SequenceLayout
from .cached_sequence import CachedSequence, Step
from .hparams.hparams import HParams
from .kv_cache import KeyValueCache


@dataclass(frozen=True)
class StepOptions:
    """The options of a step; see `LanguageModel.step`."""

    rows: int | None = None
    all_logits: bool = False
    scale_rows: bool = False
    round_rows: bool = False
    one_text: bool = False
    picture: bool = False
    shifted: bool = False
    ids: Tensor | None = None


def build_step(
    network: Callable[[SequenceLayout], Network],
    cache: KeyValueCache,
    tokens: int,
    parts: int,
    how: StepOptions,
) -> Step:
    """Return a step of a model; see `LanguageModel.step`. network: returns the network of a text.

    Raises
    ------
    ShapeError
        The cache has too few tokens or slots, the parts are not equal, or rows of `one_text` have
        several tokens.
    UnsupportedOp
        Layers have a recurrent state with `one_text`, or the architecture takes no pictures.
    """
    whole = network(FullSequence(tokens))
    hyper, is_recurrent = whole.hyper, any(whole.family.with_state(whole.hyper))
    if how.picture:
        check_picture_step(whole.family, hyper, tokens, parts)
    _check_sizes(cache, tokens, parts, how)
    if how.one_text:
        _check_one_text(hyper.architecture, is_recurrent, tokens, how.rows)
    each, of_row = tokens // parts, () if how.rows is None else (how.rows,)
    shape = how.rows or 1, tokens
    ids, rotary = _tokens_of(hyper, shape, how), None
    if how.shifted:
        rotary = input("shift", of_row, INT32, bounds=(-cache.length, 0))
        if how.picture:
            rotary = input("positions", (shape[0], 3, tokens), INT32, bounds=(0, cache.length - 1))
    is_whole = how.picture and not whole.family.mrope
    start = input("start", of_row, INT32, bounds=(0, cache.length - tokens))
    slots = None
    if how.rows is not None:
        slots = input("slot", of_row, INT32, bounds=(-1, cache.slots - 1))
    last: Tensor | None = None
    count: Tensor | None = None
    first = tokens - each + 1
    if is_recurrent or not how.all_logits:
        count = input("count", of_row, INT32, bounds=(first, tokens))
        last = None if how.all_logits else count - first
        count = count - (first - 1) if parts > 1 else count
    text: CachedSequence | None = None
    tables: Tables = {}
    for part in range(parts):
        with turn(part) if parts > 1 else nullcontext():
            about = how.round_rows, slots, how.one_text, is_whole
            own = count if part == parts - 1 else None
            text = CachedSequence(cache, each, start, last, text, *about, count=own, rotary=rotary)
            mine = ids[:, part * each : (part + 1) * each] if parts > 1 else ids
            built = replace(network(text), tables=tables, scale_rows=how.scale_rows)
            logits = built.logits(mine)
    assert text is not None
    return Step(logits, text.updates)


def _tokens_of(hyper: HParams, shape: Shape, how: StepOptions) -> Tensor:
    """Return the tokens or the picture of a step: a tensor of the caller, or an input."""
    if how.picture:
        return input("picture", (*shape, hyper.width * (1 + hyper.deepstack)))
    if how.ids is None:
        return input("ids", shape, INT32, bounds=(0, hyper.vocabulary - 1))
    if how.ids.shape != shape:
        raise ShapeError(f"[model] expected ids of shape {shape}, got {how.ids.shape}")
    return how.ids


def _check_sizes(cache: KeyValueCache, tokens: int, parts: int, how: StepOptions) -> None:
    """Raise ShapeError unless the cache and the parts have room for the tokens and rows."""
    rows, cut = how.rows, parts > 1 and how.all_logits
    if not 0 < tokens <= cache.length or parts < 1 or tokens % parts or cut:
        raise ShapeError(
            f"[model] expected 1 to {cache.length} tokens as the cache has, got {tokens}, to "
            f"be cut in equal parts, got {parts}"
        )
    if rows is None and cache.slots > 1 or rows is not None and rows < 1:
        raise ShapeError(
            f"[model] expected 1 or more rows for a cache of {cache.slots} slots, got {rows}"
        )


def _check_one_text(architecture: str, is_recurrent: bool, tokens: int, rows: int | None) -> None:
    """Raise an error unless a model has a step whose rows are tokens of one text."""
    if is_recurrent:
        raise UnsupportedOp(
            "[model] expected layers without recurrent states in a step of one text, got "
            f"{architecture!r}; try steps of one token"
        )
    if rows is None or tokens > 1:
        raise ShapeError(
            f"[model] expected rows of one token in a step of one text, got {tokens} tokens and "
            f"{rows} rows"
        )
