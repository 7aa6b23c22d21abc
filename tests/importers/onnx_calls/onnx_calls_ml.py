"""How calls of the ai.onnx.ml ops are drawn."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from onnx import numpy_helper
from onnx_calls import ML, Drawn, Source
from onnx_calls import calls as register

from vksched.common.dtypes import NDArray

calls = partial(register, domain=ML, since=1, until=5)
POSTS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT", None)
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
WORDS = np.array(["cat", "dog", "", "ein Hund", "Ä", "dog ", "1"], object)


def rows(s: Source, features: int | None = None, missing: bool = False) -> NDArray:
    """Features of some rows. missing: some may be NaN."""
    width = s.int(1, 5) if features is None else features
    shape = (s.int(1, 6), width) if s.chance(0.9) else (width,)
    x = s.values(shape, s.pick(np.float32, np.float32, np.float64, np.int64, np.int32), full=False)
    if missing and x.dtype.kind == "f" and s.chance(0.5):
        x = np.where(s.rng.random(x.shape) < 0.3, np.nan, x).astype(x.dtype)
    return x


def numbers(s: Source, count: int, scale: float = 1.0) -> list[float]:
    return [float(v) for v in (s.rng.standard_normal(count) * scale).astype(np.float32)]


def labels(s: Source, count: int, ints: str) -> dict[str, Any]:
    """Labels of classes, as integers or texts."""
    if s.chance(0.5):
        return {ints: s.pick(list(range(count)), [7 - 3 * i for i in range(count)])}
    return {"classlabels_strings": [f"class {chr(100 - i)}" for i in range(count)]}


# -- features ------------------------------------------------------------------------------------


@calls("Scaler")
def scaler(s: Source) -> Drawn:
    x = rows(s)
    count = s.pick(1, x.shape[-1])
    return [x], {"offset": numbers(s, count), "scale": numbers(s, count)}


@calls("Normalizer")
def normalizer(s: Source) -> Drawn:
    x = rows(s)
    if s.chance(0.3):
        x[0] = 0
    if s.chance(0.3):
        x = -np.abs(x)
    return [x], {"norm": s.pick("MAX", "L1", "L2", None)}


@calls("Binarizer")
def binarizer(s: Source) -> Drawn:
    x = s.values(s.shape(1, 3), s.dtype(0, "float32") if s.chance(0.7) else s.dtype(), special=True)
    x = x if x.dtype.kind == "i" else np.nan_to_num(x, nan=0.5)
    return [x], {"threshold": s.pick(None, 0.5, -1.0, 2.0)}


@calls("Imputer")
def imputer(s: Source) -> Drawn:
    x = rows(s, missing=True)
    count = s.pick(1, x.shape[-1])
    if x.dtype.kind == "i":
        values = s.ints(count, -9, 9)
        return [x], {"imputed_value_int64s": values, "replaced_value_int64": s.int(-1, 1)}
    missing = s.pick(float("nan"), 0.0, 0.5)
    return [x], {"imputed_value_floats": numbers(s, count), "replaced_value_float": missing}


@calls("OneHotEncoder")
def one_hot_encoder(s: Source) -> Drawn:
    shape, zeros = s.shape(1, 2, empty=False), s.pick(None, 1, 1, 0)
    if s.chance(0.4):
        return [WORDS[s.rng.integers(0, len(WORDS), shape)]], {
            "cats_strings": WORDS[: s.int(1, 6)].tolist(), "zeros": zeros
        }  # fmt: skip
    x = s.values(shape, s.dtype(0, "int64", "int32", "float32", "float64"), full=False)
    cats = s.rng.permutation(9)[: s.int(1, 9)] - 4
    return [x], {"cats_int64s": [*cats.tolist(), *[0] * s.int(0, 1)], "zeros": zeros}


@calls("FeatureVectorizer")
def feature_vectorizer(s: Source) -> Drawn:
    count, n = s.int(1, 3), s.int(1, 4)
    dtype = s.dtype()
    shapes = [(n, s.int(1, 4), *([2] if s.chance(0.2) else [])) for _ in range(count)]
    if s.chance(0.2):
        shapes = [shape[1:2] for shape in shapes]
    sizes = [int(np.prod(shape[1:] or shape)) + s.pick(0, 0, 0, 1, -1) for shape in shapes]
    return [s.values(shape, dtype, full=False) for shape in shapes], {
        "inputdimensions": [max(1, size) for size in sizes]
    }


@calls("ArrayFeatureExtractor")
def array_feature_extractor(s: Source) -> Drawn:
    shape = s.shape(1, 3, empty=False)
    x = s.values(shape, s.pick(np.float32, np.float64, np.int64, np.int32), full=False)
    if s.chance(0.3):
        x = WORDS[s.rng.integers(0, len(WORDS), shape)]
    at = s.rng.integers(0, shape[-1], s.pick((1,), (3,), (1, 2), (2, 2)))
    return [x, at], {}


KINDS = {"strings": "default_string", "int64s": "default_int64", "floats": "default_float"}


@calls("LabelEncoder")
def label_encoder(s: Source) -> Drawn | None:
    shape = s.shape(0, 3)
    if s.version == 1:
        words = WORDS[: s.int(1, 6)].tolist()
        defaults = {"default_string": s.pick(None, "?"), "default_int64": s.pick(None, -7)}
        texts = s.chance(0.5)
        x = WORDS[s.rng.integers(0, len(WORDS), shape)] if texts else s.values(shape, np.int64)
        return [x], {"classes_strings": words, **defaults}
    pools: dict[str, list[Any]] = {
        "strings": WORDS.tolist(), "int64s": list(range(-3, 4)),
        "floats": [0.5, -1.0, 2.25, 0.1, 3.0, float("nan") if s.version > 2 else 7.0, 0.0],
    }  # fmt: skip
    key, value = s.pick(*KINDS), s.pick(*KINDS)
    keys, values = pools[key][: s.int(1, 7)], pools[value]
    if s.chance(0.2):
        keys = [*keys, keys[0]]
    values = [values[int(i)] for i in s.rng.integers(0, len(values), len(keys))]
    attrs: dict[str, Any] = {f"keys_{key}": keys, f"values_{value}": values}
    dtypes = {"strings": object, "int64s": np.int64, "floats": np.float32}
    if s.version > 2 and s.chance(0.4):
        pairs = [("floats", np.float64), ("floats", np.float32), ("int64s", np.int64),
                 ("int64s", np.int16), ("int64s", np.int32)]  # fmt: skip
        if key != "strings" and value != "strings":
            key, of_keys = s.pick(*pairs)
            value, of_values = s.pick(*pairs)
            count = s.int(1, 7)
            dtypes[key] = of_keys
            drawn = np.array(pools[value][:count]).astype(of_values)
            attrs = {
                "keys_tensor": numpy_helper.from_array(np.array(pools[key][:count], of_keys)),
                "values_tensor": numpy_helper.from_array(drawn),
                "default_tensor": numpy_helper.from_array(np.array([9], of_values)),
            }
    if "default_tensor" not in attrs and s.chance(0.6):
        default = {"strings": "none", "int64s": -5, "floats": 0.75}[value]
        attrs[KINDS[value]] = default
    some = np.array([*pools[key], pools[key][0]], dtypes[key])
    return [some[s.rng.integers(0, len(some), shape)]], attrs


@calls("CategoryMapper")
def category_mapper(s: Source) -> Drawn:
    count, shape = s.int(1, 6), s.shape(0, 3)
    attrs = {
        "cats_strings": WORDS[:count].tolist(), "cats_int64s": list(range(count))[::-1],
        "default_string": s.pick(None, "?"), "default_int64": s.pick(None, -7),
    }  # fmt: skip
    if s.chance(0.5):
        return [WORDS[s.rng.integers(0, len(WORDS), shape)]], attrs
    return [s.rng.integers(-1, 7, shape)], attrs


# -- linear models and support vectors -----------------------------------------------------------


def one_of(s: Source, classes: int, post: Any) -> Any:
    """No PROBIT of less than three classes: half of what onnxruntime gives is not set."""
    return None if post == "PROBIT" and classes < 3 else post


@calls("LinearRegressor")
def linear_regressor(s: Source) -> Drawn:
    x, targets = rows(s), s.int(1, 4)
    x = x.astype(np.float32)
    post = s.pick(*POSTS)
    if post == "PROBIT":
        x = (x * 0.01).astype(np.float32)
    return [x], {
        "targets": targets, "post_transform": post,
        "coefficients": numbers(s, x.shape[-1] * targets),
        "intercepts": s.pick(None, [0.5] * targets),
    }  # fmt: skip


@calls("LinearClassifier")
def linear_classifier(s: Source) -> Drawn:
    x, classes = rows(s), s.int(2, 5)
    count = classes if s.chance(0.6) or classes != 2 else 1
    post = one_of(s, count, s.pick(*POSTS))
    return [x], {
        **labels(s, classes, "classlabels_ints"), "post_transform": post,
        "coefficients": numbers(s, x.shape[-1] * count), "intercepts": numbers(s, count),
        "multi_class": s.pick(None, 0, 1),
    }, 2  # fmt: skip


def kernel(s: Source) -> dict[str, Any]:
    kind = s.pick("LINEAR", "POLY", "RBF", "SIGMOID", None)
    return {"kernel_type": kind, "kernel_params": s.pick([0.3, 0.5, 2.0], [0.2, 0.0, 3.0])}


@calls("SVMRegressor")
def svm_regressor(s: Source) -> Drawn:
    x, count = rows(s).astype(np.float32), s.int(0, 5)
    width = x.shape[-1]
    attrs = {"n_supports": count, "rho": numbers(s, 1), "one_class": s.pick(None, 0, 1)}
    attrs.update(kernel(s), coefficients=numbers(s, count or width))
    if count:
        attrs["support_vectors"] = numbers(s, count * width)
    return [x], attrs


@calls("SVMClassifier")
def svm_classifier(s: Source) -> Drawn:
    x, classes = rows(s), s.int(2, 4)
    width = x.shape[-1]
    if s.chance(0.25):
        likely = {name: numbers(s, 1) for name in ("prob_a", "prob_b")} if s.chance(0.3) else {}
        return [x], {
            **labels(s, classes, "classlabels_ints"), "rho": numbers(s, 1), **kernel(s), **likely,
            "coefficients": numbers(s, classes * width), "post_transform": s.pick(*POSTS),
        }, 2  # fmt: skip
    per_class, pairs = s.ints(classes, 1, 3), classes * (classes - 1) // 2
    count = sum(per_class)
    attrs: dict[str, Any] = {
        **labels(s, classes, "classlabels_ints"), **kernel(s), "vectors_per_class": per_class,
        "coefficients": numbers(s, (classes - 1) * count), "rho": numbers(s, pairs),
        "support_vectors": numbers(s, count * width),
    }  # fmt: skip
    likely = s.chance(0.5)
    if likely:
        attrs.update(prob_a=numbers(s, pairs, 2.0), prob_b=numbers(s, pairs, 0.5))
    post = s.pick("NONE", "NONE", None, *POSTS)
    attrs["post_transform"] = post if likely or post != "PROBIT" or classes > 2 else None
    return [x], attrs, 2


# -- trees ---------------------------------------------------------------------------------------


class Tree:
    """A tree that is drawn. nodes: (mode, feature, threshold, true, false, missing), children by
    number; leaves have the mode "LEAF".
    """

    def __init__(self, s: Source, features: int, modes: list[str], dtype: Any) -> None:
        self.nodes: list[list[Any]] = []
        self._dtype, self._s, self._modes, self._features = dtype, s, modes, features
        self._add(s.int(0, 4))

    def _add(self, levels: int) -> int:
        s, at = self._s, len(self.nodes)
        self.nodes.append(["LEAF", 0, 0.0, 0, 0, 0])
        if levels and s.chance(0.8):
            threshold = s.pick(float(s.int(-2, 2)), float(s.rng.standard_normal()), 0.5)
            node = [s.pick(*self._modes), s.int(0, self._features - 1), threshold]
            self.nodes[at] = [*node, 0, 0, s.int(0, 1)]
            self.nodes[at][3] = self._add(levels - 1)
            self.nodes[at][4] = self._add(levels - 1)
        return at


def trees(s: Source, features: int, dtype: Any) -> list[Tree]:
    modes = list(MODES) if s.chance(0.4) else [s.pick(*MODES, "BRANCH_LEQ", "BRANCH_LEQ")]
    return [Tree(s, features, modes, dtype) for _ in range(s.pick(1, 2, 3, 7))]


def tree_attributes(
    s: Source, forest: list[Tree], kind: str, leaf_targets: Any, dtype: Any
) -> dict[str, Any]:
    """The attributes of trees before version 5. leaf_targets: draws those of a leaf of a tree."""
    columns: dict[str, list[Any]] = {name: [] for name in (
        "nodes_treeids", "nodes_nodeids", "nodes_modes", "nodes_featureids", "nodes_truenodeids",
        "nodes_falsenodeids", "nodes_missing_value_tracks_true", f"{kind}_treeids",
        f"{kind}_nodeids", f"{kind}_ids")}  # fmt: skip
    values: list[float] = []
    weights: list[float] = []
    for t, tree in enumerate(forest):
        for i, (mode, feature, threshold, yes, no, missing) in enumerate(tree.nodes):
            row = [t, i, mode, feature, yes, no, missing]
            for name, value in zip(list(columns)[:7], row, strict=True):
                columns[name].append(value)
            values.append(threshold)
            if mode == "LEAF":
                for target, weight in leaf_targets(t):
                    for name, value in zip(list(columns)[7:], (t, i, target), strict=True):
                        columns[name].append(value)
                    weights.append(weight)
    if s.chance(0.4):
        columns["nodes_missing_value_tracks_true"] = []
    attrs: dict[str, Any] = {name: value or None for name, value in columns.items()}
    for name, inputs in (("nodes_values", values), (f"{kind}_weights", weights)):
        put(attrs, name, inputs, dtype)
    return attrs


def put(attrs: dict[str, Any], name: str, values: list[float], dtype: Any) -> None:
    """Add floats as an attribute, of doubles as a tensor."""
    if dtype == np.float64:
        attrs[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(values, dtype))
    else:
        attrs[name] = values


def tree_dtype(s: Source, x: NDArray) -> Any:
    return np.float64 if x.dtype == np.float64 and s.version >= 3 and s.chance(0.5) else np.float32


def weight(s: Source) -> float:
    return float(np.float32(s.rng.standard_normal()))


@calls("TreeEnsembleRegressor", until=4)
def tree_regressor(s: Source) -> Drawn:
    x, targets = rows(s, missing=True), s.pick(1, 1, 2, 3)
    dtype = tree_dtype(s, x)
    each = s.pick(True, False)  # tree adds to one target

    def leaf_targets(t: int) -> list[tuple[int, float]]:
        if targets == 1 or each:
            return [(t % targets, weight(s))]
        chosen = s.rng.permutation(targets)[: s.int(1, targets)]
        return [(int(c), weight(s)) for c in chosen]

    attrs = tree_attributes(s, trees(s, x.shape[-1], dtype), "target", leaf_targets, dtype)
    attrs["n_targets"] = targets
    attrs["aggregate_function"] = s.pick(None, "SUM", "AVERAGE", "MIN", "MAX")
    attrs["post_transform"] = s.pick("NONE", None, *POSTS)
    if s.chance(0.5):
        put(attrs, "base_values", numbers(s, targets), dtype)
    return [x], attrs


@calls("TreeEnsembleClassifier", until=4)
def tree_classifier(s: Source) -> Drawn:
    x, classes = rows(s, missing=True), s.pick(1, 2, 2, 3, 4)
    dtype = tree_dtype(s, x)
    how = s.pick("each", "all", "some")
    only = s.int(0, min(classes, 2) - 1)
    sign = s.pick(abs, float)

    def leaf_targets(t: int) -> list[tuple[int, float]]:
        if how == "each":
            return [(only if classes <= 2 else t % classes, sign(weight(s)))]
        chosen = range(classes) if how == "all" else s.rng.permutation(classes)[: s.int(1, classes)]
        return [(int(c), sign(weight(s))) for c in chosen]

    attrs = tree_attributes(s, trees(s, x.shape[-1], dtype), "class", leaf_targets, dtype)
    if classes > 1:
        attrs.update(labels(s, classes, "classlabels_int64s"))
    else:
        attrs["classlabels_int64s"] = [4]  # onnxruntime reads beyond a list of one text
    attrs["post_transform"] = one_of(s, classes, s.pick("NONE", None, *POSTS))
    if s.chance(0.3):
        count = classes if classes != 2 or how == "some" else s.int(1, 2)
        put(attrs, "base_values", numbers(s, count), dtype)
    return [x], attrs, 2


@calls("TreeEnsemble", since=5)
def tree_ensemble(s: Source) -> Drawn:
    x, targets = rows(s, missing=True), s.pick(1, 1, 2, 3)
    x = x.astype(s.pick(np.float32, np.float64))
    modes = [*MODES, "BRANCH_MEMBER"] if s.chance(0.6) else [s.pick(*MODES, "BRANCH_MEMBER")]
    attrs: dict[str, Any] = {name: [] for name in (
        "tree_roots", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids",
        "nodes_trueleafs", "nodes_falseleafs", "nodes_missing_value_tracks_true", "leaf_targetids",
    )}  # fmt: skip
    kinds: list[int] = []
    splits: list[float] = []
    weights: list[float] = []
    members: list[float] = []

    def add(tree: Tree, at: int) -> tuple[int, int]:
        """Add a node in the order of the file; returns whether it is a leaf, and its number."""
        mode, feature, threshold, yes, no, missing = tree.nodes[at]
        if mode == "LEAF":
            attrs["leaf_targetids"].append(s.int(0, targets - 1))
            weights.append(weight(s))
            return 1, len(weights) - 1
        number = len(kinds)
        kinds.append([*MODES, "BRANCH_MEMBER"].index(mode))
        splits.append(0.0 if mode == "BRANCH_MEMBER" else threshold)
        if mode == "BRANCH_MEMBER":
            low = s.pick(0, 0, -3)
            members.extend([*sorted({float(s.int(low, 5)) for _ in range(s.int(1, 4))}), np.nan])
        attrs["nodes_featureids"].append(feature)
        attrs["nodes_missing_value_tracks_true"].append(missing)
        for name in ("truenodeids", "falsenodeids", "trueleafs", "falseleafs"):
            attrs[f"nodes_{name}"].append(0)
        for side, child in (("true", yes), ("false", no)):
            leaf, place = add(tree, child)
            attrs[f"nodes_{side}leafs"][number], attrs[f"nodes_{side}nodeids"][number] = leaf, place
        return 0, number

    forest = [t for t in trees(s, x.shape[-1], np.float64) if t.nodes[0][0] != "LEAF"]
    for tree in forest:
        for node in tree.nodes:
            if node[0] != "LEAF":
                node[0] = s.pick(*modes)
        attrs["tree_roots"].append(len(kinds))
        add(tree, 0)
    if not forest:
        return None
    if s.chance(0.4):
        attrs["nodes_missing_value_tracks_true"] = None
    if members:
        x = np.round(x)  # onnxruntime looks numbers up without their fractions
    tensors = {
        "nodes_splits": np.array(splits, x.dtype), "nodes_modes": np.array(kinds, np.uint8),
        "leaf_weights": np.array(weights, x.dtype),
    }  # fmt: skip
    if members:
        tensors["membership_values"] = np.array(members, x.dtype)
    attrs.update({name: numpy_helper.from_array(a, name) for name, a in tensors.items()})
    # onnxruntime has SOFTMAX and LOGISTIC, which are 1 and 2, the other way round
    attrs.update(post_transform=s.pick(0, 0, 3, 4), aggregate_function=s.int(0, 3))
    attrs["n_targets"] = targets
    return [x], attrs
