"""Hash ops of com.microsoft on the CPU: of elements and of token n-grams."""

from __future__ import annotations

import numpy as np

from ....common.dtypes import NDArray
from .contrib_base import ContribOp, Results


def _rotated(x: NDArray, bits: int) -> NDArray:
    return np.asarray(x << np.uint32(bits) | x >> np.uint32(32 - bits))


def murmur3(keys: NDArray, size: int, seed: int) -> NDArray:
    """Return MurmurHash3_x86_32 of keys of `size` bytes: (count, words), the last word
    zero-padded.
    """
    out = np.full(len(keys), seed, np.uint32)
    for at in range(keys.shape[1]):
        word = _rotated(keys[:, at] * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        out ^= word
        if 4 * at + 4 <= size:
            out = _rotated(out, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    out ^= np.uint32(size)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        out = (out ^ out >> np.uint32(shift)) * np.uint32(factor)
    return np.asarray(out ^ out >> np.uint32(16))


class MurmurHash3(ContribOp):
    """Compute a 32-bit hash of each element's bytes; strings are hashed as UTF-8."""

    def _run(self, x: NDArray, positive: int = 1, seed: int = 0) -> Results:
        hashes = np.empty(x.size, np.uint32)
        start = seed & 0xFFFFFFFF
        if x.dtype.kind in "OUS":
            for at, text in enumerate(x.reshape(-1)):
                data = str(text).encode()
                words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
                hashes[at] = murmur3(words[None], len(data), start)[0]
        else:
            words = np.ascontiguousarray(x).reshape(-1, 1).view(np.uint32)
            hashes[:] = murmur3(words, x.itemsize, start)
        return (hashes.view(np.uint32 if positive else np.int32).reshape(x.shape),)


def _ngrams(
    ids: NDArray,
    past: NDArray,
    multipliers: NDArray,
    sizes: NDArray,
    offsets: NDArray | None,
    end: int | None,
    filler: int,
    segments: NDArray | None,
) -> NDArray:
    """Return n-gram hashes of each token and its predecessors in one sequence: (length, hashes).

    Parameters
    ----------
    ids
        Tokens (length,).
    past
        Tokens before `ids`.
    sizes
        Table sizes of all hashes, those of bigrams first.
    end
        Token that ends a sequence: n-grams of later tokens do not extend beyond it.
    filler
        Token that replaces the tokens that do not count.
    segments
        Segment of each token of `past` and `ids`; a new segment starts a new sequence.
    """
    before, length = len(past), len(ids)
    whole = np.concatenate([past, ids])
    first = np.zeros(length, np.int64)
    at = before + np.arange(length)
    starts = np.zeros(len(whole), bool)
    if end is not None:
        starts[1:] |= whole[:-1] == end
    if segments is not None:
        starts[1:] |= segments[1:] != segments[:-1]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(whole)), 0))[at]
    mixed = whole[at] * multipliers[0]
    out, heads = [], len(sizes) // before
    for shift in range(1, before + 1):
        word = np.where(at - shift < first, np.asarray(filler, ids.dtype), whole[at - shift])
        mixed = mixed ^ (word * multipliers[shift])
        out.append(mixed[:, None] % sizes[(shift - 1) * heads : shift * heads])
    hashes = np.concatenate(out, 1)
    return np.asarray(hashes if offsets is None else hashes + offsets, ids.dtype)


class NGramHashMapping(ContribOp):
    """Return n-gram hashes of tokens (batch, length), and the past tokens for the next call."""

    def _run(
        self,
        ids: NDArray,
        multipliers: NDArray,
        sizes: NDArray,
        past: NDArray | None = None,
        offsets: NDArray | None = None,
        end: NDArray | None = None,
        segments: NDArray | None = None,
        pad_id: int = 0,
        max_ngram_size: int = 2,
        n_head_per_ngram: int = 1,
        reset_on_eos: int = 0,
    ) -> Results:
        filler = pad_id if end is None else int(end.reshape(-1)[0])
        shape = (len(ids), max_ngram_size - 1)
        held = np.full(shape, filler, ids.dtype) if past is None else past
        stop = filler if end is not None and reset_on_eos else None
        hashes = []
        for row, before, at in zip(ids, held, range(len(ids)), strict=True):
            parts = None
            if segments is not None:  # past tokens belong to the first segment
                parts = np.concatenate([np.repeat(segments[at, :1], shape[1]), segments[at]])
            hashes.append(_ngrams(row, before, multipliers, sizes, offsets, stop, filler, parts))
        return np.stack(hashes), np.concatenate([held, ids], 1)[:, -shape[1] :].copy()


class VarlenNGramHashMapping(ContribOp):
    """Return n-gram hashes of concatenated sequences of any length, whose segments may continue in
    the next call.
    """

    def _run(
        self,
        ids: NDArray,
        multipliers: NDArray,
        sizes: NDArray,
        ends: NDArray,
        past: NDArray | None = None,
        offsets: NDArray | None = None,
        end: NDArray | None = None,
        segments: NDArray | None = None,
        past_segments: NDArray | None = None,
        captured: NDArray | None = None,
        pad_id: int = 0,
        max_ngram_size: int = 2,
        n_head_per_ngram: int = 1,
        reset_on_eos: int = 0,
        state_update_capacity: int = 0,
    ) -> Results:
        filler = pad_id if end is None else int(end.reshape(-1)[0])
        shape = (len(ends) - 1, max_ngram_size - 1)
        held = np.full(shape, filler, ids.dtype) if past is None else past
        stop = filler if end is not None and reset_on_eos else None
        updates: NDArray = np.full((len(held), state_update_capacity, shape[1]), pad_id, ids.dtype)
        hashes, words, marks = [], [], []
        for at, (start, stop_at) in enumerate(zip(ends, ends[1:], strict=False)):
            row, parts = ids[start:stop_at], None
            if segments is not None:
                before = np.repeat(segments[start : start + 1], shape[1])
                before = before if past_segments is None else past_segments[at]
                parts = np.concatenate([before, segments[start:stop_at]])
                marks.append(parts[-shape[1] :])
            hashes.append(_ngrams(row, held[at], multipliers, sizes, offsets, stop, filler, parts))
            whole = np.concatenate([held[at], row])
            words.append(whole[-shape[1] :])
            count = 0 if captured is None else int(captured[at])
            for step in range(min(count, state_update_capacity, len(row))):
                updates[at, step] = whole[step + 1 : step + 1 + shape[1]]
        states = np.stack(marks) if marks else np.zeros(shape, np.int32)
        return np.concatenate(hashes), np.stack(words), states, updates
