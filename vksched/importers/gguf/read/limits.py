"""Limits: bounds of the counts and sizes in a GGUF file, far above real models and far below the
host's limits.
"""

from __future__ import annotations

MAX_KEYS = 1 << 16
"""The maximum number of metadata keys."""
MAX_KEY_BYTES = (1 << 16) - 1
"""The maximum bytes of a key's name, from the format specification."""
MAX_STRINGS = 1 << 23
"""The maximum number of strings in all arrays of one file; in Python a string takes several times
its bytes in the file.
"""
MAX_NESTED = 1 << 16
"""The maximum number of nested arrays of one file."""
MAX_DEPTH = 8
"""The maximum depth of nested arrays."""
MAX_TENSORS = 1 << 18
"""The maximum number of tensors of all parts of a model."""
MAX_NAME_BYTES = 1 << 10
"""The maximum bytes of a tensor's name; llama.cpp allows 64."""
MAX_RANK = 8
"""The maximum rank of a tensor; ggml has 4."""
MAX_ALIGNMENT = 1 << 20
MAX_PARTS = 256
"""The maximum number of parts of a model; each holds a file descriptor, of which a process has
about 1,000.
"""
