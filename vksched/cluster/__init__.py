"""Several computers as one: nodes, which serve their devices to callers elsewhere."""
