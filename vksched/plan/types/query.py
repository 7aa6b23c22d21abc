"""Queries on a plan, computed from the plan alone.

    plan.device_of("layer.0.query")   plan.transfers, .transfer_bytes, .fences, .barriers
    plan.buffers()["vulkan:0"].peak_bytes

Complexity: O(nodes) each. Examples: tests/plan/test_explain.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from .plan_types import HOST, PlanValue, Upload

FULL, ON_HOST = " is full: ", "stay in host memory"
"""Parts of the notes about full devices."""


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Bytes of a plan on one device, for all `copies` slots together.

    weight_bytes: weights and constants, which plans share; on the CPU they are the caller's arrays.
    state_bytes: states, which plans share too. activation_bytes: results and scratch memory; on the
    CPU also the staging buffers that devices have in host memory. upload_bytes, download_bytes: the
    staging buffers of values that enter and leave. peak_bytes: the part of all these in the
    device's memory. resident_bytes: the part that was resident before planning. capacity_bytes: the
    memory that the plan may use.
    """

    weight_bytes: int
    state_bytes: int
    activation_bytes: int
    upload_bytes: int
    download_bytes: int
    peak_bytes: int
    resident_bytes: int
    capacity_bytes: int

    @property
    def total_bytes(self) -> int:
        """The bytes of all buffers in any memory, including the caller's arrays and staging
        buffers.
        """
        slots = self.activation_bytes + self.upload_bytes + self.download_bytes
        return self.weight_bytes + self.state_bytes + slots


def transfers(plan: PlanValue) -> tuple[Upload, ...]:
    """Return the copies from one device to another."""
    return tuple(c for s in plan.splits for c in s.uploads if c.source != HOST)


def copied_bytes(plan: PlanValue, copies: tuple[Upload, ...]) -> int:
    """Return the bytes of some copies."""
    return sum(plan.graph.nodes[c.node].type.device_bytes for c in copies)


def fences(plan: PlanValue) -> int:
    """Return the number of waits for devices in a run, the end included. The CPU needs no fence."""
    waits = [w for s in plan.splits for w in s.waits] + list(plan.final_waits)
    return sum(plan.topology.devices[plan.splits[w].device].kind != "cpu" for w in waits)


def buffers(plan: PlanValue) -> dict[str, BufferSizes]:
    """Return the sizes of the buffers on each device by name, replicas included."""
    out = _own_buffers(plan)
    for name, sizes in (pair for own in plan.replicas for pair in _own_buffers(own).items()):
        both = {f.name: getattr(out[name], f.name) + getattr(sizes, f.name) for f in fields(sizes)}
        out[name] = replace(BufferSizes(**both), capacity_bytes=sizes.capacity_bytes)
    return out


def _own_buffers(plan: PlanValue) -> dict[str, BufferSizes]:
    out: dict[str, BufferSizes] = {}
    for device, (spec, memory) in enumerate(zip(plan.topology.devices, plan.memory, strict=True)):
        slots = 4 * plan.copies
        on_host = spec.kind == "cpu"
        activations = slots * sum(memory.activation_pages)
        if on_host:
            activations = memory.peak_bytes - memory.state_bytes
            activations -= memory.weight_bytes if device != plan.topology.cpu else 0
        out[spec.name] = BufferSizes(
            weight_bytes=memory.weight_bytes,
            state_bytes=memory.state_bytes,
            activation_bytes=activations,
            upload_bytes=slots * sum(memory.upload_pages),
            download_bytes=slots * sum(memory.download_pages),
            peak_bytes=memory.peak_bytes,
            resident_bytes=memory.resident_bytes,
            capacity_bytes=spec.memory_bytes,
        )
    return out


def without_work(plans: Sequence[PlanValue]) -> tuple[list[str], list[str]]:
    """Return the idle GPUs after the last working one in the order of priority, and the working
    GPUs, which have room for all GPU work. Both lists are empty if a GPU is full.
    """
    if any(FULL in note for plan in plans for note in plan.notes):
        return [], []
    busy = {plan.topology.devices[device].name for plan in plans for device in plan.working}
    gpus = [d for d in plans[0].topology.devices if d.kind != "cpu"] if plans else []
    names = [d.name for d in gpus if not d.disabled_reason]
    working = [name for name in names if name in busy]
    last = names.index(working[-1]) + 1 if working else len(names)
    return names[last:], working


def split_of(plan: PlanValue) -> dict[int, int]:
    """Return, for each node that runs, its split."""
    return {n: s.id for s in plan.splits for n in s.nodes}
