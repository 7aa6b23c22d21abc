"""Whether a plan keeps its promises: memory, waits, barriers."""
