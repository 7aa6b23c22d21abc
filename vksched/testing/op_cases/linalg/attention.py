"""Samples of attention and rotary embedding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .... import ops
from ....common.dtypes import NDArray
from ....common.errors import DTypeError, ShapeError
from ....ir.attrs import AttrValue
from ....ir.tensor import Tensor, apply, input
from ..op_sample import ErrorSample, FunctionSample, OpSample, bools, floats

INF, NAN = np.inf, np.nan


def attention(
    q: tuple[int, int, int, int],
    k: tuple[int, int],
    columns: int,
    mask: NDArray | None = None,
    name: str = "",
    large: bool = False,
    **attrs: AttrValue,
) -> OpSample:
    """Return attention. q: (batch, heads, queries, depth), k: (heads, keys); mask: unchanged."""
    batch, _, _, depth = q
    inputs = [floats(*q), floats(batch, *k, depth, seed=1), floats(batch, *k, columns, seed=2)]
    if mask is not None:
        inputs.append(mask)
    return OpSample("attention", tuple(inputs), attributes(depth, **attrs), name, large=large)


def attributes(depth: int, **attrs: AttrValue) -> dict[str, AttrValue]:
    """Return the attributes of a call with the builder's defaults."""
    plain: dict[str, AttrValue] = {"softcap": 0.0, "past_len": 0, "left": -1, "right": -1}
    plain |= {"scale": max(1, depth) ** -0.5, "is_bshd": (0, 0, 0, 0)}
    plain |= {"fully_masked_is_nan": False}
    return plain | attrs


def bias(*shape: int) -> NDArray:
    """Return a float mask with some masked keys."""
    out = floats(*shape, seed=5)
    out[bools(*shape, seed=6)] = -INF
    return out


def hide(*shape: int) -> NDArray:
    """Return a bool mask whose first row is fully masked."""
    out = bools(*shape, seed=7)
    out[..., 0, :] = False
    return out


def with_layout(
    case: OpSample, turns: tuple[int, int, int, int], name: str = "by length"
) -> OpSample:
    """Return a case with q, k, v or the result in (batch, length, heads, depth) layout."""
    transposed = [
        np.ascontiguousarray(x.swapaxes(1, 2)) if turn else x
        for x, turn in zip(case.inputs[:3], turns, strict=False)
    ]
    arrays = (*transposed, *case.inputs[3:])
    attrs = dict(case.attrs) | {"is_bshd": turns}
    return OpSample("attention", arrays, attrs, f"{name} {turns}")


def odd_values() -> list[OpSample]:
    """Return NaN and infinity in every operand, also in the last key, which most queries do not
    see.
    """
    out = []
    for operand, name in enumerate("qkv"):
        for value in (NAN, INF, -INF):
            for queries, depth in ((6, 5), (12, 8)):
                case = attention((1, 2, queries, depth), (2, queries), depth)
                arrays = [x.copy() for x in case.inputs]
                arrays[operand][0, 0, 3, 2] = value
                arrays[operand][0, 1, -1, 2] = value
                attrs = attributes(depth, right=0)
                out.append(OpSample("attention", tuple(arrays), attrs, f"{name} {value}"))
    return [*out, *map(spoiled, (_PARTED, _MASKED, with_layout(_MASKED, (1, 1, 1, 1))))]


def spoiled(case: OpSample) -> OpSample:
    """Return a case with NaN in a visible value, and infinity in one that is masked for some
    queries.
    """
    arrays = [x.copy() for x in case.inputs]
    arrays[2][0, 0, 1, 2] = NAN
    arrays[2][0, -1, -1, 3] = INF
    return OpSample("attention", tuple(arrays), dict(case.attrs), f"spoiled {case.name}".rstrip())


_PARTED = attention((1, 2, 5, 8), (2, 1100), 8, name="parts", right=0, past_len=1096)
_MASKED = attention((1, 4, 20, 8), (2, 19), 8, hide(20, 19), "mask")


def mask_of(value: float) -> NDArray:
    mask = bias(6, 9)
    mask[2, 3] = value
    return mask


