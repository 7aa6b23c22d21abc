"""Plans of one computer, made plans of several by giving their devices to hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from vksched.plan.plan import Plan
from vksched.topology.host_names import on

HOSTS = ("node1", "node2", "", "node3")
"""Whose devices come first is drawn by nobody: the caller's own ones stand among the others."""


def spread(plan: Plan, hosts: Sequence[str] = HOSTS) -> Plan:
    """Return the plan with its devices given to hosts in turn; the CPU stays the caller's."""
    devices = plan.topology.devices
    names = [on(hosts[i % len(hosts)], spec.name) for i, spec in enumerate(devices[:-1])]
    specs = [replace(spec, name=name) for spec, name in zip(devices, names, strict=False)]
    return replace(plan, topology=replace(plan.topology, devices=(*specs, devices[-1])))
