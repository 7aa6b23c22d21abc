"""Special functions for the numpy references, which numpy itself lacks.

float64 uses Python's functions value by value, which are exact and slow.
"""

from __future__ import annotations

import math

import numpy as np

from ...common.dtypes import NDArray

# Chebyshev fit of erfc(z) * exp(z * z) / t with t = 1 / (1 + z / 2), relative error 1.2e-7.
# Source: Press et al., Numerical Recipes, section 6.2.
_ERFC = (
    -1.26551223,
    1.00002368,
    0.37409196,
    0.09678418,
    -0.18628806,
    0.27886807,
    -1.13520398,
    1.48851587,
    -0.82215223,
    0.17087277,
)
_SERIES = (1.0, -1 / 3, 1 / 10, -1 / 42, 1 / 216, -1 / 1320, 1 / 9360)
"""erf(x) = 2 x / sqrt(pi) * sum of these coefficients times x**(2 k), used below 0.5."""


def _erfc_positive(z: NDArray) -> NDArray:
    t = 1 / (1 + 0.5 * z)
    p = np.full_like(t, _ERFC[-1])
    for coefficient in _ERFC[-2::-1]:  # in place: dominates the time of gelu in numpy
        p *= t
        p += coefficient
    p -= z * z
    np.exp(p, out=p)
    p *= t
    return p


_erf, _erfc = (np.vectorize(f, otypes=[np.float64]) for f in (math.erf, math.erfc))


def erf_reference(x: NDArray) -> NDArray:
    """Return the error function to the precision of its argument."""
    if x.dtype == np.float64:
        return np.asarray(_erf(x))
    wide = x.astype(np.float64)
    tail = 1 - _erfc_positive(np.abs(wide))
    q = np.minimum(wide * wide, 0.25)
    series = np.full_like(wide, _SERIES[-1])
    for coefficient in _SERIES[-2::-1]:
        series = coefficient + q * series
    small = 2 / np.sqrt(np.pi) * wide * series
    result = np.where(np.abs(wide) < 0.5, small, np.copysign(tail, wide))
    return np.asarray(np.where(np.isnan(wide), wide, result), x.dtype)


def erfc_reference(x: NDArray) -> NDArray:
    """Return 1 - erf(x) to the precision of its argument, without cancellation."""
    if x.dtype == np.float64:
        return np.asarray(_erfc(x))
    wide = x.astype(np.float64)
    c = _erfc_positive(np.abs(wide))
    return np.asarray(np.where(wide < 0, 2 - c, c), x.dtype)


def gelu_reference(x: NDArray) -> NDArray:
    """Return x * Phi(x) to x's precision, from erfc, so that small results do not cancel."""
    if x.dtype == np.float64:
        return np.asarray(0.5 * x * _erfc(-x / np.sqrt(2)))
    wide = x.astype(np.float64)
    return np.asarray(0.5 * wide * _tail(wide), x.dtype)


def gelu_tanh_reference(x: NDArray) -> NDArray:
    """Return x * (1 + tanh(u)) / 2, as x / (1 + exp(-2 u)) to avoid cancellation."""
    wide = x.astype(np.float64)
    u = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    return np.asarray(wide / (1 + np.exp(-2 * u)), x.dtype)


def gelu_backward_reference(x: NDArray) -> NDArray:
    """Return Phi(x) + x phi(x); beyond 40 phi is 0 in float64."""
    wide = x.astype(np.float64)
    tail = _erfc(-wide / np.sqrt(2)) if x.dtype == np.float64 else _tail(wide)
    near = np.clip(wide, -40, 40)
    return np.asarray(0.5 * tail + near * np.exp(-0.5 * near**2) / np.sqrt(2 * np.pi), x.dtype)


def gelu_tanh_backward_reference(x: NDArray) -> NDArray:
    """Return s + s (1 - s) x u' with s = sigmoid(u) = gelu_tanh(x) / x; constant beyond 20."""
    wide = np.clip(x.astype(np.float64), -20, 20)
    k, q = 2 * np.sqrt(2 / np.pi), wide * wide
    s = 1 / (1 + np.exp(-k * wide * (1 + 0.044715 * q)))
    return np.asarray(s + s * (1 - s) * wide * k * (1 + 3 * 0.044715 * q), x.dtype)


def _tail(x: NDArray) -> NDArray:
    """Return 2 Phi(x) of values that were float32."""
    c = _erfc_positive(np.abs(x) / np.sqrt(2))
    return np.where(x < 0, c, 2 - c)


# -- float32 at speed --------------------------------------------------------------------------
# In place, on cache-sized pieces, to a few units in the last place. native_kernels.py uses these
# functions if the native loops, which use equal formulas, are not built.

