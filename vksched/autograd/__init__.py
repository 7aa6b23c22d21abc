"""Gradients as tensors of the same graph: the walk back, and recomputing on the way."""
