"""Graphs are cut into few segments, sizes are specialised, and options are checked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import vksched as vs
from vksched.torch.backend import vksched as backend
from vksched.torch.convert import to_array, to_tensor
from vksched.torch.decompositions import decompositions
from vksched.torch.explanation import explain
from vksched.torch.frame import programs
from vksched.torch.partition import cut, find_unsupported
from vksched.torch.runtime import BackendOptions, open_runtime
from vksched.torch.segment import DeviceSegment


@pytest.fixture(scope="module")
def cpu() -> Any:
    with vs.Scheduler(["cpu"]) as opened:
        yield opened


def compiled(fn: Any, scheduler: vs.Scheduler, **more: Any) -> Any:
    return torch.compile(fn, backend=backend, options={"scheduler": scheduler}, **more)


def test_an_op_without_a_rule_runs_in_eager_pytorch_between_two_segments(cpu: Any) -> None:
    def fn(x: Any) -> Any:
        return torch.special.i1(torch.relu(x)) * 2 + 1

    x = torch.randn(4, 3)
    fast = compiled(fn, cpu)
    with pytest.warns(vs.VkschedWarning, match="special_i1"):
        found = fast(x)
    torch.testing.assert_close(found, fn(x))
    text = explain(fast)
    assert "3 segments" in text and "eager PyTorch: aten::special_i1.default x 1" in text
    assert "no rule" in text


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.uint8])
def test_types_that_devices_lack_run_in_eager_pytorch(cpu: Any, dtype: torch.dtype) -> None:
    def fn(x: Any) -> Any:
        return x * x + x

    x = torch.arange(4).to(dtype)
    with pytest.warns(vs.VkschedWarning, match=str(dtype)):
        torch.testing.assert_close(compiled(fn, cpu)(x), fn(x))


def test_two_chains_with_eager_ops_need_three_segments() -> None:
    def fn(x: Any, y: Any) -> Any:
        a = torch.special.i1(torch.exp(x))
        b = torch.special.i1(torch.sin(y))
        return torch.tanh(a) + torch.tanh(b)

    args = torch.randn(3, 3), torch.randn(3, 3)
    module = make_fx(fn, decomposition_table=decompositions(), tracing_mode="fake")(*args)
    segments = cut(module, find_unsupported(module))
    assert [s.on_device for s in segments] == [True, False, True]
    assert len(segments[1].nodes) == 2
    seen = {n for n in module.graph.nodes if n.op == "placeholder"}
    for segment in segments:  # values go forward only
        assert set(segment.inputs) <= seen
        seen |= set(segment.outputs)


def test_views_of_results_that_ops_read_stay_in_their_segment() -> None:
    def fn(x: Any) -> Any:
        y = torch.relu(x)
        return y, y.t(), y.detach().detach() <= 0

    module = make_fx(fn, tracing_mode="fake")(torch.randn(3, 3))
    segments = cut(module, find_unsupported(module))
    assert [s.on_device for s in segments] == [True, False]
    assert [len(s.outputs) for s in segments] == [2, 1]  # the transposed result is a view


def test_views_alone_are_not_worth_a_transfer(cpu: Any) -> None:
    fast = compiled(lambda x: x.view(6, 2).t(), cpu)
    x = torch.randn(3, 4)
    torch.testing.assert_close(fast(x), x.view(6, 2).t())
    special = [m for _, p in programs() for m in p.specialisations.values()]
    assert special and not any(isinstance(step, DeviceSegment) for step in special[-1].steps)


def test_int64_values_beyond_32_bits_are_right(cpu: Any) -> None:
    fast = compiled(lambda i: i * 3 + 1, cpu)
    for i in (torch.arange(5), torch.tensor([2**40, -(2**50), 0, 1, 2])):
        torch.testing.assert_close(fast(i), i * 3 + 1)


@pytest.mark.parametrize("shape", [(6,), (3, 2)], ids=str)
def test_strides_of_an_argument_that_is_a_view_read_its_memory(
    cpu: Any, shape: tuple[int, ...]
) -> None:
    def fn(x: Any) -> Any:
        return torch.as_strided(x.view(shape), (2, 2), (3, 1), 1) * 2

    fast = compiled(fn, cpu)
    memory = torch.arange(12.0)
    for x in (memory[:6].clone(), memory[6:]):
        torch.testing.assert_close(fast(x), fn(x))
    assert "eager PyTorch" not in explain(fast)  # the second call alone


def test_symbolic_sizes_are_specialised_up_to_a_limit(cpu: Any) -> None:
    w = torch.randn(8, 4)

    def fn(x: Any, n: int) -> Any:
        return (x @ w).view(-1, 2).softmax(0) + x.shape[0] + n

    options = {"scheduler": cpu, "limit": 2}
    fast = torch.compile(fn, backend=backend, options=options, dynamic=True)
    for rows in (3, 5, 7, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(fast(x, rows + 2), fn(x, rows + 2))
    (program,) = [p for f, p in programs() if f.function[1] == "fn"]
    assert len(program.specialisations) == 2


def test_graphs_of_a_model_share_its_weights(cpu: Any) -> None:
    model = torch.nn.Linear(4, 3).eval()
    fast = compiled(model, cpu, dynamic=True)
    with torch.no_grad():
        for rows in (2, 5):
            fast(torch.randn(rows, 4))
        compiled(lambda x: model(x) * 2, cpu)(torch.randn(2, 4))
    special = [m for _, p in list(programs())[-2:] for m in p.specialisations.values()]
    assert len(special) == 3
    assert len({frozenset(m.leaves.values()) for m in special}) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.bool], ids=str)
def test_arguments_and_results_are_not_copied_on_the_host(dtype: torch.dtype) -> None:
    tensor = torch.ones(3, 4).to(dtype)
    array = to_array(tensor)
    assert array.ctypes.data == tensor.data_ptr()
    assert to_tensor(array, dtype, tensor.stride()).data_ptr() == tensor.data_ptr()


def test_equal_devices_and_precision_share_a_scheduler() -> None:
    options = {"devices": ["cpu"], "precision": "mixed"}
    first, second = (open_runtime(BackendOptions.parse(options)) for _ in range(2))
    assert first.scheduler is second.scheduler and first.weights is second.weights
    assert first.scheduler.precision == "mixed"
    other = open_runtime(BackendOptions.parse({"devices": ["cpu"]}))
    assert other.scheduler is not first.scheduler


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": ["cpu"]}, "expected options devices"),
        ({"devices": "cpu"}, "expected a list of device names"),
        ({"placement": 3}, "expected a dict of name patterns"),
        ({"placement": {"a": ["cpu"]}}, "expected a dict of name patterns"),
        ({"devices": [["cpu"]]}, "expected a list of device names"),
        ({"limit": 0}, "expected a limit of at least 1"),
        ({"limit": True}, "expected a limit of at least 1"),
        ({"scheduler": 5}, "expected a Scheduler"),
        ([("limit", 1)], "expected a dict of options"),
    ],
)
def test_options_are_checked(options: Any, text: str) -> None:
    with pytest.raises(vs.VkschedError, match=text):
        BackendOptions.parse(options)


def test_modes_of_inductor_are_refused() -> None:
    fast = torch.compile(torch.nn.Linear(2, 2), backend=backend, mode="max-autotune")
    with pytest.raises(Exception, match="expected options only, got mode"):
        fast(torch.ones(1, 2))


def test_explain_needs_a_compiled_model_that_was_called() -> None:
    with pytest.raises(vs.VkschedError, match="expected a result of torch.compile"):
        explain(3)
    with pytest.raises(vs.VkschedError, match="call it once"):
        explain(torch.compile(torch.nn.Linear(2, 2), backend=backend))
