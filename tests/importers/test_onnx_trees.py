"""Tree ensembles: which leaf a row ends in, to the last bit of a threshold, and what leaves add.

Drawn ensembles, of all modes, aggregates and transforms: test_onnx_calls.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray
from vksched.common.errors import ModelFormatError
from vksched.ir.graph import INLINE_BYTES

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper

from vksched.importers.onnx.nodes.tree_tables import MAX_DEPTH, MODES, UNORDERED, from_tensors, ways

pytestmark = pytest.mark.filterwarnings("ignore::vksched.common.user_warning.VkschedWarning")
ML = "ai.onnx.ml"
INF, NAN = float("inf"), float("nan")
TINY = np.finfo(np.float32).tiny


@pytest.fixture(scope="module", params=["cpu", "vulkan:0"])
def sched(request: pytest.FixtureRequest) -> Iterator[vs.Scheduler]:
    if request.param != "cpu" and request.param not in {d.name for d in vs.devices()}:
        pytest.skip("no such device")
    with vs.Scheduler([request.param]) as sched:
        yield sched


def model_of(op: str, outputs: Sequence[str], features: int, version: int = 3, **attrs: Any) -> Any:
    node = helper.make_node(op, ["x"], list(outputs), domain=ML, **attrs)
    kinds = [TensorProto.INT64, TensorProto.FLOAT][-len(outputs) :]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [info("x", TensorProto.FLOAT, [None, features])],
        [info(name, kind, None) for name, kind in zip(outputs, kinds, strict=True)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def stump(mode: str, threshold: float, **attrs: Any) -> Any:
    """A tree of one branch: 1 where it holds, else 0."""
    return model_of(
        "TreeEnsembleRegressor", ["y"], 1, n_targets=1, nodes_treeids=[0] * 3,
        nodes_nodeids=[0, 1, 2], nodes_featureids=[0] * 3, nodes_modes=[mode, "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], nodes_values=[threshold, 0, 0],
        target_treeids=[0, 0], target_nodeids=[1, 2], target_ids=[0, 0], target_weights=[1.0, 0.0],
        **attrs,
    )  # fmt: skip


HOLDS = {"BRANCH_LEQ": np.less_equal, "BRANCH_LT": np.less, "BRANCH_GTE": np.greater_equal,
         "BRANCH_GT": np.greater, "BRANCH_EQ": np.equal, "BRANCH_NEQ": np.not_equal}  # fmt: skip


@pytest.mark.parametrize("missing", [None, 0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_a_branch_at_its_threshold(sched: vs.Scheduler, mode: str, missing: int | None) -> None:
    for threshold in (0.1, -3.0, 0.0, 1e30, INF):
        at = np.float32(threshold)
        others = [np.nextafter(at, np.float32(s), dtype=np.float32) for s in (-INF, INF)]
        if not threshold:  # devices may take subnormals for 0
            others = [-TINY, TINY]
        x = np.array([at, *others, -at, 0.0, -0.0, NAN, INF, -INF, 1.0], np.float32)[:, None]
        with np.errstate(invalid="ignore"):
            wanted = HOLDS[mode](x, at)
        if missing:
            wanted = wanted | np.isnan(x)
        tracks = {} if missing is None else {"nodes_missing_value_tracks_true": [missing, 0, 0]}
        run = sched.compile(vs.load(stump(mode, threshold, **tracks)))
        np.testing.assert_array_equal(run(x=x)["y"], wanted.astype(np.float32), f"at {threshold}")
        run.close()


@pytest.mark.parametrize("mode", MODES)
def test_nothing_compares_with_a_threshold_that_is_no_number(mode: str) -> None:
    children = ways(mode, NAN, False, 7, 8)
    assert set(children) == {7 if mode == "BRANCH_NEQ" else 8}
    assert ways(mode, NAN, True, 7, 8)[UNORDERED] == 7
    assert ways(mode, NAN, True, 7, 8)[:UNORDERED] == children[:UNORDERED]


# -- sets ----------------------------------------------------------------------------------------


def of_set(values: Sequence[float], missing: bool) -> Any:
    tensors = {
        "nodes_splits": np.zeros(1, np.float32),
        "nodes_modes": np.array([6], np.uint8),
        "leaf_weights": np.array([5.0, -5.0], np.float32),
        "membership_values": np.array([*values, NAN], np.float32),
    }
    return model_of(
        "TreeEnsemble", ["y"], 2, 5, tree_roots=[0], n_targets=1, nodes_featureids=[1],
        nodes_truenodeids=[0], nodes_falsenodeids=[1], nodes_trueleafs=[1], nodes_falseleafs=[1],
        leaf_targetids=[0, 0], nodes_missing_value_tracks_true=[int(missing)],
        **{name: numpy_helper.from_array(a, name) for name, a in tensors.items()},
    )  # fmt: skip


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 100])
def test_membership(sched: vs.Scheduler, count: int, missing: bool) -> None:
    values = np.random.default_rng(count).permutation(300)[:count] / 4 - 30
    x = np.array([*np.arange(-150, 310) / 4, 0.1, NAN, INF], np.float32)
    wanted = np.isin(x, values) | (missing & np.isnan(x))
    run = sched.compile(vs.load(of_set(values.tolist(), missing)))
    found = run(x=np.stack([np.zeros_like(x), x], 1))["y"][:, 0]
    np.testing.assert_array_equal(found, np.where(wanted, 5, -5))
    run.close()


def test_a_set_is_as_deep_as_a_search_in_it() -> None:
    members = np.array([*range(1000), NAN])
    names = ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    feeds = dict(zip(names, ([0], [0], [1], [1], [1]), strict=True))
    columns = {f"nodes_{name}": value for name, value in feeds.items()}
    columns |= {"nodes_missing_value_tracks_true": [], "leaf_targetids": [0, 0], "tree_roots": [0]}
    modes, splits, weights = np.array([6], np.uint8), np.zeros(1), np.ones(2)
    assert from_tensors(columns, modes, splits, weights, members).depth == 10


# -- whole ensembles -----------------------------------------------------------------------------


def chain(levels: int, target: int | None = None) -> Any:
    """A tree in which one more level follows each branch that holds: x <= 0, x <= 1, ..."""
    count = 2 * levels + 1
    branches = np.arange(0, count - 1, 2)
    modes = ["BRANCH_GT", "LEAF"] * levels + ["LEAF"]
    true, false = [0] * count, [0] * count
    for at in branches.tolist():
        true[at], false[at] = at + 2, at + 1
    if target is not None:
        true[branches[-1]] = target
    leaves = [i for i, mode in enumerate(modes) if mode == "LEAF"]
    return model_of(
        "TreeEnsembleRegressor", ["y"], 1, n_targets=1, nodes_treeids=[4] * count,
        nodes_nodeids=list(range(count)), nodes_featureids=[0] * count, nodes_modes=modes,
        nodes_truenodeids=true, nodes_falsenodeids=false,
        nodes_values=[float(i // 2) for i in range(count)], target_treeids=[4] * len(leaves),
        target_nodeids=leaves, target_ids=[0] * len(leaves),
        target_weights=[float(i) for i in range(len(leaves))],
    )  # fmt: skip


def test_deep_trees() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(chain(60)))
        x = np.array([-1, 0.5, 30.5, 59.5, 1e9], np.float32)[:, None]
        np.testing.assert_array_equal(run(x=x)["y"][:, 0], [0, 1, 31, 60, 60])


@pytest.mark.parametrize("is_circle", [False, True])
def test_trees_without_end_are_refused(is_circle: bool) -> None:
    model = chain(3, target=0) if is_circle else chain(MAX_DEPTH + 1)
    text = f"TreeEnsembleRegressor node 'y': expected trees of at most {MAX_DEPTH} levels"
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(ModelFormatError, match=text):
        sched.compile(vs.load(model))(x=np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nodes_modes": ["BRANCH_NE", "LEAF", "LEAF"]}, "expected modes of"),
        ({"nodes_truenodeids": [9, 0, 0]}, "expected a node 9 in tree 0, got none"),
        ({"nodes_nodeids": [0, 1, 1]}, "expected each node of a tree once"),
        ({"nodes_values": [0.0]}, "expected as many of each attribute"),
        ({"target_ids": [0, 1]}, "expected targets of leaves below 1"),
        ({"target_nodeids": [1, -2]}, "expected numbers of trees and nodes of 31 bits"),
        ({"nodes_featureids": [-1, 0, 0]}, "expected numbers of features of 31 bits"),
        ({"target_weights": []}, "expected as many trees, nodes, targets and weights"),
    ],
)
def test_attributes_that_describe_no_trees(change: dict[str, Any], message: str) -> None:
    model = stump("BRANCH_LT", 0.0)
    node = model.graph.node[0]
    remaining = [a for a in node.attribute if a.name not in change]
    del node.attribute[:]
    node.attribute.extend(remaining)
    types = dict.fromkeys(change, helper.AttributeProto.INTS)
    types |= dict.fromkeys(("nodes_values", "target_weights"), helper.AttributeProto.FLOATS)
    types["nodes_modes"] = helper.AttributeProto.STRINGS
    for name, value in change.items():
        node.attribute.append(helper.make_attribute(name, value, attr_type=types[name]))
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(ModelFormatError, match=message):
        sched.compile(vs.load(model))(x=np.zeros((1, 1), np.float32))


def test_far_too_many_targets() -> None:
    model = stump("BRANCH_LT", 0.0)
    next(a for a in model.graph.node[0].attribute if a.name == "n_targets").i = 1 << 20
    text = "with 1048576 targets"
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(ModelFormatError, match=text):
        sched.compile(vs.load(model))(x=np.zeros((2, 1), np.float32))


def test_features_that_are_not_there() -> None:
    model = stump("BRANCH_LT", 0.0)
    next(a for a in model.graph.node[0].attribute if a.name == "nodes_featureids").ints[0] = 3
    with (
        vs.Scheduler(["cpu"]) as sched,
        pytest.raises(ModelFormatError, match="1 features, of whi"),
    ):
        sched.compile(vs.load(model))(x=np.zeros((2, 1), np.float32))


def boosted(trees: int, classes: int, uneven: bool = False) -> Any:
    """Stumps that each add to one class in turn. uneven: all but a few to the first one."""
    names: dict[str, list[Any]] = {name: [] for name in (
        "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_modes", "nodes_truenodeids",
        "nodes_falsenodeids", "nodes_values", "class_treeids", "class_nodeids", "class_ids",
        "class_weights")}  # fmt: skip
    for tree in range(trees):
        target = (0 if tree >= classes else tree) if uneven else tree % classes
        rows = [(tree, 0, tree % 3, "BRANCH_LEQ", 1, 2, tree / trees - 0.5)]
        rows += [(tree, leaf, 0, "LEAF", 0, 0, 0.0) for leaf in (1, 2)]
        for name, column in zip(list(names)[:7], zip(*rows, strict=True), strict=True):
            names[name] += column
        for leaf in (1, 2):
            for name, value in zip(
                list(names)[7:], (tree, leaf, target, 0.125 * (leaf - tree % 5)), strict=True
            ):
                names[name].append(value)
    labels = [10 * (c + 1) for c in range(classes)]
    return model_of("TreeEnsembleClassifier", ["label", "p"], 3, classlabels_int64s=labels, **names)


def by_hand(trees: int, classes: int, uneven: bool, x: NDArray) -> NDArray:
    scores = np.zeros((len(x), classes))
    for tree in range(trees):
        target = (0 if tree >= classes else tree) if uneven else tree % classes
        leaf = np.where(x[:, tree % 3] <= np.float32(tree / trees - 0.5), 1, 2)
        scores[:, target] += 0.125 * (leaf - tree % 5)
    return scores


@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize(("trees", "classes"), [(3, 3), (31, 4), (300, 3)])
def test_boosted_trees(sched: vs.Scheduler, trees: int, classes: int, uneven: bool) -> None:
    x = np.random.default_rng(trees).standard_normal((17, 3)).astype(np.float32)
    run = sched.compile(vs.load(boosted(trees, classes, uneven)))
    found, wanted = run(x=x), by_hand(trees, classes, uneven, x)
    np.testing.assert_allclose(found["p"], wanted, atol=1e-5)
    np.testing.assert_array_equal(found["label"], 10 * (wanted.argmax(1) + 1))
    run.close()


def test_walks_are_sorted_by_target_unless_one_has_far_more() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        x = np.zeros((2, 3), np.float32)
        for uneven, shape in ((False, (2, 30)), (True, (2, 30))):
            run = sched.compile(vs.load(boosted(30, 3, uneven)))
            run(x=x)
            gathers = [n for n in run.plan.graph.nodes if n.op == "gather"]
            assert {n.type.shape for n in gathers} >= {shape}
            wide = (2, 30, 3) in {n.type.shape for n in gathers}
            assert wide == uneven  # else each leaf is a row of all targets
            run.close()


def test_tables_are_shared_by_all_shapes() -> None:
    with vs.Scheduler(["cpu"]) as sched:
        model = vs.load(boosted(1100, 3))
        run = sched.compile(model)
        for rows in (1, 2, 5):
            run(x=np.zeros((rows, 3), np.float32))
        held = [plan.graph.arrays() for plan in run.plans]
        big = {id(a) for arrays in held for a in arrays.values() if a.nbytes > INLINE_BYTES}
        assert len(run.plans) == 3 and len(big) == 5  # roots and four tables
