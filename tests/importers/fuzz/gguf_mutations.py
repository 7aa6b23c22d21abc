"""Damages GGUF files: bytes of the file, or counts, names, types, sizes and offsets of its parts.

A mutant is a function of the seed and its number alone.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from gguf_files import Draft, Info, Key, ValueType, array, string
from onnx_mutations import BYTES

NUMBERS = (0, 1, 2, 3, 7, 31, 32, 33, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
LARGE = (*NUMBERS, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
NAMES = ("", "a", "a\0b", b"\xff\xfe", "general.alignment", "split.count", "w" * 70, "../w")

Corpus = Mapping[str, Draft]
Change = Callable[[random.Random, Draft], Draft]


def mutant(drafts: Corpus, seed: int, number: int) -> tuple[str, bytes]:
    """Return the origin of a mutant and its bytes."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choice(sorted(drafts))
    draft, done = drafts[name], []
    if rng.random() < 0.4:
        data = draft.packed()
        for _ in range(rng.choice((1, 1, 2, 5))):
            change = rng.choice(BYTES)
            data = change(rng, data, drafts[rng.choice(sorted(drafts))].packed())
            done.append(change.__name__)
        return f"{name}: {', '.join(done)}", data
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        alter = rng.choice(CHANGES)
        done.append(alter.__name__)
        try:
            draft = alter(rng, draft)
        except IndexError:
            done[-1] += " (nothing)"  # of that kind is in this file
    data = draft.packed()
    if rng.random() < 0.3:  # what the header says, in place
        at = rng.choice((4, 8, 16))
        data = data[:at] + struct.pack("<Q", rng.choice(LARGE)) + data[at + 8 :]
        done.append("number of the header")
    return f"{name}: {', '.join(done)}", data


def _with_key(rng: random.Random, draft: Draft, change: Callable[[Key], Key]) -> Draft:
    at = rng.randrange(len(draft.keys)) if draft.keys else [][0]
    keys = list(draft.keys)
    keys[at] = change(keys[at])
    return replace(draft, keys=tuple(keys))


def _with_info(rng: random.Random, draft: Draft, change: Callable[[Info], Info]) -> Draft:
    at = rng.randrange(len(draft.infos)) if draft.infos else [][0]
    infos = list(draft.infos)
    infos[at] = change(infos[at])
    return replace(draft, infos=tuple(infos))


def rename_key(rng: random.Random, draft: Draft) -> Draft:
    return _with_key(rng, draft, lambda key: replace(key, name=rng.choice(NAMES)))


def copy_key(rng: random.Random, draft: Draft) -> Draft:
    return replace(draft, keys=(*draft.keys, rng.choice(draft.keys)))


def drop_key(rng: random.Random, draft: Draft) -> Draft:
    at = rng.randrange(len(draft.keys)) if draft.keys else [][0]
    return replace(draft, keys=draft.keys[:at] + draft.keys[at + 1 :])


def swap_values(rng: random.Random, draft: Draft) -> Draft:
    other = rng.choice(draft.keys)
    return _with_key(rng, draft, lambda key: replace(key, kind=other.kind, raw=other.raw))


def change_kind(rng: random.Random, draft: Draft) -> Draft:
    kind = rng.choice((*range(14), 1 << 31))
    return _with_key(rng, draft, lambda key: replace(key, kind=kind))


def change_number(rng: random.Random, draft: Draft) -> Draft:
    """Another value, or another length of a string, or another type of an array."""
    length = struct.pack("<Q", rng.choice(LARGE))

    def changed(key: Key) -> Key:
        size = rng.choice((1, 2, 4, 8))
        return replace(key, raw=length[:size] + key.raw[size:])

    return _with_key(rng, draft, changed)


def change_count(rng: random.Random, draft: Draft) -> Draft:
    """Another count of an array's elements."""
    arrays = [key for key in draft.keys if key.kind == ValueType.ARRAY]
    chosen, count = rng.choice(arrays), struct.pack("<Q", rng.choice(LARGE))
    changed = replace(chosen, raw=chosen.raw[:4] + count + chosen.raw[12:])
    return replace(draft, keys=tuple(changed if key is chosen else key for key in draft.keys))


