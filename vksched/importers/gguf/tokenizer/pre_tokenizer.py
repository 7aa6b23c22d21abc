"""Pre-tokenizer: the patterns that split texts into words before BPE merges, as data.

`tokenizer.ggml.pre` selects a row. Each pattern of a row splits the pieces that the previous
patterns left: matches and the text between them become pieces. The patterns are those of the
models' training, in the syntax of the package `tokenizers`. llama.cpp rewrites some of them for its
own regex engine, with equal results on ordinary text.
"""

from __future__ import annotations

from dataclasses import dataclass

_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ASCII_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CASED = (
    "A-Za-z"
    "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-"
    "\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd"
    "\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-"
    "\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-"
    "\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124"
    "\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183"
    "\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-"
    "\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Cased letters, in the Unicode version of the models' training."""


def _words(digits: str, marks: str = "", suffix: str = _SUFFIX + "|") -> str:
    """Return the pattern of Llama 3 and later models."""
    return (
        rf"{suffix}[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|{digits}"
        rf"| ?[^\s\p{{L}}{marks}\p{{N}}]+[\r\n]*|{_SPACES}"
    )


def _cased(digits: str, suffix: str = "") -> str:
    """Return the pattern that splits before capitals within words."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        f"{start}[{_UPPER}]*[{_LOWER}]+{suffix}|{start}[{_UPPER}]+[{_LOWER}]*{suffix}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


def _deepseek3(newlines: str) -> str:
    return (
        _ASCII_WORD
        + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
        + newlines
        + r"|\s+(?!\S)|\s+"
    )


_LINES = r"[^\n]+|[\n]+"
_THREE = r"\p{N}{1,3}"
_LLAMA3, _QWEN2 = _words(_THREE), _words(r"\p{N}")
_HALVES = "".join(rf"|\s{{{2**each}}}(?!\S)" for each in range(9, 1, -1))

PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "digits": (r"\p{N}", _GPT2),
    "llama3": (_LLAMA3,),
    "jais-2": (_LLAMA3.replace(r"|\s+(?!\S)|\s+", _HALVES + r"|\s{1,2}(?!\S)|\s{1}"),),
    "qwen2": (_QWEN2,),
    "qwen35": (_words(r"\p{N}", r"\p{M}"),),
    "ufakzeka": (_words(r"\p{N}", suffix=""),),
    "laguna": (_LINES, _QWEN2),
    "minicpm5": (_THREE, _words(r"\p{N}+")),
    "bailingmoe": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "seed-coder": (
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
        rf"|{_SPACES}",
    ),
    "exaone-moe": (
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    ),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?[{_CASED}]+",
        r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"(?<!\s)\s+$",  # the lookbehind avoids quadratic time on runs of spaces
        "[一-龥\u0800-一가-\ud7ff]+",
        r"\p{N}+",
    ),
    "deepseek-coder": (
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[一-龥\u0800-一가-\ud7ff]+",
        r"\p{N}",
    ),
    "deepseek-v3": (_THREE, _CJK, _deepseek3(r"[\r\n]*|\s*[\r\n]+")),
    "spark2_5": (_THREE, _CJK, _deepseek3(r"|[\r\n]"), r"\p{N}"),
    "youtu": (
        "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _CJK,
        _cased(r"\p{N}", _SUFFIX + "?"),
    ),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "tekken": (_cased(r"\p{N}"),),
    "gpt-4o": (_cased(_THREE, _SUFFIX + "?"),),
    "bloom": (r" ?[^(\s|.,!?…。，、।۔،)]+",),
    "viking": (r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"),
    "chameleon": (
        r"<sentinel:[0-9]+>",
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        _GPT2,
    ),
    "lines": (_LINES,),
}
"""The patterns of each pre-tokenizer."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A pre-tokenizer.

    whole_words: words in the vocabulary are not split, regardless of merges. begin: BOS is added
    before a text. separate: a separator is added after it. spaces: "▁" replaces a space, and bytes
    have tokens such as <0x0A>.
    """

    patterns: str
    whole_words: bool = False
    begin: bool = False
    separate: bool = False
    spaces: bool = False


def _rows(names: str, pre: PreTokenizer) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), pre)


PRE: dict[str, PreTokenizer] = {
    **{name: PreTokenizer(name) for name in PATTERNS if name not in ("digits", "lines", "llama3")},
    **_rows(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer("llama3", whole_words=True, begin=True),
    ),
    **_rows("dbrx smaug-bpe chatglm-bpe", PreTokenizer("llama3")),
    **_rows("glm4 glm5", PreTokenizer("llama3", whole_words=True)),
    "minicpm5": PreTokenizer("minicpm5", whole_words=True),
    "youtu": PreTokenizer("youtu", whole_words=True),
    **_rows(
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer("digits"),
    ),
    **_rows(
        "phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo "
        "jais trillion granite-docling exaone4",
        PreTokenizer("gpt-2"),
    ),
    **_rows("jina-v1-en jina-v2-code roberta-bpe", PreTokenizer("gpt-2", separate=True)),
    **_rows(
        "deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
        PreTokenizer("qwen2"),
    ),
    **_rows("hunyuan-dense joyai-llm hy_v4", PreTokenizer("deepseek-v3")),
    **_rows("poro-chat gpt3-finnish", PreTokenizer("bloom")),
    "tekken": PreTokenizer("tekken", whole_words=True, begin=True),
    "chameleon": PreTokenizer("chameleon", begin=True),
    **_rows("llama4 kanana2 talkie minimax-m2", PreTokenizer("gpt-4o")),
    **_rows("granite-embed-multi-97m", PreTokenizer("gpt-4o", whole_words=True)),
    **_rows("bailingmoe2 llada-moe", PreTokenizer("bailingmoe")),
    **_rows("gemma4 granite-embed-multi-311m", PreTokenizer("lines", begin=True, spaces=True)),
    **_rows("sarvam-moe", PreTokenizer("lines", spaces=True)),
}
"""The supported values of `tokenizer.ggml.pre`.

Not supported are patterns with a lookahead to the end of a run of digits from each digit (afmoe,
superbpe, tiny_aya, cohere2moe), and tokenizers without merges (kimi-k2).
"""
