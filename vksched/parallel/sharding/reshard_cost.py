"""Reshard cost: the seconds to bring a value into a layout, by the links of the machine.

Only transfers count, because the other costs of a conversion are small. Weights, constants, and
shards of states without a layout are available everywhere. Examples: tests/parallel/test_shard.py.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.sharding_rule import ANY, Sharded, factors_of
from ...topology.topology import Topology
from .sharded_values import SMALL, ShardedValues
from .sharding_strategy import Devices, ShardedAxis, ShardingStrategy, units_of


class ReshardCosts:
    """The costs of layouts of values in the new graph so far."""

    def __init__(self, values: ShardedValues, topology: Topology) -> None:
        self._values = values
        self._topology = topology

    def transfer(self, source: str | None, target: str, size_bytes: float) -> float:
        """Return the seconds of a copy between devices. source: None if it is not known yet."""
        if source == target or not size_bytes:
            return 0.0
        cpu = self._topology.cpu
        start = cpu if source is None else self._topology.index(source)
        return self._topology.route(start, self._topology.index(target)).seconds(size_bytes)

    def whole(self, value: int, device: str, group: Devices) -> float:
        """Return the cost of all of a value on a device. group: the devices that all need it."""
        values, held = self._values, self._values.held[value]
        node = values.graph.nodes[value]
        size_bytes = node.type.device_bytes
        if device in held.whole or node.op in ("weight", "constant"):
            return 0.0
        if value in values.lazy and node.type.size < SMALL:
            return 0.0
        if value in values.lazy and not node.declaration.leaf and node.op != "state":
            return sum(self.whole(i, device, group) for i in node.inputs)
        if held.whole and not values.gathers(value, device):
            homes = [self.home(i, key) for key, i in held.whole.items()]
            return min(self.transfer(home, device, size_bytes) for home in homes)
        if values.is_free(value):
            return self.transfer(None, device, size_bytes * (1 - 1 / len(group)))
        if held.shardings:
            shardings = held.shardings
            devices, shard = next(
                (key for key in shardings if device in key[0]), next(iter(shardings))
            )
            return self._ranges(devices, shard.sizes, device, size_bytes)
        if held.terms:
            devices = held.terms[0]
            each = size_bytes * (len(devices) - 1) / len(devices)
            return 2 * max(self.transfer(there, device, each) for there in devices)
        return self.transfer(None, device, size_bytes)  # an input, or a replicated state

    def shard(self, value: int, devices: Devices, shard: ShardedAxis) -> float:
        """Return the cost of the shards of a value, each on its device."""
        values, held = self._values, self._values.held[value]
        node = values.graph.nodes[value]
        if (devices, shard) in held.shardings or node.op in ("weight", "constant"):
            return 0.0
        if values.is_free(value):
            return 0.0
        size_bytes, total = node.type.device_bytes, max(1, sum(shard.sizes))
        parts = [size_bytes * size / total for size in shard.sizes]
        if value in values.lazy and not node.declaration.leaf and node.op != "state":
            return self._lazy_shard(value, devices, shard)
        if all(device in held.whole for device in devices):
            return 0.0
        if held.shardings or held.terms:
            source = next(iter(held.shardings))[0] if held.shardings else held.terms[0]  # type: ignore[index]
            away = (len(source) - 1) / len(source)
            return max(
                self.transfer(source[0] if source[0] != device else source[-1], device, part * away)
                for device, part in zip(devices, parts, strict=True)
            )
        homes = [self.home(i, key) for key, i in held.whole.items()] or [None]
        return max(
            min(self.transfer(home, device, part) for home in homes)
            for device, part in zip(devices, parts, strict=True)
        )

    def strategy(self, node_id: int, strategy: ShardingStrategy) -> float:
        """Return the cost of the operands of a sharded node, and of its reduction."""
        values = self._values
        node = values.graph.nodes[node_id]
        call = values.call(node)
        total = 0.0
        for position, operand in enumerate(node.inputs):
            shard = strategy.operand(call, position)
            if shard is not None:
                total += self.shard(operand, strategy.devices, shard)
            elif strategy.factor.operands[position] is not ANY:
                total += self._other(operand, position, strategy)
        if strategy.result(call) is None and strategy.units:
            each = node.type.device_bytes * (len(strategy.devices) - 1) / len(strategy.devices)
            total += self.transfer(strategy.devices[0], strategy.devices[-1], each)
        return total

    def home(self, new: int, device: str | None) -> str | None:
        """Return the device of a node of the new graph."""
        return self._values.builder.pinned_device(new) or device

    def _other(self, value: int, position: int, strategy: ShardingStrategy) -> float:
        terms = self._values.held[value].terms
        if (
            terms is not None
            and terms[0] == strategy.devices
            and strategy.accepts_partial_sum(position)
        ):
            return 0.0
        return max(self.whole(value, device, strategy.devices) for device in strategy.devices)

    def _lazy_shard(self, value: int, devices: Devices, shard: ShardedAxis) -> float:
        node = self._values.graph.nodes[value]
        if node.type.size < SMALL:
            return 0.0
        call: Sharded = self._values.call(node)
        for factor in factors_of(node.op, call):
            if factor.result == shard.axis:
                units = units_of(shard, factor, node.type.shape[shard.axis])
                if units is not None:
                    return self.strategy(value, ShardingStrategy(factor, devices, units))
        return max(self.whole(value, device, devices) for device in devices)

    def _ranges(
        self, devices: Devices, sizes: Iterable[int], device: str, size_bytes: float
    ) -> float:
        sizes = tuple(sizes)
        total = max(1, sum(sizes))
        return sum(
            self.transfer(there, device, size_bytes * size / total)
            for there, size in zip(devices, sizes, strict=True)
        )
