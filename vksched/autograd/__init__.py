"""Automatic differentiation: reverse mode, and checkpoints that recompute values."""
