"""FeedForward: the feed-forward block of a layer, dense or with experts.

dense:    x -> activation(gate) * up -> norm, in few families -> down
experts:  x -> router -> the chosen experts, weighted --+--> sum
          '---> shared expert, in some families --------'
"""

from __future__ import annotations

from dataclasses import dataclass

from ....common.errors import ModelFormatError
from ....ir.name_scope import name_scope
from ....ir.tensor import Tensor
from ....ops import linear, reshape, sigmoid, split
from .linear_layers import LinearLayers
from .moe import Experts
from .routing import Router, Routing
from .sparse_mixer import USED


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward blocks of one graph."""

    layers: LinearLayers

    def exists(self, layer: int) -> bool:
        """Return True if a layer has the block. Only families with mixers have layers without."""
        hyper, family = self.layers.hyper, self.layers.family
        has_experts = f"blk.{layer}.ffn_gate_inp.weight" in self.layers.weights
        return family.mixer is None or hyper.feed_forward[layer] > 0 or has_experts

    def block(self, layer: int, x: Tensor) -> Tensor:
        """Return the output of a layer's block for x (b, n, width)."""
        name, every = f"blk.{layer}.ffn", self.layers.hyper.moe_every
        has_experts = f"{name}_gate_inp.weight" in self.layers.weights
        if every and has_experts != (layer % every == 1):
            raise ModelFormatError(
                f"[gguf] key '{self.layers.hyper.architecture}.moe_every_n_layers': expected "
                f"experts in the second of {every} layers, got layer {layer} "
                f"{'with' if has_experts else 'without'} a tensor '{name}_gate_inp.weight'"
            )
        if has_experts:
            return self._experts(name, x)
        return self._gated(x, name, "", self.layers.hyper.feed_forward[layer])

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
            gate = layers.linear(x, f"{name}_gate{kind}", inner, is_scaled)
            between = family.between(gate, layers.linear(x, f"{name}_up{kind}", inner, is_scaled))
        else:
            between = family.activation(layers.linear(x, f"{name}_up{kind}", inner, is_scaled))
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

    def _experts(self, name: str, x: Tensor) -> Tensor:
        layers, hyper, family = self.layers, self.layers.hyper, self.layers.family
        count, inner, width = hyper.experts, hyper.expert_inner, hyper.width
        shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
        if not family.gated:
            del shapes["gate"]
        tables = {
            which: layers.weights.take(
                f"{name}_{which}_exps.weight",
                (count, *shape),
                [
                    f"{name}_{which}.{expert}.weight" for expert in range(count)
                ],  # older files have one tensor per expert
            )
            for which, shape in shapes.items()
        }
        shifts = [
            layers.weights.take(f"{name}_{which}_exps.bias", (count, shape[0]))
            for which, shape in shapes.items()
            if family.shifted_experts
        ]
        experts = Experts(
            tables.get("gate"),
            tables["up"],
            tables["down"],
            self._router(name),
            family.between if family.gated else family.activation,
            gated=family.gated_experts,
            shifts=shifts,
            scale_rows=layers.scale_rows,
        )
        scores = layers.linear(x, f"{name}_gate_inp", count)
        with name_scope("experts"):
            mixed = experts.mix(x, scores)
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
