"""The evaluator is asked for ops alone of which it was compared with onnxruntime: here.

For more calls of some ops: python tests/importers/test_allow_list.py FIRST COUNT [OP ...]
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper, numpy_helper, parser

import vksched as vs
from vksched.common.errors import ModelFormatError
from vksched.importers.onnx.nodes import ai_onnx_ml
from vksched.importers.onnx.nodes.allow_list import (
    BY_DATA,
    COMPARED,
    DOUBTED,
    find_uncompared,
    is_compared,
)
from vksched.importers.onnx.nodes.cpu_node import CpuNode, EvaluatorRefused
from vksched.importers.onnx.rules import find_rule

ort = pytest.importorskip("onnxruntime")
import onnx_calls_host  # noqa: E402
import onnx_calls_microsoft  # noqa: E402
import onnx_calls_ml  # noqa: E402
import onnx_calls_move  # noqa: E402
import onnx_calls_nn  # noqa: E402
from onnx_calls import ENTRIES, ML, Call, Entry, draw_call, expected  # noqa: E402
from test_onnx_calls import difference  # noqa: E402

DRAWS = (onnx_calls_host, onnx_calls_microsoft, onnx_calls_ml, onnx_calls_move, onnx_calls_nn)
"""What is imported for the entries that it registers."""
CALLS = 12
"""So many calls of each op are compared, of at most MOST that are drawn: some have none."""
MOST = 150
SEQUENCES = frozenset(
    ("ConcatFromSequence", "SequenceAt", "SequenceErase", "SequenceInsert", "SplitToSequence")
)
MAPS = frozenset(("CastMap", "DictVectorizer", "ZipMap"))
"""Ops whose calls test_onnx_classical.py draws."""
OPS = [(d, op) for d, ops in COMPARED.items() for op in sorted(ops - SEQUENCES - MAPS)]


def evaluated(call: Call) -> list[Any]:
    """Return the results of a call in the evaluator."""
    versions = {"": 20, ML: call.opset} if call.domain == ML else {"": call.opset}
    return CpuNode(call.model().graph.node[0], versions)(call.inputs)


def compare(call: Call) -> bool:
    """Assert that a call gives what onnxruntime gives; False where one of both refuses it."""
    known = None if call.reference else expected(call)
    if known is None or known[0] != "onnxruntime":
        return False
    try:
        found = evaluated(call)
    except EvaluatorRefused:
        return False
    for i, (got, want) in enumerate(zip(found, known[1], strict=True)):
        wrong = difference(call, np.asarray(got), want)
        assert not wrong, f"{call}: y{i} is {wrong} of onnxruntime"
    return True


def entries_of(domain: str, op: str) -> list[Entry]:
    found = [e for e in ENTRIES if (e.domain, e.op) == (domain, op)]
    # onnxruntime has some before ONNX did; these have rules
    return [e for e in found if domain or onnx.defs.has(op, e.until)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("domain", "op"), OPS, ids=[f"{d[3:]}{op}" for d, op in OPS])
def test_the_evaluator_gives_what_onnxruntime_gives(domain: str, op: str) -> None:
    for entry in entries_of(domain, op):
        calls = (draw_call(entry, seed) for seed in range(MOST))
        found = (call for call in calls if call is not None and compare(call))
        assert len(list(islice(found, CALLS))) == CALLS


@pytest.mark.parametrize("op", sorted(SEQUENCES))
def test_sequences_at_positions_that_runs_differ_in(op: str) -> None:
    body = {
        "SequenceAt": "s = SequenceConstruct(x, z, x)\n y = SequenceAt(s, i)",
        "SequenceErase": "s = SequenceConstruct(x, z)\n t = SequenceErase(s, i)\n"
        " y = ConcatFromSequence <axis = 0> (t)",
        "SequenceInsert": "s = SequenceConstruct(x, x)\n t = SequenceInsert(s, z, i)\n"
        " y = ConcatFromSequence <axis = 0> (t)",
        "SplitToSequence": "n = Abs(i)\n s = SplitToSequence <axis = 0> (x, n)\n"
        " y = SequenceAt(s, i)",
        "ConcatFromSequence": "s = SequenceConstruct(x, z)\n"
        " y = ConcatFromSequence <axis = 1, new_axis = 1> (s)",
    }[op]
    text = f"g (string[3] x, string[3] z, int64 i) => (string[n] y) {{ {body} }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x, z = (np.array(list(word), object) for word in ("abc", "xyz"))
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.load(model))
        for i in (1, -1, -2):
            feeds = {"x": x, "z": z, "i": np.array(i)}
            feeds = {name: feeds[name] for name in (v.name for v in session.get_inputs())}
            (wanted,) = session.run(None, feeds)
            np.testing.assert_array_equal(run(**feeds)["y"], wanted)


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "pairs"])
def test_sparse_constants(places: list[Any], opset: int) -> None:
    values = numpy_helper.from_array(np.array([3.0, -2.0], np.float32), "v")
    where = numpy_helper.from_array(np.array(places), "i")
    sparse = helper.make_sparse_tensor(values, where, [2, 3])
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Constant", [], ["c"], sparse_value=sparse),
             helper.make_node("Add", ["x", "c"], ["y"])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [info("x", 1, [2, 3])], [info("y", 1, [2, 3])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    x = np.ones((2, 3), np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    with vs.Scheduler(["cpu"]) as sched:
        found = sched.compile(vs.load(model))(x=x)["y"]
    np.testing.assert_array_equal(found, [[1, 4, 1], [1, 1, -1]])
    np.testing.assert_array_equal(found, session.run(None, {"x": x})[0])


def test_tables_have_each_op_once_and_none_that_nobody_evaluates() -> None:
    for domain, ops in DOUBTED.items():
        assert not ops & {*COMPARED.get(domain, ()), *BY_DATA.get(domain, ())} - {"RoiAlign"}
    rules = {op for op in DOUBTED[ML] | DOUBTED[""] if find_rule("", op) or find_rule(ML, op)}
    assert rules == DOUBTED[ML] | DOUBTED[""], "what the evaluator has wrong needs a rule"
    of_ml = COMPARED[ML] | {op for op in DOUBTED[ML] if find_rule(ML, op)}
    assert of_ml >= {e.op for e in ENTRIES if e.domain == ML} - {"Binarizer", "Imputer"}


@pytest.mark.parametrize("op", sorted(BY_DATA[""]))
def test_what_onnxruntime_has_not_is_compared_by_data(op: str) -> None:
    """Else it can be compared with it."""
    node = helper.make_node(op, ["x"], ["y"])
    value = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [value("x", 2, [2])], [value("y", 2, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


# -- what is refused -----------------------------------------------------------------------------


def model_of(node: NodeProto, opset: int = 17) -> Any:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [info(n, 1, [1, 1, 4, 4]) for n in node.input], [info("y", 1, None)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def test_an_op_that_was_not_compared_is_an_error_at_import() -> None:
    model = model_of(helper.make_node("LpPool", ["x"], ["y"], "pool", kernel_shape=[2, 2], p=0))
    text = r"LpPool node 'pool': .*not used for LpPool: its results differ.*; try to"
    with vs.Scheduler(["cpu"]) as sched, pytest.raises(ModelFormatError, match=text):
        sched.compile(vs.load(model))


def test_functions_of_the_model_are_looked_into() -> None:
    inner = helper.make_node("GRU", ["a", "b", "c"], ["d"], hidden_size=1)
    opset = helper.make_opsetid("", 17)
    function = helper.make_function("mine", "F", ["a", "b", "c"], ["d"], [inner], [opset])
    outer = helper.make_function(
        "mine", "G", ["a"], ["d"], [helper.make_node("F", ["a", "a", "a"], ["d"], domain="mine")],
        [opset, helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    call = helper.make_node("G", ["x"], ["y"], domain="mine")
    found = find_uncompared([call], [function, outer])
    assert found is not None and found.op_type == "GRU"
    with pytest.raises(EvaluatorRefused, match="its GRU node 'd': not used for GRU"):
        CpuNode(call, {"": 17, "mine": 1}, [function, outer])


def test_subgraphs_are_looked_into() -> None:
    text = """g (bool c, float[2,3] x) => (float[2,3] y) {
      y = If (c) <then_branch = a () => (float[2,3] p) { p = LpNormalization(x) },
                  else_branch = b () => (float[2,3] q) { q = Neg(x) }> }"""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    assert not is_compared(model.graph.node[0])
    inner = model.graph.node[0].attribute[0].g.node[0]
    assert find_uncompared([inner]) is inner
    assert find_uncompared([helper.make_node("Det", ["x"], ["y"])]) is None


def test_own_ops_are_those_of_the_package_that_are_wrong_or_missing() -> None:
    from onnx.reference.ops import aionnxml

    own = {op.__name__ for op in ai_onnx_ml.OPS if op.op_domain == ML}
    assert own == COMPARED[ML]
    assert not hasattr(aionnxml, "ZipMap")


if __name__ == "__main__":
    import sys
    import warnings

    warnings.simplefilter("ignore")
    first, count, *only = sys.argv[1:]
    tried = failed = 0
    for domain, op in OPS:
        for entry in entries_of(domain, op) if not only or op in only else []:
            for seed in range(int(first), int(first) + int(count)):
                drawn = draw_call(entry, seed)
                try:
                    tried += drawn is not None and compare(drawn)
                except AssertionError as error:
                    failed += 1
                    print(str(error)[:500])
    print(f"{tried} calls, {failed} of them wrong")
    sys.exit(bool(failed))
