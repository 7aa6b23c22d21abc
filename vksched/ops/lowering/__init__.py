"""Lowering: from an op call to the kernels that compute it."""
