"""Sample inputs of every op, by family."""