def nest_arrays(rng: random.Random, draft: Draft) -> Draft:
    raw = array(ValueType.ARRAY, 1, b"") * rng.choice((1, 3, 9, 5000))
    raw += rng.choice((array(ValueType.UINT8, 1, b"\1"), array(ValueType.STRING, 1, string("x"))))
    return replace(draft, keys=(*draft.keys, Key("nested.more", ValueType.ARRAY, raw)))


def many_empty(rng: random.Random, draft: Draft) -> Draft:
    """Arrays and strings of nothing, of which few bytes say many."""
    count = rng.choice((1000, 20_000))
    inner, each = rng.choice(((ValueType.STRING, bytes(8)), (ValueType.ARRAY, array(0, 0, b""))))
    raw = array(inner, count, each * count)
    return replace(draft, keys=(*draft.keys, Key("many", ValueType.ARRAY, raw)))


def set_alignment(rng: random.Random, draft: Draft) -> Draft:
    kind = rng.choice((ValueType.UINT32, ValueType.UINT64, ValueType.BOOL, ValueType.STRING))
    raw = struct.pack("<Q", rng.choice(NUMBERS))
    size = {ValueType.UINT32: 4, ValueType.BOOL: 1}.get(kind, 8)
    return replace(draft, keys=(*draft.keys, Key("general.alignment", kind, raw[:size])))


def set_split(rng: random.Random, draft: Draft) -> Draft:
    for name in ("split.no", "split.count", "split.tensors.count"):
        draft = draft.with_key(name, ValueType.UINT32, rng.choice((0, 1, 1, 2, 3, 1 << 31)))
    return draft


def rename_tensor(rng: random.Random, draft: Draft) -> Draft:
    return _with_info(rng, draft, lambda info: replace(info, name=rng.choice(NAMES)))


def copy_tensor(rng: random.Random, draft: Draft) -> Draft:
    return replace(draft, infos=(*draft.infos, rng.choice(draft.infos)))


def swap_tensors(rng: random.Random, draft: Draft) -> Draft:
    other = rng.choice(draft.infos)
    return _with_info(rng, draft, lambda info: replace(other, name=info.name))


def change_size(rng: random.Random, draft: Draft) -> Draft:
    def changed(info: Info) -> Info:
        at = rng.randrange(len(info.sizes))
        sizes = (*info.sizes[:at], rng.choice(LARGE), *info.sizes[at + 1 :])
        return replace(info, sizes=sizes)

    return _with_info(rng, draft, changed)


def change_rank(rng: random.Random, draft: Draft) -> Draft:
    return _with_info(rng, draft, lambda info: replace(info, rank=rng.choice(NUMBERS)))


def change_type(rng: random.Random, draft: Draft) -> Draft:
    return _with_info(rng, draft, lambda info: replace(info, kind=rng.choice((*range(45), 99))))


def change_offset(rng: random.Random, draft: Draft) -> Draft:
    offsets = (*LARGE, *(info.offset for info in draft.infos))
    return _with_info(rng, draft, lambda info: replace(info, offset=rng.choice(offsets)))


def change_data(rng: random.Random, draft: Draft) -> Draft:
    return replace(draft, data=rng.randbytes(len(draft.data)))


def cut_data(rng: random.Random, draft: Draft) -> Draft:
    return replace(draft, data=draft.data[: rng.randrange(len(draft.data) + 1)])


CHANGES: tuple[Change, ...] = (
    *(rename_key, copy_key, drop_key, swap_values, change_kind, change_number, change_count),
    *(nest_arrays, many_empty, set_alignment, set_split, rename_tensor, copy_tensor),
    *(swap_tensors, change_size, change_rank, change_type, change_offset, change_data, cut_data),
)
