"""Estimators of scikit-learn and LightGBM, as their converters write them by default, give what
onnxruntime gives: labels, scores, and maps from labels to probabilities.

The converters are no dependencies of the project: pip install skl2onnx onnxmltools lightgbm.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vksched.onnxruntime
from vksched.common.dtypes import NDArray

ort = pytest.importorskip("onnxruntime")
skl2onnx = pytest.importorskip("skl2onnx")
from sklearn import (  # noqa: E402
    cluster,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    multiclass,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    svm,
    tree,
)

pytestmark = pytest.mark.filterwarnings("ignore")
RNG = np.random.default_rng(4)
X = RNG.standard_normal((40, 5)).astype(np.float32)
WHOLES = RNG.integers(0, 4, (40, 3)).astype(np.int64)
TWO = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(np.int64)
THREE = np.digitize(X[:, 0] - X[:, 2], [-0.7, 0.7]).astype(np.int64)
NAMES = np.array(["red", "green", "blue"])[THREE]
VALUES = X @ np.array([0.5, -1, 2, 0, 0.1], np.float32) + 0.1 * X[:, 3] ** 2
PAIRS = np.stack([VALUES, -2 * VALUES + X[:, 1]], 1)
TARGETS = {"two": TWO, "three": THREE, "names": NAMES, "values": VALUES, "pairs": PAIRS}

CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: linear_model.LogisticRegression(),
    "ridge": lambda: linear_model.RidgeClassifier(),
    "sgd": lambda: linear_model.SGDClassifier(random_state=0),
    "sgd log": lambda: linear_model.SGDClassifier(loss="log_loss", random_state=0),
    "perceptron": lambda: linear_model.Perceptron(random_state=0),
    "linear svc": lambda: svm.LinearSVC(random_state=0),
    "svc": lambda: svm.SVC(),
    "svc poly": lambda: svm.SVC(kernel="poly", degree=3),
    "svc sigmoid": lambda: svm.SVC(kernel="sigmoid"),
    "svc linear": lambda: svm.SVC(kernel="linear"),
    "svc probability": lambda: svm.SVC(probability=True, random_state=0),
    "nu svc": lambda: svm.NuSVC(nu=0.2),
    "tree": lambda: tree.DecisionTreeClassifier(random_state=0),
    "forest": lambda: ensemble.RandomForestClassifier(12, random_state=0),
    "extra trees": lambda: ensemble.ExtraTreesClassifier(12, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingClassifier(n_estimators=12, random_state=0),
    "ada boost": lambda: ensemble.AdaBoostClassifier(n_estimators=5, random_state=0),
    "bagging": lambda: ensemble.BaggingClassifier(n_estimators=4, random_state=0),
    "voting": lambda: ensemble.VotingClassifier(
        [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier())],
        voting="soft",
        flatten_transform=False,
    ),
    "one vs rest": lambda: multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
    "neighbours": lambda: neighbors.KNeighborsClassifier(3),
    "bayes": lambda: naive_bayes.GaussianNB(),
    "lda": lambda: discriminant_analysis.LinearDiscriminantAnalysis(),
    "qda": lambda: discriminant_analysis.QuadraticDiscriminantAnalysis(),
    "network": lambda: neural_network.MLPClassifier((6,), max_iter=30, random_state=0),
    "scaled": lambda: pipeline.make_pipeline(
        preprocessing.StandardScaler(), linear_model.LogisticRegression()
    ),
}
REGRESSORS: dict[str, Callable[[], Any]] = {
    "linear": lambda: linear_model.LinearRegression(),
    "lasso": lambda: linear_model.Lasso(0.1),
    "svr": lambda: svm.SVR(),
    "nu svr": lambda: svm.NuSVR(kernel="poly", degree=2),
    "linear svr": lambda: svm.LinearSVR(random_state=0),
    "tree": lambda: tree.DecisionTreeRegressor(random_state=0),
    "forest": lambda: ensemble.RandomForestRegressor(12, random_state=0),
    "boosting": lambda: ensemble.GradientBoostingRegressor(n_estimators=12, random_state=0),
    "ada boost": lambda: ensemble.AdaBoostRegressor(n_estimators=5, random_state=0),
    "neighbours": lambda: neighbors.KNeighborsRegressor(3),
    "process": lambda: gaussian_process.GaussianProcessRegressor(alpha=1.0, optimizer=None),
    "poisson": lambda: linear_model.PoissonRegressor(),
}
GAPS = np.where(RNG.random(X.shape) < 0.2, np.nan, X).astype(np.float32)
TRANSFORMERS: dict[str, tuple[Callable[[], Any], NDArray]] = {
    "standard": (lambda: preprocessing.StandardScaler(), X),
    "robust": (lambda: preprocessing.RobustScaler(), X),
    "min max": (lambda: preprocessing.MinMaxScaler(), X),
    "max abs": (lambda: preprocessing.MaxAbsScaler(), X),
    "l1": (lambda: preprocessing.Normalizer("l1"), X),
    "l2": (lambda: preprocessing.Normalizer("l2"), X),
    "largest": (lambda: preprocessing.Normalizer("max"), X),
    "binarizer": (lambda: preprocessing.Binarizer(threshold=0.2), X),
    "mean": (lambda: impute.SimpleImputer(), GAPS),
    "median": (lambda: impute.SimpleImputer(strategy="median"), GAPS),
    "one hot": (lambda: preprocessing.OneHotEncoder(handle_unknown="ignore"), WHOLES),
    "ordinal": (lambda: preprocessing.OrdinalEncoder(), WHOLES),
    "polynomial": (lambda: preprocessing.PolynomialFeatures(2), X),
    "bins": (lambda: preprocessing.KBinsDiscretizer(3, encode="onehot-dense"), X),
    "power": (lambda: preprocessing.PowerTransformer(), X),
    "variance": (lambda: feature_selection.VarianceThreshold(0.5), X),
    "clusters": (lambda: cluster.KMeans(3, n_init=1, random_state=0), X),
    "isolation": (lambda: ensemble.IsolationForest(n_estimators=8, random_state=0), X),
    "one class": (lambda: svm.OneClassSVM(), X),
}


def onnx_type(x: NDArray) -> Any:
    from skl2onnx.common.data_types import (
        FloatTensorType,
        Int64TensorType,
        StringTensorType,
    )

    kinds = {"f": FloatTensorType, "i": Int64TensorType}
    return kinds.get(x.dtype.kind, StringTensorType)([None, x.shape[1]])


def converted(estimator: Any, x: NDArray) -> bytes:
    """Return an estimator as a file."""
    types, opset = [("x", onnx_type(x))], {"": 17, "ai.onnx.ml": 3}
    model = skl2onnx.convert_sklearn(estimator, initial_types=types, target_opset=opset)
    return bytes(model.SerializeToString())


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, dict):
        assert [*map(type, found)] == [*map(type, wanted)]
        assert list(found) == list(wanted)
        assert all(type(v) is float for v in found.values())
        one, other = (list(m.values()) for m in (found, wanted))
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    elif wanted.dtype.kind == "f":
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    else:
        np.testing.assert_array_equal(found, wanted)


def check(model: bytes, x: NDArray, device: str) -> list[Any]:
    """Assert that a model gives what onnxruntime gives; returns the types of the outputs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    judge = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    with (
        warnings.catch_warnings(),
        vksched.onnxruntime.InferenceSession(model, providers=[device]) as session,
    ):
        warnings.simplefilter("ignore")
        for rows in (x, x[:1]):
            same(session.run(None, {"x": rows}), judge.run(None, {"x": rows}))
        types = [output.type for output in session.get_outputs()]
        assert types == [output.type for output in judge.get_outputs()]
    return types


