"""Tokenizers of GGUF files, on vocabularies small enough to read and on llama.cpp's own."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf_metadata import metadata
from hypothesis import given, settings
from hypothesis import strategies as st
from selection import examples

pytest.importorskip("tokenizers")

from tiny_vocabularies import byte_pair, sentence_piece, unigram, word_piece

from vksched.common.errors import ModelFormatError
from vksched.common.user_warning import VkschedWarning
from vksched.importers.gguf.tokenizer.byte_pair import _checked_pairs, _pairs
from vksched.importers.gguf.tokenizer.pre_tokenizer import PATTERNS, PRE
from vksched.importers.gguf.tokenizer.tokenizer import StreamDecoder, Tokenizer

REAL = Path(os.environ.get("VKSCHED_LLAMA_VOCABULARIES", "build/llama-vocabularies"))
"""The folder `models` of llama.cpp: ggml-vocab-*.gguf, with .inp and .out beside them."""


def words(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.vocabulary.tokens[each] for each in ids]


def test_byte_pairs_merge_in_the_order_of_the_list() -> None:
    tokenizer = Tokenizer(byte_pair())
    assert words(tokenizer, tokenizer.encode("hello he")) == ["hel", "l", "o", "Ġhe"]
    assert words(tokenizer, tokenizer.encode("12")) == ["1", "2"]
    assert tokenizer.ends == {260}


def test_names_of_control_tokens_in_a_text_are_tokens_only_where_asked_for() -> None:
    tokenizer = Tokenizer(byte_pair())
    assert tokenizer.encode("<|im_start|>he<|im_end|>", special=True) == [259, 256, 260]
    plain = tokenizer.encode("<|im_start|>he")
    assert not {259, 260} & set(plain)
    assert tokenizer.decode([259, 256, 260]) == "he"
    assert tokenizer.decode([259, 256], special=True) == "<|im_start|>he"


def test_sentence_pieces_merge_by_score_and_fall_back_to_bytes() -> None:
    tokenizer = Tokenizer(sentence_piece())
    assert words(tokenizer, tokenizer.encode("hey", bos=True)) == ["<s>", "▁hey"]
    assert words(tokenizer, tokenizer.encode("é")) == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hey é", bos=True)) == "hey é"
    bare = Tokenizer(sentence_piece(add_space_prefix=False))
    assert words(bare, bare.encode("he")) == ["he"]


def test_equal_scores_merge_from_the_left() -> None:
    values = sentence_piece(add_space_prefix=False)
    tokens = values["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    scores = [0.0] * len(tokens)
    tokenizer = Tokenizer({**values, "tokenizer.ggml.scores": scores})
    assert words(tokenizer, tokenizer.encode("hey")) == ["he", "y"]


def test_unigrams_have_the_largest_sum_of_scores() -> None:
    tokenizer = Tokenizer(unigram(add_space_prefix=True))
    assert words(tokenizer, tokenizer.encode("ab", bos=True)) == ["▁", "ab", "</s>"]
    assert words(tokenizer, tokenizer.encode("abab")) == ["▁", "ab", "ab"]
    assert words(tokenizer, tokenizer.encode("aλμ b")) == ["▁", "a", "<unk>", "▁", "b"]
    merging = Tokenizer(unigram(remove_extra_whitespaces=True))
    assert words(merging, merging.encode("  a   b ")) == ["▁", "a", "▁", "b"]


def test_unigrams_equal_those_of_the_package() -> None:
    from tokenizers import models

    values = unigram()
    names, scores = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.scores"]
    assert isinstance(names, list) and isinstance(scores, list)
    normal = list(zip(names[3:], scores[3:], strict=True))
    model = models.Unigram([("<unk>", 0.0), *normal], 0, False)
    tokenizer = Tokenizer(values)
    rng = np.random.default_rng(1)
    for _ in range(200):
        text = "".join(rng.choice(list("abab▁"), int(rng.integers(1, 30))))
        expected = [each.value for each in model.tokenize(text)]
        assert words(tokenizer, tokenizer.encode(text)) == expected


def test_word_pieces_are_the_longest_from_the_left() -> None:
    tokenizer = Tokenizer(word_piece())
    ids = tokenizer.encode("Unaffable, CAFÉ xyz", bos=True)
    assert words(tokenizer, ids) == [
        "[CLS]", "▁un", "aff", "able", "▁,", "▁cafe", "[UNK]", "[SEP]",
    ]  # fmt: skip
    assert tokenizer.decode(ids) == "unaffable , cafe"


@pytest.mark.parametrize("pre", sorted(PRE))
def test_every_way_to_cut_texts_compiles_and_keeps_them(pre: str) -> None:
    row = PRE[pre]
    assert row.patterns in PATTERNS
    if not row.spaces:
        tokenizer = Tokenizer(byte_pair(pre))
        text = "It's 12345 Ünï中文, (a)\r\n\n \t x  IMGIMGABZ 'LL hello  "
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("make", [byte_pair, sentence_piece])
@settings(max_examples=examples(60), deadline=None)
@given(text=st.text(max_size=60))
def test_texts_come_back(make: Callable[[], dict[str, object]], text: str) -> None:
    tokenizer = TOKENIZERS[make.__name__]
    ids = tokenizer.encode(text, bos=True)
    back = tokenizer.decode(ids)
    seen = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert back == (seen if make is byte_pair else seen.replace("▁", " "))
    stream = StreamDecoder(tokenizer)
    pieces = [stream.add(each) for each in ids]
    assert "".join(pieces) + stream.end() == back


TOKENIZERS = {
    "byte_pair": Tokenizer(byte_pair()),
    "sentence_piece": Tokenizer(sentence_piece()),
}


def test_a_stream_gives_whole_characters() -> None:
    stream = StreamDecoder(TOKENIZERS["byte_pair"])
    pieces = [stream.add(each) for each in "a🦙b".encode()]
    assert pieces == ["a", "", "", "", "🦙", "b"]
    assert (stream.add(0xF0), stream.end()) == ("", "\ufffd")


def without(values: dict[str, object], key: str) -> dict[str, object]:
    return {each: value for each, value in values.items() if each != f"tokenizer.ggml.{key}"}


HOSTILE: dict[str, tuple[dict[str, object], str]] = {
    "no model": (without(byte_pair(), "model"), "tokenizer.ggml.model"),
    "another model": ({**byte_pair(), "tokenizer.ggml.model": "gpt3"}, "gpt3"),
    "model of another type": ({**byte_pair(), "tokenizer.ggml.model": 7}, "a text"),
    "no tokens": (without(byte_pair(), "tokens"), "got none"),
    "tokens of another type": ({**byte_pair(), "tokenizer.ggml.tokens": [1, 2]}, "texts"),
    "the same token twice": ({**byte_pair(), "tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
    "a huge token": ({**byte_pair(), "tokenizer.ggml.tokens": ["a" * 70_000]}, "65536"),
    "few scores": (sentence_piece(scores=[0.0]), "one for each token"),
    "scores that are no numbers": (sentence_piece(scores=[np.nan] * 268), "finite"),
    "scores of texts": (sentence_piece(scores=["a"] * 268), "a list of numbers"),
    "types of fractions": (sentence_piece(token_type=[1.5] * 268), "whole numbers"),
    "a byte of another name": (sentence_piece(token_type=[6] * 268), "<unk>"),
    "no merges": (without(byte_pair(), "merges"), "merges"),
    "a merge of one piece": (byte_pair(merges=["he"]), "two pieces"),
    "a merge of unknown pieces": (byte_pair(merges=["h zz"]), "'zz' is no token"),
    "a merge to an unknown piece": (byte_pair(merges=["x y"]), "'xy' is no token"),
    "another way to cut": (byte_pair(pre="qwen22"), "close: qwen2"),
    "an end out of range": (byte_pair(eos_token_id=261), "below 261"),
    "an end of another type": (byte_pair(eos_token_id=1.5), "a whole number"),
    "a flag of another type": (sentence_piece(add_bos_token=3), "true or false"),
    "a short table of characters": (unigram(precompiled_charsmap=[1, 2]), "a table and texts"),
    "a table beyond its end": (unigram(precompiled_charsmap=b"\xff\0\0\0ab"), "a table and texts"),
    "unknown of nobody": (word_piece(unknown_token_id=-1), "unknown_token_id"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_wrong_metadata_are_errors_that_name_the_key(name: str) -> None:
    values, reported = HOSTILE[name]
    with pytest.raises(ModelFormatError, match=r"\[gguf\] expected") as caught:
        Tokenizer(values).decode([0, 1])
    assert reported in str(caught.value)


@pytest.mark.parametrize("merges", [["he l", "h e", "Ġ he"], ["h e", "he l", "h e", "Ġ he"]])
def test_merges_count_once_in_the_order_of_the_file(merges: list[str]) -> None:
    tokenizer = Tokenizer(byte_pair(merges=merges))
    assert tokenizer.encode("hel he") == TOKENIZERS["byte_pair"].encode("hel he")
    pairs = [tuple(line.split()) for line in dict.fromkeys(merges)]
    assert _checked_pairs(merges, tokenizer.vocabulary.ids) == pairs
    assert _pairs(merges) == (pairs if len(pairs) == len(merges) else None)


def test_a_table_of_characters_that_points_outside_is_an_error() -> None:
    data = np.array([8, 0x400 << 10, 0], "<u4").tobytes() + b"a\0"
    tokenizer = Tokenizer(unigram(precompiled_charsmap=np.frombuffer(data, np.int8)))
    with pytest.raises(ModelFormatError, match="precompiled_charsmap"):
        tokenizer.encode("abc")


def with_table(entries: dict[int, int], texts: bytes) -> Tokenizer:
    """A tokenizer whose table of characters has these entries, of 256."""
    table = np.zeros(256, "<u4")
    for at, entry in entries.items():
        table[at] = entry
    data = np.uint32(table.nbytes).tobytes() + table.tobytes() + texts
    return Tokenizer(unigram(precompiled_charsmap=np.frombuffer(data, np.int8)))


A = ord("a")
REPLACED = {A: 128 << 10 | 1 << 8 | A, A ^ 128: 1 << 31}
"""The letter a becomes the first of the texts."""
ENDLESS = {A: A << 10 | A}
"""A run of the letter a is looked up to its end, from each of its letters on."""


@pytest.mark.parametrize(
    ("entries", "texts", "message"),
    [
        (REPLACED, b"b" * (4 << 20) + b"\0", "4096 bytes"),
        (REPLACED, b"b" * 4096 + b"\0", "64 bytes for each byte"),
        (ENDLESS, b"b\0", "at most 256 bytes"),
    ],
)
def test_a_table_of_characters_makes_no_more_than_tables_do(
    entries: dict[int, int], texts: bytes, message: str
) -> None:
    tokenizer = with_table(entries, texts)
    tracemalloc.start()
    try:
        with pytest.raises(ModelFormatError, match=message):
            tokenizer.encode("a" * 50_000)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_table_of_characters_may_make_texts_eleven_times_as_long() -> None:
    """As NFKC does of U+FDFA."""
    tokenizer = with_table(REPLACED, b"b" * 11 + b"\0")
    assert tokenizer.encode("a" * 2000) == tokenizer.encode("b" * 22_000)


def test_without_a_way_to_cut_there_is_a_warning() -> None:
    with pytest.warns(VkschedWarning, match=r"no tokenizer.ggml.pre; .* 'default'"):
        Tokenizer(without(byte_pair(), "pre"))


LONG = {"spaces": " ", "spaces, then x": " " * 99 + "x", "a": "a", "mixed": " hey é\0中🦙\n1"}


@pytest.mark.parametrize("text", sorted(LONG))
@pytest.mark.parametrize("make", [byte_pair, sentence_piece, unigram, word_piece])
def test_long_texts_take_no_time_worth_telling(
    make: Callable[[], dict[str, object]], text: str
) -> None:
    whole = LONG[text] * (50_000 // len(LONG[text]))
    tokenizer = Tokenizer(make())
    ids = tokenizer.encode(whole)
    if make is byte_pair:
        assert tokenizer.decode(ids) == whole


@pytest.mark.parametrize("path", sorted(REAL.glob("ggml-vocab-*.gguf.inp")) or [None])
def test_tokens_are_those_that_llama_cpp_expects(path: Path | None) -> None:
    if path is None:
        pytest.skip(f"no vocabularies in {REAL}; VKSCHED_LLAMA_VOCABULARIES names a folder")
    tokenizer = Tokenizer(metadata(path.with_suffix("")))
    with path.open(encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    expected = path.with_suffix(".out").read_text("utf-8").split("\n")
    assert len(texts) > 40
    for text, line in zip(texts, expected, strict=False):
        assert tokenizer.encode(text) == [int(each) for each in line.split()], text
