"""Compiled models behave as eager ones: values, gradients, weights, views, threads and copies."""

from __future__ import annotations

import copy
import pickle
import re
import threading
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vksched as vs
from vksched.torch.backend import vksched as backend
from vksched.torch.explanation import explain


class ConvNet(nn.Module):
    """Convolution, batch norm, attention, pooling and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up, self.fc = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Linear(8 * 16, 5)

    def forward(self, x: Any) -> Any:
        h = torch.relu(self.bn(self.conv(x)))
        tokens = h.flatten(2).transpose(1, 2)
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        h = F.max_pool2d(self.up(h + mixed.transpose(1, 2).reshape(h.shape)), 4)
        return self.fc(h.flatten(1))


def compiled(fn: Any, scheduler: vs.Scheduler, **more: Any) -> Any:
    return torch.compile(fn, backend=backend, options={"scheduler": scheduler}, **more)


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_training_equals_eager_pytorch(scheduler: vs.Scheduler) -> None:
    eager = ConvNet()
    model = copy.deepcopy(eager)
    fast = compiled(model, scheduler)
    optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (eager, model)]
    for _ in range(3):
        x, losses = torch.randn(4, 3, 8, 8), []
        for forward, optimizer in zip((eager, fast), optimizers, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), torch.tensor([0, 1, 2, 3]))
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        close(losses[1], losses[0])
    for (name, a), b in zip(eager.state_dict().items(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-4, msg=name)
    eager.eval(), model.eval()
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    text = explain(fast)
    assert "forward of ConvNet" in text and "backward of ConvNet" in text and "states" in text


def test_new_weights_take_effect(scheduler: vs.Scheduler) -> None:
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    fast = compiled(model, scheduler)
    with torch.no_grad():
        close(fast(x), model(x))
        assert "2 weights" in explain(fast)
        model.weight.mul_(2)  # a new version: the weight becomes a state
        close(fast(x), model(x))
        assert "1 weights, 1 states" in explain(fast)
        model.load_state_dict(nn.Linear(4, 3).state_dict())
        close(fast(x), model(x))
        model.weight.data = torch.randn(3, 4)  # new memory
        close(fast(x), model(x))
        model.weight.data[1, 2] = 5  # without a new version
        close(fast(x), model(x))
        model.bias.data.copy_(torch.ones(3))
        close(fast(x), model(x))


def test_parameters_that_share_memory_take_effect(scheduler: vs.Scheduler) -> None:
    a, b, x = nn.Linear(3, 3).eval(), nn.Linear(3, 3).eval(), torch.randn(2, 3)
    b.weight.data = a.weight.data  # with a version counter of its own
    fast = [compiled(layer, scheduler) for layer in (a, b)]
    with torch.no_grad():
        for changed in (a, b, b):
            changed.weight.mul_(2)
            for layer, quick in zip((a, b), fast, strict=True):
                close(quick(x), layer(x))


def test_results_are_no_memory_of_the_graph(scheduler: vs.Scheduler) -> None:
    fast = compiled(lambda x: (torch.arange(5), torch.ones(3) * 2, x + 1), scheduler)
    x = torch.ones(3)
    for result in fast(x):
        result.zero_()
    close(fast(x), (torch.arange(5), torch.full((3,), 2.0), x + 1))


def test_modules_that_share_code_keep_their_weights(scheduler: vs.Scheduler) -> None:
    layers = [nn.Linear(4, 4).eval() for _ in range(3)]
    fast = [compiled(layer, scheduler) for layer in layers]
    x = torch.randn(2, 4)
    with torch.no_grad():
        for _ in range(2):
            for layer, quick in zip(layers, fast, strict=True):
                close(quick(x), layer(x))


def test_mutation_views_and_aliases(scheduler: vs.Scheduler) -> None:
    def fn(x: Any, y: Any) -> Any:
        x.add_(1)
        y[:, 0] = 5.0
        z = torch.exp(y)
        return x, x.view(-1), z, z.t(), z[0], y.sum()

    args = [torch.randn(3, 4), torch.randn(4, 3).t()]
    copies = [a.clone() for a in args]  # with their strides
    wanted, got = fn(*args), compiled(fn, scheduler)(*copies)
    for a, b in zip((*wanted, *args), (*got, *copies), strict=True):
        close(b, a)
        assert a.stride() == b.stride()
    assert got[0] is copies[0] and got[1].data_ptr() == copies[0].data_ptr()
    assert got[3].data_ptr() == got[2].data_ptr()
    got[2].zero_()
    assert got[3].abs().max() == 0


def test_inputs_of_any_layout(scheduler: vs.Scheduler) -> None:
    def fn(x: Any) -> Any:
        return torch.sin(x) * 2

    fast = compiled(fn, scheduler)
    for x in (torch.randn(4, 6)[:, ::2], torch.randn(3, 4).t(), torch.randn(1, 3).expand(4, 3)):
        close(fast(x), fn(x))
    close(fast(torch.randn(0, 3)), torch.randn(0, 3))
    close(fast(torch.tensor(2.0)), fn(torch.tensor(2.0)))


def test_grad_modes_and_threads(scheduler: vs.Scheduler) -> None:
    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    fast, wanted = compiled(model, scheduler), model(x).detach()
    with torch.inference_mode():
        close(fast(x), wanted)
    with torch.no_grad():
        assert not fast(x).requires_grad
    assert fast(x).requires_grad
    found: list[Any] = []

    def work() -> None:
        with torch.no_grad():
            found.extend(fast(x) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 15
    for got in found:
        close(got, wanted)


def test_dropout_is_reproducible_by_seed(scheduler: vs.Scheduler) -> None:
    fast = compiled(lambda x: F.dropout(x, 0.25), scheduler)
    x = torch.ones(64, 64, requires_grad=True)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        y = fast(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        close(grad, y.detach())  # the gradient has the mask of the forward pass
        runs.append(y.detach())
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert len(runs[0].unique()) == 2
    assert abs((runs[0] == 0).float().mean() - 0.25) < 0.03


def test_copies_and_pickles(scheduler: vs.Scheduler) -> None:
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    fast = compiled(model, scheduler)
    with torch.no_grad():
        wanted = fast(x)
        other = copy.deepcopy(fast)
        other.weight.mul_(3)
        close(other(x), F.linear(x, model.weight * 3, model.bias))
        close(fast(x), wanted)
        restored = pickle.loads(pickle.dumps(model))
        devices = [scheduler.devices[0].name]
        close(torch.compile(restored, backend=backend, options={"devices": devices})(x), wanted)


def test_norms_that_pytorch_decomposes(scheduler: vs.Scheduler) -> None:
    model, x = nn.Sequential(nn.RMSNorm(5), nn.Softsign(), nn.LogSigmoid()), torch.randn(3, 5)
    fast = compiled(model, scheduler)
    with torch.no_grad():
        close(fast(x), model(x))
    assert "eager PyTorch" not in explain(fast)


def test_explain_has_graph_breaks(scheduler: vs.Scheduler) -> None:
    class Broken(nn.Module):
        def forward(self, x: Any) -> Any:
            y = torch.exp(x)
            torch._dynamo.graph_break()
            return torch.sin(y)

    fast, x = compiled(Broken(), scheduler), torch.randn(3)
    close(fast(x), torch.sin(torch.exp(x)))
    text = explain(fast)
    assert text.startswith("2 graphs, 1 graph breaks"), text
    assert "graph break: " in text


def test_the_entry_point_names_the_backend() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")
    (found,) = re.findall(r"torch_dynamo_backends\]\nvksched = \"(.*)\"", project)
    assert resolve_name(found) is backend


def test_pytorch_finds_the_backend_by_its_name() -> None:
    if not entry_points(group="torch_dynamo_backends", name="vksched"):
        pytest.skip("the metadata of the package is not installed")
    assert "vksched" in torch._dynamo.list_backends()
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    fast = torch.compile(model, backend="vksched", options={"devices": ["cpu"]})
    with torch.no_grad():
        close(fast(x), model(x))
    assert "inference of Linear" in explain(fast)
