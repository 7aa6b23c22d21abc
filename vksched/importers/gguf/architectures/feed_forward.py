"""FeedForward: the feed-forward block of a layer, dense or with experts.

dense:    x -> activation(gate) * up -> norm, in few families -> down
experts:  x -> router -> the chosen experts, weighted --+--> sum
          '---> shared expert, in some families --------'
both:     a dense block and experts, each with norms of its own, are added (Gemma 4)
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.errors import ModelFormatError
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import linear, reshape, rms_norm, sigmoid, split
from ..hparams.altup import DENSE
from .alternating_updates import sparse
from .apertus import xielu
from .linear_layers import LinearLayers
from .moe import Experts
from .routing import Router, Routing
from .sparse_mixer import USED


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward blocks of one graph."""

    layers: LinearLayers

    def exists(self, layer: int) -> bool:
        """Return True if a layer has the block. Only families with mixers or optional blocks have
        layers without.
        """
        hyper, family = self.layers.hyper, self.layers.family
        has_experts = f"blk.{layer}.ffn_gate_inp.weight" in self.layers.weights
        is_in_all = family.mixer is None and not family.optional_blocks
        return is_in_all or hyper.feed_forward[layer] > 0 or has_experts

    def block(self, layer: int, x: Tensor, residual: Tensor) -> Tensor:
        """Return the output of a layer's block for x (b, n, width). residual: x before its norm."""
        name, layers = f"blk.{layer}.ffn", self.layers
        has_experts, every = f"{name}_gate_inp.weight" in layers.weights, layers.hyper.moe_every
        if every and has_experts != (layer % every == 1):
            raise ModelFormatError(
                f"[gguf] key '{layers.hyper.architecture}.moe_every_n_layers': expected "
                f"experts in the second of {every} layers, got layer {layer} "
                f"{'with' if has_experts else 'without'} a tensor '{name}_gate_inp.weight'"
            )
        if has_experts and not layers.family.expert_branch:
            return self._experts(name, x, self._scores(name, x))
        y = self._gated(x, name, "", layers.hyper.feed_forward[layer])
        if not has_experts:
            return y
        of_experts = layers.norm(residual, f"blk.{layer}.pre_ffw_norm_2")
        mixed = self._experts(name, of_experts, self._branch_scores(name, residual))
        y = layers.norm(y, f"blk.{layer}.post_ffw_norm_1")
        return y + layers.norm(mixed, f"blk.{layer}.post_ffw_norm_2")

    def _scores(self, name: str, x: Tensor) -> Tensor:
        """Return the router's scores of all experts, (b, n, experts)."""
        return self.layers.linear(x, f"{name}_gate_inp", self.layers.hyper.experts)

    def _branch_scores(self, name: str, residual: Tensor) -> Tensor:
        """Return the router's scores by the layer's residual stream, which has a scale of its own
        instead of a norm's.
        """
        hyper, weights = self.layers.hyper, self.layers.weights
        scale = weights.take(f"{name}_gate_inp.scale", (hyper.width,)) * hyper.width**-0.5
        table = weights.take(f"{name}_gate_inp.weight", (hyper.experts, hyper.width))
        return linear(rms_norm(residual, eps=hyper.eps) * scale, table)

    def _gated(self, x: Tensor, name: str, kind: str, inner: int) -> Tensor:
        """Return the block of the gate, up and down weights of a kind, for example
        "blk.0.ffn_up_shexp".
        """
        layers, family = self.layers, self.layers.family
        norms = family.feed_forward_norms
        is_scaled = layers.scales_input(norms)
        gate_in = self._gate_in(name, kind, inner)
        if gate_in == "up":
            gate, up = split(layers.linear(x, f"{name}_up{kind}", 2 * inner, is_scaled), 2, -1)
            between = family.between(gate, up)
        elif gate_in:
            gate = self._cut(name, layers.linear(x, f"{name}_gate{kind}", inner, is_scaled))
            between = family.between(gate, layers.linear(x, f"{name}_up{kind}", inner, is_scaled))
        else:
            up = layers.linear(x, f"{name}_up{kind}", inner, is_scaled)
            between = self._activated(name, up)
        between = layers.norm(between, norms.inner and f"{name.removesuffix('ffn')}{norms.inner}")
        is_scaled = layers.scale_rows and not norms.inner
        return layers.linear(between, f"{name}_down{kind}", layers.hyper.width, is_scaled)

    def _gate_in(self, name: str, kind: str, inner: int) -> str:
        """Return the layer that computes the gate: "gate", "up" for merged weights, or ""."""
        family, weights = self.layers.family, self.layers.weights
        if not family.optional_gate:
            return "up" if "ffn_up" in family.joined else "gate" if family.gated else ""
        if f"{name}_gate{kind}.weight" in weights:
            return "gate"
        return "up" if weights.rows(f"{name}_up{kind}.weight") == 2 * inner else ""

    def _cut(self, name: str, gate: Tensor) -> Tensor:
        """Return the gates of a layer, without small ones in sparse layers."""
        altup = self.layers.hyper.altup
        cutoff = altup.cutoffs[_layer_of(name)] if altup else DENSE
        return gate if cutoff == DENSE else sparse(gate, cutoff)

    def _activated(self, name: str, x: Tensor) -> Tensor:
        """Return the activation of x, which may have parameters of its layer."""
        if not self.layers.hyper.xielu:
            return self.layers.family.activation(x)
        return xielu(x, self.layers.hyper.xielu[_layer_of(name)])

    def _experts(self, name: str, x: Tensor, scores: Tensor) -> Tensor:
        layers, hyper, family = self.layers, self.layers.hyper, self.layers.family
        count, inner, width = hyper.experts, hyper.expert_inner, hyper.expert_width or hyper.width
        shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
        if not family.gated:
            del shapes["gate"]
        elif f"{name}_gate_up_exps.weight" in layers.weights:
            shapes = {"gate_up": (2 * inner, width), "down": (width, inner)}
        *gate_up, down = (
            layers.weights.take(
                f"{name}_{which}_exps.weight",
                (count, *shape),
                [
                    f"{name}_{which}.{expert}.weight" for expert in range(count)
                ],  # older files have one tensor per expert
            )
            for which, shape in shapes.items()
        )
        shifts = [
            layers.weights.take(f"{name}_{which}_exps.bias", (count, shape[0]))
            for which, shape in shapes.items()
            if family.shifted_experts
        ]
        factors = f"{name}_down_exps.scale"
        experts = Experts(
            *(gate_up, down, self._router(name)),
            family.between if family.gated else family.activation,
            gated=family.gated_experts,
            shifts=shifts,
            scales=layers.weights.take(factors, (count,)) if factors in layers.weights else None,
            scale_rows=layers.scale_rows,
        )
        entering = layers.linear(x, f"{name}_latent_down", width) if hyper.expert_width else x
        with name_scope("experts"):
            mixed = experts.mix(entering, scores)
        if hyper.expert_width:
            mixed = layers.linear(mixed, f"{name}_latent_up", hyper.width)
        if hyper.expert_scale:
            mixed = mixed * hyper.expert_scale
        kind = family.shared_expert or ("added" if hyper.shared_inner else "")
        return mixed + self._shared_expert(name, x, kind) if kind else mixed

    def _router(self, name: str) -> Router:
        """Return the router of a layer's experts."""
        hyper, family = self.layers.hyper, self.layers.family
        if family.router:
            if hyper.experts_used != USED:
                raise ModelFormatError(
                    f"[gguf] key '{hyper.architecture}.expert_used_count': expected {USED}, which "
                    f"the routing of {hyper.architecture!r} chooses, got {hyper.experts_used}"
                )
            return family.router
        weights, bias = self.layers.weights, f"{name.removesuffix('ffn')}exp_probs_b.bias"
        routing = hyper.routing
        return Routing(
            hyper.experts_used,
            routing.gating,
            routing.norm and not family.gated_experts,
            weights.take(bias, (hyper.experts,)) if bias in weights else None,
            routing.groups,
            routing.groups_used,
        )

    def _shared_expert(self, name: str, x: Tensor, kind: str) -> Tensor:
        """Return the output of the shared expert."""
        layers, hyper = self.layers, self.layers.hyper
        y = self._gated(x, name, "_shexp", hyper.shared_inner or hyper.expert_inner)
        if kind == "added":
            return y
        opened = layers.weights.take(f"{name}_gate_inp_shexp.weight", (hyper.width,))
        return y * sigmoid(linear(x, reshape(opened, (1, hyper.width))))


def _layer_of(name: str) -> int:
    """Return the layer of a name, for example 3 of "blk.3.ffn"."""
    return int(name.split(".")[1])
