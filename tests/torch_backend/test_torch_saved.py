"""Values that the backward pass needs stay on devices, and are released with the autograd graph."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import vksched as vs
from vksched.ir.tensor import Tensor
from vksched.torch.backend import vksched as backend
from vksched.torch.explanation import explain
from vksched.torch.frame import programs
from vksched.torch.program import Specialisation
from vksched.torch.runtime import release
from vksched.torch.saved_values import DeviceTensor
from vksched.torch.segment import DeviceSegment

X = torch.linspace(-2, 3, 12).reshape(3, 4)


class Net(nn.Module):
    """Saves the result of tanh, and the mask of relu, for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.tanh(self.first(x))))


def saved_on_devices(found: list[Specialisation]) -> None:
    """Assert that no forward pass had to return saved values to the host."""
    assert found
    for each in found:
        assert each.saved is not None and each.saved.states and not each.has_host_version


@pytest.fixture
def gpu(gpu_name: str) -> Iterator[vs.Scheduler]:
    with vs.Scheduler([gpu_name]) as opened:
        yield opened


def compiled(fn: Any, scheduler: vs.Scheduler) -> Any:
    return torch.compile(fn, backend=backend, options={"scheduler": scheduler})


def special(kind: str) -> list[Specialisation]:
    """Return the specialisations of the graphs of a kind of the network."""
    gc.collect()  # networks of earlier tests
    found = [p for frame, p in programs() if frame.label == "Net" and p.info.kind == kind]
    return [each for p in found for each in p.specialisations.values()]


def gradients(model: nn.Module, forward: Any, inputs: list[Any]) -> list[Any]:
    """Return the gradients of the sum of results for several inputs, after one backward pass."""
    model.zero_grad()
    torch.stack([forward(x).square().sum() for x in inputs]).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def states_of(scheduler: vs.Scheduler) -> set[Tensor]:
    """Return the states that have memory on a device, except those of parameters."""
    keys = {key for device in scheduler.devices for key in device.states.keys()}
    return {k for k in keys if isinstance(k, Tensor) and "." not in k.name}


def test_saved_values_stay_on_the_device(gpu: vs.Scheduler) -> None:
    eager = Net()
    model = copy.deepcopy(eager)
    fast = compiled(model, gpu)
    for _ in range(3):
        close(gradients(model, fast, [X]), gradients(eager, eager, [X]))
    (forward,), (backward,) = special("forward"), special("backward")
    assert forward.saved is not None and len(forward.saved.states) >= 2
    (ahead,) = [s.compiled.plan.graph for s in forward.steps if isinstance(s, DeviceSegment)]
    (behind,) = [s.compiled.plan.graph for s in backward.steps if isinstance(s, DeviceSegment)]
    assert len(ahead.outputs) == 1  # the result alone comes to the host
    assert {n.type.shape for n in behind.inputs} <= {(3, 2), (3, 4)}  # the gradient, and the input
    assert {behind.keys[n] for n in behind.states.values()} >= {*forward.saved.states}
    assert f"{len(forward.saved.tensors)} saved values on devices" in explain(fast)


def test_a_second_forward_pass_before_the_backward_pass_has_values_of_its_own(
    gpu: vs.Scheduler,
) -> None:
    eager = Net()
    model = copy.deepcopy(eager)
    fast = compiled(model, gpu)
    for inputs in ([X, X + 1, X * 2], [X]):
        close(gradients(model, fast, inputs), gradients(eager, eager, inputs))
    (forward,) = special("forward")
    assert forward.saved is not None and forward.saved.lease() is not None


def test_a_backward_pass_is_repeated_on_a_retained_graph(gpu: vs.Scheduler) -> None:
    model = Net()
    found = compiled(model, gpu)(X).sum()
    wanted = torch.autograd.grad(model(X).sum(), [*model.parameters()])
    for retain in (True, True, False):
        close(torch.autograd.grad(found, [*model.parameters()], retain_graph=retain), wanted)


def test_memory_is_released_with_the_autograd_graph(gpu: vs.Scheduler) -> None:
    model = Net()
    fast = compiled(model, gpu)
    y = fast(X)
    saved = special("forward")[0].saved
    assert saved is not None and saved.lease() is None  # the autograd graph has the states
    del y  # without a backward pass
    lease = saved.lease()
    assert lease is not None
    del lease
    fast(X).sum().backward()
    assert saved.lease() is not None
    assert states_of(gpu) >= {*saved.states}
    del fast, model, saved
    torch._dynamo.reset()
    gc.collect()
    release()
    assert states_of(gpu) == set()


