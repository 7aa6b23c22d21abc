"""Products: matmul, linear, einsum, attention, recurrent networks."""