_SHAPES: list[tuple[tuple[int, int, int, int], tuple[int, int], int]] = [
    *(((1, 1, 1, 1), (1, 1), 1), ((1, 1, 7, 3), (1, 5), 2), ((2, 3, 5, 8), (3, 7), 8)),
    *(((2, 6, 5, 16), (2, 67), 16), ((1, 4, 1, 20), (1, 131), 12), ((1, 3, 9, 33), (1, 17), 70)),
    *(((1, 1, 40, 64), (1, 65), 64), ((1, 2, 3, 130), (2, 70), 150), ((1, 1, 2, 256), (1, 9), 256)),
    *(((1, 1, 3, 5), (1, 4), 301), ((3, 2, 17, 7), (1, 130), 5)),
]
_MASKS: list[tuple[int, ...]] = [
    *((2, 6, 5, 67), (1, 1, 5, 67), (2, 1, 1, 67), (6, 1, 67), (5, 67), (67,), (2, 6, 5, 1), ()),
]
CASES = [
    *(attention(q, k, columns) for q, k, columns in _SHAPES),
    *(attention(q, k, columns, right=0, name="causal") for q, k, columns in _SHAPES),
    *(
        attention((2, 6, 5, 16), (2, 67), 16, make(*shape), name)
        for name, make in (("bool", bools), ("bias", bias))
        for shape in _MASKS
    ),
    attention((2, 6, 5, 16), (2, 67), 16, name="float32 sums", right=0, float32_sums=True),
    attention((1, 2, 20, 8), (2, 70), 8, hide(20, 70), "a row sees nothing"),
    attention((1, 2, 20, 8), (2, 70), 8, hide(2, 20, 70), "with causal", right=0, past_len=9),
    *(
        attention(
            *((1, 2, 5, depth), (2, keys), depth, hide(5, keys), "a row is NaN"),
            fully_masked_is_nan=True,
        )
        for depth, keys in ((8, 70), (7, 9), (4, 1100), (64, 33))
    ),
    attention((1, 2, 6, 8), (2, 70), 8, bias(6, 70), "with causal", right=0, softcap=1.5),
    *(
        attention(
            *((1, 2, 20, 8), (2, 70), 8, None, f"past {past} window {left} {right}"),
            past_len=past,
            left=left,
            right=right,
        )
        for past, left, right in (
            *((0, 3, 2), (30, 3, -1), (50, -1, 0), (50, 0, 0), (-5, -1, 0), (100, 5, -1)),
        )
    ),
    attention((1, 4, 2, 8), (2, 66), 8, name="softcap", softcap=0.75),
    attention((1, 4, 2, 8), (2, 66), 8, name="scale", scale=2.5),
    attention((1, 4, 2, 8), (2, 66), 8, name="scale below 0", scale=-0.5),
    attention((1, 1, 20, 64), (1, 70), 8, name="far apart", scale=30.0),
    attention((1, 1, 2, 8), (1, 1500), 8, name="parts"),
    attention((2, 3, 1, 64), (3, 700), 64, name="one query"),
    attention((1, 2, 2, 4), (1, 1100), 5, bools(1, 2, 2, 1100), "parts"),
    attention((1, 1, 3, 4), (1, 1100), 4, name="a part is hidden", right=0, past_len=100),
    attention((1, 1, 1, 64), (1, 20000), 64, name="parts", large=True),
    attention((1, 1, 3, 256), (1, 3000), 256, name="parts", large=True, right=0, past_len=2500),
    attention((1, 1, 11, 64), (1, 9000), 64, bools(9000), "parts", large=True),
    attention((1, 2, 9, 16), (1, 1100), 20, bias(2, 9, 1100), "parts", right=0, past_len=900),
    *odd_values(),
    *(
        with_layout(attention((2, 6, queries, depth), (3, 19), 8, mask), turns)
        for turns in ((1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 1), (0, 0, 1, 0))
        for queries, depth in ((5, 7), (20, 8))
        for mask in (None, bools(2, 1, 1, 19))
    ),
    with_layout(attention((1, 2, 2, 4), (1, 1100), 5), (1, 1, 1, 1), "parts"),
    *(
        attention((1, 2, 70, size), (2, 45), size, mask, f"block {size}", right=0, past_len=3)
        for size, mask in ((32, None), (32, bias(70, 45)), (128, None), (132, None), (260, None))
    ),
    *(
        attention((1, 1, 6, 5), (1, 9), 5, mask_of(value), f"mask {value}")
        for value in (NAN, INF, -3e38)
    ),
    attention((0, 2, 3, 4), (1, 5), 4, name="no batch"),
    attention((2, 2, 0, 4), (1, 5), 4, name="no query"),
    attention((2, 2, 3, 4), (1, 0), 4, name="no key"),
    attention((2, 2, 3, 4), (1, 5), 0, name="no column"),
    attention((2, 2, 3, 0), (1, 5), 4, name="no depth"),
    attention((2, 0, 3, 4), (0, 5), 4, name="no head"),
]


