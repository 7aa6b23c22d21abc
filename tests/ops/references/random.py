"""Oracles of random values: Philox in plain Python, checked against the published vectors of
Random123, and the quantiles of scipy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from vksched.common.dtypes import NDArray
from vksched.testing.op_cases.op_sample import FunctionSample, OpSample

from .common import FunctionOracle, Oracle

scipy_special = pytest.importorskip("scipy.special")

KNOWN_ANSWERS = [  # counter, key, words: kat_vectors of Random123, philox4x32 with 10 rounds
    (
        (0, 0, 0, 0),
        (0, 0),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    a, b, c, d = counter
    for turn in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        low = (key[0] + turn * 0x9E3779B9) % 2**32
        high = (key[1] + turn * 0xBB67AE85) % 2**32
        a, b, c, d = (
            second // 2**32 ^ b ^ low,
            second % 2**32,
            first // 2**32 ^ d ^ high,
            first % 2**32,
        )
    return a, b, c, d


def words(count: int, seed: int, stream: int = 0) -> list[int]:
    key = (seed % 2**32, seed // 2**32 % 2**32)
    counters = ((i, 0, stream % 2**32, stream // 2**32) for i in range(-(-count // 4)))
    return [word for counter in counters for word in philox(counter, key)][:count]


def of_case(case: OpSample) -> tuple[list[int], tuple[int, ...]]:
    for counter, key, answer in KNOWN_ANSWERS:
        assert philox(counter, key) == answer
    inputs = [int(v) for v in case.inputs[0].reshape(-1)]
    seed = inputs[0] if len(inputs) == 1 else inputs[0] % 2**32 + inputs[1] * 2**32
    shape = case.attrs["shape"]
    assert isinstance(shape, tuple)
    return words(int(np.prod(shape)), seed, int(case.attrs["stream"])), shape  # type: ignore[arg-type, return-value]


def uniform(case: OpSample) -> NDArray:
    drawn, shape = of_case(case)
    start, scale = case.attrs["start"], case.attrs["scale"]
    values = [word // 256 / 2**24 * scale + start for word in drawn]  # type: ignore[operator]
    return np.asarray(values, np.float32).astype(case.attrs["dtype"]).reshape(shape)  # type: ignore[arg-type]


def normal(case: OpSample) -> NDArray:
    drawn, shape = of_case(case)
    word = np.asarray(drawn, np.int64)
    lower = scipy_special.ndtri((2.0 * (word % 2**31) + 1) / 2**33)
    z = np.where(word >= 2**31, lower, -lower)
    mean, deviation = case.attrs["mean"], case.attrs["deviation"]
    return np.asarray(z * deviation + mean, case.attrs["dtype"]).reshape(shape)  # type: ignore[call-overload, no-any-return]


def integers(case: OpSample) -> NDArray:
    drawn, shape = of_case(case)
    start, scale = case.attrs["start"], case.attrs["scale"]
    values = [word * scale // 2**32 + start for word in drawn]  # type: ignore[operator]
    return np.asarray(values, np.int32).reshape(shape)


def bernoulli(case: OpSample) -> NDArray:
    drawn, shape = of_case(case)
    p = case.attrs["scale"] / 2**24  # type: ignore[operator]
    return np.asarray([word // 256 / 2**24 < p for word in drawn], bool).reshape(shape)


ORACLES: dict[str, Oracle] = {
    "random_uniform": uniform,
    "random_normal": normal,
    "random_integers": integers,
    "bernoulli": bernoulli,
}


def dropout(case: FunctionSample) -> NDArray:
    x = case.inputs[0]
    p, seed, stream = {
        "7": (0.25, 7, 0),
        "9": (0.0, 9, 0),
        "13": (0.999985, 13, 0),
        "tensor": (0.9, -3, 3),
    }[case.name]
    stored = np.asarray(words(x.size, seed, stream)).reshape(x.shape) / 2**32 < 1 - p
    return np.where(stored, x / np.float32(1 - p), np.float32(0)).astype(x.dtype)


FUNCTION_ORACLES: dict[str, FunctionOracle] = {
    "dropout": dropout,
    "random_bits": lambda case: np.asarray(words(35, 11, 2), np.uint32).reshape(5, 7),
    "random_integers": lambda case: np.asarray(
        [word * 7 // 2**32 - 3 for word in words(35, -(2**40))], np.int32
    ).reshape(5, 7),
}
