"""Optimizers against their formulas in float64, written out a second time, and PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

STEPS = 6
SHAPES = {"w": (3, 4), "b": (4,)}
FIRST = {k: np.random.default_rng(i).standard_normal(s) for i, (k, s) in enumerate(SHAPES.items())}
GRADS = [
    {k: np.random.default_rng((n, len(k), 7)).standard_normal(s) for k, s in SHAPES.items()}
    for n in range(STEPS)
]
Make = Callable[[dict[str, vs.Tensor], dict[str, vs.Tensor]], dict[vs.Tensor, vs.Tensor]]


def ours(make: Make) -> list[dict[str, NDArray]]:
    """The parameters after each step of an optimizer that is given GRADS."""
    params = {k: vs.state(v.astype(np.float32), k) for k, v in FIRST.items()}
    grads = {k: vs.input(f"g.{k}", s) for k, s in SHAPES.items()}
    out = []
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(vs.reduce_sum(grads["b"]), updates=make(params, grads))
        for step in GRADS:
            run(**{f"g.{k}": v.astype(np.float32) for k, v in step.items()})
            out.append({k: sched.read(p) for k, p in params.items()})
    return out


def assert_equal(got: list[dict[str, NDArray]], wanted: Iterator[dict[str, NDArray]]) -> None:
    for step, (one, other) in enumerate(zip(got, wanted, strict=True)):
        for name in SHAPES:
            np.testing.assert_allclose(one[name], other[name], 2e-5, 2e-6, err_msg=f"{step} {name}")


def by_formula(rule: Callable[..., NDArray]) -> Iterator[dict[str, NDArray]]:
    """rule: (parameter, gradient, its memory, number of the step) -> the parameter."""
    params = {k: v.copy() for k, v in FIRST.items()}
    memory: dict[str, dict[str, NDArray]] = {k: {} for k in params}
    for number, step in enumerate(GRADS, 1):
        params = {k: rule(p, step[k], memory[k], number) for k, p in params.items()}
        yield dict(params)


def sgd(p: NDArray, g: NDArray, held: dict[str, NDArray], t: int) -> NDArray:
    g = g + 0.1 * p
    held["v"] = 0.9 * held["v"] + g if t > 1 else g
    return np.asarray(p - 0.05 * (g + 0.9 * held["v"]))


def adamw(p: NDArray, g: NDArray, held: dict[str, NDArray], t: int) -> NDArray:
    held["m"] = 0.8 * held.get("m", np.zeros_like(p)) + 0.2 * g
    held["v"] = 0.95 * held.get("v", np.zeros_like(p)) + 0.05 * g * g
    m, v = held["m"] / (1 - 0.8**t), held["v"] / (1 - 0.95**t)
    return np.asarray(p - 0.01 * 0.3 * p - 0.01 * m / (np.sqrt(v) + 1e-3))


def adam(p: NDArray, g: NDArray, held: dict[str, NDArray], t: int) -> NDArray:
    g = g + 0.3 * p
    held["m"] = 0.9 * held.get("m", np.zeros_like(p)) + 0.1 * g
    held["v"] = 0.999 * held.get("v", np.zeros_like(p)) + 0.001 * g * g
    m, v = held["m"] / (1 - 0.9**t), held["v"] / (1 - 0.999**t)
    return np.asarray(p - 0.01 * m / (np.sqrt(v) + 1e-8))


def lion(p: NDArray, g: NDArray, held: dict[str, NDArray], t: int) -> NDArray:
    m = held.get("m", np.zeros_like(p))
    held["m"] = 0.99 * m + 0.01 * g
    return np.asarray(p - 0.01 * (np.sign(0.9 * m + 0.1 * g) + 0.2 * p))


CASES: dict[str, tuple[Make, Callable[..., NDArray]]] = {
    "sgd": (lambda p, g: vs.optim.sgd(p, g, 0.05, 0.9, True, 0.1), sgd),
    "adamw": (lambda p, g: vs.optim.adamw(p, g, 0.01, (0.8, 0.95), 1e-3, 0.3), adamw),
    "adam": (lambda p, g: vs.optim.adam(p, g, 0.01, weight_decay=0.3), adam),
    "lion": (lambda p, g: vs.optim.lion(p, g, 0.01, weight_decay=0.2), lion),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_follow_the_formula(name: str) -> None:
    make, rule = CASES[name]
    assert_equal(ours(make), by_formula(rule))


TORCH: dict[str, Callable[..., object]] = {
    "sgd": lambda t, p: t.optim.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.1),
    "adamw": lambda t, p: t.optim.AdamW(p, 0.01, (0.8, 0.95), 1e-3, 0.3),
    "adam": lambda t, p: t.optim.Adam(p, 0.01, weight_decay=0.3),
}


@pytest.mark.parametrize("name", TORCH)
def test_steps_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    params = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in FIRST.items()}
    optimizer: object = TORCH[name](torch, list(params.values()))

    def steps() -> Iterator[dict[str, NDArray]]:
        for step in GRADS:
            for k, p in params.items():
                p.grad = torch.tensor(step[k])
            optimizer.step()  # type: ignore[attr-defined]
            yield {k: p.detach().numpy().copy() for k, p in params.items()}

    assert_equal(ours(CASES[name][0]), steps())


def rates(schedule: Callable[[vs.Tensor], vs.Tensor], steps: int) -> list[float]:
    done = vs.input("done", ())
    with vs.Scheduler(["cpu"]) as sched:
        run = sched.compile(schedule(done))
        return [float(run(done=np.float32(i))) for i in range(steps)]


def test_rates_rise_and_fall() -> None:
    np.testing.assert_allclose(rates(vs.optim.constant(2.0, 4), 6), [0.5, 1, 1.5, 2, 2, 2])
    got = rates(vs.optim.linear(1.0, 6, 0.2, warmup=2), 8)
    np.testing.assert_allclose(got, [0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)
    got = rates(vs.optim.cosine(1.0, 4), 6)
    wanted = [0.5 + 0.5 * math.cos(math.pi * min(i, 4) / 4) for i in range(6)]
    np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_a_rate_may_be_an_input_or_follow_the_steps() -> None:
    placeholder = vs.input("lr", ())
    for lr in (placeholder, vs.optim.constant(0.1, 2)):
        p, g = vs.state(np.ones(3, np.float32), "p"), vs.input("g", (3,))
        with vs.Scheduler(["cpu"]) as sched:
            run = sched.compile(vs.reduce_sum(g), updates=vs.optim.sgd(p, g, lr))
            for step in range(2):
                rate = {"lr": np.float32(0.05 * (step + 1))} if lr is placeholder else {}
                run(g=np.ones(3, np.float32), **rate)
            np.testing.assert_allclose(sched.read(p), 1 - 0.05 - 0.1, rtol=1e-6)


def test_gradients_are_shortened_together() -> None:
    a, b = vs.input("a", (2,)), vs.input("b", (2,))
    values = {"a": np.asarray([3, 0], np.float32), "b": np.asarray([0, 4], np.float32)}
    with vs.Scheduler(["cpu"]) as sched:
        for limit, scale in ((1.0, 0.2), (10.0, 1.0)):
            clipped = vs.optim.clip_by_global_norm({"a": a, "b": b}, limit)
            got = sched.compile(clipped)(**values)
            for name, value in values.items():
                np.testing.assert_allclose(got[name], value * scale, rtol=1e-5)


def refused(match: str, make: Callable[[], object]) -> None:
    with pytest.raises(vs.VkschedError, match=match):
        make()


def test_errors_say_what_does_not_belong_together() -> None:
    p, g = vs.state(np.ones(3, np.float32), "p"), vs.input("g", (3,))
    refused("states as params", lambda: vs.optim.adamw([g], [g]))
    refused("a sequence of 1", lambda: vs.optim.adamw([p], [g, g]))
    refused("a dict of the keys", lambda: vs.optim.adamw({"p": p}, {"q": g}))
    refused("a gradient of float32", lambda: vs.optim.sgd(p, vs.input("h", (4,))))
    refused("each parameter once", lambda: vs.optim.sgd([p, p], [g, g]))
    refused("betas from 0 to below 1", lambda: vs.optim.adamw(p, g, betas=(0.9, 1.0)))
    refused("two numbers as betas", lambda: vs.optim.lion(p, g, betas=(0.9,)))  # type: ignore[arg-type]
    refused("numbers as betas", lambda: vs.optim.adam(p, g, betas=0.9))  # type: ignore[arg-type]
    refused("lr of 0 or more, got -0.1", lambda: vs.optim.sgd(p, g, lr=-0.1))
    refused("a float32 scalar as lr", lambda: vs.optim.sgd(p, g, g))
    refused("a finite number as lr, got nan", lambda: vs.optim.sgd(p, g, lambda done: math.nan))
    refused("expected parameters, got none", lambda: vs.optim.sgd({}, {}))
    refused("grads as a Tensor", lambda: vs.optim.lion([p], None))  # type: ignore[arg-type]
    refused("a momentum above 0", lambda: vs.optim.sgd(p, g, nesterov=True))
    refused("expected text as name", lambda: vs.optim.sgd(p, g, name=""))
    refused("expected Tensors as grads", lambda: vs.optim.global_norm([None]))  # type: ignore[list-item]
    refused("parameters of float32", lambda: vs.optim.sgd(vs.state(np.ones(3, np.float16)), g))
    refused("got none", lambda: vs.optim.clip_by_global_norm([], 1.0))
    refused("limit of 1e-30 or more", lambda: vs.optim.clip_by_global_norm(g, 0.0))
    refused("more steps than", lambda: vs.optim.cosine(1.0, 5, warmup=5))


def test_two_optimizers_need_two_names() -> None:
    p, q = vs.state(np.ones(3, np.float32), "p"), vs.state(np.ones(3, np.float32), "q")
    g = vs.input("g", (3,))
    first = vs.optim.adamw(p, g)
    with vs.Scheduler(["cpu"]) as sched:
        with pytest.raises(vs.GraphError, match="another name= for one of two optimizers"):
            sched.compile(vs.reduce_sum(g), updates={**first, **vs.optim.adamw(q, g)})


def test_gradients_may_come_one_after_the_other() -> None:
    p, g = vs.state(np.ones(3, np.float32), "p"), vs.input("g", (3,))
    clipped = vs.optim.clip_by_global_norm((each for each in (g, g)), 1.0)  # type: ignore[call-overload]
    assert len(clipped) == 2
    assert p in vs.optim.sgd((each for each in (p,)), iter(clipped[:1]))  # type: ignore[arg-type]