_ERF_ABOVE = (
    1.1283791461606922,
    0.19040729479621846,
    0.05274880097581463,
    0.003765642460680702,
    0.0002848814857589479,
    2.050057456119928e-06,
)
_ERF_BELOW = (
    1.0,
    0.5020768126914162,
    0.11410942442046797,
    0.01496927111307666,
    0.0011625382191661356,
    3.809134100559774e-05,
)
_ERF_END = 3.92
"""Bound up to which erf(x) = x * above(x**2) / below(x**2), fitted by iterated weighted least
squares to a relative error of 2e-8; beyond it erf is 1 in float32.
"""


_TAIL_ABOVE = (23.61601338, 34.08407392, 22.45761536, 6.38226608)
_TAIL_BELOW = (23.61602178, 71.76895394, 89.76562072, 56.2526436, 16.0)
_TAIL_END = 1e4
"""1 - Phi(2 h) = exp(-2 h**2) * above(h) / (2 * below(h)) for h in 0 to 6.7, beyond which exp
overflows and the result is 0. Fitted by iterated weighted least squares to a relative error of
4e-7, in addition to float32 rounding. All terms are non-negative, so none cancels.
"""


def _horner(x: NDArray, coefficients: tuple[float, ...], out: NDArray) -> None:
    """Write a polynomial with these coefficients, the constant first."""
    np.multiply(x, coefficients[-1], out=out)
    for coefficient in coefficients[-2:0:-1]:
        out += coefficient
        out *= x
    out += coefficients[0]


def erf_into(x: NDArray, out: NDArray) -> None:
    """Write the error function of float32."""
    z = np.clip(x, -_ERF_END, _ERF_END)
    square = z * z
    below = np.empty_like(square)
    _horner(square, _ERF_ABOVE, out)
    _horner(square, _ERF_BELOW, below)
    out *= z
    out /= below
    np.clip(out, -1, 1, out=out)


def gelu_into(x: NDArray, out: NDArray) -> None:
    """Write x * Phi(x) of float32, as `gelu_reference`."""
    np.multiply(x, 0.5, out=out)
    half = np.abs(out)
    out += half  # max(x, 0), from which the tail of the normal distribution is subtracted
    tail, growth = _tail_into(half)
    tail *= half
    tail /= growth
    out -= tail


def _tail_into(half: NDArray) -> tuple[NDArray, NDArray]:
    """Return 2 (1 - Phi(2 h)) exp(2 h^2) and exp(2 h^2); clamps h before overflow."""
    if not half.max(initial=0) < _TAIL_END:
        np.minimum(half, _TAIL_END, out=half)  # larger values overflow the polynomials
    tail, below = np.empty_like(half), np.empty_like(half)
    _horner(half, _TAIL_ABOVE, tail)
    _horner(half, _TAIL_BELOW, below)
    tail /= below
    np.multiply(half, half, out=below)
    below *= 2
    np.exp(below, out=below)
    return tail, below


def gelu_backward_into(x: NDArray, out: NDArray) -> None:
    """Write Phi(x) + x phi(x) of float32, computed from -|x|; the values at x and -x sum to 1."""
    np.multiply(x, 0.5, out=out)
    half = np.abs(out)
    tail, growth = _tail_into(half)
    tail *= 0.5
    half *= 2 / math.sqrt(2 * math.pi)
    tail -= half  # the value at -|x|
    tail /= growth
    np.subtract(1, tail, out=out, where=x > 0)
    np.copyto(out, tail, where=~(x > 0))


def gelu_tanh_backward_into(x: NDArray, out: NDArray) -> None:
    """Write s + s (1 - s) x u' of float32.

    s is evaluated at |x|, because 1 - s has few digits near s = 1.
    """
    k, z = 2 * math.sqrt(2 / math.pi), np.minimum(np.abs(x), 20)
    q = z * z
    q *= -0.044715 * k
    e = q - k
    e *= z
    np.exp(e, out=e)
    s = 1 / (e + 1)
    q *= -3
    q += k
    q *= z
    q *= s  # the derivative
    e *= s
    below = e * (1 - q)
    q *= e
    np.add(s, q, out=out)
    np.copyto(out, below, where=x < 0)


def gelu_tanh_into(x: NDArray, out: NDArray) -> None:
    """Write x * (1 + tanh(u)) / 2 of float32, as `gelu_tanh_reference`."""
    scale = -2 * math.sqrt(2 / math.pi)
    u = x * x
    u *= 0.044715 * scale
    u += scale
    u *= x
    np.exp(u, out=u)
    u += 1
    np.divide(x, u, out=out)


def sigmoid_into(x: NDArray, out: NDArray) -> None:
    """Write 1 / (1 + exp(-x)) of float32; 0 if exp overflows."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    np.reciprocal(out, out=out)


def silu_into(x: NDArray, out: NDArray) -> None:
    """Write x / (1 + exp(-x)) of float32; -0 if exp overflows."""
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    np.divide(x, out, out=out)