def of_gradient(case: OpSample) -> OpSample:
    """Return the gradients of an attention case in (batch, heads, length, depth) layout."""
    g = floats(*case.result_type().shape, seed=9)
    arrays = (*case.inputs[:3], g, *case.inputs[3:])
    return OpSample("attention_backward", arrays, gradient_attributes(case.attrs), case.name)


def gradient_attributes(attrs: Mapping[str, AttrValue]) -> dict[str, AttrValue]:
    return {name: attrs[name] for name in ("scale", "softcap", "past_len", "left", "right")}


def is_plain(case: OpSample) -> bool:
    """Return True if the formula gives a case's gradients: it includes masked keys that are not
    finite.
    """
    operands = (*case.inputs[:3], *(np.maximum(m, -3e38) for m in case.inputs[3:]))
    is_variant = case.attrs["is_bshd"] != (0, 0, 0, 0) or case.attrs["fully_masked_is_nan"]
    return not (is_variant or case.large) and all(np.isfinite(x).all() for x in operands)


OF_BLOCKS = [case for case in CASES if case.name in ("block 32", "with causal")]
"""Many queries, plain and masked."""
CASES += [of_gradient(case) for case in CASES if is_plain(case)]
CASES += [
    of_gradient(attention((1, 2, 600, 8), (1, 1000), 12, mask, name, right=0, past_len=400))
    for mask, name in ((None, "chunks of a head"), (bias(600, 1000), "chunks of a head, mask"))
]


