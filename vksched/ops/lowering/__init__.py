"""Lowering of op calls to kernels."""
