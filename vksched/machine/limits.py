"""Limits: what a device allows one compute kernel, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from .choices import Choices


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
    software: bool = False
    """The device is a CPU driver: shared memory is plain memory and barriers are dear."""
    tuned: Choices = field(default_factory=Choices)
    """The variants of kernels that were measured to be the fastest there."""
