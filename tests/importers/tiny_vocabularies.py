"""Vocabularies small enough to read, as metadata of GGUF files."""

from __future__ import annotations

from vksched.importers.gguf.tokenizer.byte_pair import LETTERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def vocabulary(
    model: str, tokens: list[tuple[str, int, float]], **more: object
) -> dict[str, object]:
    names, types, scores = zip(*tokens, strict=True)
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(names),
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.scores": list(scores),
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


def byte_pair(pre: str = "qwen2", **more: object) -> dict[str, object]:
    """All bytes, "he", "hel", "Ġhe", "<|im_start|>" and "<|im_end|>"."""
    letters = [(each, NORMAL, 0.0) for each in sorted(LETTERS, key=LETTERS.__getitem__)]
    words = [(each, NORMAL, 0.0) for each in ("he", "hel", "Ġhe")]
    ends = [("<|im_start|>", CONTROL, 0.0), ("<|im_end|>", CONTROL, 0.0)]
    feeds = {"pre": pre, "merges": ["h e", "he l", "Ġ he"], "eos_token_id": 260, **more}
    return vocabulary("gpt2", [*letters, *words, *ends], **feeds)


def sentence_piece(**more: object) -> dict[str, object]:
    heads = [("<unk>", UNKNOWN, 0.0), ("<s>", CONTROL, 0.0), ("</s>", CONTROL, 0.0)]
    raw = [(f"<0x{each:02X}>", BYTE, 0.0) for each in range(256)]
    pieces = ("▁", -9.0), ("h", -9.0), ("e", -9.0), ("y", -9.0), ("he", -3.0), ("▁h", -2.0)
    more_pieces = ("▁he", -4.0), ("▁hey", -5.0), ("ey", -1.0)
    normal = [(name, NORMAL, score) for name, score in (*pieces, *more_pieces)]
    return vocabulary("llama", [*heads, *raw, *normal], **more)


def unigram(**more: object) -> dict[str, object]:
    heads = [("<pad>", CONTROL, 0.0), ("</s>", CONTROL, 0.0), ("<unk>", UNKNOWN, 0.0)]
    pieces = ("▁", -2.0), ("a", -3.0), ("b", -3.5), ("ab", -4.0), ("▁ab", -6.5), ("aba", -9.0)
    return vocabulary("t5", [*heads, *((name, NORMAL, score) for name, score in pieces)], **more)


def word_piece(**more: object) -> dict[str, object]:
    heads = [("[PAD]", CONTROL, 0.0), ("[UNK]", UNKNOWN, 0.0), ("[CLS]", CONTROL, 0.0)]
    normal = ["▁un", "aff", "able", "▁a", "▁,", "▁cafe", "▁the"]
    roles = {"unknown_token_id": 1, "bos_token_id": 2, "seperator_token_id": 3}
    tokens = [*heads, ("[SEP]", CONTROL, 0.0), *((each, NORMAL, 0.0) for each in normal)]
    return vocabulary("bert", tokens, **{**roles, **more})
