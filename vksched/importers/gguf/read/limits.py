"""What a GGUF file may ask for: numbers far above real models and far below what hurts a host."""

from __future__ import annotations

MAX_KEYS = 1 << 16
"""Of metadata."""
MAX_KEY_BYTES = (1 << 16) - 1
"""Of the name of one, as in the format's own words."""
MAX_STRINGS = 1 << 23
"""In all arrays of one file: a string takes Python several times its bytes in the file."""
MAX_NESTED = 1 << 16
"""Arrays within arrays, of one file."""
MAX_DEPTH = 8
"""Arrays inside each other."""
MAX_TENSORS = 1 << 18
"""Of all parts of a model."""
MAX_NAME_BYTES = 1 << 10
"""Of a tensor; llama.cpp takes 64."""
MAX_RANK = 8
"""Of a tensor; ggml has 4."""
MAX_ALIGNMENT = 1 << 20
MAX_PARTS = 256
"""Of a model: each holds a file descriptor, of which a process has some 1,000."""