def rotary(
    x: tuple[int, int, int, int],
    rotary_dim: int,
    batched: tuple[bool, bool] = (False, False),
    interleaved: bool = False,
) -> OpSample:
    caches = [
        floats(*((x[0],) if own else ()), x[2], rotary_dim // 2, seed=i + 1)
        for i, own in enumerate(batched)
    ]
    attrs: dict[str, AttrValue] = {"interleaved": interleaved, "rotary_dim": rotary_dim}
    name = f"{rotary_dim}{' interleaved' * interleaved}"
    return OpSample("rotary_embedding", (floats(*x), *caches), attrs, name)


CASES += [
    rotary(shape, rotary_dim, batched, interleaved)
    for interleaved in (False, True)
    for shape, rotary_dim, batched in (
        ((1, 1, 1, 2), 2, (False, False)),
        ((2, 3, 5, 8), 8, (False, False)),
        ((2, 3, 5, 8), 8, (True, True)),
        ((2, 3, 5, 8), 6, (True, False)),
        ((2, 3, 5, 9), 4, (False, True)),
        ((2, 3, 5, 7), 0, (False, False)),
        ((3, 7, 11, 64), 64, (False, False)),
        ((0, 3, 5, 8), 8, (False, False)),
    )
]

# -- functions -------------------------------------------------------------------------------------

FUNCTIONS = [
    FunctionSample(
        "attention",
        lambda q, k, v: ops.attention(q, k, v, num_heads=4, num_kv_heads=2, causal=True),
        (floats(2, 5, 24), floats(2, 7, 12, seed=1), floats(2, 7, 10, seed=2)),
        "joined heads",
    ),
    FunctionSample(
        "attention",
        lambda q, k, v: ops.attention(q, k, v, num_heads=3),
        (floats(2, 5, 12), floats(2, 7, 12, seed=1), floats(2, 7, 12, seed=2)),
        "joined heads alike",
    ),
    FunctionSample(
        "rotary_cache",
        lambda x: ops.rotary_embedding(x, *ops.rotary_cache(6, 4, 100.0), rotary_dim=4),
        (floats(2, 1, 6, 5),),
    ),
]


def build(*shapes: tuple[int, ...], **keywords: object) -> Tensor:
    return ops.attention(*(input(f"x{i}", s) for i, s in enumerate(shapes)), **keywords)  # type: ignore[arg-type]


def pull(g: tuple[int, ...], dtype: str) -> Tensor:
    qkv = [input(f"x{i}", s) for i, s in enumerate((_Q, _K, _K))]
    operands = [*qkv, input("g", g, dtype)]
    return apply("attention_backward", operands, gradient_attributes(attributes(1)))


def turn(x: tuple[int, ...], cos: tuple[int, ...], **keywords: object) -> Tensor:
    operands = (input("x", x), input("c", cos), input("s", cos))
    return ops.rotary_embedding(*operands, **keywords)  # type: ignore[arg-type]


_Q, _K = (2, 4, 3, 8), (2, 2, 5, 8)
ERRORS = [
    ErrorSample(lambda: build(_Q[1:], _K, _K), ShapeError, "try num_heads="),
    ErrorSample(lambda: build(_Q, _K, (2, 2, 6, 8)), ShapeError, r"v \(b, g, n, e\)"),
    ErrorSample(lambda: build(_Q, (2, 2, 5, 7), _K), ShapeError, r"k \(b, g, n, d\)"),
    ErrorSample(lambda: build(_Q, (2, 3, 5, 8), (2, 3, 5, 8)), ShapeError, "a multiple"),
    ErrorSample(lambda: build(_Q, _K, _K, (3, 6)), ShapeError, "shapes that broadcast"),
    ErrorSample(lambda: build(_Q, _K, _K, (1, 2, 4, 3, 5)), ShapeError, "mask that broadcasts"),
    ErrorSample(
        lambda: ops.attention(
            input("q", _Q), input("k", _K), input("v", _K), input("m", (5,), "int32")
        ),
        DTypeError,
        "mask of bool",
    ),
    ErrorSample(
        lambda: ops.attention(*(input(n, (1, 1, 2, 2), "int32") for n in "qkv")),
        DTypeError,
        "expected float32",
    ),
    ErrorSample(lambda: build(_Q, _K, _K, window=(-1, 0)), ShapeError, "window of 0 or more"),
    ErrorSample(lambda: build(_Q, _K, _K, past_len=1 << 40), ShapeError, "past_len under"),
    ErrorSample(lambda: build(_Q, _K, _K, softcap=-1.0), DTypeError, "softcap of 0 or more"),
    ErrorSample(lambda: build(_Q, _K, _K, num_heads=2), ShapeError, "2 heads"),
    ErrorSample(lambda: build((2, 3, 8), (2, 3, 8), (2, 3, 8), num_heads=3), ShapeError, "3 heads"),
    ErrorSample(lambda: pull(_K, "float32"), ShapeError, "a gradient of shape"),
    ErrorSample(lambda: pull(_Q, "int32"), DTypeError, "a gradient of float32"),
    ErrorSample(lambda: turn((2, 3, 8), (3, 4)), ShapeError, "batch, heads, length"),
    ErrorSample(lambda: turn((1, 2, 3, 8), (4, 4)), ShapeError, "cos and sin of shape"),
    ErrorSample(lambda: turn((1, 2, 3, 8), (3, 4), rotary_dim=10), ShapeError, "even rotary_dim"),
    ErrorSample(lambda: turn((1, 2, 3, 7), (3, 3)), ShapeError, "rotary_dim in 0..7"),
    ErrorSample(
        lambda: ops.rotary_embedding(
            input("x", (1, 1, 1, 2), "int32"), np.ones((1, 1), np.float32), [[0.0]]
        ),
        DTypeError,
        "expected",
    ),
    ErrorSample(lambda: ops.rotary_cache(3, 5), ShapeError, "even dim"),
]
