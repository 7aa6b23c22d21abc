"""How calls of ops are drawn that no rule expresses: of texts, and of sizes that are found."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx_calls import Drawn, Source, calls

from vksched.common.dtypes import NDArray

WORDS = ["cat", "dog", "", "Ein Hund", "Ä", "dog ", "1,2,,3", "a b  c", "the", "THE end"]
"""What texts are drawn from."""


def texts(s: Source, shape: tuple[int, ...]) -> NDArray:
    return np.array(WORDS, object)[s.rng.integers(0, len(WORDS), shape)]


@calls("Cast", "CastLike", since=13)
def cast_texts(s: Source) -> Drawn | None:
    if s.op == "CastLike" and s.opset < 15:
        return None
    kinds = (np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8, np.bool_)
    kind = np.dtype(s.pick(*kinds))
    writes = s.chance(0.5)
    if writes:
        x = s.values(s.shape(), kind, special=True, full=False)
        if kind.kind == "f" and s.chance(0.3):
            x = (x * 1e9).astype(kind)
    else:
        pool = ["1.5", " 2", "-7", "3abc", "0"]
        if kind.kind == "f":
            pool += ["1e3", "INF", "-INF", "NaN", ".5"]
        elif kind.kind in "ub":
            pool = ["1", "0", " 7"]
        x = np.array(pool, object)[s.rng.integers(0, len(pool), s.shape(1, 2))]
    if s.op == "CastLike":
        return [x, np.array(["a"], object) if writes else np.zeros(1, kind)], {}
    text = TensorProto.STRING
    return [x], {"to": text if writes else helper.np_dtype_to_tensor_dtype(kind)}


@calls("Constant", since=12)
def constant(s: Source) -> Drawn:
    forms: dict[str, Any] = {
        "value": numpy_helper.from_array(s.values(s.shape(), s.pick(np.float32, np.int64))),
        "value_float": 0.5, "value_floats": [0.5, -2.0], "value_int": -7, "value_ints": [1, 2, 3],
        "value_string": "a text", "value_strings": ["a", "", "Ä"],
    }  # fmt: skip
    name = s.pick(*forms)
    return [], {name: forms[name]}


@calls("BitCast", since=26, until=26)
def bit_cast(s: Source) -> Drawn:
    sizes: dict[int, tuple[Any, ...]] = {
        1: (np.int8, np.uint8), 2: (np.int16, np.uint16, np.float16),
        4: (np.int32, np.uint32, np.float32), 8: (np.int64, np.uint64, np.float64),
    }  # fmt: skip
    kinds = sizes[s.pick(*sizes)]
    x = s.values(s.shape(), s.pick(*kinds), full=True)
    return [x], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(s.pick(*kinds)))}


@calls("StringConcat", since=20)
def string_concat(s: Source) -> Drawn:
    return [texts(s, shape) for shape in s.broadcasts(2, 3)], {}


@calls("StringSplit", since=20)
def string_split(s: Source) -> Drawn:
    return [texts(s, s.shape(0, 2))], {
        "delimiter": s.pick(None, "", ",", " ", "th"), "maxsplit": s.pick(None, 1, 2)
    }, 2  # fmt: skip


@calls("RegexFullMatch", since=20)
def regex_full_match(s: Source) -> Drawn:
    patterns = ("[a-z]+", ".*", r"(cat|dog)\s?", r"\d(,\d*)*", "", "t.*")
    return [texts(s, s.shape(0, 3))], {"pattern": s.pick(*patterns)}


@calls("StringNormalizer", since=10)
def string_normalizer(s: Source) -> Drawn:
    shape = (s.int(1, 5),) if s.chance(0.6) else (1, s.int(1, 5))
    plain = np.array([w for w in WORDS if w != "Ä"], object)  # onnxruntime asks for a locale
    stop = [w for w in ("cat", "the", "1,2,,3") if s.chance(0.5)]
    return [plain[s.rng.integers(0, len(plain), shape)]], {
        "case_change_action": s.pick("LOWER", "UPPER", "NONE"), "locale": "C",
        "is_case_sensitive": s.pick(0, 1), "stopwords": stop or None,
    }  # fmt: skip


@calls("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(s: Source) -> Drawn:
    """With n-grams of one to three items."""
    as_text, most = s.chance(0.4), s.int(1, 3)
    items: list[Any] = ["a", "b", "c", "d"] if as_text else [2, 3, 5, 7]
    pool: list[Any] = []
    starts, grams = [], 0
    for length in range(1, most + 1):
        starts.append(len(pool))
        drawn: set[tuple[int, ...]] = set()
        for _ in range(s.int(0, 4)):
            drawn.add(tuple(s.ints(length, 0, 3)))
        for gram in sorted(drawn):
            pool += [items[i] for i in gram]
            grams += 1
    if not pool:
        return [np.array(items)], {}  # refused by both
    shape = s.pick((s.int(1, 8),), (s.int(1, 3), s.int(1, 8)))
    x = np.array(items, object if as_text else s.pick(np.int64, np.int32))
    order = s.rng.permutation(grams)
    return [x[s.rng.integers(0, 4, shape)]], {
        "mode": s.pick("TF", "IDF", "TFIDF"), "min_gram_length": s.int(1, most),
        "max_gram_length": most, "max_skip_count": s.int(0, 3), "ngram_counts": starts,
        "ngram_indexes": [int(i) for i in order],
        f"pool_{'strings' if as_text else 'int64s'}": pool,
        "weights": [round(float(w), 2) for w in s.rng.random(grams)] if s.chance(0.5) else None,
    }  # fmt: skip


@calls("Det", since=11)
def det(s: Source) -> Drawn:
    n = s.int(1, 4)
    return [s.values((*s.shape(0, 2, empty=False), n, n), s.pick(np.float32, np.float64))], {}


@calls("MelWeightMatrix", since=17)
def mel_weight_matrix(s: Source) -> Drawn:
    rate = s.pick(8000, 16000)
    low = s.pick(0.0, 125.0)
    numbers = (s.int(1, 10), s.pick(16, 64, 128), rate)
    edges = [np.float32(low), np.float32(s.pick(2000.0, rate / 2))]
    return [*map(np.int64, numbers), *edges], {"output_datatype": s.pick(1, None, 11)}


@calls("NonMaxSuppression", since=10)
def non_max_suppression(s: Source) -> Drawn:
    batches, boxes, classes = s.int(1, 2), s.int(1, 8), s.int(1, 3)
    corners = (s.rng.random((batches, boxes, 4)) * 4).astype(np.float32)
    scores = s.rng.random((batches, classes, boxes)).astype(np.float32)
    if s.chance(0.3):
        scores = np.round(scores * 3) / np.float32(3)
    chosen = s.int(0, 3)
    more = [np.array([s.int(0, 4)]), np.array([s.pick(0.0, 0.3, 0.5, 1.0)], np.float32),
            np.array([s.pick(0.0, 0.4)], np.float32)]  # fmt: skip
    return [corners, scores, *more[:chosen]], {"center_point_box": s.pick(0, 1, None)}


@calls("MaxRoiPool", since=7)
def max_roi_pool(s: Source) -> Drawn:
    n, c, h, w = s.int(1, 2), s.int(1, 3), s.int(2, 7), s.int(2, 7)
    count = s.int(1, 4)
    rois = np.zeros((count, 5), np.float32)
    rois[:, 0] = s.rng.integers(0, n, count)
    for axis, size in ((1, w), (2, h)):
        ends = np.sort(s.rng.random((count, 2)) * 2 * size, axis=1)
        rois[:, axis], rois[:, axis + 2] = ends[:, 0], ends[:, 1]
    return [s.values((n, c, h, w), s.pick(np.float32)), rois], {
        "pooled_shape": [s.int(1, 3), s.int(1, 3)], "spatial_scale": s.pick(None, 0.5, 1.0, 0.37)
    }  # fmt: skip


@calls("HannWindow", "HammingWindow", "BlackmanWindow", since=17)
def window(s: Source) -> Drawn:
    size = np.array(s.int(1, 12), s.pick(np.int32, np.int64))
    return [size], {"periodic": s.pick(0, 1, None), "output_datatype": s.pick(1, None, 11)}
