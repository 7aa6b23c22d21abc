"""Limits: the limits and features of a device for compute kernels, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from .tuned_variants import TunedVariants


class WeaklyReferenced:
    """Base class of slotted dataclasses whose objects are keys of weak maps."""

    __slots__ = ("__weakref__",)  # Python 3.10 has no weakref_slot


@dataclass(frozen=True, slots=True)
class Limits(WeaklyReferenced):
    """Limits and features of a device for one compute kernel. The defaults are the minima that
    Vulkan 1.1 guarantees.
    """

    max_invocations: int = 128
    max_local_size: tuple[int, int, int] = (128, 128, 64)
    max_groups: tuple[int, int, int] = (65535, 65535, 65535)
    shared_bytes: int = 16384
    push_bytes: int = 128
    storage_buffers: int = 4
    max_buffer_bytes: int = 1 << 27
    subgroup_size: int = 1
    subgroup_shuffle: bool = False
    """Kernels may use subgroup shuffles."""
    subgroup_arithmetic: bool = False
    """Kernels may use sums and maxima of a subgroup."""
    int64: bool = False
    """Kernels may use 64-bit integers."""
    int16: bool = False
    int8: bool = False
    float16: bool = False
    """Kernels may compute with float16 and with 8 and 16-bit integers."""
    storage16: bool = False
    storage8: bool = False
    """Kernels may access 8 and 16-bit values in buffers."""
    bfloat16: bool = False
    """Kernels may use bfloat16."""
    integer_dot: bool = False
    integer_dot_fast: bool = False
    """Kernels may use 8-bit dot products of 4 elements, which the driver reports as accelerated."""
    memory_model: bool = False
    """Workgroups of one dispatch may release and acquire memory (the Vulkan memory model at device
    scope).
    """
    memory_model_checked: bool = False
    """Calls without a measurement may do this: results on this device were checked."""
    registers: int = 255
    """Registers of 32 bits that an invocation has in the smallest subgroup. With more values its
    compiler spills.
    """
    mixed_dot: bool = False
    """Kernels may use dot products of two float16 elements with a float32 sum."""
    matrices: tuple[str, ...] = ()
    """Supported cooperative matrix shapes of a subgroup, as "float16*float16+float32 16x16x16": the
    types of both operands and of the accumulator; rows, columns and depth.
    """
    coopmat_checked: bool = False
    """Calls without a measurement may use cooperative matrices: the driver is listed in
    coopmat_drivers.py, and its results on this device were checked.
    """
    fp16_sums_faster: bool = False
    """Cooperative matrices add in float16 twice as fast as in float32 (NVIDIA GeForce)."""
    coopmat_attention_slow: bool = False
    """Attention by cooperative matrices is slower than by other kernels (NVIDIA's Turing)."""
    subgroup_sizes: tuple[int, ...] = ()
    """Subgroup sizes that a kernel may require, with full subgroups."""
    memory_budget: bool = False
    """The driver reports its free memory (VK_EXT_memory_budget)."""
    host_import: bool = False
    """Host memory can be imported without a copy (VK_EXT_external_memory_host)."""
    copy_queue: bool = False
    """The device has a transfer queue apart from its compute queues."""
    cores: int = 0
    """Streaming multiprocessors (NVIDIA), compute units (AMD) or Xe cores (Intel), each of which
    executes whole workgroups; 0: unknown.
    """
    software: bool = False
    """The device is a CPU driver: shared memory is plain memory and barriers are expensive."""
    tuned: TunedVariants = field(default_factory=TunedVariants)
    """The kernel variants that were measured as the fastest on this device."""

    @property
    def few_registers(self) -> bool:
        """Return True if kernels with many values of an invocation spill: on Intel's GPUs."""
        return self.registers < _MANY_REGISTERS

    def without_features(self) -> Limits:
        """Return these limits without the features beyond Vulkan 1.1."""
        return replace(self, **{name: getattr(Limits(), name) for name in (*FEATURES, *_CHECKED)})

    def kernel_text(self) -> str:
        """Return all that kernels are chosen by except tuned variants, as text: the fields that
        differ from the defaults.
        """
        least = Limits()
        values = ((f.name, getattr(self, f.name)) for f in fields(Limits) if f.name not in _OTHERS)
        return " ".join(f"{name}={v}" for name, v in values if v != getattr(least, name))


_MANY_REGISTERS = 200
"""Registers of an invocation with which no kernel spills."""
FEATURES = (
    "int64",
    "int16",
    "int8",
    "float16",
    "storage16",
    "storage8",
    "bfloat16",
    "integer_dot",
    "integer_dot_fast",
    "memory_model",
    "mixed_dot",
    "matrices",
    "subgroup_sizes",
    "memory_budget",
    "host_import",
    "copy_queue",
)
"""The names of the features beyond Vulkan 1.1."""
_CHECKED = ("coopmat_checked", "memory_model_checked")
_OTHERS = ("memory_budget", "host_import", "copy_queue", "tuned")
"""Fields that no kernel depends on, and the variants that are measured."""
