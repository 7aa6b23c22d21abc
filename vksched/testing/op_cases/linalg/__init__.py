"""Samples of matmul, attention and recurrent ops."""
