"""Limits: what a device allows one compute kernel, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .tuned_variants import Choices


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device allows one compute kernel; the defaults are the least that Vulkan 1.1
    guarantees.
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
    """Kernels may shuffle values among the lanes of a subgroup."""
    int64: bool = False
    """Kernels may have integers of 64 bits."""
    int16: bool = False
    int8: bool = False
    float16: bool = False
    """Kernels may compute in integers of 16 and 8 bits, and in float16."""
    storage16: bool = False
    storage8: bool = False
    """Kernels may read and write values of 16 and 8 bits in buffers."""
    bfloat16: bool = False
    """Kernels may have values of bfloat16."""
    integer_dot: bool = False
    integer_dot_fast: bool = False
    """Kernels may sum 4 products of 8 bits at once; the device says that it is one instruction."""
    matrices: tuple[str, ...] = ()
    """The cooperative matrix products of a subgroup, as "float16*float16+float32 16x16x16": the
    types of both factors and of the sum; rows, columns and depth.
    """
    subgroup_sizes: tuple[int, ...] = ()
    """The sizes of a subgroup that a kernel may require, with all of its lanes."""
    memory_budget: bool = False
    """The driver tells how much of its memory is free now."""
    host_import: bool = False
    """The host's memory can be used as the device's, without a copy."""
    copy_queue: bool = False
    """It has queues that only copy, beside those that compute."""
    software: bool = False
    """The device is a CPU driver: shared memory is plain memory and barriers are dear."""
    tuned: Choices = field(default_factory=Choices)
    """The variants of kernels that were measured to be the fastest there."""

    def without_features(self) -> Limits:
        """Return these limits without what a device may have beyond Vulkan 1.1."""
        return replace(self, **{name: getattr(Limits(), name) for name in FEATURES})


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
    "matrices",
    "subgroup_sizes",
    "memory_budget",
    "host_import",
    "copy_queue",
)
"""The limits that say what a device has beyond Vulkan 1.1."""