def test_values_outlive_the_model(gpu: vs.Scheduler) -> None:
    model = Net()
    x = X.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(model(x).sum(), x)
    found = compiled(model, gpu)(x).sum()
    del model
    torch._dynamo.reset()
    gc.collect()
    release()
    found.backward()
    close(x.grad, wanted)


def test_a_device_lost_before_the_backward_pass_asks_for_the_forward_pass(gpu_name: str) -> None:
    eager = Net()
    model = copy.deepcopy(eager)
    device = vs.FaultInjectionDevice(gpu_name, None)
    with vs.Scheduler([device]) as sched:
        fast = compiled(model, sched)
        close(gradients(model, fast, [X]), gradients(eager, eager, [X]))
        loss = fast(X).square().sum()
        device.at = device.calls["submit"]
        with (
            pytest.warns(vs.VkschedWarning, match="out of use"),
            pytest.raises(
                vs.StateLost, match=r"needs are lost: \[state\] [^;]*; try the forward pass again$"
            ),
        ):
            loss.backward()
        assert device.failed
        del loss
        gc.collect()
        for _ in range(2):
            close(gradients(model, fast, [X]), gradients(eager, eager, [X]))
        saved_on_devices(special("forward"))


def test_a_device_lost_in_the_forward_pass_is_replaced(gpu_name: str) -> None:
    eager = Net()
    model = copy.deepcopy(eager)
    device = vs.FaultInjectionDevice(gpu_name, None)
    with vs.Scheduler([device]) as sched:
        fast = compiled(model, sched)
        close(gradients(model, fast, [X]), gradients(eager, eager, [X]))
        device.at = device.calls["submit"]
        with pytest.warns(vs.VkschedWarning, match="out of use"):
            found = gradients(model, fast, [X])
        close(found, gradients(eager, eager, [X]))
        assert device.failed
        saved_on_devices(special("forward"))


def test_hooks_of_saved_tensors_get_their_values(gpu: vs.Scheduler) -> None:
    eager = Net()
    model = copy.deepcopy(eager)
    fast = compiled(model, gpu)
    packed: list[Any] = []

    def pack(x: Any) -> Any:
        packed.append(x)
        return x.numpy().copy()  # of plain tensors only

    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        found = gradients(model, fast, [X])
    close(found, gradients(eager, eager, [X]))
    assert packed and not any(isinstance(x, DeviceTensor) for x in packed)


def test_eager_ops_of_the_backward_pass_read_saved_values(gpu: vs.Scheduler) -> None:
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            y = torch.exp(x)
            ctx.save_for_backward(y)
            return y * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (y,) = ctx.saved_tensors
            return grad * torch.special.i1(y)

    def fn(x: Any) -> Any:
        return Cut.apply(torch.sin(x))

    a, b = (X.clone().requires_grad_() for _ in range(2))
    fn(a).sum().backward()
    with pytest.warns(vs.VkschedWarning, match="special_i1"):
        compiled(fn, gpu)(b).sum().backward()
    close(b.grad, a.grad)


def test_saved_tensors_are_read_copied_and_written_to_files(gpu: vs.Scheduler) -> None:
    y = compiled(Net(), gpu)(X)
    node = y.grad_fn
    while type(node).__name__ != "CompiledFunctionBackward":
        node = node.next_functions[0][0]
    saved = next(x for x in node.saved_tensors if isinstance(x, DeviceTensor))
    plain = saved.clone()
    assert not isinstance(plain, DeviceTensor) and plain.abs().sum() > 0
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    copies = [torch.load(file), pickle.loads(pickle.dumps(saved)), copy.deepcopy(saved)]
    for found in (*copies, torch.tensor(saved.tolist()), torch.from_numpy(saved.numpy())):
        assert not isinstance(found, DeviceTensor)
        torch.testing.assert_close(found, plain, rtol=0, atol=0)


def test_arrays_of_the_cpu_are_passed_on_without_states() -> None:
    model = Net()
    with vs.Scheduler(["cpu"]) as sched:
        found = gradients(model, compiled(model, sched), [X])
        (forward,) = special("forward")
        assert forward.saved is None
    close(found, gradients(model, model, [X]))
