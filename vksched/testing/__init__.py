"""Op tests: sample inputs of every op, and their comparison on every device."""
