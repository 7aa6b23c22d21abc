"""Losses against float64 formulas and PyTorch's, with their options."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import vksched as vs
from vksched.common.dtypes import NDArray

RNG = np.random.default_rng(3)
X = RNG.standard_normal((5, 7)).astype(np.float32) * 3
Y = RNG.standard_normal((5, 7)).astype(np.float32)
SHARES = np.asarray(np.exp(Y) / np.exp(Y).sum(1, keepdims=True), np.float32)
SHARES[0, 2] = 0
CLASSES = np.asarray([3, 0, 6, 6, 1], np.int32)


def value(loss: vs.Tensor) -> NDArray:
    with vs.Scheduler(["cpu"]) as sched:
        return np.asarray(sched.compile(loss)())


def log_softmax(x: NDArray, axis: int = -1) -> NDArray:
    wide = x.astype(np.float64)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis, keepdims=True)))


PICKED = -log_softmax(X)[np.arange(5), CLASSES]
FORMULAS: dict[str, tuple[Callable[[str], vs.Tensor], NDArray]] = {
    "mse": (lambda r: vs.losses.mse(X, Y, reduction=r), (X.astype(float) - Y) ** 2),
    "huber": (
        lambda r: vs.losses.huber(X, Y, 0.7, reduction=r),
        np.where(abs(X - Y) < 0.7, 0.5 * (X.astype(float) - Y) ** 2, 0.7 * (abs(X - Y) - 0.35)),
    ),
    "binary": (
        lambda r: vs.losses.binary_cross_entropy(X, SHARES, reduction=r),
        -SHARES * np.log(1 / (1 + np.exp(-X.astype(float))))
        - (1 - SHARES) * np.log(1 - 1 / (1 + np.exp(-X.astype(float)))),
    ),
    "kl_div": (
        lambda r: vs.losses.kl_div(vs.log_softmax(X), SHARES, reduction=r),
        (SHARES * (np.log(np.where(SHARES == 0, 1, SHARES)) - log_softmax(X))).sum(1),
    ),
    "classes": (lambda r: vs.losses.cross_entropy(X, CLASSES, reduction=r), PICKED),
    "shares": (
        lambda r: vs.losses.cross_entropy(X, SHARES, reduction=r),
        -(SHARES * log_softmax(X)).sum(1),
    ),
    "smoothed": (
        lambda r: vs.losses.cross_entropy(X, CLASSES, smoothing=0.2, reduction=r),
        0.8 * PICKED - 0.2 * log_softmax(X).mean(1),
    ),
    "first axis": (
        lambda r: vs.losses.cross_entropy(np.ascontiguousarray(X.T), CLASSES, axis=0, reduction=r),
        PICKED,
    ),
}
REDUCED: dict[str, Callable[[NDArray], object]] = {
    "none": lambda x: x,
    "sum": np.sum,
    "mean": np.mean,
}


@pytest.mark.parametrize("reduction", REDUCED)
@pytest.mark.parametrize("name", FORMULAS)
def test_losses_follow_the_formula(name: str, reduction: str) -> None:
    build, each = FORMULAS[name]
    np.testing.assert_allclose(value(build(reduction)), REDUCED[reduction](each), 2e-5, 2e-6)


def test_positions_that_are_ignored_do_not_count() -> None:
    target = CLASSES.copy()
    target[[1, 3]] = -100
    got = value(vs.losses.cross_entropy(X, target, ignore=-100))
    np.testing.assert_allclose(got, PICKED[[0, 2, 4]].mean(), rtol=1e-5)
    apart = value(vs.losses.cross_entropy(X, target, ignore=-100, reduction="none"))
    np.testing.assert_array_equal(apart[[1, 3]], 0)


@pytest.mark.parametrize("wrong", [-1, 7, -8])
def test_a_class_that_is_not_there_is_an_error_that_names_the_loss(wrong: int) -> None:
    target = CLASSES.copy()
    target[2] = wrong
    for labels in (target, vs.input("t", (5,), "int32")):
        loss = vs.losses.cross_entropy(X, labels)
        with vs.Scheduler(["cpu"]) as sched:
            run = sched.compile(loss)
            with pytest.raises(vs.IndexOutOfRange, match="cross_entropy"):
                run(**({} if labels is target else {"t": target}))


def test_large_logits_stay_finite() -> None:
    x = np.asarray([[1e4, -1e4], [-1e4, 1e4]], np.float32)
    assert value(vs.losses.cross_entropy(x, np.asarray([1, 1], np.int32))) == 1e4
    assert value(vs.losses.binary_cross_entropy(x, [[0.0, 1.0], [0.0, 1.0]])) == 5e3


def test_losses_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    f, x, y, c = torch.nn.functional, *map(torch.tensor, (X, SHARES, CLASSES.astype(np.int64)))
    pairs = (
        (vs.losses.mse(X, SHARES), f.mse_loss(x, y)),
        (vs.losses.huber(X, SHARES, 0.4), f.huber_loss(x, y, delta=0.4)),
        (
            vs.losses.binary_cross_entropy(X, SHARES),
            f.binary_cross_entropy_with_logits(x, y),
        ),
        (
            vs.losses.kl_div(vs.log_softmax(X), SHARES),
            f.kl_div(f.log_softmax(x, -1), y, reduction="batchmean"),
        ),
        (
            vs.losses.cross_entropy(X, CLASSES, smoothing=0.1, ignore=6),
            f.cross_entropy(x, c, label_smoothing=0.1, ignore_index=6),
        ),
    )
    for ours, theirs in pairs:
        np.testing.assert_allclose(value(ours), theirs.numpy(), rtol=2e-5)


def refused(match: str, make: Callable[[], object]) -> None:
    with pytest.raises(vs.VkschedError, match=match):
        make()


def test_errors_say_what_was_expected() -> None:
    refused("a target of shape", lambda: vs.losses.mse(X, Y[:2]))
    refused("a reduction of", lambda: vs.losses.mse(X, Y, reduction="all"))
    refused("a delta above 0", lambda: vs.losses.huber(X, Y, 0.0))
    refused("a target of int32 .5,.", lambda: vs.losses.cross_entropy(X, CLASSES[:3]))
    refused(
        "smoothing from 0 to below 1", lambda: vs.losses.cross_entropy(X, CLASSES, smoothing=1.0)
    )
    refused("with ignore", lambda: vs.losses.cross_entropy(X, SHARES, ignore=0))
