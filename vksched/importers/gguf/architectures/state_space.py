"""State space mixers: Mamba 1 and Mamba 2.

    Mamba 1   x -> in -> conv -> silu -> x -> dt, b, c -> scan -> * silu(z) -> out
                '--> z ------------------------------------------'
    Mamba 2   x -> in -> conv -> silu -> x, b, c -> scan -> * silu(z) -> norm -> out
                '--> z, dt -------------------------'

The states of a slot are the last inputs of the convolution and the state of each channel.

Sources: https://arxiv.org/abs/2312.00752, https://arxiv.org/abs/2405.21060
"""

from __future__ import annotations

from collections.abc import Mapping

from ....common.dtypes import Shape
from ....common.errors import ModelFormatError
from ....ir.tensor import Tensor
from ....ops import reshape, rms_norm, silu, softplus, split, ssm_scan
from ..hparams.hparams import HParams
from ..hparams.ssm import KEYS, Ssm
from .mixer import MixerLayer
from .short_conv import short_conv

CONV_STATE, SSM_STATE = "conv_state", "ssm_state"


def _sizes(hyper: HParams, *names: str) -> Ssm:
    """Return the sizes of the layers.

    Raises
    ------
    ModelFormatError
        One of these sizes is missing.
    """
    for name in ("kernel", "inner", "state", "heads", *names):
        if not getattr(hyper.ssm, name):
            raise ModelFormatError(
                f"[gguf] key '{hyper.architecture}.{KEYS[name]}': expected a whole number over 0 "
                "in a model with state spaces, got none or 0; try to convert the model again"
            )
    return hyper.ssm


def _head_sizes(hyper: HParams) -> Ssm:
    """Return the sizes of layers whose channels are those of heads in groups.

    Raises
    ------
    ModelFormatError
        A size is missing, or the heads do not divide the channels into heads of one size.
    """
    ssm = _sizes(hyper, "groups")
    if ssm.inner % ssm.heads or ssm.heads % ssm.groups:
        raise ModelFormatError(
            f"[gguf] key '{hyper.architecture}.{KEYS['heads']}': expected heads that divide the "
            f"{ssm.inner} channels, in {ssm.groups} groups of one size, got {ssm.heads}"
        )
    return ssm


def _conv(layer: MixerLayer, x: Tensor) -> Tensor:
    """Return the activated convolution of x (b, n, channels)."""
    channels, kernel = x.shape[2], layer.layers.hyper.ssm.kernel
    weight = layer.weight("ssm_conv1d.weight", (channels, kernel))
    bias = layer.layers.bias(layer.name("ssm_conv1d"), channels)
    return silu(short_conv(layer, CONV_STATE, x, weight, bias))


def _scan(
    layer: MixerLayer, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, skip: Tensor
) -> Tensor:
    """Return the outputs of the scan, plus `skip` times x. dt: before softplus."""
    rows, _, heads, size = x.shape
    steps = layer.without_padding(softplus(dt))  # a time step of 0 leaves the state as it is

    def scan(before: Tensor) -> tuple[Tensor, Tensor]:
        return ssm_scan(x, steps, a, b, c, before)

    y = layer.recur(SSM_STATE, rows, scan, (b.shape[3], heads, size))
    return y + x * skip


class Mamba1:
    """Mamba 1: each channel has its own time step, and a rate for each of its states.

    normed: dt, b and c have RMS norms with weights (Jamba).
    """

    def __init__(self, normed: bool = False) -> None:
        self._normed = normed

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        ssm = _sizes(hyper)
        return {
            CONV_STATE: (ssm.kernel - 1, ssm.inner),
            SSM_STATE: (ssm.state, ssm.inner, 1),
        }

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        ssm, (rows, tokens, width) = _sizes(layer.layers.hyper), x.shape
        inner, states, rank = ssm.inner, ssm.state, ssm.heads
        entering, gate = split(layer.linear(x, "ssm_in", 2 * inner), 2, -1)
        entering = _conv(layer, entering)
        projected = layer.linear(entering, "ssm_x", rank + 2 * states)
        dt, b, c = (
            self._norm(layer, name, part)
            for name, part in zip(
                ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm"),
                split(projected, (rank, states, states), -1),
                strict=True,
            )
        )
        a = layer.weight("ssm_a", (inner, states))
        skip = layer.weight("ssm_d", (inner,))
        y = _scan(
            layer,
            reshape(entering, (rows, tokens, inner, 1)),
            layer.linear(dt, "ssm_dt", inner),
            a,
            reshape(b, (rows, tokens, 1, states)),
            reshape(c, (rows, tokens, 1, states)),
            reshape(skip, (inner, 1)),
        )
        y = reshape(y, (rows, tokens, inner)) * silu(gate)
        return layer.linear(y, "ssm_out", width)

    def _norm(self, layer: MixerLayer, name: str, x: Tensor) -> Tensor:
        """Return x normalized, if the model has norms of the projections."""
        if self._normed:
            return layer.layers.norm(x, layer.name(name))
        return rms_norm(x, eps=layer.layers.hyper.eps) if layer.layers.hyper.ssm.normed else x


class Mamba2:
    """Mamba 2: each head has a time step and a rate, and groups of heads share b and c."""

    def state_shapes(self, hyper: HParams) -> Mapping[str, Shape]:
        ssm = _head_sizes(hyper)
        channels = ssm.inner + 2 * ssm.groups * ssm.state
        return {
            CONV_STATE: (ssm.kernel - 1, channels),
            SSM_STATE: (ssm.state, ssm.heads, ssm.inner // ssm.heads),
        }

    def mix(self, layer: MixerLayer, x: Tensor) -> Tensor:
        hyper, (rows, tokens, width) = layer.layers.hyper, x.shape
        ssm = _head_sizes(hyper)
        inner, heads, groups, states = ssm.inner, ssm.heads, ssm.groups, ssm.state
        sizes = (inner, inner + 2 * groups * states, heads)
        gate, mixed, dt = split(layer.linear(x, "ssm_in", sum(sizes)), sizes, -1)
        of_groups = groups * states
        entering, b, c = split(_conv(layer, mixed), (inner, of_groups, of_groups), -1)
        y = _scan(
            layer,
            reshape(entering, (rows, tokens, heads, inner // heads)),
            dt + layer.weight("ssm_dt.bias", (heads,)),
            layer.weight("ssm_a", (heads, 1)),
            reshape(b, (rows, tokens, groups, states)),
            reshape(c, (rows, tokens, groups, states)),
            layer.weight("ssm_d", (heads, 1)),
        )
        y = reshape(y, (rows, tokens, inner)) * silu(gate)
        norm = "ssm_norm.weight"
        if layer.name(norm) in layer.layers.weights:  # Falcon-H1 has none
            each = (groups, inner // groups)
            y = rms_norm(reshape(y, (rows, tokens, *each)), eps=hyper.eps)
            y = reshape(y * layer.weight(norm, each), (rows, tokens, inner))
        return layer.linear(y, "ssm_out", width)