@pytest.fixture(params=["cpu", "vulkan:0"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "cpu" and request.param not in {d.name for d in vksched.devices()}:
        pytest.skip("no such device")
    yield request.param


def fitted(make: Callable[[], Any], x: NDArray, y: NDArray | None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make().fit(x, y)


@pytest.mark.parametrize("target", ["two", "three", "names"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers(name: str, target: str, device: str) -> None:
    estimator = fitted(CLASSIFIERS[name], X, TARGETS[target])
    types = check(converted(estimator, X), X, device)
    key = "string" if target == "names" else "int64"
    assert types[0] == f"tensor({key})"
    if hasattr(estimator, "predict_proba"):
        assert types[1] == f"seq(map({key},tensor(float)))"


@pytest.mark.parametrize("name", REGRESSORS)
def test_regressors(name: str, device: str) -> None:
    y = np.abs(VALUES) if name == "poisson" else VALUES
    check(converted(fitted(REGRESSORS[name], X, y), X), X, device)


@pytest.mark.parametrize("name", ["linear", "tree", "forest", "neighbours"])
def test_regressors_of_two_values(name: str, device: str) -> None:
    check(converted(fitted(REGRESSORS[name], X, PAIRS), X), X, device)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str, device: str) -> None:
    make, x = TRANSFORMERS[name]
    check(converted(fitted(make, x, None), x), x, device)


def test_encoded_texts(device: str) -> None:
    x = np.array([["a", "u"], ["b", "v"], ["a", "w"], ["c", "u"]], object)
    encoder = preprocessing.OneHotEncoder(handle_unknown="ignore")
    built = pipeline.make_pipeline(encoder, linear_model.LogisticRegression()).fit(x, [0, 1, 1, 0])
    check(converted(built, x), x, device)


@pytest.mark.parametrize("target", ["two", "three", "values"])
@pytest.mark.parametrize("zipmap", [True, False])
def test_lightgbm(target: str, zipmap: bool, device: str) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    onnxmltools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    kind = lightgbm.LGBMRegressor if target == "values" else lightgbm.LGBMClassifier
    estimator = kind(n_estimators=9, min_child_samples=2, verbose=-1, n_jobs=1)
    estimator.fit(np.where(RNG.random(X.shape) < 0.1, np.nan, X), TARGETS[target])
    types = [("x", FloatTensorType([None, X.shape[1]]))]
    model = onnxmltools.convert_lightgbm(estimator, initial_types=types, zipmap=zipmap)
    check(model.SerializeToString(), GAPS, device)


@pytest.mark.parametrize("target", ["two", "three", "values"])
def test_xgboost(target: str, device: str) -> None:
    xgboost = pytest.importorskip("xgboost")
    onnxmltools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    kind = xgboost.XGBRegressor if target == "values" else xgboost.XGBClassifier
    estimator = kind(n_estimators=7, max_depth=4, n_jobs=1).fit(GAPS, TARGETS[target])
    types = [("x", FloatTensorType([None, X.shape[1]]))]
    model = onnxmltools.convert_xgboost(estimator, initial_types=types)
    check(model.SerializeToString(), GAPS, device)
